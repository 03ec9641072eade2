//! A run in the terminal: announcement, progress, live page and report.

use super::args::RunArgs;
use super::games::{Games, PendingLock, SavedRun};
use super::interrupt::Interrupt;
use super::model_card::format_card;
use super::output::{eprint_line, print_json, print_result};
use super::paths::{quote_path, resume_arguments};
use super::progress::ProgressLine;
use super::progress_note::{with_note, with_note_if};
use super::ranks;
use super::recorded_run::RecordedRun;
use super::terminal::{LivePage, Terminal};
use super::watch::{self, Port};
use crate::checkpoint::Checkpoint;
use crate::device::ChosenDevice;
use crate::parallel::Team;
use crate::run::{
    Algorithm, BestCheckpoint, EndReason, FinalEvaluation, FoundCheckpoint, Report, Run, RunError,
    RunFiles, RunFolder, RunLock, RunMetadata, RunSummary, Schedule, Subject, catch_panic, drive,
    finish, preview, restore_best,
};
use crate::settings::StopConfig;
use crate::task::DataTask;
use anyhow::{Result, bail};
use serde_json::Value;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Answer to Ctrl-C.
const INTERRUPT_ANSWER: &str =
    "Finishing this iteration and saving. Press Ctrl-C again to stop at once.";

/// Origin of a run.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// A new run, with the name of its run directory.
    New(&'a str),
    /// A saved run to resume.
    Saved(SavedRun<'a>),
}

/// Context in which this process trains a run.
pub struct Session<'a> {
    pub args: &'a RunArgs,
    /// Games of the program, for the live page.
    pub games: &'a Games,
    pub origin: Origin<'a>,
    /// Number of iterations that the epochs of the data take; `None` without them.
    pub iterations_for_epochs: Option<u32>,
    /// Description of the dataset, for games' policies that are fitted to one.
    pub dataset: Option<Value>,
    /// Start of the preparation.
    pub started: Instant,
}

/// Files of a run and the port of its live page; only its first rank has them.
struct RunOutputs {
    files: RunFiles,
    port: Option<Port>,
    _lock: RunLock,
}

impl RunOutputs {
    /// Creates the files of a new run, or opens those of a resumed one and takes its lock, and records the device that
    /// was chosen; `None` for ranks other than the first.
    fn open(
        session: &Session,
        run: &mut dyn Run,
        chosen: &ChosenDevice,
        settings: &str,
    ) -> Result<Option<Self>> {
        if !run.trainer().team().is_root() {
            return Ok(None);
        }
        let args = session.args;
        // Binds the port before anything is written.
        let bind = || Port::bind(watch::DEFAULT_HOST, args.port.unwrap_or(watch::DEFAULT_PORT));
        let port = args.watch.then(bind).transpose()?;
        let (files, lock) = match session.origin {
            Origin::New(name) => {
                let (files, lock) = RunFiles::create(args.run_dir.clone(), name, run, settings)?;
                warn(lock.warning.as_slice());
                (files, lock)
            }
            Origin::Saved(SavedRun { lock, .. }) => {
                let lock = lock.lock().unwrap_or_else(PoisonError::into_inner).take();
                let lock = lock.expect("the first rank opens the files once, and has the lock");
                let resumed = RunFiles::resume(&lock, run, settings)?;
                warn(&resumed.warnings);
                warn_of_other_version(resumed.files.folder());
                (resumed.files, lock)
            }
        };
        let mut metadata = RunMetadata::new(run, &chosen.info);
        metadata.iterations_for_epochs = session.iterations_for_epochs;
        files.write_metadata(&metadata)?;
        if let Some(dataset) = &session.dataset {
            files.write_dataset(dataset)?;
        }
        Ok(Some(Self { files, port, _lock: lock }))
    }

    /// The run's folder.
    fn path(&self) -> &Path {
        self.files.folder().path()
    }
}

/// Locks a run for this process if it is the one that writes.
pub fn lock_folder(folder: &RunFolder) -> Result<PendingLock> {
    if !ranks::is_root_process() {
        return Ok(PendingLock::default());
    }
    let lock = folder.lock()?;
    warn(lock.warning.as_slice());
    Ok(Mutex::new(Some(lock)))
}

pub fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| eprint_line!("warning: {warning}"));
}

/// Warns if another version of Grove trained a run last.
fn warn_of_other_version(folder: &RunFolder) {
    if let Some(version) = folder.other_version() {
        let now = env!("CARGO_PKG_VERSION");
        eprint_line!(
            "warning: this run was trained with Grove {version}; Grove {now} may not reproduce it bit for bit"
        );
    }
}

/// Loads the checkpoint of the policy that a path names, and prints its warnings.
pub fn load_policy_checkpoint(path: &Path) -> Result<Checkpoint> {
    let FoundCheckpoint { checkpoint, warnings } = FoundCheckpoint::find(path)?;
    warn(&warnings);
    Ok(checkpoint)
}

/// Checks that a run is not over, including its final evaluation.
fn check_unfinished(run: &dyn Run, folder: &RunFolder) -> Result<()> {
    let trainer = run.trainer();
    let path = folder.path().to_path_buf();
    let iteration = trainer.iterations_done();
    let schedule = trainer.schedule();
    // The first rank may save it while others look.
    let is_unsaved = trainer.team().any(!folder.has_checkpoint(iteration))?;
    let is_complete = !is_unsaved && folder.has_final_evaluation();
    let is_beyond = iteration > schedule.iterations;
    let patience = schedule.patience;
    bail!(match schedule.end_reason(iteration, trainer.best()) {
        None | Some(EndReason::Seconds) => return Ok(()),
        Some(_) if !is_complete && !is_beyond => return Ok(()),
        Some(EndReason::Iterations) if is_beyond => {
            RunError::BeyondEnd { path, iterations: iteration }
        }
        Some(EndReason::Iterations) => RunError::Done { path, iterations: iteration },
        Some(EndReason::Score) => RunError::ScoreReached { path, score: schedule.stop.score },
        Some(EndReason::Patience) => RunError::OutOfPatience { path, iteration, patience },
    })
}

/// Restores the best policy of a run that ended for the reason `end_reason`, and evaluates it. Evaluating a language
/// model takes long: that of an interrupted run is left to the resumed run, and the result is `None`.
fn evaluate_best(
    run: &mut dyn Run,
    files: Option<&RunFiles>,
    best: Option<&Checkpoint>,
    end_reason: Option<EndReason>,
) -> Result<Option<FinalEvaluation>> {
    let message = match run.subject() {
        Subject::Task(_) if end_reason.is_none() => {
            restore_best(run, files, best)?;
            return Ok(None);
        }
        Subject::Task(_) => "Evaluating the best model on held-out prompts.",
        Subject::Env(_) => "Evaluating the best policy on fresh episodes.",
    };
    let is_root = files.is_some();
    Ok(Some(with_note_if(is_root, message, || finish(run, files, best))?))
}

/// The trained policy at the end of a run.
#[derive(Clone, Copy)]
pub struct PolicyAtEnd<'a> {
    /// Number of environment steps of the run.
    pub env_steps: u64,
    /// The best policy, if the run has one.
    pub best: Option<&'a Checkpoint>,
    /// The final evaluation, if there was one.
    pub evaluation: Option<&'a FinalEvaluation>,
}

/// Publishes the trained policy of a run: a game's best policy by an animation, and a language model by its model card,
/// if it has been evaluated. Returns warnings.
///
/// # Errors
/// If the run's files cannot be read, or the model card cannot be written.
pub fn publish_policy(
    games: &Games,
    run: &dyn Run,
    files: &mut RunFiles,
    policy: PolicyAtEnd,
) -> Result<Vec<String>> {
    let PolicyAtEnd { env_steps, best, evaluation } = policy;
    let warnings = games.animate(run, files, env_steps, best);
    if evaluation.is_some()
        && let Some(model) = run.language_model()
    {
        let recorded = RecordedRun::read(files.folder().path())?;
        files.write_model_card(&format_card(games, &recorded, &model, evaluation))?;
    }
    Ok(warnings)
}

/// Describes the early end of a run, one before its last iteration; `None` if it had them all, or ran
/// out of patience.
fn describe_early_end(end_reason: Option<EndReason>, schedule: &Schedule) -> Option<String> {
    let StopConfig { score, seconds } = schedule.stop;
    match end_reason {
        None => Some("Interrupted".to_string()),
        Some(EndReason::Seconds) => Some(format!("Trained for {seconds} s (stop.seconds)")),
        Some(EndReason::Score) => Some(format!("Reached a score of {score} (stop.score)")),
        Some(EndReason::Iterations | EndReason::Patience) => None,
    }
}

impl Session<'_> {
    /// The checkpoint from which the run resumes; `None` for a new run.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.origin {
            Origin::New(_) => None,
            Origin::Saved(saved) => Some(saved.checkpoint),
        }
    }

    /// Checks that all ranks resume from the same iteration.
    pub fn check_same_iteration(&self, team: &Team) -> Result<()> {
        let Some(checkpoint) = self.checkpoint() else { return Ok(()) };
        let iteration = checkpoint.iteration.to_string();
        Ok(team.check_identical("iteration in its last checkpoint", &iteration)?)
    }

    /// Trains a run with these settings to its end or to Ctrl-C, then evaluates and reports its best policy; a dry run
    /// is only tried. `next_command` gives the command to suggest at the end, from the run directory.
    pub fn train(
        &self,
        chosen: &ChosenDevice,
        mut run: impl Run,
        settings: &str,
        next_command: impl FnOnce(&str) -> String,
    ) -> Result<()> {
        let outcome = if self.args.dry_run {
            self.print_preview(&mut run, chosen)
        } else {
            self.train_to_end(&mut run, chosen, settings, next_command)
        };
        // Freeing the memory of a failed device may fail again, which tells nothing new.
        let freed = catch_panic(|| drop(run));
        outcome.and_then(|()| Ok(freed?))
    }

    /// Tries a run, and prints its expected cost.
    fn print_preview(&self, run: &mut dyn Run, chosen: &ChosenDevice) -> Result<()> {
        warn(&run.warnings());
        let preview = with_note("Trying some iterations and an evaluation.", || {
            preview(run, &chosen.info, self.started)
        })?;
        if self.args.json { print_json(&preview) } else { print_result(preview) }
    }

    /// Trains a run to its end, or until it is interrupted, evaluates its best policy and prints the report.
    fn train_to_end(
        &self,
        run: &mut dyn Run,
        chosen: &ChosenDevice,
        settings: &str,
        next_command: impl FnOnce(&str) -> String,
    ) -> Result<()> {
        if let Origin::Saved(saved) = &self.origin {
            check_unfinished(run, saved.folder)?;
        }
        // Once the first file exists, an interrupted run is saved.
        let interrupt = Interrupt::listen(Some(INTERRUPT_ANSWER))?;
        if self.args.stop_with_stdin {
            interrupt.follow_stdin()?;
        }
        let mut outputs = RunOutputs::open(self, run, chosen, settings)?;
        if let Some(outputs) = &outputs {
            self.announce(run, chosen, outputs);
        }
        let port = outputs.as_mut().and_then(|outputs| Some((outputs.port.take()?, outputs)));
        let server = port.map(|(port, outputs)| watch::start(self.games, port, outputs.path()));
        let server = server.transpose()?;
        let summary = self.train_with_progress(run, outputs.as_mut(), interrupt.clone())?;
        let best = outputs.as_ref().map(|outputs| outputs.files.load_best(run)).transpose()?;
        let BestCheckpoint { checkpoint: best, warnings } = best.unwrap_or_default();
        warn(&warnings);
        let files = outputs.as_ref().map(|outputs| &outputs.files);
        let evaluation = evaluate_best(run, files, best.as_ref(), summary.end_reason)?;
        let Some(mut outputs) = outputs else { return Ok(()) };
        warn(evaluation.as_ref().and_then(FinalEvaluation::warning).as_slice());
        let policy = PolicyAtEnd {
            env_steps: summary.env_steps,
            best: best.as_ref(),
            evaluation: evaluation.as_ref(),
        };
        warn(&publish_policy(self.games, run, &mut outputs.files, policy)?);
        let device = &chosen.info.name;
        let evaluation = evaluation.unwrap_or_default();
        let report = summary.into_report(run, &outputs.files, device, best.as_ref(), evaluation);
        self.print_end(&report, run.trainer().schedule(), outputs.path(), next_command)?;
        // The run is over. Another process may resume it while its page is still served.
        drop(outputs);
        if server.is_some() && summary.end_reason.is_some() {
            interrupt.silence();
            eprint_line!("The page stays up until you press Ctrl-C.");
            interrupt.wait();
        }
        Ok(())
    }

    /// Trains a run, with its progress in the terminal.
    fn train_with_progress(
        &self,
        run: &mut dyn Run,
        outputs: Option<&mut RunOutputs>,
        interrupt: Interrupt,
    ) -> Result<RunSummary> {
        let trainer = run.trainer();
        let progress = outputs.as_ref().map(|outputs| {
            let ranks = trainer.team().size();
            let iterations = trainer.schedule().iterations;
            let line = ProgressLine::new(self.args, ranks, trainer.iterations_done(), iterations);
            (line, LivePage::new(self.games, outputs.path()))
        });
        let mut terminal = Terminal::new(interrupt, progress);
        Ok(drive(run, outputs.map(|outputs| &mut outputs.files), &mut terminal)?)
    }

    /// Prints how a run ended, its report, and how to continue.
    fn print_end(
        &self,
        report: &Report,
        schedule: Schedule,
        folder: &Path,
        next_command: impl FnOnce(&str) -> String,
    ) -> Result<()> {
        let RunSummary { end_reason, iterations_done, .. } = report.summary;
        let can_continue = matches!(end_reason, None | Some(EndReason::Seconds));
        if let Some(reason) = describe_early_end(end_reason, &schedule) {
            let advice = format!(" Continue with `grove train {}`.", resume_arguments(folder));
            let advice = if can_continue { &advice } else { "" };
            let iterations = schedule.iterations;
            eprint_line!(
                "{reason} and saved after iteration {iterations_done} of {iterations}.{advice}"
            );
        }
        if self.args.json {
            return print_json(report);
        }
        print_result(report)?;
        if !can_continue {
            eprint_line!("Next: {}", next_command(&quote_path(folder)));
        }
        Ok(())
    }

    /// Prints what is trained and on which hardware.
    fn announce(&self, run: &dyn Run, chosen: &ChosenDevice, outputs: &RunOutputs) {
        let verb = match self.origin {
            Origin::New(_) => "Training",
            Origin::Saved(_) => "Resuming",
        };
        let hardware = if chosen.info.is_cpu() {
            format!("the CPU ({})", chosen.info.description)
        } else {
            chosen.info.to_string()
        };
        let reason = chosen.reason.as_deref().map(|reason| format!(" {}.", capitalize(reason)));
        let reason = reason.unwrap_or_default();
        let subject = match run.subject() {
            Subject::Env(game) => game,
            Subject::Task(task) if task == DataTask::NAME => "a model on your data".to_string(),
            Subject::Task(task) => format!("a model for {task}"),
        };
        eprint_line!("{verb} {subject} on {hardware}.{reason}");
        print_details(run);
        eprint_line!("Saving to {}", outputs.path().display());
        if let Some(port) = &outputs.port {
            eprint_line!("Watch it at {}", port.url());
        }
    }
}

/// Prints a run's engine, its ranks and stages if there are several, and its warning.
fn print_details(run: &dyn Run) {
    let trainer = run.trainer();
    let shards = trainer.shards();
    let ranks = trainer.team().size();
    if ranks > 1 {
        let (num_own, num_shards) = (shards.own_shards().len(), shards.count());
        eprint_line!(
            "Distributed over {ranks} ranks; this rank computes {num_own} of {num_shards} shards per batch."
        );
    }
    let reason = run.fallback_reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
    eprint_line!("Engine: {}{reason}", trainer.describe_engine());
    let stages = run.stages();
    if stages.len() > 1 || stages.iter().any(|stage| stage.algorithm == Algorithm::Sft) {
        let stages: Vec<_> = stages.iter().map(ToString::to_string).collect();
        eprint_line!("Stages: {}", stages.join(", "));
    }
    warn(&run.warnings());
}

fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
