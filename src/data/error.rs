//! Why a dataset cannot be used: the file, and what is wrong with it.

use std::io;
use std::path::{Path, PathBuf};

/// The file that makes a folder a dataset.
pub const MANIFEST: &str = "manifest.json";

/// Why a dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The folder has no manifest.
    #[error("{} is no dataset: it has no {MANIFEST}", path.display())]
    NoManifest {
        /// The folder.
        path: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// A file that cannot be read or written.
#[cfg(not(target_family = "wasm"))]
pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DatasetError {
    let path = path.to_path_buf();
    move |source| DatasetError::Io { path, source }
}

/// A file that is not what it should be.
pub(super) fn malformed(path: &Path, reason: impl ToString) -> DatasetError {
    DatasetError::Malformed { path: path.to_path_buf(), reason: reason.to_string() }
}
