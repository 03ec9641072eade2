//! Reader and writer of Hugging Face's model folders.

use super::parameters::{hugging_face_name, read_parameters};
use super::tokenizer::{self, special_token_name, token_text};
use super::weights::{WEIGHTS, WeightFiles, write_weights};
use super::{file_error, read_file, to_pretty_json, unusable, unusable_error, wrong_type_reason};
use crate::model::{DecoderShape, Parameter};
use crate::nn::DecoderParams;
use crate::nn::arch::ConfigError;
use crate::text::error::LanguageError;
use crate::text::language_model::LanguageModel;
use crate::text::template::ChatTemplate;
use crate::text::tokenization_cache::TokenizationCache;
use crate::text::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Files of a model other than the weights, by name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

const CONFIG: &str = "config.json";
pub(super) const GENERATION_CONFIG: &str = "generation_config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const ADDED_TOKENS: &str = "added_tokens.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const TOOL_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";
/// Names of the embedding table and of the head among the weights.
const EMBEDDINGS: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Files of a folder other than the weights that are kept and written again.
pub(super) const KEPT_FILES: [&str; 9] = [
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    ADDED_TOKENS,
    "vocab.json",
    "merges.txt",
];

/// Reads the files of a folder that are kept.
fn read_kept_files(folder: &Path) -> Result<Files, LanguageError> {
    let mut files = Files::new();
    for name in KEPT_FILES {
        let path = folder.join(name);
        if path.exists() {
            files.insert(name.to_string(), read_file(&path)?);
        }
    }
    let path = folder.join(TOOL_TEMPLATE);
    if path.exists() {
        move_templates_to_config(&mut files, folder, &read_file(&path)?)?;
    }
    Ok(files)
}

/// Moves the chat template and that for tools, `tool_template`, to the list that `tokenizer_config.json` may have: a
/// checkpoint has no folders.
fn move_templates_to_config(
    files: &mut Files,
    folder: &Path,
    tool_template: &[u8],
) -> Result<(), LanguageError> {
    let mut config = parse_file(files, TOKENIZER_CONFIG, folder)?;
    if !config.is_object() {
        config = json!({});
    }
    let template =
        find_template(files, &config).map_err(unusable(&folder.join(TOKENIZER_CONFIG)))?;
    let tool_template = String::from_utf8_lossy(tool_template);
    config["chat_template"] = json!([
        { "name": "default", "template": template.unwrap_or_default().source },
        { "name": "tool_use", "template": tool_template },
    ]);
    files.remove(CHAT_TEMPLATE);
    files.insert(TOKENIZER_CONFIG.to_string(), to_pretty_json(&config));
    Ok(())
}

/// Replaces the tokenizer, the chat template and the `generation_config.json` of a model by those in the folder of its
/// adapters, if it has any: the model was trained with them.
///
/// # Errors
/// If they cannot be read, or do not fit the model.
pub(super) fn with_files_of_adapters(
    model: LanguageModel,
    folder: &Path,
) -> Result<LanguageModel, LanguageError> {
    let mut files = read_kept_files(folder)?;
    files.remove(CONFIG);
    // As in `transformers`, a tokenizer is read from one folder.
    let [has_tokenizer, has_config] =
        [TOKENIZER, TOKENIZER_CONFIG].map(|name| files.contains_key(name));
    let is_replaced = |name: &str| match name {
        CONFIG | GENERATION_CONFIG => false,
        CHAT_TEMPLATE | SPECIAL_TOKENS | ADDED_TOKENS => has_tokenizer || has_config,
        _ => has_tokenizer,
    };
    let mut new_files = model.files.clone();
    new_files.retain(|name, _| !is_replaced(name));
    new_files.append(&mut files);
    if new_files == model.files {
        return Ok(model);
    }
    check_vocabulary(folder, &new_files)?;
    let LanguageModel { shape, params, base, .. } = model;
    Ok(LanguageModel { base, ..assemble(folder, shape, params, new_files)? })
}

/// Reads a folder.
pub(super) fn read(folder: &Path) -> Result<LanguageModel, LanguageError> {
    let mut files = read_kept_files(folder)?;
    check_files(folder, &files)?;
    check_vocabulary(folder, &files)?;
    let path = folder.join(CONFIG);
    let mut config = parse_file(&files, CONFIG, folder)?;
    let mut shape = parse_shape(&config, &path)?;
    if !config["quantization_config"].is_null() {
        let reason = "its `quantization_config` says that the weights are quantized; the model in F32, F16 or BF16 is \
                      needed";
        return Err(unusable_error(&path, reason));
    }
    let weights = WeightFiles::open(folder)?;
    // `transformers` would initialize a random head.
    if !shape.tie_word_embeddings && !weights.contains(HEAD) {
        let reason = format!(
            "the tensor `{HEAD}` is missing; if the embedding table is the head, `tie_word_embeddings` in {CONFIG} must \
             be true"
        );
        return Err(unusable_error(folder, reason));
    }
    // As in `transformers`, a head that differs from the embedding table is used, whatever the configuration says. The
    // configuration is corrected, so that other libraries do not drop it.
    let is_tied = shape.tie_word_embeddings && !weights.has_different(HEAD, EMBEDDINGS);
    if is_tied != shape.tie_word_embeddings {
        shape.tie_word_embeddings = is_tied;
        config["tie_word_embeddings"] = is_tied.into();
        files.insert(CONFIG.to_string(), to_pretty_json(&config));
    }
    // Writers of shared tensors keep one of the two names, which may be the head's.
    let has_head_alone = is_tied && !weights.contains(EMBEDDINGS) && weights.contains(HEAD);
    let name = |parameter: &Parameter| match hugging_face_name(parameter) {
        name if has_head_alone && name == EMBEDDINGS => HEAD.to_string(),
        name => name,
    };
    let find = |parameter: &Parameter| weights.find(parameter, &name(parameter));
    let params = read_parameters(&shape.parameters(), folder, find)?;
    assemble(folder, shape, params, files)
}

/// Finds the first special token that a template puts after an answer, or else the first added one that is not blank.
fn find_turn_end(template: &ChatTemplate, tokenizer: &dyn Tokenizer) -> Option<u32> {
    let mut tokens = tokenizer.encode(&template.find_answer_suffix()?).ok()?;
    tokens.retain(|token| tokenizer.is_added(*token));
    let text = |token: &u32| tokenizer.decode(&[*token]);
    let special = tokens.iter().find(|token| text(token).is_empty());
    special.or_else(|| tokens.iter().find(|token| !text(token).trim().is_empty())).copied()
}

/// Finds the special tokens with names of their own, such as `bos_token`, each in the first file that has it.
pub(super) fn find_special_tokens(
    files: &Files,
    folder: &Path,
) -> Result<BTreeMap<String, String>, LanguageError> {
    let mut special_tokens = BTreeMap::new();
    for name in [TOKENIZER_CONFIG, SPECIAL_TOKENS] {
        let tokens = parse_file(files, name, folder)?;
        for key in ["bos", "eos", "unk", "sep", "pad", "cls", "mask"] {
            let key = format!("{key}_token");
            if !special_tokens.contains_key(&key) {
                let token = special_token_name(&tokens, &key);
                let token = token.map_err(unusable(&folder.join(name)))?;
                special_tokens.extend(token.map(|token| (key, token.to_string())));
            }
        }
    }
    Ok(special_tokens)
}

/// Assembles a model from its parameters and its files.
pub(super) fn assemble(
    path: &Path,
    shape: DecoderShape,
    params: DecoderParams,
    files: Files,
) -> Result<LanguageModel, LanguageError> {
    let tokenizer_path = path.join(TOKENIZER);
    let tokenizer = tokenizer::read(&files[TOKENIZER], shape.vocab_size(), &tokenizer_path)?;
    let config = parse_file(&files, TOKENIZER_CONFIG, path)?;
    let special_tokens = find_special_tokens(&files, path)?;
    let eos = special_tokens.get("eos_token").and_then(|eos| tokenizer.find_token(eos));
    let mut stop_tokens = find_stop_tokens(eos, &files, path, shape.vocab_size())?;
    let template = find_template(&files, &config);
    let mut template = template.map_err(unusable(&path.join(TOKENIZER_CONFIG)))?;
    if let Some(template) = &mut template {
        // As in `transformers`, also with the named ones of `extra_special_tokens`. A template may ask whether a token
        // is defined; the first two may be added to other texts.
        let first = ["bos_token", "eos_token"].map(|key| (key.to_string(), String::new()));
        let extra = config["extra_special_tokens"].as_object().into_iter().flatten();
        let extra = extra.filter_map(|(key, token)| Some((key.clone(), token_text(token)?.into())));
        template.special_tokens.extend(first.into_iter().chain(special_tokens).chain(extra));
        template.turn_end = find_turn_end(template, &*tokenizer);
        stop_tokens.extend(template.turn_end.filter(|end| !stop_tokens.contains(end)));
    }
    // Absolute, so that adapters find their model from any working directory.
    let base = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    Ok(LanguageModel {
        shape,
        params,
        adapters: None,
        tokenizer,
        template,
        stop_tokens,
        files,
        base,
        tokenization_cache: TokenizationCache::default(),
    })
}

/// Finds the tokens that end a text, the tokenizer's `eos` first, which for chat models ends a turn.
fn find_stop_tokens(
    eos: Option<u32>,
    files: &Files,
    folder: &Path,
    num_tokens: usize,
) -> Result<Vec<u32>, LanguageError> {
    // A token without weights cannot end a text, and has no logit to learn.
    let has_logit = |id: &u32| (*id as usize) < num_tokens;
    let mut tokens: Vec<u32> = eos.filter(has_logit).into_iter().collect();
    for name in [GENERATION_CONFIG, CONFIG] {
        let ends = parse_end_tokens(&parse_file(files, name, folder)?);
        for id in ends.map_err(unusable(&folder.join(name)))? {
            if has_logit(&id) && !tokens.contains(&id) {
                tokens.push(id);
            }
        }
    }
    Ok(tokens)
}

/// Parses the tokens that end a text according to a file, a number or a list.
///
/// # Errors
/// A clause if the value has another type.
fn parse_end_tokens(config: &Value) -> Result<Vec<u32>, String> {
    let key = "eos_token_id";
    let ids: &[Value] = match &config[key] {
        Value::Null => &[],
        Value::Array(ids) => ids,
        id => std::slice::from_ref(id),
    };
    if !ids.iter().all(Value::is_number) {
        return Err(wrong_type_reason(key, &config[key], "a number or a list of numbers"));
    }
    Ok(ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect())
}

/// Finds the sources of the chat templates, the default one in a file of its own or in `tokenizer_config.json`; `None`
/// without a default one.
///
/// # Errors
/// A clause if one is not a string.
fn find_template(files: &Files, config: &Value) -> Result<Option<ChatTemplate>, String> {
    let plain = |source: String| Some(ChatTemplate { source, ..ChatTemplate::default() });
    if let Some(bytes) = files.get(CHAT_TEMPLATE) {
        return Ok(plain(String::from_utf8_lossy(bytes).into_owned()));
    }
    let key = "chat_template";
    let to_text = |template: &Value| {
        let text = template.as_str().map(str::to_string);
        text.ok_or_else(|| {
            wrong_type_reason(key, template, "a string, or a list of strings with a `name`")
        })
    };
    match &config[key] {
        // Several templates by name.
        Value::Array(templates) => {
            let named = |name: &str| {
                let template = templates.iter().find(|template| template["name"] == name);
                template.map(|template| to_text(&template["template"])).transpose()
            };
            let (source, tool_source) = (named("default")?, named("tool_use")?);
            let template = source.and_then(plain);
            Ok(template.map(|template| ChatTemplate { tool_source, ..template }))
        }
        Value::Null => Ok(None),
        template => Ok(plain(to_text(template)?)),
    }
}

/// Parses a file as JSON; null if there is none.
fn parse_file(files: &Files, name: &str, folder: &Path) -> Result<Value, LanguageError> {
    match files.get(name) {
        Some(bytes) => serde_json::from_slice(bytes).map_err(unusable(&folder.join(name))),
        None => Ok(Value::Null),
    }
}

/// Parses the shape in a `config.json`.
fn parse_shape(config: &Value, path: &Path) -> Result<DecoderShape, LanguageError> {
    DecoderShape::from_config(config).map_err(|error| match error {
        ConfigError::Family { found } => {
            LanguageError::UnknownArchitecture { path: path.into(), found }
        }
        error => unusable_error(path, error),
    })
}

/// Reads the shape of the model with these files, which must be all that every model needs.
pub(super) fn read_shape(folder: &Path, files: &Files) -> Result<DecoderShape, LanguageError> {
    check_files(folder, files)?;
    parse_shape(&parse_file(files, CONFIG, folder)?, &folder.join(CONFIG))
}

/// Checks that a folder has the files that every model needs.
fn check_files(folder: &Path, files: &Files) -> Result<(), LanguageError> {
    match [CONFIG, TOKENIZER].into_iter().find(|name| !files.contains_key(*name)) {
        Some(name) => Err(unusable_error(folder, format!("there is no {name}"))),
        None => Ok(()),
    }
}

/// Checks that `tokenizer.json` contains everything that the files beside it say about the vocabulary.
fn check_vocabulary(folder: &Path, files: &Files) -> Result<(), LanguageError> {
    let config = parse_file(files, TOKENIZER_CONFIG, folder)?;
    let added = parse_file(files, ADDED_TOKENS, folder)?;
    tokenizer::check_added_tokens(&files[TOKENIZER], &config, &added)
        .map_err(unusable(&folder.join(TOKENIZER)))
}

/// Writes a folder with the model, its weights in single precision.
pub(super) fn write(model: &LanguageModel, folder: &Path) -> Result<(), LanguageError> {
    let mut files = metadata(model);
    let mut config = parse_file(&files, CONFIG, folder)?;
    // Precision of the weights that were read; `transformers` would round the trained ones to it.
    for key in ["dtype", "torch_dtype"] {
        if config.get(key).is_some_and(|dtype| *dtype != "float32") {
            config[key] = "float32".into();
            files.insert(CONFIG.to_string(), to_pretty_json(&config));
        }
    }
    write_files(model, files, folder)?;
    let (path, parameters) = (folder.join(WEIGHTS), model.shape.parameters());
    write_weights(&path, &parameters, model.params.values(), hugging_face_name)
}

/// Adds the tokens that end the model's completions to its `generation_config.json`, so that other programs end a text
/// with all of them: a template's end of a turn may be missing in the files of a base model.
///
/// # Errors
/// If a file is malformed.
fn add_stop_tokens(
    model: &LanguageModel,
    files: &mut Files,
    folder: &Path,
) -> Result<(), LanguageError> {
    let mut generation = parse_file(files, GENERATION_CONFIG, folder)?;
    let (name, config) = if generation.is_object() {
        (GENERATION_CONFIG, &generation)
    } else {
        // `transformers` then takes them from the configuration.
        (CONFIG, &parse_file(files, CONFIG, folder)?)
    };
    let named = parse_end_tokens(config).map_err(unusable(&folder.join(name)))?;
    if !model.stop_tokens.iter().all(|token| named.contains(token)) {
        if !generation.is_object() {
            generation = json!({});
        }
        generation["eos_token_id"] = json!(model.stop_tokens);
        files.insert(GENERATION_CONFIG.to_string(), to_pretty_json(&generation));
    }
    Ok(())
}

/// The files of a folder other than the weights.
pub(super) fn metadata(model: &LanguageModel) -> Files {
    let mut files = model.files.clone();
    // A new model has no configuration yet.
    files
        .entry(CONFIG.to_string())
        .or_insert_with(|| to_pretty_json(&model.shape.to_config(&model.stop_tokens)));
    files
}

/// Writes the files of a model other than the weights into a folder.
pub(super) fn write_files(
    model: &LanguageModel,
    mut files: Files,
    folder: &Path,
) -> Result<(), LanguageError> {
    add_stop_tokens(model, &mut files, folder)?;
    std::fs::create_dir_all(folder).map_err(file_error("written", folder))?;
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(file_error("written", &path))?;
    }
    Ok(())
}
