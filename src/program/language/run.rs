//! A run of a language model under way, with its files.

use super::MODEL;
use crate::checkpoint;
use crate::metrics::JsonLines;
use crate::program::RunArgs;
use crate::program::games::Games;
use crate::program::interrupt::Interrupt;
use crate::program::run_dir::{Lock, RunDir};
use crate::program::say::{say, tell, tell_json};
use crate::program::watch::{self, Port};
use crate::rollout::generate::Sampling;
use crate::trainer::language::{
    CompletionRecord, Health, LanguageEvaluation, LanguageRecord, LanguageTrainer,
};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use toml::Table;

/// Every completion that a run has learnt from.
const COMPLETIONS: &str = "completions.jsonl";
/// Prompts of the final evaluation.
const FINAL_PROMPTS: usize = 1000;

#[derive(Serialize)]
struct Report<'a> {
    task: &'a str,
    run_dir: String,
    iteration: u32,
    seconds: f64,
    best_iteration: u32,
    evaluation: LanguageEvaluation,
}

/// A run as one of its members trains it.
pub struct Run<'a> {
    /// What the command line says.
    pub args: &'a RunArgs,
    /// Where it is kept: by the first member, who also speaks.
    pub kept: Option<Kept>,
    pub trainer: LanguageTrainer,
}

/// The files of a run.
pub struct Kept {
    dir: RunDir,
    metrics: JsonLines,
    completions: File,
    /// Kept with every checkpoint.
    settings: Table,
    /// What is wrong with the run.
    health: Health,
    /// What keeps other processes from training it, unless somebody else holds it.
    _lock: Option<Lock>,
}

impl Run<'_> {
    /// Trains to the end or to Ctrl-C, then evaluates and reports.
    pub fn train(mut self, games: &Games, port: Option<Port>) -> Result<()> {
        let answer = "Finishing the iteration and saving; Ctrl-C again stops at once.";
        let interrupt = Interrupt::listen(Some(answer))?;
        let started = Instant::now();
        if let Some(port) = &port {
            say!("Watch it at {}", port.url());
        }
        let server = match (port, &self.kept) {
            (Some(port), Some(kept)) => Some(watch::start(games, port, kept.dir.path())?),
            _ => None,
        };
        while !self.trainer.is_done() {
            let (record, made) = self.trainer.iterate()?;
            let stop = self.trainer.team().any(interrupt.seen())?;
            self.keep(record, &made, stop)?;
            if stop {
                break;
            }
        }
        let is_done = self.trainer.is_done();
        self.report(started.elapsed().as_secs_f64())?;
        if server.is_some() && is_done {
            interrupt.say_nothing();
            say!("The page stays until Ctrl-C.");
            interrupt.wait();
        }
        Ok(())
    }

    /// Evaluates and saves what is due, and writes the record. Where the user wants to `stop`, the run is
    /// saved and nothing else, so that it goes on as if nothing had been.
    fn keep(
        &mut self,
        mut record: LanguageRecord,
        made: &[CompletionRecord],
        stop: bool,
    ) -> Result<()> {
        let every = self.trainer.config().checkpoint.clone();
        let last = record.iteration == self.trainer.config().iterations;
        let due = |every: u32| last || (every > 0 && record.iteration.is_multiple_of(every));
        let (is_measured, mut is_saved) = (due(every.eval_every), stop || due(every.save_every));
        let mut improved = false;
        if is_measured {
            let (evaluation, best) = self.trainer.measure()?;
            (record.evaluation, improved) = (Some(evaluation), best);
            is_saved |= self.trainer.is_done();
        }
        let Some(kept) = &mut self.kept else { return Ok(()) };
        kept.show(&mut record, self.trainer.config().iterations);
        if improved || is_saved {
            kept.save(&self.trainer, improved, is_saved)?;
        }
        kept.metrics.write(&record)?;
        kept.write(made)
    }

    /// Evaluates the best policy, which all members share, and prints the result; the model's folder becomes
    /// that policy's.
    fn report(self, seconds: f64) -> Result<()> {
        let Self { args, kept, trainer } = self;
        let (iteration, best) = (trainer.iteration(), trainer.best());
        let name = trainer.task().name().to_string();
        let mut trainer = match kept.as_ref().map(|kept| checkpoint::load(&kept.dir.best())) {
            Some(Ok(best)) => trainer.restored(&best)?,
            _ => trainer,
        };
        if let Some(Kept { dir, .. }) = &kept {
            trainer.model().save(&dir.path().join(MODEL))?;
        }
        trainer.follow_first()?;
        let greedy = Sampling { temperature: 0.0, ..trainer.sampling() };
        let imitates = trainer.config().imitates();
        let mut evaluation = match trainer.config().checkpoint.eval_episodes {
            0 => LanguageEvaluation::default(),
            _ => trainer.evaluate(FINAL_PROMPTS, 1, &greedy)?,
        };
        if imitates {
            evaluation.nll = Some(trainer.held_out()?);
        }
        let Some(Kept { dir, .. }) = kept else { return Ok(()) };
        let report = Report {
            task: &name,
            run_dir: dir.path().display().to_string(),
            iteration,
            seconds,
            best_iteration: best.map_or(iteration, |(_, iteration)| iteration),
            evaluation,
        };
        if args.json {
            return tell_json(&report);
        }
        let LanguageEvaluation { prompts, reward, pass_at_1, nll, .. } = &report.evaluation;
        let mut text = format!(
            "{iteration} iterations in {seconds:.1} s; the best model is of iteration {} and lies in {}.",
            report.best_iteration,
            dir.path().join(MODEL).display()
        );
        if let Some(nll) = nll {
            text += &format!(
                "\nSolutions that are held out: {nll:.4} nats a token, a perplexity of {:.3}.",
                nll.exp()
            );
        }
        if *prompts > 0 {
            text += &format!(
                "\nOn {prompts} prompts that it was not trained on: mean reward {reward:.4}, all right \
                 {:.1} %.",
                100.0 * pass_at_1
            );
        }
        if imitates {
            let dir = dir.path().display();
            text += &format!("\n`grove train {name} --from {dir}` goes on with rewards.");
        }
        tell(text)
    }
}

impl Kept {
    /// The files of a run that is about to begin, or to go on, without what is about to be done again.
    pub fn new(
        dir: RunDir,
        lock: Option<Lock>,
        settings: Table,
        trainer: &LanguageTrainer,
    ) -> Result<Self> {
        let metrics = match trainer.iteration() {
            0 => JsonLines::create(&dir.metrics())?,
            iteration => JsonLines::resume(&dir.metrics(), iteration)?,
        };
        let mut health = Health::new(trainer.task().parts());
        let before = std::fs::read_to_string(dir.metrics()).unwrap_or_default();
        let records =
            before.lines().filter_map(|line| serde_json::from_str::<LanguageRecord>(line).ok());
        records.for_each(|record| drop(health.see(&record)));
        let completions = completions(&dir.path().join(COMPLETIONS), trainer.iteration())?;
        Ok(Self { dir, metrics, completions, settings, health, _lock: lock })
    }

    /// Says what there is to say of an iteration: what is wrong with it, which its record keeps, and how it was
    /// evaluated.
    fn show(&mut self, record: &mut LanguageRecord, iterations: u32) {
        record.warning = self.health.see(record);
        if let Some(warning) = &record.warning {
            say!("{:>5}  warning: {warning}", record.iteration);
        }
        let Some(evaluation) = &record.evaluation else { return };
        let mut line = format!("{:>5}/{iterations}", record.iteration);
        if let Some(nll) = evaluation.nll {
            line += &format!("  loss {:.4}  held out {nll:.4} nats a token", record.loss);
        }
        if evaluation.prompts > 0 {
            line +=
                &format!("  reward {:.3}  pass@1 {:.3}", evaluation.reward, evaluation.pass_at_1);
        }
        let rate = match record.fit {
            true => record.learnt_per_second,
            false => record.tokens as f64 / record.seconds.total.max(1e-9),
        };
        say!("{line}  {rate:.0} tokens/s");
    }

    /// Saves the policy as the best so far, or as one that the run goes on from.
    fn save(&self, trainer: &LanguageTrainer, is_best: bool, is_saved: bool) -> Result<()> {
        let snapshot = trainer.snapshot(&self.settings);
        if is_best {
            checkpoint::save(&snapshot, &self.dir.best())?;
        }
        if is_saved {
            self.dir.store().save(&snapshot)?;
            self.dir.store().prune(trainer.config().checkpoint.keep)?;
            trainer.model().save(&self.dir.path().join(MODEL))?;
        }
        Ok(())
    }

    /// Adds the completions of an iteration to their file.
    fn write(&mut self, made: &[CompletionRecord]) -> Result<()> {
        let mut lines = Vec::new();
        for one in made {
            serde_json::to_writer(&mut lines, one)?;
            lines.push(b'\n');
        }
        let written = self.completions.write_all(&lines);
        written
            .with_context(|| format!("cannot write {COMPLETIONS} in {}", self.dir.path().display()))
    }
}

/// The file of completions, with those of the first `done` iterations.
fn completions(path: &Path, done: u32) -> Result<File> {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let is_old = |line: &&str| {
        let record = serde_json::from_str::<serde_json::Value>(line);
        record.is_ok_and(|record| record["iteration"].as_u64().is_some_and(|i| i <= done.into()))
    };
    let kept: String = old.lines().filter(is_old).map(|line| format!("{line}\n")).collect();
    std::fs::write(path, kept).with_context(|| format!("cannot write {}", path.display()))?;
    let file = File::options().append(true).open(path);
    file.with_context(|| format!("cannot write {}", path.display()))
}
