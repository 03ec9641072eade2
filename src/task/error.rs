//! What can go wrong with a task, each as one sentence: what, where, and what to do.

use std::path::PathBuf;
use thiserror::Error;

/// Why a task cannot be opened, asked or verified.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TaskError {
    /// There is no task of this name.
    #[error("unknown task `{name}`; there are: {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: String,
    },

    /// A setting that does not hold.
    #[error("{0}")]
    Setting(String),

    /// A split without prompts.
    #[error("`{task}` has no {split} prompt with these settings: {why}")]
    NoPrompt {
        /// The task's name.
        task: String,
        /// The split's name.
        split: &'static str,
        /// Why, and what to do.
        why: String,
    },

    /// A file of prompts that cannot be read.
    #[error("cannot read {path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        message: String,
    },

    /// A line of a file of prompts that is not one.
    #[error("{path}, line {line}: {message}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it, and what to do.
        message: String,
    },

    /// A verifier that no longer answers, or never did.
    #[error("{0}")]
    Verifier(String),
}
