//! Text to tokens and back: characters, or merged pairs.

#[cfg(all(feature = "general", not(target_family = "wasm")))]
use super::bpe::Bpe;
use crate::model::language::characters::Characters;
use crate::model::language::error::LanguageError;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
use crate::model::language::error::unusable;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
use std::path::Path;

/// A vocabulary.
#[derive(Clone, Debug)]
pub enum Tokenizer {
    /// Its tokens are characters.
    Characters(Characters),
    /// Its tokens are pieces of words.
    #[cfg(all(feature = "general", not(target_family = "wasm")))]
    Pairs(Box<Bpe>),
}

impl Tokenizer {
    /// From the text of a `tokenizer.json`; errors name `path`.
    ///
    /// # Errors
    /// If it is none.
    #[cfg(all(feature = "general", not(target_family = "wasm")))]
    pub fn from_json(text: &[u8], path: &Path) -> Result<Self, LanguageError> {
        let json = serde_json::from_slice(text).map_err(|e| unusable(path, e))?;
        match Characters::from_json(&json) {
            Some(characters) => Ok(Self::Characters(characters)),
            None => Ok(Self::Pairs(Box::new(Bpe::new(&json).map_err(|e| unusable(path, e))?))),
        }
    }

    /// The number of tokens that it knows, those added to it included.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Characters(characters) => characters.vocabulary(),
            #[cfg(all(feature = "general", not(target_family = "wasm")))]
            Self::Pairs(tokenizer) => tokenizer.vocabulary(),
        }
    }

    /// The tokens of a text; `special`: with those that the tokenizer puts around one, as that of a
    /// beginning.
    ///
    /// # Errors
    /// If the text cannot be made of tokens.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, LanguageError> {
        // Characters have none.
        let _ = special;
        match self {
            Self::Characters(characters) => characters.encode(text),
            #[cfg(all(feature = "general", not(target_family = "wasm")))]
            Self::Pairs(tokenizer) => {
                tokenizer.encode(text, special).map_err(LanguageError::Character)
            }
        }
    }

    /// The text of tokens, without special ones.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Characters(characters) => characters.decode(tokens),
            #[cfg(all(feature = "general", not(target_family = "wasm")))]
            Self::Pairs(tokenizer) => tokenizer.decode(tokens),
        }
    }

    /// The text of each token by itself; empty where each is a character. What holds a part of a character
    /// only is a replacement character.
    pub fn pieces(&self, tokens: &[u32]) -> Vec<String> {
        let _ = tokens;
        match self {
            Self::Characters(_) => Vec::new(),
            #[cfg(all(feature = "general", not(target_family = "wasm")))]
            Self::Pairs(_) => tokens.iter().map(|token| self.decode(&[*token])).collect(),
        }
    }

    /// The token of this name.
    #[cfg(all(feature = "general", not(target_family = "wasm")))]
    pub fn token(&self, name: &str) -> Option<u32> {
        match self {
            Self::Characters(_) => None,
            #[cfg(all(feature = "general", not(target_family = "wasm")))]
            Self::Pairs(tokenizer) => tokenizer.token(name),
        }
    }
}
