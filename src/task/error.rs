//! Errors of tasks and verifiers.

use std::path::PathBuf;
use thiserror::Error;

/// The reason why values cannot be a chat template's variables, from
/// [`parse_template_values`](super::parse_template_values).
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct TemplateValuesError(pub(super) String);

/// The reason a task cannot be opened, has no prompt or cannot verify completions.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TaskError {
    /// There is no task of this name.
    #[error("unknown task `{name}`; must be one of: {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of all tasks.
        known: String,
    },

    /// A run's prompts and reward functions are a Python process's.
    #[error(
        "the run's prompts and reward functions are those of a Python process, which this program cannot call: it \
         neither resumes nor evaluates the run; `grove generate` and `grove export` take its model"
    )]
    Python,

    /// An invalid setting.
    #[error("{0}")]
    Setting(String),

    /// A split has no prompts.
    #[error("`{task}` has no {split} prompt with these settings: {why}")]
    NoPrompt {
        /// The task's name.
        task: String,
        /// The split's name.
        split: &'static str,
        /// The reason, and the remedy.
        why: String,
    },

    /// A file of prompts cannot be read.
    #[error("cannot read {path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's message.
        message: String,
    },

    /// A line of a file of prompts is malformed.
    #[error("{path}, line {line}: {message}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The defect.
        message: String,
    },

    /// A verifier does not start, or no longer answers.
    #[error("{0}")]
    Verifier(String),
}
