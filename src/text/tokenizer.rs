//! Text to tokens and back.

use super::error::LanguageError;
use std::fmt::Debug;

/// A vocabulary, and the way in which it cuts text into tokens.
pub trait Tokenizer: Debug + Send + Sync {
    /// The tokens of a text, and nothing else.
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

    /// The text that each token adds; empty where each is a character. A token that holds a part of a
    /// character only is a replacement character.
    fn pieces(&self, tokens: &[u32]) -> Vec<String>;

    /// The token of this name.
    fn token(&self, name: &str) -> Option<u32>;
}
