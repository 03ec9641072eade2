//! Vocabularies of `tokenizer.json`.

use super::bpe::Bpe;
use super::unusable;
use crate::model::language::characters::Characters;
use crate::model::language::error::LanguageError;
use crate::model::language::tokenizer::Tokenizer;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A vocabulary learnt from text: merged pairs, or words.
#[derive(Debug)]
struct Trained(Box<Bpe>);

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
    if let Some(characters) = Characters::from_json(&json) {
        return Ok(Arc::new(characters));
    }
    Ok(Arc::new(Trained(Box::new(Bpe::new(&json).map_err(|e| unusable(path, e))?))))
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

impl Tokenizer for Trained {
    fn vocabulary(&self) -> usize {
        self.0.vocabulary()
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        self.0.encode(text, false).map_err(LanguageError::Character)
    }

    fn encode_whole(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        self.0.encode(text, true).map_err(LanguageError::Character)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.0.decode(tokens)
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
        self.0.token(name)
    }
}
