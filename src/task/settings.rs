//! The settings of a task: their trait, and range checks.

use super::{Task, TaskError};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// The settings of a task: a plain struct, stored in a table of the task's name
/// (`--set sort.length=8`).
pub trait TaskSettings: Default + Serialize + DeserializeOwned {
    /// The task's name in commands, settings and checkpoints.
    const NAME: &'static str;

    /// Creates the task.
    ///
    /// # Errors
    /// If a setting is out of range, or a requirement is missing on this machine.
    fn open(self) -> Result<Arc<dyn Task>, TaskError>;
}

/// Checks that a setting is in its range.
pub(super) fn within(
    key: &str,
    value: u32,
    range: std::ops::RangeInclusive<u32>,
) -> Result<(), TaskError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (low, high) = (range.start(), range.end());
    Err(TaskError::Setting(format!("`{key}` is {value}, but must be {low} to {high}")))
}
