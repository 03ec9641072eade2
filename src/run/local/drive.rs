//! Trains a run to its end and reports to an observer.

use super::events::{Event, Events, Requests};
use super::guard::{add_saved_state, run_guarded};
use super::panics::DeviceWatch;
use super::run_summary::RunSummary;
use super::{FinalEvaluation, IterationReport, Run, RunError, RunFiles};
use crate::checkpoint::Checkpoint;

/// Observer of a run, which may also stop it or have it saved.
pub trait RunObserver {
    /// Whether to stop after the iteration in progress, or, if the last iteration was just observed and the run has one
    /// rank, at once. The run is saved so that it can be resumed.
    fn wants_to_stop(&mut self) -> bool;

    /// Whether to save a checkpoint after the iteration in progress. Ignored in runs of several ranks.
    fn wants_to_save(&mut self) -> bool {
        false
    }

    /// Called after every iteration.
    fn on_iteration(&mut self, report: &IterationReport);

    /// Called with every warning for the user.
    fn on_warning(&mut self, warning: &str);
}

/// Trains a run until it is over or `observer` stops it, passing its [`Events`] to the observer.
///
/// # Errors
/// The errors of [`Run::iterate`] and [`Run::validate`], and one if a file cannot be written, or the device fails. The
/// run can be resumed from its last checkpoint, which repeats all iterations since, also if only an evaluation failed:
/// an iteration is recorded and saved after its evaluation.
pub fn drive(
    run: &mut dyn Run,
    files: Option<&mut RunFiles>,
    observer: &mut dyn RunObserver,
) -> Result<RunSummary, RunError> {
    let mut events = Events::new(run, files);
    let mut summary = RunSummary::default();
    loop {
        let mut poll =
            || Requests { stop: observer.wants_to_stop(), save: observer.wants_to_save() };
        match events.next_polling(&mut poll).transpose()? {
            Some(Event::Warning(warning)) => observer.on_warning(&warning),
            Some(Event::Iteration(report)) => observer.on_iteration(&report),
            Some(Event::End(run_summary)) => summary = run_summary,
            None => return Ok(summary),
        }
    }
}

/// Restores the best policy, if this rank has its checkpoint, and exports it if it is a language model. The run is at
/// that checkpoint's iteration afterwards. To train it further, resume it from its last checkpoint
/// ([`RunFiles::resume`]), since its files already have the records of later iterations.
///
/// # Errors
/// If the checkpoint does not fit, the model cannot be written, or the device fails.
pub fn restore_best(
    run: &mut dyn Run,
    files: Option<&RunFiles>,
    best: Option<&Checkpoint>,
) -> Result<(), RunError> {
    let watch = DeviceWatch::start();
    let restored = run_guarded(watch, "reading the state of the best policy".to_string(), || {
        best.map_or(Ok(()), |best| run.restore(best))?;
        Ok(if files.is_some() { run.language_model() } else { None })
    });
    let model = restored.map_err(|error| add_saved_state(error, run, files))?;
    match (files, model) {
        (Some(files), Some(model)) => files.save_model(&model),
        _ => Ok(()),
    }
}

/// Restores the best policy as [`restore_best`] does, and evaluates it on fresh episodes.
///
/// # Errors
/// If the best policy cannot be restored (see [`restore_best`]), the evaluation fails (see [`Run::evaluate_fresh`]), or
/// the device fails.
pub fn finish(
    run: &mut dyn Run,
    files: Option<&RunFiles>,
    best: Option<&Checkpoint>,
) -> Result<FinalEvaluation, RunError> {
    // First, since the evaluation may take long and be interrupted.
    restore_best(run, files, best)?;
    let watch = DeviceWatch::start();
    let evaluation =
        run_guarded(watch, "the final evaluation".to_string(), || run.evaluate_fresh(usize::MAX));
    evaluation.map_err(|error| add_saved_state(error, run, files))
}
