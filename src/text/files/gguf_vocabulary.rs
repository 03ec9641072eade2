//! Conversion of a GGUF file's vocabulary to a `tokenizer.json`, so that one tokenizer reads both.

use super::gguf_metadata::SPACE;
use super::gguf_metadata::token_kinds::{BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED};
use super::pre_tokenizers::PreTokenizer;
use super::wrong_type_reason;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Names of tokens that end a turn or text. llama.cpp also finds them by name, since few files mark them.
const END_TOKENS: [&str; 12] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
];

/// Maximum length of a token that pairs merge to, bytes: each of its splits is looked up.
const MAX_MERGED_BYTES: usize = 512;

/// Predicate for the type of a value.
type Predicate = fn(&Value) -> bool;

/// Metadata keys of a vocabulary, with the types of their values.
const KEY_TYPES: [(&str, &str, Predicate); 14] = [
    ("model", "a string", Value::is_string),
    ("pre", "a string", Value::is_string),
    ("tokens", "a list of strings", is_string_list),
    ("merges", "a list of strings", is_string_list),
    ("scores", "a list of numbers", is_number_list),
    ("token_type", "a list of numbers", is_number_list),
    ("bos_token_id", "a whole number", Value::is_u64),
    ("eos_token_id", "a whole number", Value::is_u64),
    ("eot_token_id", "a whole number", Value::is_u64),
    ("eom_token_id", "a whole number", Value::is_u64),
    ("unknown_token_id", "a whole number", Value::is_u64),
    ("add_bos_token", "true or false", Value::is_boolean),
    ("add_eos_token", "true or false", Value::is_boolean),
    ("add_space_prefix", "true or false", Value::is_boolean),
];

fn is_string_list(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(Value::is_string))
}

/// Non-finite numbers are null in JSON.
fn is_number_list(value: &Value) -> bool {
    let is_number = |value: &Value| value.is_number() || value.is_null();
    value.as_array().is_some_and(|all| all.iter().all(is_number))
}

/// The vocabulary in a file's metadata.
pub(super) struct Vocabulary<'a> {
    metadata: &'a HashMap<String, Value>,
    tokens: Vec<&'a str>,
    ids: HashMap<&'a str, usize>,
}

impl<'a> Vocabulary<'a> {
    /// Reads the vocabulary.
    ///
    /// # Errors
    /// A clause, if the file has no vocabulary, a value has the wrong type, or two tokens have the same name.
    pub fn new(metadata: &'a HashMap<String, Value>) -> Result<Self, String> {
        for (key, expected, is_valid) in KEY_TYPES {
            let key = format!("tokenizer.ggml.{key}");
            if let Some(value) = metadata.get(&key).filter(|value| !is_valid(value)) {
                return Err(wrong_type_reason(&key, value, expected));
            }
        }
        let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
        let tokens = tokens.ok_or("there is no `tokenizer.ggml.tokens`")?;
        let tokens: Vec<&str> =
            tokens.iter().map(|token| token.as_str().unwrap_or_default()).collect();
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, name) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(*name, id) {
                return Err(format!("the tokens {first} and {id} are both called `{name}`"));
            }
        }
        Ok(Self { metadata, tokens, ids })
    }

    /// Converts the vocabulary to a `tokenizer.json`.
    ///
    /// # Errors
    /// A clause, if the file does not name its tokenizer and pre-tokenizer, or they are unknown.
    pub fn to_tokenizer_json(&self) -> Result<Value, String> {
        match self.find_text("model") {
            Some("gpt2") => self.convert_byte_level(),
            Some("llama") => self.convert_sentence_piece(),
            Some(other) => {
                Err(format!("the tokenizer `{other}` is not known; there are gpt2 and llama"))
            }
            None => Err("there is no `tokenizer.ggml.model`".to_string()),
        }
    }

    /// Tokens that end a text, those marked in the file first.
    pub fn stop_tokens(&self) -> Vec<u32> {
        let named = ["eos_token_id", "eot_token_id", "eom_token_id"].map(|key| self.token_id(key));
        let usual = END_TOKENS.iter().map(|name| self.ids.get(name).copied());
        let mut stop_tokens: Vec<u32> = Vec::new();
        for id in named.into_iter().chain(usual).flatten() {
            if !stop_tokens.contains(&(id as u32)) {
                stop_tokens.push(id as u32);
            }
        }
        stop_tokens
    }

    /// Name of the token set by a key such as `bos_token_id`.
    pub fn token_name(&self, key: &str) -> Option<&'a str> {
        self.tokens.get(self.token_id(key)?).copied()
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.metadata.get(&format!("tokenizer.ggml.{name}"))
    }

    fn find_text(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_str()
    }

    /// Id that a key such as `bos_token_id` sets, if there is such a token.
    fn token_id(&self, key: &str) -> Option<usize> {
        let id = self.get(key)?.as_u64()? as usize;
        (id < self.tokens.len()).then_some(id)
    }

    fn token_kind(&self, id: usize) -> u32 {
        let kind = self.get("token_type").and_then(|all| all.get(id)?.as_u64());
        kind.map_or(NORMAL, |kind| kind as u32)
    }

    /// Converts byte-level BPE, as in GPT-2.
    fn convert_byte_level(&self) -> Result<Value, String> {
        let name = self.find_text("pre").filter(|name| !name.is_empty()).ok_or(
            "there is no `tokenizer.ggml.pre`, which says how it splits text; files of before May 2024 lack it, and \
             would not be read with the tokens that the model was trained with: convert the model anew, or add it with \
             `gguf-new-metadata --pre-tokenizer NAME`",
        )?;
        let split = PreTokenizer::from_name(name).ok_or_else(|| {
            format!("`tokenizer.ggml.pre` is `{name}`, a splitting that is not known")
        })?;
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        });
        let pieces = split.patterns.iter().map(|pattern| {
            json!({
                "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                "invert": false,
            })
        });
        let pieces: Vec<Value> = pieces.chain([bytes.clone()]).collect();
        let merges = self.get("merges").and_then(Value::as_array);
        let merges = merges.ok_or("there is no `tokenizer.ggml.merges`")?;
        // A pair's first part has at least one character, which may be a space.
        let pair = |text: &'a str| {
            let (at, _) = text.char_indices().skip(1).find(|(_, c)| *c == ' ')?;
            Some([&text[..at], &text[at + 1..]])
        };
        let merges: Vec<[&str; 2]> =
            merges.iter().filter_map(|merge| pair(merge.as_str()?)).collect();
        let mut json = self.bpe_json(&merges);
        json["normalizer"] = split.normalizes_nfc.then(|| json!({ "type": "NFC" })).into();
        json["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": pieces });
        json["post_processor"] = self.post_processor(split.adds_bos);
        json["decoder"] = bytes;
        json["model"]["ignore_merges"] = split.ignores_merges.into();
        Ok(json)
    }

    /// Converts SentencePiece's BPE, which merges characters by the score of the merged token.
    fn convert_sentence_piece(&self) -> Result<Value, String> {
        let adds_prefix = self.get("add_space_prefix").and_then(Value::as_bool).unwrap_or(true);
        let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
        let mut normalizers = vec![replace(" ", SPACE)];
        let mut decoders =
            vec![replace(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
        if adds_prefix {
            normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let unknown = (0..self.tokens.len()).find(|id| self.token_kind(*id) == UNKNOWN);
        let unknown = self.token_id("unknown_token_id").or(unknown);
        let mut json = self.bpe_json(&self.list_merges()?);
        json["normalizer"] = json!({ "type": "Sequence", "normalizers": normalizers });
        json["post_processor"] = self.post_processor(true);
        json["decoder"] = json!({ "type": "Sequence", "decoders": decoders });
        json["model"]["unk_token"] = unknown.map(|id| self.tokens[id]).into();
        json["model"]["fuse_unk"] = true.into();
        json["model"]["byte_fallback"] = true.into();
        Ok(json)
    }

    /// A BPE `tokenizer.json` with these merges, without normalizer, pre-tokenizer, post-processor and decoder.
    fn bpe_json(&self, merges: &[[&str; 2]]) -> Value {
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": self.added_tokens(),
            "normalizer": null,
            "pre_tokenizer": null,
            "post_processor": null,
            "decoder": null,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": false,
                "vocab": self.vocab_json(), "merges": merges,
            },
        })
    }

    /// Lists the pairs of tokens that merge, by decreasing score of the merged token, and by their ids where they make
    /// the same token.
    fn list_merges(&self) -> Result<Vec<[&'a str; 2]>, String> {
        let scores = self.get("scores").and_then(Value::as_array);
        let scores = scores.filter(|scores| scores.len() == self.tokens.len());
        let scores = scores.ok_or("there is no `tokenizer.ggml.scores` for each token")?;
        let score = |id: usize| scores[id].as_f64().unwrap_or(f64::NEG_INFINITY);
        let is_text = |id: usize| ![UNKNOWN, CONTROL, BYTE].contains(&self.token_kind(id));
        let mut merged_ids: Vec<usize> = (0..self.tokens.len()).filter(|i| is_text(*i)).collect();
        merged_ids.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
        let mut merges = Vec::new();
        for id in merged_ids {
            let name = self.tokens[id];
            if name.len() > MAX_MERGED_BYTES {
                let length = name.len();
                return Err(format!(
                    "the token {id} has {length} bytes, more than {MAX_MERGED_BYTES}"
                ));
            }
            let first = merges.len();
            for (at, _) in name.char_indices().skip(1) {
                let [left, right] = [&name[..at], &name[at..]];
                let ids = (self.ids.get(left), self.ids.get(right));
                if let (Some(a), Some(b)) = ids {
                    merges.push(([*a, *b], [left, right]));
                }
            }
            merges[first..].sort_unstable();
        }
        Ok(merges.into_iter().map(|(_, names)| names).collect())
    }

    fn vocab_json(&self) -> Map<String, Value> {
        let named = self.tokens.iter().enumerate();
        named.map(|(id, name)| (name.to_string(), json!(id))).collect()
    }

    /// Tokens that are recognized in a text before it is split.
    fn added_tokens(&self) -> Vec<Value> {
        let added = (0..self.tokens.len()).filter_map(|id| {
            let kind = self.token_kind(id);
            (kind == CONTROL || kind == USER_DEFINED || kind == UNKNOWN).then(|| {
                json!({
                    "id": id, "content": self.tokens[id], "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false,
                    "special": kind != USER_DEFINED,
                })
            })
        });
        added.collect()
    }

    /// The post-processor, which adds the tokens at the start and end of a text if the file says so; if the file does
    /// not mention the token at the start, `adds_bos` decides.
    fn post_processor(&self, adds_bos: bool) -> Value {
        let adds = |name: &str, default| self.get(name).and_then(Value::as_bool).unwrap_or(default);
        let token = |key: &str, is_added| self.token_id(key).filter(|_| is_added);
        let bos = token("bos_token_id", adds("add_bos_token", adds_bos));
        let eos = token("eos_token_id", adds("add_eos_token", false));
        let special =
            |id: usize| json!({ "SpecialToken": { "id": self.tokens[id], "type_id": 0 } });
        let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
        let single: Vec<Value> =
            bos.map(special).into_iter().chain([text("A")]).chain(eos.map(special)).collect();
        if single.len() == 1 {
            return Value::Null;
        }
        let known: Map<String, Value> = bos
            .into_iter()
            .chain(eos)
            .map(|id| {
                let name = self.tokens[id];
                (name.to_string(), json!({ "id": name, "ids": [id], "tokens": [name] }))
            })
            .collect();
        let pair = [text("A"), text("B")];
        json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known })
    }
}
