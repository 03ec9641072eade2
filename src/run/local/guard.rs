//! Conversion of panics to errors that say where the run can be resumed.

use super::error::SavedState;
use super::panics::DeviceWatch;
use super::{Run, RunError, RunFiles};

/// Runs a part of a run's work; a panic becomes an error, which names the part by `work`.
pub(super) fn run_guarded<T>(
    watch: DeviceWatch,
    work: String,
    part: impl FnOnce() -> Result<T, RunError>,
) -> Result<T, RunError> {
    watch
        .catch_panic(part)
        .unwrap_or_else(|panic| Err(RunError::Panicked { work, panic, saved: None }))
}

/// Adds the state of the run directory to an error.
pub(super) fn add_saved_state(
    mut error: RunError,
    run: &dyn Run,
    files: Option<&RunFiles>,
) -> RunError {
    if let (RunError::Panicked { saved, .. }, Some(files)) = (&mut error, files) {
        let folder = files.folder();
        let (path, iteration) = (folder.path().to_path_buf(), folder.saved_iteration());
        let iterations = run.trainer().schedule().iterations;
        let smaller_launches = run.smaller_launches();
        *saved = Some(SavedState { path, iteration, iterations, smaller_launches });
    }
    error
}
