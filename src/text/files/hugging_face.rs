//! Reader and writer of Hugging Face's model folders.

use super::names::{FileParameter, Source, gather, hugging_face, shape_in_files};
use super::tokenizer::{self, special};
use super::{check_fetched, failed, pretty, read_file, unusable, wrong_type};
use crate::disk::{self, input};
use crate::model::{DecoderShape, Parameter};
use crate::nn::DecoderParams;
use crate::nn::arch::{ConfigError, from_config, to_config};
use crate::nn::ops::stored::{NumberFormat, StoredMatrix};
use crate::text::error::LanguageError;
use crate::text::language_model::LanguageModel;
use crate::text::prompt_cache::PromptCache;
use crate::text::template::ChatTemplate;
use crate::text::tokenizer::Tokenizer;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The files of a model besides the weights, by name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";
const TEMPLATE: &str = "chat_template.jinja";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The file of weights that older models have instead.
const PICKLED: &str = "pytorch_model.bin";

/// Files of a folder besides the weights, which are kept and written again.
const KEPT: [&str; 9] = [
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TEMPLATE,
    SPECIAL_TOKENS,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// Reads a folder.
pub(super) fn read(folder: &Path) -> Result<LanguageModel, LanguageError> {
    let mut files = Files::new();
    for name in KEPT {
        let path = folder.join(name);
        if path.exists() {
            files.insert(name.to_string(), read_file(&path)?);
        }
    }
    check_files(folder, &files)?;
    let path = folder.join(CONFIG);
    let mut config = parse(&files, CONFIG, folder)?;
    let mut shape = shape(&config, &path)?;
    let weights = Weights::open(folder)?;
    // Without a head of their own the weights use the embedding table as one. The configuration says so when it is written
    // again: other libraries would initialize a random head.
    if !shape.tie_word_embeddings && !weights.has("lm_head.weight") {
        shape.tie_word_embeddings = true;
        config["tie_word_embeddings"] = true.into();
        files.insert(CONFIG.to_string(), pretty(&config));
    }
    let find = |parameter: &Parameter| weights.find(parameter, &hugging_face(parameter));
    let params = gather(&shape.parameters(), folder, find)?;
    finish(folder, shape, params, files)
}

/// The first special token that a template puts after an answer; without one, the first added token that is not blank.
fn turn_end(template: &ChatTemplate, tokenizer: &dyn Tokenizer) -> Option<u32> {
    let mut tokens = tokenizer.encode(&template.behind_an_answer()?).ok()?;
    tokens.retain(|token| tokenizer.is_added(*token));
    let text = |token: &u32| tokenizer.decode(&[*token]);
    let special = tokens.iter().find(|token| text(token).is_empty());
    special.or_else(|| tokens.iter().find(|token| !text(token).trim().is_empty())).copied()
}

/// The name of a special token, by the first file that has one; empty without any.
pub(super) fn special_token(
    files: &Files,
    key: &str,
    folder: &Path,
) -> Result<String, LanguageError> {
    for name in [TOKENIZER_CONFIG, SPECIAL_TOKENS] {
        let tokens = parse(files, name, folder)?;
        let token = special(&tokens, key).map_err(|reason| unusable(&folder.join(name), reason))?;
        if !token.is_empty() {
            return Ok(token.to_string());
        }
    }
    Ok(String::new())
}

/// Assembles a model from its parameters and its files.
pub(super) fn finish(
    path: &Path,
    shape: DecoderShape,
    params: DecoderParams,
    files: Files,
) -> Result<LanguageModel, LanguageError> {
    let place = path.join(TOKENIZER);
    let tokenizer = tokenizer::read(&files[TOKENIZER], shape.num_actions, &place)?;
    let about = parse(&files, TOKENIZER_CONFIG, path)?;
    let config = path.join(TOKENIZER_CONFIG);
    let wrong = |reason: String| unusable(&config, reason);
    let [bos, eos] = ["bos_token", "eos_token"].map(|key| special_token(&files, key, path));
    let (bos, eos) = (bos?, eos?);
    let mut stop_tokens = stop_tokens(&*tokenizer, &eos, &files, (path, shape.num_actions))?;
    let source = template_source(&files, &about).map_err(wrong)?;
    let mut template = source.map(|source| ChatTemplate { source, bos, eos, turn_end: None });
    if let Some(template) = &mut template {
        template.turn_end = turn_end(template, &*tokenizer);
        stop_tokens.extend(template.turn_end.filter(|end| !stop_tokens.contains(end)));
    }
    // Absolute, so that adapters find their model from any folder.
    let base = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let (adapters, prompts) = (None, PromptCache::default());
    Ok(LanguageModel {
        shape,
        params,
        adapters,
        tokenizer,
        template,
        stop_tokens,
        files,
        base,
        prompts,
    })
}

/// Tokens that end a text, the tokenizer's `eos_token` first: that of a chat model ends a turn.
fn stop_tokens(
    tokenizer: &dyn Tokenizer,
    eos: &str,
    files: &Files,
    (folder, vocabulary): (&Path, usize),
) -> Result<Vec<u32>, LanguageError> {
    let mut tokens: Vec<u32> = tokenizer.token(eos).into_iter().collect();
    for name in [GENERATION, CONFIG] {
        let ends = end_tokens(&parse(files, name, folder)?);
        for id in ends.map_err(|reason| unusable(&folder.join(name), reason))? {
            // A token that the weights lack ends nothing, and has no logit to learn.
            if (id as usize) < vocabulary && !tokens.contains(&id) {
                tokens.push(id);
            }
        }
    }
    Ok(tokens)
}

/// Tokens that end a text according to a file: a number or a list.
///
/// # Errors
/// A clause, if they are something else.
fn end_tokens(about: &Value) -> Result<Vec<u32>, String> {
    let key = "eos_token_id";
    let ids: &[Value] = match &about[key] {
        Value::Null => &[],
        Value::Array(ids) => ids,
        id => std::slice::from_ref(id),
    };
    if !ids.iter().all(Value::is_number) {
        return Err(wrong_type(key, &about[key], "a number or a list of numbers"));
    }
    Ok(ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect())
}

/// The chat template of a folder: a file of its own, or part of `tokenizer_config.json`.
///
/// # Errors
/// A clause, if it is not a text.
fn template_source(files: &Files, about: &Value) -> Result<Option<String>, String> {
    if let Some(bytes) = files.get(TEMPLATE) {
        return Ok(Some(String::from_utf8_lossy(bytes).into_owned()));
    }
    let key = "chat_template";
    let template = match &about[key] {
        // Several, by name.
        Value::Array(all) => {
            all.iter().find(|one| one["name"] == "default").map(|one| &one["template"])
        }
        Value::Null => None,
        template => Some(template),
    };
    let text = |template: &Value| {
        let text = template.as_str().map(str::to_string);
        text.ok_or_else(|| wrong_type(key, template, "a text, or a list of texts with a `name`"))
    };
    template.map(text).transpose()
}

/// Parses a file as JSON; null if there is none.
fn parse(files: &Files, name: &str, folder: &Path) -> Result<Value, LanguageError> {
    match files.get(name) {
        Some(bytes) => serde_json::from_slice(bytes).map_err(|e| unusable(&folder.join(name), e)),
        None => Ok(Value::Null),
    }
}

/// Reads the shape from a `config.json`.
fn shape(config: &Value, path: &Path) -> Result<DecoderShape, LanguageError> {
    from_config(config).map_err(|error| match error {
        ConfigError::Family { found } => LanguageError::Architecture { path: path.into(), found },
        error => unusable(path, error),
    })
}

/// The files of weights in a folder.
pub(super) struct Weights {
    files: Vec<(PathBuf, Mmap)>,
    /// File and byte range of each tensor.
    places: HashMap<String, Place>,
}

/// A tensor in one of several files.
struct Place {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// The bytes of a tensor with their type.
pub(super) struct Tensor<'a> {
    dtype: Dtype,
    bytes: &'a [u8],
}

impl Weights {
    fn open(folder: &Path) -> Result<Self, LanguageError> {
        let index = folder.join(INDEX);
        let names = match index.is_file() {
            true => indexed(&read_file(&index)?).map_err(|reason| unusable(&index, reason))?,
            false => vec![WEIGHTS.to_string()],
        };
        Self::open_files(folder, names)
    }

    /// Opens files of weights by their names.
    pub fn open_files(folder: &Path, names: Vec<String>) -> Result<Self, LanguageError> {
        let (mut files, mut places) = (Vec::new(), HashMap::new());
        for (file, name) in names.into_iter().enumerate() {
            let path = folder.join(name);
            if !path.is_file() && folder.join(PICKLED).is_file() {
                let reason = format!(
                    "its weights are in {PICKLED}, which can run code when it is read; convert them with \
                     `safetensors.torch.save_file`"
                );
                return Err(unusable(folder, reason));
            }
            let opened = input::open(&path).map_err(failed("read", &path))?;
            // SAFETY: any bytes are valid numbers. If another process modifies the file while it is mapped, values change,
            // or the program is stopped by SIGBUS, but memory safety is not affected.
            let map = unsafe { Mmap::map(&opened) }.map_err(failed("read", &path))?;
            check_fetched(&map, &path)?;
            // Ranges and shapes are checked against the length of the file there.
            let (head, about) = SafeTensors::read_metadata(&map).map_err(|e| unusable(&path, e))?;
            for (name, tensor) in about.tensors() {
                let (start, end) = tensor.data_offsets;
                let bytes = 8 + head + start..8 + head + end;
                let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
                places.insert(plain_name(&name), Place { file, dtype, shape, bytes });
            }
            files.push((path, map));
        }
        Ok(Self { files, places })
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.places.keys()
    }

    fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Finds a parameter, which is called `name` in the files, and checks its shape and type.
    pub fn find(&self, parameter: &Parameter, name: &str) -> Result<Tensor<'_>, LanguageError> {
        let place = self
            .places
            .get(name)
            .ok_or_else(|| unusable(&self.files[0].0, format!("the tensor `{name}` is missing")))?;
        let (path, map) = &self.files[place.file];
        let (found, wanted) = (&place.shape, shape_in_files(parameter));
        if *found != wanted {
            return Err(unusable(
                path,
                format!("`{name}` has the shape {found:?}, but must have {wanted:?}"),
            ));
        }
        match place.dtype {
            dtype @ (Dtype::F32 | Dtype::F16 | Dtype::BF16) => {
                Ok(Tensor { dtype, bytes: &map[place.bytes.clone()] })
            }
            other => Err(unusable(path, format!("`{name}` holds {other:?}, not F32, F16 or BF16"))),
        }
    }
}

/// The names of the files that an index of weights lists.
///
/// # Errors
/// A clause, if the index is malformed, or names a file of another folder.
fn indexed(index: &[u8]) -> Result<Vec<String>, String> {
    let json: Value = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let map = json["weight_map"].as_object().ok_or("there is no `weight_map`")?;
    let mut names: Vec<String> =
        map.values().filter_map(|name| Some(name.as_str()?.to_string())).collect();
    names.sort_unstable();
    names.dedup();
    let is_elsewhere = |name: &&String| Path::new(name).file_name() != Some(name.as_ref());
    match names.iter().find(is_elsewhere) {
        _ if names.is_empty() => Err("its `weight_map` names no file".to_string()),
        Some(name) => Err(format!("{name:?} is not the name of a file beside it")),
        None => Ok(names),
    }
}

/// The name of a tensor without the prefixes that `torch.compile` and wrappers for several devices leave, and with the
/// `model.` that some files lack.
fn plain_name(name: &str) -> String {
    let mut plain = name;
    while let Some(rest) = ["_orig_mod.", "module."].iter().find_map(|p| plain.strip_prefix(p)) {
        plain = rest;
    }
    let plain = plain.replace("._orig_mod.", ".");
    let is_bare = ["layers.", "embed_tokens.", "norm."].iter().any(|p| plain.starts_with(p));
    if is_bare { format!("model.{plain}") } else { plain }
}

impl Source for Tensor<'_> {
    fn read(&self) -> Vec<f32> {
        let halves = || self.bytes.as_chunks::<2>().0.iter();
        match self.dtype {
            Dtype::F16 => halves().map(|half| f16::from_le_bytes(*half).to_f32()).collect(),
            Dtype::BF16 => halves().map(|half| bf16::from_le_bytes(*half).to_f32()).collect(),
            _ => {
                let words = self.bytes.as_chunks::<4>().0.iter();
                words.map(|word| f32::from_le_bytes(*word)).collect()
            }
        }
    }

    fn stored(&self, sizes @ [inner, _]: [usize; 2]) -> Option<StoredMatrix> {
        let format = match self.dtype {
            Dtype::F16 => NumberFormat::F16,
            Dtype::BF16 => NumberFormat::Bf16,
            _ => return None,
        };
        Some(StoredMatrix::halves(format, sizes, |row| &self.bytes[2 * row * inner..][..2 * inner]))
    }
}

/// Assembles a model from the files of a folder besides the weights; `params` reads the weights.
pub(super) fn describe<E: From<LanguageError>>(
    folder: &Path,
    files: Files,
    params: impl FnOnce(&DecoderShape) -> Result<DecoderParams, E>,
) -> Result<LanguageModel, E> {
    check_files(folder, &files)?;
    let shape = shape(&parse(&files, CONFIG, folder)?, &folder.join(CONFIG))?;
    let params = params(&shape)?;
    Ok(finish(folder, shape, params, files)?)
}

/// Checks that a folder has the files that every model needs.
fn check_files(folder: &Path, files: &Files) -> Result<(), LanguageError> {
    match [CONFIG, TOKENIZER].into_iter().find(|name| !files.contains_key(*name)) {
        Some(name) => Err(unusable(folder, format!("there is no {name}"))),
        None => Ok(()),
    }
}

/// Writes a folder that holds the model.
pub(super) fn write(model: &LanguageModel, folder: &Path) -> Result<(), LanguageError> {
    write_files(&metadata(model), folder)?;
    let (path, parameters) = (folder.join(WEIGHTS), model.shape.parameters());
    write_weights(&path, &parameters, model.params.values(), hugging_face)
}

/// The files of a folder besides the weights.
pub(super) fn metadata(model: &LanguageModel) -> Files {
    let mut files = model.files.clone();
    // A fresh model has no configuration yet.
    files
        .entry(CONFIG.to_string())
        .or_insert_with(|| pretty(&to_config(&model.shape, &model.stop_tokens)));
    files
}

/// Writes files into a folder.
pub(super) fn write_files(files: &Files, folder: &Path) -> Result<(), LanguageError> {
    std::fs::create_dir_all(folder).map_err(failed("written", folder))?;
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(failed("written", &path))?;
    }
    Ok(())
}

/// Writes parameters by their names in files.
pub(super) fn write_weights(
    path: &Path,
    parameters: &[Parameter],
    params: &[f32],
    name: impl Fn(&Parameter) -> String,
) -> Result<(), LanguageError> {
    let mut tensors = FileParameter::all(parameters, params, name);
    tensors.sort_by(|one, other| one.name.cmp(&other.name));
    let mut end = 0;
    let place = |one: &FileParameter| {
        let start = end;
        end += size_of_val(one.in_memory);
        let (dtype, data_offsets) = (Dtype::F32, (start, end));
        (one.name.clone(), TensorInfo { dtype, shape: one.shape.clone(), data_offsets })
    };
    let about = [("format".to_string(), "pt".to_string())].into();
    let places = tensors.iter().map(place).collect();
    let head = Metadata::new(Some(about), places).map_err(|error| unusable(path, error))?;
    let mut head = serde_json::to_vec(&head).expect("names and numbers are JSON");
    head.resize(head.len().next_multiple_of(8), b' ');
    let write = |file: &mut File| {
        let mut to = BufWriter::new(file);
        to.write_all(&(head.len() as u64).to_le_bytes())?;
        to.write_all(&head)?;
        for tensor in &tensors {
            let bytes: Vec<u8> = tensor.numbers().iter().flat_map(|x| x.to_le_bytes()).collect();
            to.write_all(&bytes)?;
        }
        to.flush()
    };
    disk::output(path, write).map_err(failed("written", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_wrappers_do_not_count() {
        for name in [
            "model.layers.0.mlp.up_proj.weight",
            "_orig_mod.model.layers.0.mlp.up_proj.weight",
            "module._orig_mod.model.layers.0.mlp.up_proj.weight",
            "model.layers.0._orig_mod.mlp.up_proj.weight",
            "layers.0.mlp.up_proj.weight",
        ] {
            assert_eq!(plain_name(name), "model.layers.0.mlp.up_proj.weight");
        }
        assert_eq!(plain_name("module.lm_head.weight"), "lm_head.weight");
    }
}
