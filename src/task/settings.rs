//! The settings of a task: their trait, and range checks.

use super::{Task, TaskError};
use crate::schema::{OutOfRange, Settings};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// The settings of a task: a plain struct, stored in a table of the task's name
/// (`--set sort.length=8`).
pub trait TaskSettings: Settings + Default + Serialize + DeserializeOwned {
    /// The task's name in commands, settings and checkpoints.
    const NAME: &'static str;
    /// SFT iterations after which GRPO starts, for a fresh `tiny` model.
    const FIT_ITERATIONS: u32 = 100;
    /// The setting with the path of the prompts, if they may be in a file; the setting `digest` has its SHA-256 then.
    const PATH_SETTING: Option<&'static str> = None;

    /// Creates the task from settings in their ranges.
    ///
    /// # Errors
    /// If settings do not fit together, or a requirement is missing on this machine.
    fn open(self) -> Result<Arc<dyn Task>, TaskError>;
}

/// Checks declared settings against their ranges.
pub(super) fn check_ranges<S: TaskSettings>(settings: &S) -> Result<(), TaskError> {
    let error = |error: OutOfRange| TaskError::Setting(error.with_section(S::NAME).to_string());
    settings.validate().map_err(error)
}
