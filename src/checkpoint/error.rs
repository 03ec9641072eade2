//! What can go wrong with a checkpoint, each as one sentence: what, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a checkpoint was not saved, loaded or found.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// Nothing is at the path.
    #[error("there is no checkpoint at {path}; check the path")]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },

    /// A file is where a directory was expected.
    #[error("{path} is a file, but a checkpoint is a directory; give the directory's path")]
    NotADirectory {
        /// The path asked for.
        path: PathBuf,
    },

    /// The directory holds nothing.
    #[error("the checkpoint {path} is damaged: it is empty; load another one")]
    Empty {
        /// The checkpoint's directory.
        path: PathBuf,
    },

    /// A file of the checkpoint is gone.
    #[error("the checkpoint {path} is damaged: {file} is missing; load another one")]
    MissingFile {
        /// The checkpoint's directory.
        path: PathBuf,
        /// The missing file's name.
        file: String,
    },

    /// A file is longer or shorter than the manifest says, for instance truncated.
    #[error(
        "the checkpoint {path} is damaged: {file} has {found} bytes instead of {expected}; load \
         another one"
    )]
    WrongSize {
        /// The checkpoint's directory.
        path: PathBuf,
        /// The file's name.
        file: String,
        /// Its size in the manifest, in bytes.
        expected: u64,
        /// Its size on the disk, in bytes.
        found: u64,
    },

    /// A file and its line in `SHA256SUMS` disagree.
    #[error(
        "the checkpoint {path} is damaged: {file} does not have the checksum given in SHA256SUMS; \
         load another one"
    )]
    WrongChecksum {
        /// The checkpoint's directory.
        path: PathBuf,
        /// The file's name.
        file: String,
    },

    /// `SHA256SUMS` is not the list of the checkpoint's files.
    #[error("the checkpoint {path} is damaged: SHA256SUMS {reason}; load another one")]
    BadSums {
        /// The checkpoint's directory.
        path: PathBuf,
        /// What is wrong with the list.
        reason: &'static str,
    },

    /// The manifest makes no sense.
    #[error("the checkpoint {path} is damaged: manifest.json {reason}; load another one")]
    BadManifest {
        /// The checkpoint's directory.
        path: PathBuf,
        /// What is wrong with the manifest.
        reason: String,
    },

    /// The checkpoint was written in a later format.
    #[error(
        "the checkpoint {path} has format {found}, but this grove reads formats up to {supported}; \
         load it with a newer grove"
    )]
    NewerFormat {
        /// The checkpoint's directory.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this build reads.
        supported: u32,
    },

    /// The checkpoint has no such section.
    #[error(
        "the checkpoint at iteration {iteration} has no section {name}; load one that was saved \
         with it"
    )]
    MissingSection {
        /// The checkpoint's iteration.
        iteration: u64,
        /// The section asked for.
        name: String,
    },

    /// A section was written in a later version than its reader knows.
    #[error(
        "section {name} of the checkpoint at iteration {iteration} has version {found}, but this \
         grove reads versions up to {supported}; load it with a newer grove"
    )]
    NewerSection {
        /// The checkpoint's iteration.
        iteration: u64,
        /// The section's name.
        name: String,
        /// Its version.
        found: u32,
        /// The newest version that its reader knows.
        supported: u32,
    },

    /// A section to be saved has a name that is no portable file name of its own.
    #[error(
        "cannot save a checkpoint to {path}: section name {name:?} {reason}; rename the section"
    )]
    BadSectionName {
        /// Where the checkpoint was to be saved.
        path: PathBuf,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The path to save to ends in no name, as `..` and `/` do.
    #[error(
        "cannot save a checkpoint to {path}: the path must end in a directory's name; give another"
    )]
    Unnamed {
        /// Where the checkpoint was to be saved.
        path: PathBuf,
    },

    /// A file, or a directory that holds no checkpoint, is where one was to be saved.
    #[error(
        "cannot save a checkpoint to {path}: something else is there and would be lost; move \
         it away or give another path"
    )]
    NotACheckpoint {
        /// Where the checkpoint was to be saved.
        path: PathBuf,
    },

    /// The disk (or the user's quota on it) is full.
    #[error(
        "cannot save a checkpoint to {path}: the disk is full; free at least {needed} bytes there, \
         or save to another disk"
    )]
    DiskFull {
        /// Where the checkpoint was to be saved.
        path: PathBuf,
        /// The checkpoint's size, in bytes.
        needed: u64,
    },

    /// The checkpoint is intact, but whoever asked for it cannot use it.
    #[error("the checkpoint {path} cannot be used: {reason}; load another one")]
    Unusable {
        /// The checkpoint's directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },

    /// The store is there, but nothing was saved to it yet.
    #[error("there is no checkpoint in {path} yet; start the run anew or give another path")]
    NoneSaved {
        /// The store's directory.
        path: PathBuf,
    },

    /// The store has checkpoints, and all of them are damaged.
    #[error(
        "all {} checkpoints in {path} are damaged; restore one from a copy or start the run anew",
        damaged.len()
    )]
    NoneIntact {
        /// The store's directory.
        path: PathBuf,
        /// Each checkpoint with what is wrong with it, newest first.
        damaged: Vec<(PathBuf, CheckpointError)>,
    },

    /// The system refused an operation.
    #[error("cannot {action} {path}: {source}; check the path, its permissions and its disk")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory that it was tried on.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl CheckpointError {
    /// Wraps a system error, for use in `map_err`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
