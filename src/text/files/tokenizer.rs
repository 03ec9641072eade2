//! Vocabularies of `tokenizer.json`, read by the crate `tokenizers`, which most models were made with.

use super::unusable;
use crate::text::characters::Characters;
use crate::text::error::LanguageError;
use crate::text::tokenizer::Tokenizer;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A vocabulary learnt from text: merged pairs, unigrams, word pieces or words.
#[derive(Debug)]
struct Trained {
    tokenizer: tokenizers::Tokenizer,
    vocabulary: usize,
}

/// Reads the text of a `tokenizer.json` for weights of so many tokens; errors name `path`.
///
/// # Errors
/// If it is none, or has a token that the weights do not have.
pub(super) fn read(
    text: &[u8],
    vocabulary: usize,
    path: &Path,
) -> Result<Arc<dyn Tokenizer>, LanguageError> {
    let json: Value = serde_json::from_slice(text).map_err(|e| unusable(path, e))?;
    // Before anything is as large as a token's number says.
    if let Some(largest) = largest_token(&json).filter(|token| *token >= vocabulary as u64) {
        let reason = format!(
            "it has a token of the number {largest}, and the weights have {vocabulary} tokens"
        );
        return Err(unusable(path, reason));
    }
    check_replacements(&json["normalizer"]).map_err(|reason| unusable(path, reason))?;
    if let Some(characters) = Characters::from_json(&json) {
        return Ok(Arc::new(characters));
    }
    drop(json);
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(text).map_err(|e| unusable(path, e))?;
    // Prompts are never cut or filled up.
    tokenizer.with_padding(None).with_truncation(None).map_err(|e| unusable(path, e))?;
    let largest = tokenizer.get_vocab(true).into_values().max();
    let vocabulary = largest.map_or(0, |largest| largest as usize + 1);
    Ok(Arc::new(Trained { tokenizer, vocabulary }))
}

/// The largest number of a token that a `tokenizer.json` names.
fn largest_token(json: &Value) -> Option<u64> {
    let listed = match &json["model"]["vocab"] {
        Value::Object(vocabulary) => vocabulary.values().filter_map(Value::as_u64).max(),
        Value::Array(vocabulary) => (vocabulary.len() as u64).checked_sub(1),
        _ => None,
    };
    let added = json["added_tokens"].as_array().into_iter().flatten();
    listed.max(added.filter_map(|token| token["id"].as_u64()).max())
}

/// Limit on the bytes that the replacements of a normalizer make of one.
const MAX_GROWTH: usize = 1 << 10;

/// Refuses normalizers whose replacements, one after another, multiply the length of a text without bound.
fn check_replacements(normalizer: &Value) -> Result<(), String> {
    let mut growth = 1_usize;
    let mut open = vec![normalizer];
    while let Some(one) = open.pop() {
        open.extend(one["normalizers"].as_array().into_iter().flatten());
        if one["type"] != "Replace" {
            continue;
        }
        let length = |value: &Value| value.as_str().map_or(0, str::len);
        // An empty pattern, and an expression may, match between all bytes.
        let from = length(&one["pattern"]["String"]).max(1);
        let per_byte = length(&one["content"]).div_ceil(from) + usize::from(from == 1);
        growth = growth.saturating_mul(per_byte.max(1));
        if growth > MAX_GROWTH {
            return Err(format!("its normalizer makes a text over {MAX_GROWTH} times as long"));
        }
    }
    Ok(())
}

impl Trained {
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, LanguageError> {
        let encoding = self.tokenizer.encode_fast(text, special);
        let encoding = encoding.map_err(|e| LanguageError::Tokenizer(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }
}

impl Tokenizer for Trained {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        self.encode(text, false)
    }

    fn encode_whole(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        self.encode(text, true)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, true).unwrap_or_default()
    }

    fn pieces(&self, tokens: &[u32]) -> Vec<String> {
        // Many a vocabulary drops the space before a text's first token, so each needs the one before it.
        let piece = |at: usize| {
            let alone = self.decode(&tokens[at..=at]);
            if at == 0 {
                return alone;
            }
            let before = self.decode(&tokens[at - 1..at]);
            let both = self.decode(&tokens[at - 1..=at]);
            both.strip_prefix(&before).map_or(alone, str::to_string)
        };
        (0..tokens.len()).map(piece).collect()
    }

    fn token(&self, name: &str) -> Option<u32> {
        self.tokenizer.token_to_id(name)
    }
}
