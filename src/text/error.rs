//! Errors of language models that cannot be read, written or used.

use crate::nn::arch::supported;
use std::path::PathBuf;

/// A language model that cannot be read, written or used.
#[derive(Debug, thiserror::Error)]
pub enum LanguageError {
    /// A file that cannot be read or written.
    #[error("the file {path} cannot be {action}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The action that failed: `read` or `written`.
        action: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A path at which there is nothing.
    #[error(
        "there is no file or folder {0}; models are not downloaded: give the path of a Hugging Face folder or of a \
         GGUF file"
    )]
    Missing(PathBuf),
    /// A malformed or unsupported file.
    #[error("the model's file {path} cannot be used: {reason}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason, in words.
        reason: String,
    },
    /// An architecture that Grove does not support.
    #[error("the model in {path} has the architecture {found}; supported are {}", supported())]
    Architecture {
        /// The folder.
        path: PathBuf,
        /// The name of the architecture in its files.
        found: String,
    },
    /// A character that the vocabulary lacks.
    #[error("the model's vocabulary has no {0:?}")]
    Character(char),
    /// Text that a tokenizer of a model's files cannot take.
    #[error("the model's tokenizer fails: {0}")]
    Tokenizer(String),
    /// A chat template that fails.
    #[error("the model's chat template fails: {0}")]
    Template(String),
    /// A conversation, which a model without a chat template cannot read.
    #[error("the model has no chat template for conversations; give prompts as texts")]
    NoTemplate,
    /// A prompt without a token.
    #[error("the prompt is empty")]
    NoPrompt,
    /// An answer without a token.
    #[error("the answer is empty, and the model has no token that ends it")]
    NoAnswer,
    /// A chat template that leaves nothing of a prompt.
    #[error("the model's chat template makes an empty prompt of {0:?}")]
    EmptyPrompt(String),
    /// A chat template that does not put an answer behind its prompt, which ends with this text.
    #[error(
        "the model's chat template does not put the answer behind the prompt, which ends with {0:?}, so that answers to \
         messages cannot be learnt; give prompts as plain texts instead, with the template's marks in them"
    )]
    Answer(String),
}
