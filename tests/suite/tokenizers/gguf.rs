//! GGUF files for tests.

use super::{WIDTH, weights};
use crate::support::Scratch;
use grove::text::LanguageModel;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

/// A GGUF file under way: its metadata, and the format and shape of its tensors.
pub struct Gguf {
    pub about: BTreeMap<String, Value>,
    pub format: u32,
    pub vocabulary: usize,
    /// Further tensors, each a vector as wide as the stream.
    pub more: Vec<&'static str>,
    /// The divisors of rotary frequencies; none where it is empty.
    pub rope_freqs: Vec<f32>,
}

impl Gguf {
    /// A model of Llama's shape with so many tokens.
    pub fn new(tokens: &[String], kinds: &[u32]) -> Self {
        let about = json!({
            "general.architecture": "llama", "llama.embedding_length": WIDTH,
            "llama.block_count": 1, "llama.attention.head_count": 1,
            "llama.feed_forward_length": WIDTH, "llama.context_length": 4096,
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
        });
        let about = serde_json::from_value(about).unwrap();
        let vocabulary = tokens.len();
        Self { about, format: 0, vocabulary, more: Vec::new(), rope_freqs: Vec::new() }
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.about.insert(name.to_string(), value.into());
        self
    }

    /// Loads it from a file.
    pub fn load(&self) -> Result<LanguageModel, String> {
        let folder = Scratch::new();
        let path = folder.join("model.gguf");
        fs::write(&path, self.bytes()).unwrap();
        LanguageModel::load(&path).map_err(|error| error.to_string())
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        let mut weights = weights(self.vocabulary);
        weights.extend(self.more.iter().map(|name| ("", *name, vec![WIDTH])));
        if !self.rope_freqs.is_empty() {
            weights.push(("", "rope_freqs.weight", vec![self.rope_freqs.len()]));
        }
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((weights.len() as u64).to_le_bytes());
        bytes.extend((self.about.len() as u64).to_le_bytes());
        for (name, value) in &self.about {
            text(&mut bytes, name);
            bytes.extend(kind(value).to_le_bytes());
            put(&mut bytes, value);
        }
        let mut start = 0u64;
        for (_, name, shape) in &weights {
            text(&mut bytes, name);
            bytes.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|n| bytes.extend((*n as u64).to_le_bytes()));
            bytes.extend(self.format.to_le_bytes());
            bytes.extend(start.to_le_bytes());
            start += (4 * shape.iter().product::<usize>() as u64).next_multiple_of(32);
        }
        bytes.resize(bytes.len().next_multiple_of(32) + start as usize, 0);
        // The last tensor begins at a multiple of 32.
        let freqs: Vec<u8> = self.rope_freqs.iter().flat_map(|x| x.to_le_bytes()).collect();
        let last = bytes.len() - freqs.len().next_multiple_of(32);
        bytes[last..][..freqs.len()].copy_from_slice(&freqs);
        bytes
    }
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// GGUF's number of a value's kind.
fn kind(value: &Value) -> u32 {
    match value {
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::Number(number) if number.is_f64() => 6,
        _ => 4,
    }
}

fn put(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Bool(is_true) => bytes.push(u8::from(*is_true)),
        Value::String(one) => text(bytes, one),
        Value::Array(all) => {
            bytes.extend(all.first().map_or(4, kind).to_le_bytes());
            bytes.extend((all.len() as u64).to_le_bytes());
            all.iter().for_each(|one| put(bytes, one));
        }
        Value::Number(number) if number.is_f64() => {
            bytes.extend((number.as_f64().unwrap() as f32).to_le_bytes());
        }
        other => bytes.extend((other.as_u64().unwrap() as u32).to_le_bytes()),
    }
}
