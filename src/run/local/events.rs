//! A run as a sequence of events: trains, evaluates, records and saves as they are requested.

use super::guard::{add_saved_state, run_guarded};
use super::pace::Pace;
use super::panics::DeviceWatch;
use super::run_summary::RunSummary;
use super::{IterationReport, Run, RunError, RunFiles};
use crate::checkpoint::Checkpoint;
use crate::metrics::{EvaluationRecord, IterationRecord, MemoryLeakDetector};
use crate::run::{DueWork, EndReason, Schedule};
use crate::text::LanguageModel;
use crate::trainer::text::CompletionRecord;
use crate::trainer::{TrainError, Validation, is_finite};
use std::collections::VecDeque;
use std::time::Instant;

/// An event of a run in training.
#[derive(Clone, Debug)]
pub enum Event {
    /// A warning for the user.
    Warning(String),
    /// An iteration was trained, and evaluated and saved if that was due.
    Iteration(Box<IterationReport>),
    /// The run is over, and there are no more events.
    End(RunSummary),
}

/// A user's requests, polled in every iteration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    /// Stop after the iteration, with a checkpoint to resume from.
    pub stop: bool,
    /// Save a checkpoint after the iteration. Ignored in runs of several ranks.
    pub save: bool,
}

/// Iterator over the events of a run, which is trained as they are requested ([`Run::events`]).
pub struct Events<'a> {
    run: &'a mut dyn Run,
    files: Option<&'a mut RunFiles>,
    watch: DeviceWatch,
    requests: Requests,
    schedule: Schedule,
    /// Start of the run, shifted by the length of each pause.
    started: Instant,
    summary: RunSummary,
    pace: Pace,
    leak_detector: MemoryLeakDetector,
    evaluation: Option<EvaluationRecord>,
    /// Whether the last iteration has a checkpoint; `None` before the first.
    is_saved: Option<bool>,
    /// Events not yet returned.
    pending_events: VecDeque<Result<Event, RunError>>,
    is_over: bool,
}

/// State of a run that is saved after an iteration.
struct StateToSave {
    /// Checkpoint; `None` if neither the best policy nor a checkpoint is saved.
    snapshot: Option<Checkpoint>,
    /// Language model to export.
    model: Option<LanguageModel>,
    to: Destinations,
}

/// Places where the state after an iteration is saved.
#[derive(Clone, Copy)]
struct Destinations {
    /// Checkpoint of the best policy.
    best: bool,
    /// Checkpoint of the iteration, with the language model.
    checkpoint: bool,
}

impl<'a> Events<'a> {
    /// Creates the events of a run. The rank with its `files` writes a record after every iteration, and the
    /// checkpoints that are due.
    pub fn new(run: &'a mut dyn Run, files: Option<&'a mut RunFiles>) -> Self {
        Self {
            watch: DeviceWatch::start(),
            requests: Requests::default(),
            schedule: run.trainer().schedule(),
            started: Instant::now(),
            summary: RunSummary::default(),
            pace: Pace::new(run.trainer().iterations_done(), run.stages()),
            leak_detector: MemoryLeakDetector::default(),
            evaluation: None,
            is_saved: None,
            pending_events: VecDeque::new(),
            is_over: false,
            run,
            files,
        }
    }

    /// Stops the run after its next iteration, with a checkpoint to resume from.
    pub fn stop(&mut self) {
        self.requests.stop = true;
    }

    /// Saves a checkpoint after the next iteration. Ignored in runs of several ranks.
    pub fn save(&mut self) {
        self.requests.save = true;
    }

    /// Returns the next event. `poll` polls the user after an iteration is trained, before evaluating and saving, and,
    /// in a run of one rank, again before the next iteration, since the user has seen the last event meanwhile.
    pub(super) fn next_polling(
        &mut self,
        poll: &mut dyn FnMut() -> Requests,
    ) -> Option<Result<Event, RunError>> {
        if self.pending_events.is_empty() && !self.is_over {
            let trainer = self.run.trainer();
            let has_next =
                self.schedule.end_reason(trainer.iterations_done(), trainer.best()).is_none();
            let is_stopped = if has_next { self.stop_or_train(poll) } else { Ok(true) };
            let last = match is_stopped {
                Ok(is_stopped) => is_stopped.then(|| Ok(Event::End(self.summarize()))),
                Err(error) => Some(Err(add_saved_state(error, self.run, self.files.as_deref()))),
            };
            self.is_over = last.is_some();
            self.pending_events.extend(last);
        }
        self.pending_events.pop_front()
    }

    /// Stops after the last iteration if the user requests it now, otherwise trains the next one. Returns whether the
    /// run stops here.
    fn stop_or_train(&mut self, poll: &mut dyn FnMut() -> Requests) -> Result<bool, RunError> {
        if let Some(is_saved) = self.is_saved
            && self.run.trainer().team().size() == 1
        {
            let requests = self.poll_requests(poll);
            self.requests.save |= requests.save;
            if requests.stop {
                if !is_saved {
                    self.save_last_iteration()?;
                }
                return Ok(true);
            }
        }
        self.train_iteration(poll)
    }

    /// Saves a checkpoint of the last iteration, for which none was due.
    fn save_last_iteration(&mut self) -> Result<(), RunError> {
        if self.files.is_none() {
            return Ok(());
        }
        let to = Destinations { best: false, checkpoint: true };
        let state = self.read_state(self.run.trainer().iterations_done(), to)?;
        self.save_state(&state)
    }

    /// Polls the user. The time does not count, since the run may have been paused.
    fn poll_requests(&mut self, poll: &mut dyn FnMut() -> Requests) -> Requests {
        let polled_at = Instant::now();
        let requests = poll();
        self.started += polled_at.elapsed();
        requests
    }

    /// Trains an iteration, and evaluates, records and saves it as due. Returns whether the run stops here. Records
    /// are written before the checkpoint of their iteration, so that a crash never leaves a checkpoint without its
    /// records.
    fn train_iteration(&mut self, poll: &mut dyn FnMut() -> Requests) -> Result<bool, RunError> {
        let iteration = self.run.trainer().iterations_done() + 1;
        let (mut record, completions) =
            run_guarded(self.watch, format!("iteration {iteration}"), || self.run.iterate())?;
        let seconds = self.started.elapsed().as_secs_f64();
        self.summary.seconds_to_first_update.get_or_insert(seconds);
        let requests = self.poll_requests(poll);
        let (mut due, is_stopped) = self.decide_due_work(iteration, seconds, requests)?;
        let is_best = due.evaluate && self.evaluate(&mut record, &mut due)?;
        let to = Destinations { best: is_best, checkpoint: due.save };
        let state = self.read_state(iteration, to)?;
        self.write_records(&record, &completions)?;
        self.save_state(&state)?;
        self.is_saved = Some(due.save);
        self.warn(&record);
        let seconds = self.started.elapsed().as_secs_f64();
        let seconds_left = self.pace.record_iteration(iteration, seconds);
        let (evaluation, iterations) = (self.evaluation.clone(), self.schedule.iterations);
        let report =
            IterationReport { record, evaluation, is_best, iterations, completions, seconds_left };
        self.pending_events.push_back(Ok(Event::Iteration(Box::new(report))));
        Ok(is_stopped)
    }

    /// Reads the state that is saved after an iteration.
    fn read_state(&self, iteration: u32, to: Destinations) -> Result<StateToSave, RunError> {
        run_guarded(self.watch, format!("reading the state of iteration {iteration}"), || {
            let is_saved = to.best || to.checkpoint;
            let snapshot = is_saved.then(|| take_finite_snapshot(&*self.run)).transpose()?;
            let is_exported = to.checkpoint && self.files.is_some();
            let model = if is_exported { self.run.language_model() } else { None };
            Ok(StateToSave { snapshot, model, to })
        })
    }

    /// Writes the records of an iteration.
    fn write_records(
        &mut self,
        record: &IterationRecord,
        completions: &[CompletionRecord],
    ) -> Result<(), RunError> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let warnings = files.write_records(record, completions)?;
        self.queue_warnings(warnings);
        Ok(())
    }

    /// Writes the checkpoints of an iteration, and its language model.
    fn save_state(&mut self, state: &StateToSave) -> Result<(), RunError> {
        let Some(files) = &mut self.files else { return Ok(()) };
        if let Some(snapshot) = state.snapshot.as_ref().filter(|_| state.to.best) {
            files.save_best(snapshot)?;
        }
        if let Some(snapshot) = state.snapshot.as_ref().filter(|_| state.to.checkpoint) {
            files.save_checkpoint(snapshot, self.schedule.keep)?;
        }
        state.model.as_ref().map_or(Ok(()), |model| files.save_model(model))
    }

    /// Decides what is due after an iteration that ended after `seconds`, and whether the run stops there; takes the
    /// request to save.
    fn decide_due_work(
        &mut self,
        iteration: u32,
        seconds: f64,
        requests: Requests,
    ) -> Result<(DueWork, bool), RunError> {
        let (team, limit) = (self.run.trainer().team(), self.schedule.stop.seconds);
        let is_interrupted = team.any(requests.stop || self.requests.stop)?;
        // Without a limit, ranks need not communicate.
        let is_late = limit > 0.0 && team.any(seconds >= limit)?;
        let mut due = self.schedule.due_work(iteration, is_interrupted || is_late);
        due.evaluate |= is_late;
        let is_save_requested = std::mem::take(&mut self.requests.save) | requests.save;
        due.save |= is_save_requested && team.size() == 1;
        self.summary.end_reason = is_late.then_some(EndReason::Seconds);
        Ok((due, is_interrupted || is_late))
    }

    /// Evaluates the policy, and queues a warning if nothing could be judged, once and not after each evaluation.
    /// Returns whether the policy is the best so far. If the evaluation fails, nothing of the iteration is written:
    /// saved without it, a run that resumes would end with another best policy.
    fn evaluate(
        &mut self,
        record: &mut IterationRecord,
        due: &mut DueWork,
    ) -> Result<bool, RunError> {
        let work = format!("the evaluation of iteration {}", record.iteration);
        let Validation { evaluation, is_best } =
            run_guarded(self.watch, work, || self.run.validate())?;
        let has_warned = self.evaluation.as_ref().and_then(EvaluationRecord::warning).is_some();
        let warning = evaluation.warning().filter(|_| !has_warned);
        let warning = warning.map(|warning| format!("iteration {}: {warning}", record.iteration));
        self.queue_warnings(warning);
        self.evaluation = Some(evaluation.clone());
        record.evaluation = Some(evaluation);
        due.save |= self.schedule.end_reason(record.iteration, self.run.trainer().best()).is_some();
        Ok(is_best)
    }

    /// Queues warnings about an iteration: a collapse of training, or growing memory.
    fn warn(&mut self, record: &IterationRecord) {
        let IterationRecord { iteration, memory, text, .. } = record;
        let collapse = text.as_ref().and_then(|text| text.warning.as_ref());
        let collapse = collapse.map(|warning| format!("iteration {iteration}: {warning}"));
        let is_due = iteration.is_multiple_of(self.run.leak_check_interval().max(1));
        let in_use = memory.in_use.filter(|_| is_due);
        let leak = in_use.and_then(|in_use| self.leak_detector.record_epoch(in_use));
        self.queue_warnings(collapse.into_iter().chain(leak));
    }

    fn queue_warnings(&mut self, warnings: impl IntoIterator<Item = String>) {
        self.pending_events.extend(warnings.into_iter().map(|text| Ok(Event::Warning(text))));
    }

    /// Sums up the time and the steps spent so far.
    fn summarize(&self) -> RunSummary {
        let trainer = self.run.trainer();
        let (iterations_done, env_steps) = (trainer.iterations_done(), trainer.env_steps());
        let end_reason =
            self.schedule.end_reason(iterations_done, trainer.best()).or(self.summary.end_reason);
        let seconds = self.started.elapsed().as_secs_f64();
        RunSummary { seconds, iterations_done, env_steps, end_reason, ..self.summary }
    }
}

impl Iterator for Events<'_> {
    type Item = Result<Event, RunError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_polling(&mut Requests::default)
    }
}

/// Takes a snapshot, and checks that its values are finite.
fn take_finite_snapshot(run: &dyn Run) -> Result<Checkpoint, RunError> {
    let snapshot = run.snapshot()?;
    if is_finite(&snapshot) {
        Ok(snapshot)
    } else {
        Err(TrainError::NotFinite {
            quantity: "new policy or its optimizer's state",
            iteration: run.trainer().iterations_done(),
        }
        .into())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::env::Catch;
    use crate::run::{GameRun, RunFolder, RunLock};
    use crate::settings::TrainConfig;
    use crate::trainer::GameTrainer;
    use burn::tensor::Device;
    use std::cell::Cell;
    use std::path::PathBuf;
    use tempfile::TempDir;

    /// A small run that is evaluated every second iteration.
    pub fn new_run(iterations: u32) -> GameRun<Catch> {
        let mut config = TrainConfig { iterations, ..TrainConfig::for_game("catch") };
        config.rollout.num_groups = 4;
        config.checkpoint.eval_every = 2;
        config.checkpoint.eval_episodes = 10;
        let trainer = GameTrainer::new(Catch::default(), &config, &Device::flex());
        GameRun::new(trainer, 1, Vec::new())
    }

    /// The files of a run in a new folder, and its path there.
    pub fn create_files(run: &dyn Run) -> (TempDir, PathBuf, RunFiles, RunLock) {
        let root = TempDir::new().unwrap();
        let path = root.path().join("run");
        let (files, lock) = RunFiles::create(Some(path.clone()), "run", run, "").unwrap();
        (root, path, files, lock)
    }

    #[test]
    fn a_run_yields_events_for_iterations_and_its_end() {
        let mut run = new_run(5);
        let events: Vec<Event> = run.events(None).collect::<Result<_, _>>().unwrap();
        let [steps @ .., Event::End(summary)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((summary.iterations_done, summary.end_reason), (5, Some(EndReason::Iterations)));
        let steps: Vec<&IterationReport> = steps
            .iter()
            .map(|event| match event {
                Event::Iteration(step) => &**step,
                other => panic!("{other:?}"),
            })
            .collect();
        let records: Vec<_> = steps.iter().map(|step| step.record.iteration).collect();
        assert_eq!(records, [1, 2, 3, 4, 5]);
        let evaluated: Vec<bool> =
            steps.iter().map(|step| step.record.evaluation.is_some()).collect();
        assert_eq!(evaluated, [false, true, false, true, true]);
        assert!(steps[0].evaluation.is_none() && steps[2].evaluation.is_some());
        assert!(steps[1].is_best && !steps[2].is_best);
    }

    #[test]
    fn a_stopped_run_continues_with_new_events() {
        let mut run = new_run(5);
        let mut events = run.events(None);
        assert!(matches!(events.next(), Some(Ok(Event::Iteration(_)))));
        events.stop();
        assert!(
            matches!(events.next(), Some(Ok(Event::Iteration(step))) if step.record.iteration == 2)
        );
        let Some(Ok(Event::End(summary))) = events.next() else { panic!("the end") };
        assert_eq!((summary.iterations_done, summary.end_reason), (2, None));
        assert!(events.next().is_none());
        let rest = run.events(None).filter(|event| matches!(event, Ok(Event::Iteration(_))));
        assert_eq!(rest.count(), 3);
        // Nothing is left to train.
        let (mut events, all_steps) = (run.events(None), 5 * summary.env_steps / 2);
        assert!(all_steps > 0);
        assert!(matches!(events.next(), Some(Ok(Event::End(end))) if end.env_steps == all_steps));
        assert!(events.next().is_none());
    }

    #[test]
    fn a_run_stops_at_the_iteration_in_which_its_observer_asks() {
        let mut run = new_run(5);
        let (_root, _, mut files, _lock) = create_files(&run);
        let stop = Cell::new(false);
        let mut poll = || Requests { stop: stop.get(), save: false };
        let mut events = run.events(Some(&mut files));
        for iteration in 1..=3 {
            let Some(Ok(Event::Iteration(step))) = events.next_polling(&mut poll) else {
                panic!("iteration {iteration}")
            };
            assert_eq!(step.record.iteration, iteration);
        }
        stop.set(true);
        let Some(Ok(Event::End(summary))) = events.next_polling(&mut poll) else {
            panic!("the end")
        };
        assert_eq!((summary.iterations_done, summary.end_reason), (3, None));
        assert!(events.next_polling(&mut poll).is_none());
        drop(events);
        // It was not due.
        assert_eq!(files.folder().saved_iteration(), Some(3));
    }

    #[test]
    fn two_requests_to_save_before_an_iteration_ends_are_one() {
        let mut run = new_run(5);
        let (_root, _, mut files, _lock) = create_files(&run);
        let mut events = run.events(Some(&mut files));
        for save in [false, true, false] {
            if save {
                events.save();
            }
            let event = events.next_polling(&mut || Requests { stop: false, save });
            assert!(matches!(event, Some(Ok(Event::Iteration(_)))));
        }
        drop(events);
        assert_eq!(files.folder().saved_iteration(), Some(2));
    }

    #[test]
    fn pauses_do_not_count() {
        let (mut run, began) = (new_run(3), Instant::now());
        let mut poll = || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            Requests::default()
        };
        let mut events = run.events(None);
        let events = std::iter::from_fn(|| events.next_polling(&mut poll));
        let Some(Ok(Event::End(summary))) = events.last() else { panic!("the end") };
        assert!(summary.seconds + 0.15 <= began.elapsed().as_secs_f64(), "{summary:?}");
    }

    #[test]
    fn moving_the_run_directory_ends_the_run() {
        let mut run = new_run(4);
        let (root, path, mut files, _lock) = create_files(&run);
        let moved = root.path().join("moved");
        let mut events = run.events(Some(&mut files));
        assert!(matches!(events.next(), Some(Ok(Event::Iteration(_)))));
        std::fs::rename(&path, &moved).unwrap();
        assert!(matches!(events.next(), Some(Err(RunError::Gone(gone))) if gone == path));
        assert!(!path.exists() && moved.join("metrics.jsonl").is_file());
    }

    #[test]
    fn a_run_in_training_has_no_other_lock() {
        let (_root, path, _files, lock) = create_files(&new_run(2));
        let folder = RunFolder::find(&path).unwrap();
        let error = folder.lock().unwrap_err();
        assert!(matches!(&error, RunError::Locked(locked) if *locked == path), "{error}");
        assert!(error.to_string().contains("is being trained, by this or another process"));
        drop(lock);
        assert_eq!(folder.lock().unwrap().folder().path(), path);
    }
}
