//! A run in the terminal: announced, driven with a progress bar, shown on the live page, and reported.

use super::args::RunArgs;
use super::games::{Games, Lock};
use super::history::History;
use super::interrupt::Interrupt;
use super::model_card;
use super::patience::patiently;
use super::progress::{ProgressLine, Style};
use super::ranks;
use super::say::{say, tell, tell_json};
use super::terminal::{Page, Terminal};
use super::watch::{self, Port};
use crate::checkpoint::{self, Checkpoint, CheckpointError};
use crate::device::Chosen;
use crate::parallel::Team;
use crate::run::{
    End, Run, RunError, RunFiles, RunFolder, RunLock, RunNote, SavedPolicy, Schedule, Subject,
    caught, drive, finish, preview,
};
use crate::task::DataTask;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The answer to Ctrl-C.
const FINISHING: &str = "Finishing this iteration and saving. Press Ctrl-C again to stop at once.";

/// The surroundings of a run that this process trains.
pub struct Session<'a> {
    /// The command line.
    pub args: &'a RunArgs,
    /// The games of the program, for the live page.
    pub games: &'a Games,
    /// The device.
    pub chosen: &'a Chosen,
    /// The first word of the announcement, for instance `Training`.
    pub verb: &'static str,
}

/// The files of a run, and the port of its live page, which its first rank has.
pub struct Home {
    files: RunFiles,
    port: Option<Port>,
    _lock: Option<RunLock>,
}

impl Home {
    /// Creates the files of a new run, named after `name`; `None` for ranks other than the first.
    pub fn create(
        args: &RunArgs,
        run: &dyn Run,
        name: &str,
        settings: &str,
    ) -> Result<Option<Self>> {
        if !run.team().is_root() {
            return Ok(None);
        }
        let port = port(args)?;
        let (files, lock, warning) = RunFiles::create(args.run_dir.clone(), name, run, settings)?;
        warn(warning.as_slice());
        Ok(Some(Self { files, port, _lock: Some(lock) }))
    }

    /// Opens the files of a run that continues, and takes its lock; `None` for ranks other than the first.
    pub fn reopen(
        args: &RunArgs,
        run: &mut dyn Run,
        folder: &RunFolder,
        lock: &Lock,
        settings: &str,
    ) -> Result<Option<Self>> {
        if !run.team().is_root() {
            return Ok(None);
        }
        let port = port(args)?;
        let files = RunFiles::resume(folder.clone(), run, settings)?;
        let lock = lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Some(Self { files, port, _lock: lock }))
    }

    /// The run's folder.
    fn path(&self) -> &Path {
        self.files.folder().path()
    }
}

/// Locks a run for this process, if it is the one that writes.
pub fn lock(folder: &RunFolder) -> Result<Lock> {
    if !ranks::is_first() {
        return Ok(Lock::default());
    }
    let (lock, warning) = folder.lock()?;
    warn(warning.as_slice());
    Ok(Mutex::new(Some(lock)))
}

/// Prints warnings.
pub fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| say!("warning: {warning}"));
}

/// The checkpoint of the policy that a path names, with its warnings printed.
pub fn saved_policy(path: &Path) -> Result<Checkpoint> {
    let SavedPolicy { checkpoint, warnings } = SavedPolicy::find(path)?;
    warn(&warnings);
    Ok(checkpoint)
}

/// The port of the page, if there is to be one: taken before anything is written.
fn port(args: &RunArgs) -> Result<Option<Port>> {
    let port = args.port.unwrap_or(watch::PORT);
    args.watch.then(|| Port::take(watch::HOST, port)).transpose()
}

/// Refuses a run that is over.
pub fn check_unfinished(run: &dyn Run, folder: &RunFolder) -> Result<()> {
    let (path, iteration) = (folder.path().to_path_buf(), run.iteration());
    let schedule = run.schedule();
    match schedule.end(iteration, run.best()) {
        None | Some(End::Seconds) => Ok(()),
        Some(End::Iterations) => {
            bail!(RunError::Done { path, iterations: schedule.iterations })
        }
        Some(End::Score) => bail!(RunError::Reached { path, score: schedule.stop.score }),
        Some(End::Patience) => {
            bail!(RunError::OutOfPatience { path, iteration, patience: schedule.patience })
        }
    }
}

/// The reason why a run ended before its time, in words; `None` if it did not, or ran out of patience.
fn early_end(end: Option<End>, schedule: &Schedule) -> Option<String> {
    match end {
        None => Some("Interrupted".to_string()),
        Some(End::Seconds) => {
            Some(format!("Trained for {} s (stop.seconds)", schedule.stop.seconds))
        }
        Some(End::Score) => {
            Some(format!("Reached a score of {} (stop.score)", schedule.stop.score))
        }
        Some(End::Iterations | End::Patience) => None,
    }
}

/// Prints the expected cost of a run that this process has prepared since `started`.
pub fn dry_run(run: &mut dyn Run, chosen: &Chosen, started: Instant, json: bool) -> Result<()> {
    let preview = patiently("Trying some iterations and an evaluation.", || {
        preview(run, &chosen.info, started)
    });
    let preview = preview?;
    if json { tell_json(&preview) } else { tell(preview) }
}

impl Session<'_> {
    /// Trains a run to its end or to Ctrl-C, then evaluates and reports its best policy. `next` is the command to
    /// print at the end, by the run's folder.
    pub fn train(
        &self,
        mut run: impl Run,
        home: Option<Home>,
        next: impl FnOnce(&str) -> String,
    ) -> Result<()> {
        let outcome = self.train_to_end(&mut run, home, next);
        // A device that failed may fail again as its memory is freed, which says nothing new.
        let freed = caught(|| drop(run));
        outcome.and_then(|()| Ok(freed?))
    }

    fn train_to_end(
        &self,
        run: &mut dyn Run,
        mut home: Option<Home>,
        next: impl FnOnce(&str) -> String,
    ) -> Result<()> {
        if let Some(home) = &home {
            self.announce(run, home)?;
        }
        let interrupt = Interrupt::listen(Some(FINISHING))?;
        let server = match home.as_mut().and_then(|home| Some((home.port.take()?, home))) {
            Some((port, home)) => Some(watch::start(self.games, port, home.path())?),
            None => None,
        };
        let schedule = run.schedule();
        let style = Style::of(self.args, run.team().size());
        let line = home.as_ref().map(|home| {
            let line = ProgressLine::new(style, run.iteration(), schedule.iterations);
            (line, Page::new(self.games, home.path()))
        });
        let mut terminal = Terminal::new(interrupt.clone(), line);
        let effort = drive(run, home.as_mut().map(|home| &mut home.files), &mut terminal);
        terminal.finish();
        let effort = effort?;
        let best = home.as_ref().map(|home| best_policy(&home.files)).transpose()?.flatten();
        let result = patiently("Evaluating the best policy on fresh episodes.", || {
            finish(run, home.as_mut().map(|home| &mut home.files), best.as_ref())
        })?;
        let Some(home) = home else { return Ok(()) };
        if let Some(model) = run.model() {
            let run = History::read(home.path())?;
            let card = model_card::card(self.games, &run, &model, Some(&result));
            home.files.write_model_card(&card)?;
        }
        let folder = quoted(home.path());
        let can_continue = matches!(effort.end, None | Some(End::Seconds));
        if let Some(reason) = early_end(effort.end, &schedule) {
            let how = format!(" Continue with `grove train --resume --run-dir {folder}`.");
            let (iteration, iterations) = (effort.iteration, schedule.iterations);
            let how = if can_continue { &how } else { "" };
            say!("{reason} and saved after iteration {iteration} of {iterations}.{how}");
        }
        let report = effort.report(run, &home.files, &self.chosen.info.name, best.as_ref(), result);
        if self.args.json {
            tell_json(&report)?;
        } else {
            tell(&report)?;
            if !can_continue {
                say!("Next: {}", next(&folder));
            }
        }
        // The run is over, and another process may continue it while its page stays.
        drop(home);
        if server.is_some() && effort.end.is_some() {
            interrupt.say_nothing();
            say!("The page stays up until you press Ctrl-C.");
            interrupt.wait();
        }
        Ok(())
    }

    /// Prints what is trained with what, and writes it to the run's folder.
    fn announce(&self, run: &dyn Run, home: &Home) -> Result<()> {
        let Self { chosen, verb, .. } = self;
        home.files.write_note(&RunNote::new(run, &chosen.info))?;
        let place = match chosen.info.kind.as_str() {
            "cpu" => format!("the CPU ({})", chosen.info.description),
            _ => chosen.info.to_string(),
        };
        let reason = match chosen.reason.as_str() {
            "as requested" => String::new(),
            reason => format!(" {}.", capitalized(reason)),
        };
        let what = match run.subject() {
            Subject::Env(game) => game,
            Subject::Task(task) if task == DataTask::NAME => "a model on your data".to_string(),
            Subject::Task(task) => format!("a model for {task}"),
        };
        say!("{verb} {what} on {place}.{reason}");
        if run.team().size() > 1 {
            say!("{}", share(run.team(), run));
        }
        let obstacle = run.obstacle().map(|why| format!(" ({why})")).unwrap_or_default();
        say!("Engine: {}{obstacle}", run.engine());
        let phases = run.phases();
        if phases.len() > 1 || phases.iter().any(|phase| phase.name == "SFT") {
            let phases: Vec<_> = phases.iter().map(ToString::to_string).collect();
            say!("Phases: {}", phases.join(", "));
        }
        say!("Saving to {}", home.path().display());
        if let Some(port) = &home.port {
            say!("Watch it at {}", port.url());
        }
        Ok(())
    }
}

/// A rank's part of every batch, in words.
fn share(team: &Team, run: &dyn Run) -> String {
    let shards = run.shards();
    let (ranks, own, all) = (team.size(), shards.own().len(), shards.count());
    format!("Distributed over {ranks} ranks; this rank computes {own} of {all} shards per batch.")
}

/// The checkpoint of the best policy, if there is an intact one.
fn best_policy(files: &RunFiles) -> Result<Option<Checkpoint>> {
    match checkpoint::load(&files.folder().best()) {
        Ok(best) => Ok(Some(best)),
        Err(CheckpointError::NotFound { .. }) => Ok(None),
        Err(error) => {
            say!("warning: {error}");
            say!("warning: using the last policy instead of the best");
            Ok(None)
        }
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// A path as settings hold it.
///
/// # Errors
/// If it is not UTF-8, which settings are.
pub fn in_settings(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| {
        format!(
            "the path {} is not UTF-8, as the settings of a run must be: rename it",
            path.display()
        )
    })?;
    Ok(text.to_string())
}

/// A path as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    match text.chars().all(is_plain) && !text.is_empty() {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_where_a_shell_would_take_them_apart() {
        for (path, expected) in [
            ("runs/fruit-1", "runs/fruit-1"),
            ("my runs/a", "'my runs/a'"),
            ("it's", r"'it'\''s'"),
            ("$x", "'$x'"),
        ] {
            assert_eq!(quoted(Path::new(path)), expected);
        }
    }
}
