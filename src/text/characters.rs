//! Character vocabularies, for models with new weights.

use super::error::LanguageError;
use super::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Token that ends a text.
pub const END_TOKEN: u32 = 0;
/// Name of that token in files.
pub(super) const END_TOKEN_NAME: &str = "<|end|>";

/// A vocabulary of single characters; token 0 ends a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Characters {
    /// Sorted and distinct; the first is token 1.
    characters: Vec<char>,
}

impl Characters {
    /// Creates the vocabulary of the characters that occur in a text.
    pub fn from_text(text: &str) -> Self {
        let mut characters: Vec<char> = text.chars().collect();
        characters.sort_unstable();
        characters.dedup();
        Self { characters }
    }

    /// Number of tokens.
    pub fn num_tokens(&self) -> usize {
        self.characters.len() + 1
    }

    /// Converts the vocabulary to a `tokenizer.json`.
    pub fn to_json(&self) -> Value {
        let named = self.characters.iter().zip(1u32..).map(|(c, id)| (c.to_string(), json!(id)));
        let mut vocabulary: serde_json::Map<String, Value> = named.collect();
        vocabulary.insert(END_TOKEN_NAME.to_string(), json!(END_TOKEN));
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [{
                "id": END_TOKEN, "content": END_TOKEN_NAME, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            }],
            "normalizer": null,
            "pre_tokenizer": {
                "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated",
                "invert": false,
            },
            "post_processor": null,
            "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": END_TOKEN_NAME },
        })
    }

    /// Reads a `tokenizer.json` written by [`Characters::to_json`]; `None` for any other.
    pub fn from_json(json: &Value) -> Option<Self> {
        let model = &json["model"];
        if model["type"] != "WordLevel" || model["unk_token"] != END_TOKEN_NAME {
            return None;
        }
        let vocabulary = model["vocab"].as_object()?;
        let names: String =
            vocabulary.keys().filter(|name| *name != END_TOKEN_NAME).cloned().collect();
        let all = Self::from_text(&names);
        (&all.to_json() == json).then_some(all)
    }
}

impl Tokenizer for Characters {
    fn encode(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        let token = |c: char| match self.characters.binary_search(&c) {
            Ok(at) => Ok(at as u32 + 1),
            Err(_) => Err(LanguageError::UnknownCharacter(c)),
        };
        text.chars().map(token).collect()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        let character = |token: &u32| self.characters.get((*token as usize).checked_sub(1)?);
        tokens.iter().filter_map(character).collect()
    }

    fn decode_pieces(&self, _: &[u32]) -> Vec<String> {
        Vec::new()
    }

    fn find_token(&self, _: &str) -> Option<u32> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_tokens_and_tokens_characters() {
        let characters = Characters::from_text("3 1 4 1 5\n");
        assert_eq!(characters.num_tokens(), 7);
        let tokens = characters.encode("1 5\n").unwrap();
        assert_eq!(tokens, [3, 2, 6, 1]);
        assert_eq!(characters.decode(&[3, 2, 6, 1, END_TOKEN]), "1 5\n");
        let error = characters.encode("1 9").unwrap_err().to_string();
        assert_eq!(error, "the model's vocabulary has no '9'");
        assert_eq!(Characters::from_json(&characters.to_json()), Some(characters));
    }
}
