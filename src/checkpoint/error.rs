//! Errors of saving, loading and finding checkpoints.

use crate::disk::FolderError;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The reason a checkpoint could not be saved, loaded or found.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The path does not exist.
    #[error("there is no checkpoint at {0}; check the path")]
    NotFound(PathBuf),

    /// The path is a file, not a directory.
    #[error("{0} is a file, but a checkpoint is a directory; give the directory's path")]
    NotADirectory(PathBuf),

    /// A file of the checkpoint is missing, or is not what the others say.
    #[error("the checkpoint {path} is damaged: {reason}")]
    Damaged {
        path: PathBuf,
        /// The defect: a clause, such as `weights is missing`.
        reason: String,
    },

    /// The checkpoint uses a newer directory format.
    #[error(
        "the checkpoint {path} has format {found}, but this version of Grove reads formats up to \
         {supported}; load it with a newer version of Grove"
    )]
    NewerFormat { path: PathBuf, found: u32, supported: u32 },

    /// The checkpoint lacks a section.
    #[error(
        "the checkpoint at iteration {iteration} has no section {name}; load one that was saved \
         with it"
    )]
    MissingSection { iteration: u64, name: String },

    /// A section has a different version from the one that its reader supports.
    #[error(
        "section {name} of the checkpoint at iteration {iteration} has version {found}, but this \
         version of Grove reads version {expected}; load it with the version of Grove that saved it"
    )]
    OtherSectionVersion { iteration: u64, name: String, found: u32, expected: u32 },

    /// A section's name is not a portable, unique file name.
    #[error(
        "cannot save a checkpoint to {path}: section name {name:?} {reason}; rename the section"
    )]
    BadSectionName {
        path: PathBuf,
        name: String,
        /// The fault, in words that follow the name in a sentence.
        reason: &'static str,
    },

    /// The path to save to has no file name, as `..` and `/`.
    #[error(
        "cannot save a checkpoint to {0}: the path must end in a directory's name; give another"
    )]
    Unnamed(PathBuf),

    /// The path to save to holds something other than a checkpoint.
    #[error(
        "cannot save a checkpoint to {0}: something else is there and would be lost; move \
         it away or give another path"
    )]
    NotACheckpoint(PathBuf),

    /// The checkpoint to replace or remove is a symbolic link.
    #[error("{0} is a link; put the directory that it names in its place")]
    Link(PathBuf),

    /// The disk (or the user's quota on it) is full.
    #[error(
        "cannot save a checkpoint to {path}: the disk is full; free at least {needed_bytes} bytes there, \
         or save to another disk"
    )]
    DiskFull { path: PathBuf, needed_bytes: u64 },

    /// The checkpoint is intact, but the caller cannot use it.
    #[error("the checkpoint {path} cannot be used: {reason}")]
    Unusable { path: PathBuf, reason: String },

    /// The store is empty.
    #[error("there is no checkpoint in {0} yet; restart the run or give another path")]
    NoneSaved(PathBuf),

    /// All checkpoints in the store are damaged.
    #[error("no checkpoint in {path} is intact{}", newest_error(damaged_checkpoints))]
    NoneIntact {
        path: PathBuf,
        /// The checkpoints with their errors, newest first.
        damaged_checkpoints: Vec<(PathBuf, CheckpointError)>,
    },

    /// A file system operation failed.
    #[error("cannot {action} {path}: {cause}; check the path, its permissions and its disk")]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

/// The reason why the newest of damaged checkpoints cannot be used, as a further sentence.
fn newest_error(damaged_checkpoints: &[(PathBuf, CheckpointError)]) -> String {
    damaged_checkpoints
        .first()
        .map(|(_, error)| format!(". The newest: {error}"))
        .unwrap_or_default()
}

impl CheckpointError {
    /// Whether the checkpoint may be intact: the system cannot read it now, or another version wrote it.
    pub fn may_be_intact(&self) -> bool {
        match self {
            Self::NewerFormat { .. } | Self::OtherSectionVersion { .. } => true,
            // Other errors are about what is in the place of a file.
            Self::Io { cause, .. } => cause.raw_os_error().is_some(),
            _ => false,
        }
    }

    /// Reports a defect of the checkpoint in `path`.
    pub(super) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }

    /// Wraps an I/O error, for use in `map_err`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Io { action, path: path.to_owned(), cause }
    }
}

impl From<FolderError> for CheckpointError {
    fn from(FolderError { action, path, source: cause }: FolderError) -> Self {
        Self::Io { action, path, cause }
    }
}
