//! The loop that drives a run to its end: iterate, evaluate, record, save.

use super::error::Saved;
use super::progress::Pace;
use super::{FinalScores, Progress, Report, Run, RunError, RunFiles, caught_on_devices};
use crate::checkpoint::Checkpoint;
use crate::metrics::{EvaluationRecord, Growth, IterationRecord};
use crate::run::{End, Schedule};
use crate::text::LanguageModel;
use crate::trainer::text::CompletionRecord;
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
/// As [`Run::iterate`], and if a file cannot be written, or the device fails. The run continues from its last
/// checkpoint then. Where it is the evaluation that fails, and the device still gives the state, that is the
/// iteration before it.
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
        let step = step(run, &schedule, observer, started)
            .map_err(|error| located(error, &files, schedule.iterations))?;
        let Step { record, completions, snapshot, model, improved, saves, .. } = step;
        effort.env_steps = record.env_steps;
        effort.seconds_to_first_update.get_or_insert_with(|| started.elapsed().as_secs_f64());
        if let Some(files) = &mut files {
            files.write(&record, &completions)?;
            files.take_warnings().iter().for_each(|warning| observer.warning(warning));
            if let Some(snapshot) = snapshot.as_ref().filter(|_| improved) {
                files.save_best(snapshot)?;
            }
            if let Some(snapshot) = snapshot.as_ref().filter(|_| saves) {
                files.save(snapshot, schedule.keep)?;
            }
            if let Some(model) = &model {
                files.save_model(model)?;
            }
        }
        if let Some(failure) = step.failure {
            return Err(located(failure, &files, schedule.iterations));
        }
        if let Some(result) = &record.evaluation {
            evaluation = Some(result.clone());
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
        if step.is_late {
            effort.end = Some(End::Seconds);
        }
        if step.is_interrupted || step.is_late {
            break;
        }
    }
    effort.seconds = started.elapsed().as_secs_f64();
    effort.iteration = run.iteration();
    effort.end = schedule.end(effort.iteration, run.best()).or(effort.end);
    Ok(effort)
}

/// The results of an iteration.
struct Step {
    record: IterationRecord,
    completions: Vec<CompletionRecord>,
    /// The state after it, if it is the best so far or saved.
    snapshot: Option<Checkpoint>,
    /// The language model, if it is saved.
    model: Option<LanguageModel>,
    improved: bool,
    saves: bool,
    is_late: bool,
    is_interrupted: bool,
    /// The failure of the evaluation, after which the iteration is saved all the same.
    failure: Option<RunError>,
}

/// Trains an iteration, and evaluates it if that is due.
fn step(
    run: &mut dyn Run,
    schedule: &Schedule,
    observer: &dyn Observer,
    started: Instant,
) -> Result<Step, RunError> {
    let iteration = run.iteration() + 1;
    let (mut record, completions) = guarded(format!("iteration {iteration}"), || run.iterate())?;
    let is_late = started.elapsed().as_secs_f64() >= schedule.stop.seconds;
    let is_interrupted = run.team().any(observer.wants_to_stop())?;
    // Without a limit, ranks need not ask each other.
    let is_late = schedule.stop.seconds.is_finite() && run.team().any(is_late)?;
    let is_alone = run.team().size() == 1;
    let mut due = schedule.due(record.iteration, is_interrupted || is_late);
    due.evaluation |= is_late;
    due.save |= is_alone && observer.wants_to_save();
    let (mut improved, mut failure) = (false, None);
    if due.evaluation {
        match guarded(format!("the evaluation of iteration {iteration}"), || run.measure()) {
            Ok((result, is_best)) => {
                improved = is_best;
                record.evaluation = Some(result);
                due.save |= schedule.end(record.iteration, run.best()).is_some();
            }
            Err(error) if is_alone => (due.save, failure) = (true, Some(error)),
            Err(error) => return Err(error),
        }
    }
    let saves = due.save;
    let read = || {
        guarded(format!("reading the state of iteration {iteration}"), || {
            let snapshot = (improved || saves).then(|| finite_snapshot(run)).transpose()?;
            Ok((snapshot, if saves { run.model() } else { None }))
        })
    };
    let (snapshot, model) = match (read(), failure.take()) {
        (Err(_), Some(error)) => return Err(error),
        (read, error) => {
            failure = error;
            read?
        }
    };
    Ok(Step {
        record,
        completions,
        snapshot,
        model,
        improved,
        saves,
        is_late,
        is_interrupted,
        failure,
    })
}

/// Does a part of an iteration; a panic of it is an error.
fn guarded<T>(work: String, part: impl FnOnce() -> Result<T, RunError>) -> Result<T, RunError> {
    caught_on_devices(part)
        .unwrap_or_else(|panic| Err(RunError::Failed { work, panic, saved: None }))
}

/// The error with the state of the run's folder.
fn located(mut error: RunError, files: &Option<&mut RunFiles>, iterations: u32) -> RunError {
    if let (RunError::Failed { saved, .. }, Some(files)) = (&mut error, files) {
        let folder = files.folder();
        let (path, iteration) = (folder.path().to_path_buf(), folder.saved_iteration());
        *saved = Some(Saved { path, iteration, iterations });
    }
    error
}

/// Restores the best policy, if this rank has its checkpoint, evaluates it on fresh episodes, and saves it as the
/// model, if it is a language model.
///
/// # Errors
/// As [`Run::finish`], if the model cannot be written, and if the device fails.
pub fn finish(
    run: &mut dyn Run,
    files: Option<&mut RunFiles>,
    best: Option<&Checkpoint>,
) -> Result<FinalScores, RunError> {
    let evaluated = guarded("the final evaluation".to_string(), || {
        let scores = run.finish(best)?;
        Ok((scores, files.is_some().then(|| run.model()).flatten()))
    });
    let iterations = run.schedule().iterations;
    let (scores, model) = evaluated.map_err(|error| located(error, &files, iterations))?;
    if let (Some(files), Some(model)) = (files, model) {
        files.save_model(&model)?;
    }
    Ok(scores)
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
