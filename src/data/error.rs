//! Errors of datasets.

use super::MANIFEST_FILE;
use std::io;
use std::path::{Path, PathBuf};

/// A failure to read or write a dataset.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// An I/O error.
    #[error("cannot {action} {path}: {cause}")]
    Io {
        /// Attempted action, for instance `read`.
        action: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// The underlying error.
        cause: io::Error,
    },
    /// A path at which there is nothing.
    #[error("there is no folder {0}; a dataset is a folder with a {MANIFEST_FILE}")]
    Missing(PathBuf),
    /// A folder without a manifest.
    #[error(
        "{0} is not a dataset: it has no {MANIFEST_FILE}, which `grove demo` and `grove import` write"
    )]
    NoManifest(PathBuf),
    /// A folder for a new dataset that holds something.
    #[error("the folder {0} is not empty; choose another one for the dataset")]
    Occupied(PathBuf),
    /// A malformed file.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
}

/// Wraps an I/O error with the action that failed and its path.
#[cfg(not(target_family = "wasm"))]
pub(super) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> DatasetError {
    let path = path.to_path_buf();
    move |cause| DatasetError::Io { action, path, cause }
}

/// Creates a [`DatasetError::Malformed`].
pub(super) fn malformed_error(path: &Path, reason: impl ToString) -> DatasetError {
    DatasetError::Malformed { path: path.to_path_buf(), reason: reason.to_string() }
}
