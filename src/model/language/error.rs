//! What is wrong with a language model that cannot be used.

use crate::nn::arch::supported;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
use std::path::Path;
use std::path::PathBuf;

/// A language model that cannot be read, written or used.
#[derive(Debug, thiserror::Error)]
pub enum LanguageError {
    /// A file that cannot be read or written.
    #[error("the file {path} cannot be {action}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What was to be done with it.
        action: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("the model's file {path} cannot be used: {reason}")]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A kind of network that is not known here.
    #[error("the model in {path} has the architecture {found}; supported are {}", supported())]
    Shape {
        /// Where.
        path: PathBuf,
        /// What it calls itself.
        found: String,
    },
    /// Text that has a character which is no token.
    #[error("the character {0:?} is none of the model's tokens")]
    Character(char),
    /// A chat template that fails.
    #[error("the model's chat template fails: {0}")]
    Template(String),
}

/// An unusable file.
#[cfg(all(feature = "general", not(target_family = "wasm")))]
pub(super) fn unusable(path: &Path, reason: impl ToString) -> LanguageError {
    LanguageError::Unusable { path: path.to_path_buf(), reason: reason.to_string() }
}

/// A file that cannot be written.
#[cfg(all(feature = "general", not(target_family = "wasm")))]
pub(super) fn written(path: &Path) -> impl FnOnce(std::io::Error) -> LanguageError {
    let path = path.to_path_buf();
    move |source| LanguageError::File { path, action: "written", source }
}

/// A file that cannot be read.
#[cfg(all(feature = "general", not(target_family = "wasm")))]
pub(super) fn unread(path: &Path) -> impl FnOnce(std::io::Error) -> LanguageError {
    let path = path.to_path_buf();
    move |source| LanguageError::File { path, action: "read", source }
}
