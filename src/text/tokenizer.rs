//! Conversion between text and tokens.

use super::error::LanguageError;
use std::fmt::Debug;

/// A vocabulary with the rules for splitting text into its tokens.
pub trait Tokenizer: Debug + Send + Sync {
    /// Encodes a text without adding special tokens.
    ///
    /// # Errors
    /// If the text has a character that no token stands for.
    fn encode(&self, text: &str) -> Result<Vec<u32>, LanguageError>;

    /// Encodes a text with the special tokens that the model expects around it, such as a beginning-of-text token.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::encode`].
    fn encode_whole(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        self.encode(text)
    }

    /// Decodes tokens, leaving out special ones. Tokens that cannot be decoded give an empty text.
    fn decode(&self, tokens: &[u32]) -> String;

    /// The text that each token contributes; an empty list for character vocabularies. A token that holds part of a
    /// character gives U+FFFD.
    fn decode_pieces(&self, tokens: &[u32]) -> Vec<String>;

    /// Whether a token is recognized in a text before the text is split, like the marks of turns; never for characters.
    fn is_added(&self, _token: u32) -> bool {
        false
    }

    /// Finds the token whose vocabulary entry is `name`, special tokens included.
    fn find_token(&self, name: &str) -> Option<u32>;
}
