//! Errors of reading, writing and using language models.

use crate::nn::arch::family_names;
use std::path::PathBuf;

/// Reasons why a language model cannot be read, written or used.
#[derive(Debug, thiserror::Error)]
pub enum LanguageError {
    /// A file cannot be read or written.
    #[error("the file {path} cannot be {action}: {cause}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Failed action: `read` or `written`.
        action: &'static str,
        /// Error of the operating system.
        cause: std::io::Error,
    },
    /// The path does not exist.
    #[error(
        "there is no file or folder {0}; models are not downloaded: give the path of a Hugging Face folder or of a \
         GGUF file"
    )]
    Missing(PathBuf),
    /// A file is malformed or unsupported.
    #[error("the model's file {path} cannot be used: {reason}")]
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The format of a file cannot express the model.
    #[error("the model cannot be written to {path}: {reason}")]
    Unwritable {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// The architecture is not supported.
    #[error("the model in {path} has the architecture {found}; supported are {}", family_names())]
    UnknownArchitecture {
        /// Path of the folder.
        path: PathBuf,
        /// Name of the architecture in the files.
        found: String,
    },
    /// The vocabulary lacks a character.
    #[error("the model's vocabulary has no {0:?}")]
    UnknownCharacter(char),
    /// The model's tokenizer cannot process a text.
    #[error("the model's tokenizer fails: {0}")]
    Tokenizer(String),
    /// The chat template fails.
    #[error("the model's chat template fails: {0}")]
    Template(String),
    /// A conversation was passed to a model without a chat template.
    #[error("the model has no chat template for conversations; give prompts as texts")]
    NoTemplate,
    /// A prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// An answer has no tokens.
    #[error("the answer is empty, and the model has no token that ends it")]
    EmptyAnswer,
    /// The chat template renders a prompt as an empty text.
    #[error("the model's chat template makes an empty prompt of {0:?}")]
    EmptyRendering(String),
    /// The chat template does not put the answer after its prompt, which ends with this text.
    #[error(
        "the model's chat template does not put the answer after the prompt, which ends with {0:?}, so that answers to \
         messages cannot be learnt; give prompts as plain texts instead, with the template's marks in them"
    )]
    MisplacedAnswer(String),
}
