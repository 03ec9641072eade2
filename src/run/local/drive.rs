//! The loop that drives a run to its end: iterate, evaluate, record, save.

use super::progress::Pace;
use super::{FinalScores, Progress, Report, Run, RunError, RunFiles};
use crate::checkpoint::Checkpoint;
use crate::metrics::{EvaluationRecord, Growth};
use crate::run::End;
use crate::trainer::{TrainError, is_finite};
use std::time::Instant;

/// A listener that is told how a run proceeds, and may stop it.
pub trait Observer {
    /// Whether the run is to stop after the iteration under way, saved so that it can continue.
    fn wants_to_stop(&self) -> bool;

    /// Whether the run is to be saved after the iteration under way; heeded where it has one rank.
    fn wants_to_save(&self) -> bool {
        false
    }

    /// Takes the figures of an iteration.
    fn iteration(&mut self, progress: &Progress);

    /// Takes a warning.
    fn warning(&mut self, warning: &str);
}

/// The time and the steps that a run took, up to the iteration where it stopped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    /// Seconds in this process.
    pub seconds: f64,
    /// Seconds up to the first update; `None` without one.
    pub seconds_to_first_update: Option<f64>,
    /// Steps of all episodes since the start of the run.
    pub env_steps: u64,
    /// Iterations since the start of the run.
    pub iteration: u32,
    /// The reason why it ended; `None` if it was interrupted.
    pub end: Option<End>,
}

impl Effort {
    /// The report of a run on this device, whose `best` checkpoint had this `result`.
    pub fn report(
        self,
        run: &dyn Run,
        files: &RunFiles,
        device: &str,
        best: Option<&Checkpoint>,
        result: FinalScores,
    ) -> Report {
        let (iteration, folder) = (self.iteration, files.folder());
        let place = if folder.has_model() { folder.model() } else { folder.best() };
        Report {
            subject: run.subject(),
            run: folder.path().display().to_string(),
            device: device.to_string(),
            seed: run.seed(),
            iterations: run.schedule().iterations,
            iteration,
            env_steps: self.env_steps,
            interrupted: self.end.is_none(),
            seconds: self.seconds,
            seconds_to_first_update: self.seconds_to_first_update,
            best_iteration: best.map_or(iteration.into(), |best| best.iteration),
            best: place.display().to_string(),
            result,
        }
    }
}

/// Trains a run until it is over, or `observer` wants to stop. The rank that has its `files` writes a record
/// after every iteration, and the checkpoints that are due; records come first, so that a crash loses none of
/// an iteration that was saved.
///
/// # Errors
/// As [`Run::iterate`], and if a file cannot be written.
pub fn drive(
    run: &mut dyn Run,
    mut files: Option<&mut RunFiles>,
    observer: &mut dyn Observer,
) -> Result<Effort, RunError> {
    let started = Instant::now();
    let schedule = run.schedule();
    let mut effort = Effort::default();
    let mut pace = Pace::new(run.iteration(), run.phases());
    let mut growth = Growth::default();
    let mut evaluation: Option<EvaluationRecord> = None;
    while schedule.end(run.iteration(), run.best()).is_none() {
        let (mut record, completions) = run.iterate()?;
        effort.env_steps = record.env_steps;
        effort.seconds_to_first_update.get_or_insert_with(|| started.elapsed().as_secs_f64());
        let is_late = started.elapsed().as_secs_f64() >= schedule.stop.seconds;
        let interrupted = run.team().any(observer.wants_to_stop())?;
        // Without a limit, ranks need not ask each other.
        let is_late = schedule.stop.seconds.is_finite() && run.team().any(is_late)?;
        let mut due = schedule.due(record.iteration, interrupted || is_late);
        due.evaluation |= is_late;
        due.save |= run.team().size() == 1 && observer.wants_to_save();
        let mut improved = false;
        if due.evaluation {
            let (result, is_best) = run.measure()?;
            improved = is_best;
            evaluation = Some(result.clone());
            record.evaluation = Some(result);
            due.save |= schedule.end(record.iteration, run.best()).is_some();
        }
        let snapshot = (improved || due.save).then(|| finite_snapshot(run)).transpose()?;
        if let Some(files) = &mut files {
            files.write(&record, &completions)?;
            files.take_warnings().iter().for_each(|warning| observer.warning(warning));
            if let Some(snapshot) = snapshot.as_ref().filter(|_| improved) {
                files.save_best(snapshot)?;
            }
            if let Some(snapshot) = snapshot.as_ref().filter(|_| due.save) {
                files.save(snapshot, schedule.keep)?;
                if let Some(model) = run.model() {
                    files.save_model(&model)?;
                }
            }
        }
        if let Some(warning) = record.text.as_ref().and_then(|text| text.warning.as_ref()) {
            observer.warning(&format!("iteration {}: {warning}", record.iteration));
        }
        let in_use =
            record.memory.in_use.filter(|_| record.iteration.is_multiple_of(run.epoch().max(1)));
        if let Some(warning) = in_use.and_then(|in_use| growth.epoch(in_use)) {
            observer.warning(&warning);
        }
        let seconds_left = pace.seconds_left(record.iteration, started.elapsed().as_secs_f64());
        observer.iteration(&Progress {
            record: &record,
            evaluation: evaluation.as_ref(),
            iterations: schedule.iterations,
            completions: &completions,
            seconds_left,
        });
        if is_late {
            effort.end = Some(End::Seconds);
        }
        if interrupted || is_late {
            break;
        }
    }
    effort.seconds = started.elapsed().as_secs_f64();
    effort.iteration = run.iteration();
    effort.end = schedule.end(effort.iteration, run.best()).or(effort.end);
    Ok(effort)
}

/// A snapshot from which the run can continue.
fn finite_snapshot(run: &dyn Run) -> Result<Checkpoint, RunError> {
    let snapshot = run.snapshot()?;
    match is_finite(&snapshot) {
        true => Ok(snapshot),
        false => Err(TrainError::NotFinite {
            what: "new policy or its optimiser's state",
            iteration: run.iteration(),
        }
        .into()),
    }
}
