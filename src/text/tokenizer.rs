//! Text to tokens and back.

use super::error::LanguageError;
use std::fmt::Debug;

/// A vocabulary, and the way in which it cuts text into tokens.
pub trait Tokenizer: Debug + Send + Sync {
    /// Encodes a text without adding special tokens.
    ///
    /// # Errors
    /// If the text has a character that no token stands for.
    fn encode(&self, text: &str) -> Result<Vec<u32>, LanguageError>;

    /// The tokens of a text with those that the model expects around one, such as a token for the beginning.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    fn encode_whole(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        self.encode(text)
    }

    /// The text of tokens, without special ones.
    fn decode(&self, tokens: &[u32]) -> String;

    /// The text that each token contributes; an empty list for vocabularies of characters. A token that holds part of a
    /// character gives U+FFFD.
    fn pieces(&self, tokens: &[u32]) -> Vec<String>;

    /// The token whose vocabulary entry is `name`, special tokens included.
    fn token(&self, name: &str) -> Option<u32>;
}
