//! GGUF files: weights, vocabulary and chat template in one.
//!
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use super::gguf_metadata::value_types;
use super::gguf_vocabulary::Vocabulary;
use super::hugging_face::{Files, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, assemble};
use super::parameters::{FileBytes, check_shape, read_parameters};
use super::quants::BlockFormat;
use super::{map_file, to_pretty_json, unusable, wrong_type_reason};
use crate::model::{DecoderShape, Parameter};
use crate::nn::arch::{FAMILIES, Family, GgufForm, QkNorm, RopeScaling, gguf_name};
use crate::text::error::LanguageError;
use crate::text::language_model::LanguageModel;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// First bytes of a file.
const MAGIC: &[u8] = b"GGUF";
/// Maximum nesting of arrays; llama.cpp's files have none.
const MAX_DEPTH: usize = 4;
/// Maximum number of metadata values, elements of arrays included: many times as many as the largest vocabularies have.
const MAX_VALUES: usize = 1 << 23;

/// Name of the tensor with Llama 3's rotary scaling.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// A file, parsed up to its weights.
struct Gguf<'a> {
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, TensorLocation>,
    weights: &'a [u8],
}

/// Location of a tensor among the weights; its last axis is contiguous.
struct TensorLocation {
    shape: Vec<usize>,
    /// ggml's code of the number format.
    format_code: u32,
    start: usize,
}

/// Size of a head, if the two rows of a head that rotate together are adjacent in the tensor `name`; `None` in others.
pub(super) fn paired_head_dim(shape: &DecoderShape, name: &str) -> Option<usize> {
    let has_pairs = shape.family.gguf.is_some_and(|form| form.rotates_adjacent_pairs);
    let is_rotated = matches!(name.split('.').nth(2), Some("attn_q" | "attn_k"));
    (has_pairs && is_rotated).then_some(shape.head_dim)
}

/// The unread rest of a file's header.
struct HeaderReader<'a> {
    rest: &'a [u8],
    /// Number of values read so far.
    num_values: usize,
}

impl<'a> HeaderReader<'a> {
    fn read_bytes(&mut self, count: u64) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count as usize)
            .ok_or("it ends in the middle of its header")?;
        self.rest = rest;
        Ok(taken)
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        Ok(self.read_bytes(N as u64)?.try_into().expect("as many as were taken"))
    }

    fn read_u32(&mut self) -> Result<u32, &'static str> {
        Ok(u32::from_le_bytes(self.read_array()?))
    }

    fn read_u64(&mut self) -> Result<u64, &'static str> {
        Ok(u64::from_le_bytes(self.read_array()?))
    }

    fn read_text(&mut self) -> Result<String, &'static str> {
        let count = self.read_u64()?;
        // Copied before it is checked, since another process may modify the file.
        let bytes = self.read_bytes(count)?.to_vec();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads a value of the type with the code `value_type`, nested in `depth` arrays.
    fn read_value(&mut self, value_type: u32, depth: usize) -> Result<Value, &'static str> {
        self.num_values += 1;
        if self.num_values > MAX_VALUES {
            return Err("its header has over 8 million values");
        }
        Ok(match value_type {
            value_types::U8 => json!(self.read_array::<1>()?[0]),
            value_types::I8 => json!(self.read_array::<1>()?[0] as i8),
            value_types::U16 => json!(u16::from_le_bytes(self.read_array()?)),
            value_types::I16 => json!(i16::from_le_bytes(self.read_array()?)),
            value_types::U32 => json!(self.read_u32()?),
            value_types::I32 => json!(self.read_u32()? as i32),
            value_types::F32 => {
                // Through its shortest decimal form, since widening to f64 would show rounding
                // errors.
                let x = f32::from_le_bytes(self.read_array()?);
                json!(x.to_string().parse::<f64>().unwrap_or(f64::NAN))
            }
            value_types::BOOL => json!(self.read_array::<1>()?[0] != 0),
            value_types::STRING => json!(self.read_text()?),
            value_types::ARRAY if depth == MAX_DEPTH => {
                return Err("its header has arrays in arrays, too deep to follow");
            }
            value_types::ARRAY => {
                let (value_type, count) = (self.read_u32()?, self.read_u64()?);
                let values: Result<Vec<Value>, _> =
                    (0..count).map(|_| self.read_value(value_type, depth + 1)).collect();
                Value::Array(values?)
            }
            value_types::U64 => json!(self.read_u64()?),
            value_types::I64 => json!(self.read_u64()? as i64),
            value_types::F64 => json!(f64::from_le_bytes(self.read_array()?)),
            _ => return Err("its header has a value of an unknown kind"),
        })
    }
}

impl<'a> Gguf<'a> {
    /// Parses a file up to its weights.
    ///
    /// # Errors
    /// The reason why the file cannot be used.
    fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or("it is not a GGUF file; models in other formats are read from their folders")?;
        let mut header = HeaderReader { rest, num_values: 0 };
        match header.read_u32()? {
            2 | 3 => {}
            version if (2..=3).contains(&version.swap_bytes()) => {
                return Err(
                    "its numbers are big-endian; `gguf-convert-endian FILE little` of the Python package gguf converts it",
                );
            }
            _ => return Err("its version is neither 2 nor 3"),
        }
        let (num_tensors, num_values) = (header.read_u64()?, header.read_u64()?);
        let mut metadata = HashMap::new();
        for _ in 0..num_values {
            let (name, value_type) = (header.read_text()?, header.read_u32()?);
            if metadata.insert(name, header.read_value(value_type, 0)?).is_some() {
                return Err("its header has a key twice");
            }
        }
        let mut tensors = HashMap::new();
        for _ in 0..num_tensors {
            let name = header.read_text()?;
            let axes = header.read_u32()?;
            let shape: Result<Vec<usize>, _> =
                (0..axes).map(|_| header.read_u64().map(|n| n as usize)).collect();
            let mut shape = shape?;
            // The file lists axes in reverse order.
            shape.reverse();
            let (format_code, start) = (header.read_u32()?, header.read_u64()? as usize);
            if tensors.insert(name, TensorLocation { shape, format_code, start }).is_some() {
                return Err("it has two tensors of one name");
            }
        }
        let alignment = metadata.get("general.alignment").map_or(Some(32), Value::as_u64);
        let alignment = alignment.filter(|bytes| bytes.is_power_of_two());
        let alignment = alignment.ok_or("its `general.alignment` is not a power of two")?;
        let start = (bytes.len() - header.rest.len()).checked_next_multiple_of(alignment as usize);
        let weights =
            start.and_then(|start| bytes.get(start..)).ok_or("it ends with its header")?;
        Ok(Self { metadata, tensors, weights })
    }

    /// Finds a metadata value and converts it with `read`; `None` if it is missing.
    fn find_typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.metadata.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong_type_reason(name, value, expected))
    }

    fn find_integer(&self, name: &str) -> Result<Option<usize>, String> {
        self.find_typed(name, "a whole number", |value| Some(value.as_u64()? as usize))
    }

    fn find_number(&self, name: &str) -> Result<Option<f64>, String> {
        self.find_typed(name, "a number", Value::as_f64)
    }

    fn find_text(&self, name: &str) -> &str {
        self.metadata.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the shape of the decoder, from the metadata and from which tensors there are.
    fn shape(&self) -> Result<DecoderShape, String> {
        let (family, form) = self.find_family()?;
        let architecture = form.architecture;
        let integer = |name: &str| self.find_integer(&format!("{architecture}.{name}"));
        let number = |name: &str| self.find_number(&format!("{architecture}.{name}"));
        let size = |name: &str| {
            integer(name)?.ok_or_else(|| format!("there is no `{architecture}.{name}`"))
        };
        let has = |name: &str| self.tensors.contains_key(name);
        let rope_theta = number("rope.freq_base")?.unwrap_or(1e4);
        let table = self.tensors.get("token_embd.weight");
        let table = table.ok_or("there is no `token_embd.weight`")?;
        let (hidden_size, num_heads) = (size("embedding_length")?, size("attention.head_count")?);
        let head_dim = integer("attention.key_length")?.unwrap_or(hidden_size / num_heads.max(1));
        let shape = DecoderShape {
            family,
            num_outputs: table.shape.first().copied().unwrap_or(0),
            hidden_size,
            num_layers: size("block_count")?,
            num_heads,
            num_kv_heads: integer("attention.head_count_kv")?.unwrap_or(num_heads),
            head_dim,
            intermediate_size: size("feed_forward_length")?,
            context: integer("context_length")?.unwrap_or(2048),
            qkv_bias: has("blk.0.attn_q.bias"),
            output_bias: form.has_output_and_mlp_bias && has("blk.0.attn_output.bias"),
            mlp_bias: form.has_output_and_mlp_bias && has("blk.0.ffn_gate.bias"),
            qk_norm: if has("blk.0.attn_q_norm.weight") { QkNorm::PerHead } else { QkNorm::None },
            tie_word_embeddings: !has("output.weight"),
            rope_theta,
            rope_scaling: self.rope_scaling(rope_theta, head_dim)?,
            rms_norm_eps: number("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5) as f32,
            ..DecoderShape::default()
        };
        shape.check().map_err(|error| error.to_string())?;
        self.check_rotation(architecture, shape.head_dim)?;
        self.check_storable(&shape)?;
        Ok(shape)
    }

    /// Finds the family of the model's architecture, with its form in these files.
    fn find_family(&self) -> Result<(&'static Family, GgufForm), String> {
        let architecture = self.find_text("general.architecture");
        let known = FAMILIES.iter().filter_map(|family| {
            let form = family.gguf.filter(|form| form.architecture == family.model_type)?;
            Some((*family, form))
        });
        known.clone().find(|(_, form)| form.architecture == architecture).ok_or_else(|| {
            let known: Vec<&str> = known.map(|(_, form)| form.architecture).collect();
            format!(
                "its architecture is `{architecture}`; GGUF files of {} are read, other models from \
                 Hugging Face folders",
                known.join(", ")
            )
        })
    }

    /// Rejects a shape that the configuration of a Hugging Face folder could not express, as a trained model's must.
    fn check_storable(&self, shape: &DecoderShape) -> Result<(), String> {
        match DecoderShape::from_config(&shape.to_config(&[])) {
            Ok(saved) if saved == *shape => Ok(()),
            _ => Err(format!(
                "its biases and norms are not those of a {}, so that a trained model could not be saved as a Hugging Face \
                 folder",
                shape.family.class
            )),
        }
    }

    /// Rejects tensors that the shape has no place for, since the model would differ without them.
    fn check_all_used(&self, shape: &DecoderShape) -> Result<(), String> {
        let parameters = shape.parameters();
        let mut used: HashSet<String> =
            parameters.iter().map(|parameter| gguf_name(shape, &parameter.name)).collect();
        used.insert(ROPE_FREQS.to_string());
        match self.tensors.keys().filter(|name| !used.contains(*name)).min() {
            Some(other) => Err(format!(
                "the tensor `{other}` has no place in a {} with a `block_count` of {}",
                shape.family.class, shape.num_layers
            )),
            None => Ok(()),
        }
    }

    /// Rejects scaled rotary embeddings, and those of a part of a head.
    fn check_rotation(&self, architecture: &str, head_dim: usize) -> Result<(), String> {
        let key = |name: &str| format!("{architecture}.rope.{name}");
        // A factor without a type, also under its older name, is a linear scaling; 0 means none.
        let factor =
            self.find_number(&key("scaling.factor"))?.or(self.find_number(&key("scale_linear"))?);
        let has_type = |value: &Value| Some(value.as_str()? != "none");
        let is_scaled = match self.find_typed(&key("scaling.type"), "a string", has_type)? {
            Some(has_type) => has_type,
            None => factor.is_some_and(|factor| factor != 0.0 && factor != 1.0),
        };
        if is_scaled {
            return Err("rotary scaling is supported for Hugging Face folders only".into());
        }
        match self.find_integer(&key("dimension_count"))? {
            Some(rotated) if rotated != head_dim => Err(format!(
                "{rotated} numbers of a head of {head_dim} rotate; heads that rotate in part are not supported"
            )),
            _ => Ok(()),
        }
    }

    /// Reads Llama 3's rotary scaling, stored as divisors of the frequencies.
    fn rope_scaling(&self, theta: f64, head_dim: usize) -> Result<Option<RopeScaling>, String> {
        let Some(tensor) = self.tensors.get(ROPE_FREQS) else { return Ok(None) };
        let wrong = |reason: &str| format!("`{ROPE_FREQS}` {reason}");
        let ([count], 0) = (&tensor.shape[..], tensor.format_code) else {
            return Err(wrong("is not a list of numbers in single precision"));
        };
        if count.checked_mul(2) != Some(head_dim) {
            return Err(wrong("does not have a number for each pair of a head"));
        }
        let bytes =
            self.weights.get(tensor.start..).and_then(|rest| rest.get(..count.checked_mul(4)?));
        let words = bytes.ok_or_else(|| wrong("goes beyond the end of the file"))?.as_chunks().0;
        let divisors: Vec<f64> =
            words.iter().map(|word| f32::from_le_bytes(*word).into()).collect();
        let scaling = RopeScaling::from_llama3_divisors(&divisors, theta);
        scaling.map(Some).ok_or_else(|| wrong("is a rotary scaling of no known model of Llama 3"))
    }

    /// Finds a parameter, and checks that its size matches the shape.
    fn find(&self, parameter: &Parameter, shape: &DecoderShape) -> Result<FileBytes<'a>, String> {
        let name = gguf_name(shape, &parameter.name);
        let tensor = self.tensors.get(&name);
        let tensor = tensor.ok_or_else(|| format!("the tensor `{name}` is missing"))?;
        check_shape(parameter, &name, &tensor.shape)?;
        let format = BlockFormat::from_code(tensor.format_code)
            .map_err(|reason| format!("`{name}` is in {reason}"))?;
        let (row, block) = (tensor.shape.last().copied().unwrap_or(1), format.block_values);
        if !row.is_multiple_of(block) {
            return Err(format!(
                "`{name}` has rows of {row} numbers, and its format blocks of {block}"
            ));
        }
        let bytes = self.weights.get(tensor.start..);
        let bytes = bytes.and_then(|rest| rest.get(..format.num_bytes(parameter.num_elements())));
        let bytes = bytes.ok_or_else(|| format!("it ends within `{name}`"))?;
        Ok(FileBytes { format, bytes, paired_head_dim: paired_head_dim(shape, &name) })
    }

    /// Rejects a file of adapters, and one of several parts of a model.
    fn check_is_whole_model(&self) -> Result<(), String> {
        if self.find_text("general.type") == "adapter" {
            let reason = "it holds adapters without their model; adapters are read from a folder in PEFT's format";
            return Err(reason.into());
        }
        match (self.find_integer("split.no")?, self.find_integer("split.count")?) {
            (Some(index), Some(count)) if count > 1 => Err(format!(
                "it is part {} of {count} of a model; `llama-gguf-split --merge` joins them",
                index.saturating_add(1)
            )),
            _ => Ok(()),
        }
    }

    /// Converts the vocabulary to the files of a Hugging Face folder.
    fn vocabulary_files(&self, shape: &DecoderShape) -> Result<Files, String> {
        let vocabulary = Vocabulary::new(&self.metadata)?;
        let tokenizer = vocabulary.to_tokenizer_json()?;
        let text = |value: &Value| value.as_str().map(str::to_string);
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": vocabulary.token_name("bos_token_id"),
            "eos_token": vocabulary.token_name("eos_token_id"),
            "chat_template": self.find_typed("tokenizer.chat_template", "a string", text)?,
            "model_max_length": shape.context,
        });
        let generation = json!({ "eos_token_id": vocabulary.stop_tokens() });
        Ok([(TOKENIZER, tokenizer), (TOKENIZER_CONFIG, config), (GENERATION_CONFIG, generation)]
            .map(|(name, value)| (name.to_string(), to_pretty_json(&value)))
            .into())
    }
}

/// Reads a model from a file.
pub(super) fn read(path: &Path) -> Result<LanguageModel, LanguageError> {
    let bytes = map_file(path)?;
    let file = Gguf::parse(&bytes).map_err(unusable(path))?;
    file.check_is_whole_model().map_err(unusable(path))?;
    let shape = file.shape().map_err(unusable(path))?;
    let find = |parameter: &Parameter| file.find(parameter, &shape).map_err(unusable(path));
    let params = read_parameters(&shape.parameters(), path, find)?;
    file.check_all_used(&shape).map_err(unusable(path))?;
    let files = file.vocabulary_files(&shape).map_err(unusable(path))?;
    assemble(path, shape, params, files)
}
