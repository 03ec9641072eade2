//! `grove train TASK --model MODEL`: a language model learns a task; and `grove eval` of such a run.

use super::interrupt::Interrupt;
use super::run_dir::{Lock, RunDir};
use super::say::{say, tell, tell_json};
use super::train::settings_file;
use super::{EvalArgs, RunArgs, TrainArgs};
use crate::checkpoint::{self, Checkpoint};
use crate::config::overlay;
use crate::metrics::JsonLines;
use crate::model::language::LanguageModel;
use crate::rollout::generate::Sampling;
use crate::task;
use crate::trainer::language::{
    LanguageConfig, LanguageEvaluation, LanguageRecord, LanguageTrainer, TINY, language_settings,
    load_language_settings, saved_language_settings,
};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use toml::Table;

/// The folder of a run's model: its vocabulary from the start, its weights from the last save on.
const MODEL: &str = "model";
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

/// Whether the command line asks for a language model.
pub fn is_asked(args: &TrainArgs) -> bool {
    if args.run.resume {
        let dir = RunDir::open(args.run.run_dir.clone(), args.game.as_deref());
        return dir.is_ok_and(|dir| is_run(dir.path()));
    }
    args.model.is_some() || args.game.as_deref().is_some_and(|name| task::find(name).is_ok())
}

/// Whether a folder is the run of a language model.
pub fn is_run(path: &Path) -> bool {
    path.join(MODEL).is_dir()
}

/// Trains, from the start or on.
pub fn train(args: TrainArgs) -> Result<()> {
    let TrainArgs { game, model, from, run } = args;
    // A run's model is a folder like any other.
    let model = model.or_else(|| from.map(|run| run.join(MODEL)));
    if run.resume {
        let dir = RunDir::open(run.run_dir.clone(), game.as_deref())?;
        let lock = dir.lock()?;
        let checkpoint = dir.latest()?;
        return resume(&run, (dir, lock), &checkpoint);
    }
    let name = game.context("which task? `grove train TASK --model MODEL`")?;
    let file = settings_file(&run)?;
    let path = model.as_ref().map_or(TINY.to_string(), |path| path.display().to_string());
    let (settings, config) = settings(&name, &path, file, (&run.set, run.seed, run.iterations))?;
    let model = load(&config.model.path)?;
    let trainer = LanguageTrainer::new(open(&name, &settings)?, config, model)?;
    if run.watch || run.dry_run {
        bail!("--watch and --dry-run are for games");
    }
    let dir = RunDir::create(run.run_dir.clone(), &name)?;
    let _lock = dir.lock()?;
    dir.write_config(&settings.to_string())?;
    trainer.model().save(&dir.path().join(MODEL))?;
    let metrics = JsonLines::create(&dir.metrics())?;
    say!("Training {} to {name}; everything is kept in {}.", path, dir.path().display());
    Run { args: &run, dir, trainer, metrics, settings }.train()
}

fn resume(args: &RunArgs, (dir, _lock): (RunDir, Lock), checkpoint: &Checkpoint) -> Result<()> {
    let settings = saved_language_settings(checkpoint)?;
    let (name, _, mut config) = load_language_settings(settings.clone())?;
    config.iterations = args.iterations.unwrap_or(config.iterations);
    let model = LanguageModel::load(&dir.path().join(MODEL))?;
    let trainer = LanguageTrainer::new(open(&name, &settings)?, config, Some(model))?;
    let trainer = trainer.restored(checkpoint)?;
    if trainer.iteration() >= trainer.config().iterations {
        bail!(
            "the run in {} has done all its {} iterations; --iterations with a larger number goes on",
            dir.path().display(),
            trainer.config().iterations
        );
    }
    let metrics = JsonLines::resume(&dir.metrics(), trainer.iteration())?;
    say!("Going on with {name} in {} after {}.", dir.path().display(), trainer.iteration());
    Run { args, dir, trainer, metrics, settings }.train()
}

/// The settings of a new run: defaults, file, command line.
pub(super) fn settings(
    name: &str,
    model: &str,
    file: Table,
    (set, seed, iterations): (&[String], Option<u64>, Option<u32>),
) -> Result<(Table, LanguageConfig)> {
    let defaults = (task::find(name)?.defaults)();
    let mut table = language_settings(name, &defaults, &LanguageConfig::for_model(model));
    overlay::lay_over(&mut table, file)?;
    overlay::apply(&mut table, set)?;
    let (_, own, mut config) = load_language_settings(table)?;
    config.seed = seed.unwrap_or(config.seed);
    config.iterations = iterations.unwrap_or(config.iterations);
    config.fit.iterations = config.fit.iterations.min(config.iterations);
    config.validate().map_err(anyhow::Error::msg)?;
    Ok((language_settings(name, &own, &config), config))
}

/// The task that settings name.
pub(super) fn open(name: &str, settings: &Table) -> Result<std::sync::Arc<dyn task::Task>> {
    let (_, own, _) = load_language_settings(settings.clone())?;
    let task = (task::find(name)?.open)(own)?;
    task.notes().iter().for_each(|note| say!("{note}"));
    Ok(task)
}

/// The model that a run begins with; none where it is a fresh one.
pub(super) fn load(path: &str) -> Result<Option<LanguageModel>> {
    if path == TINY {
        return Ok(None);
    }
    let model = LanguageModel::load(Path::new(path));
    Ok(Some(model.with_context(|| format!("cannot use the model in {path}"))?))
}

/// A run with its files.
struct Run<'a> {
    args: &'a RunArgs,
    dir: RunDir,
    trainer: LanguageTrainer,
    metrics: JsonLines,
    settings: Table,
}

impl Run<'_> {
    /// Trains to the end or to Ctrl-C, then evaluates and reports.
    fn train(mut self) -> Result<()> {
        let answer = "Finishing the iteration and saving; Ctrl-C again stops at once.";
        let interrupt = Interrupt::listen(Some(answer))?;
        let started = Instant::now();
        let path = self.dir.path().join(COMPLETIONS);
        let mut completions = self.completions(&path)?;
        let total = self.trainer.config().iterations;
        while self.trainer.iteration() < total {
            let (mut record, made) = self.trainer.iterate()?;
            let due = record.iteration == total || interrupt.seen();
            self.keep(&mut record, due)?;
            let mut lines = Vec::new();
            for one in &made {
                serde_json::to_writer(&mut lines, one)?;
                lines.push(b'\n');
            }
            let write = std::io::Write::write_all(&mut completions, &lines);
            write.with_context(|| format!("cannot write {}", path.display()))?;
            if due {
                break;
            }
        }
        self.report(started.elapsed().as_secs_f64())
    }

    /// The file of completions, without those of iterations that are about to be done again.
    fn completions(&self, path: &Path) -> Result<std::fs::File> {
        let done = u64::from(self.trainer.iteration());
        let old = std::fs::read_to_string(path).unwrap_or_default();
        let is_old = |line: &&str| {
            let record = serde_json::from_str::<serde_json::Value>(line);
            record.is_ok_and(|record| record["iteration"].as_u64().is_some_and(|i| i <= done))
        };
        let kept: String = old.lines().filter(is_old).map(|line| format!("{line}\n")).collect();
        std::fs::write(path, kept).with_context(|| format!("cannot write {}", path.display()))?;
        let file = std::fs::OpenOptions::new().append(true).open(path);
        file.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Evaluates and saves what is due, and writes the record.
    fn keep(&mut self, record: &mut LanguageRecord, end: bool) -> Result<()> {
        let every = self.trainer.config().checkpoint.clone();
        let due = |every: u32| end || (every > 0 && record.iteration.is_multiple_of(every));
        let mut improved = false;
        if due(every.eval_every) {
            let (evaluation, best) = self.trainer.measure()?;
            say!(
                "{:>5}/{}  reward {:.3}  pass@1 {:.3}  {:.0} tokens/s",
                record.iteration,
                self.trainer.config().iterations,
                evaluation.reward,
                evaluation.pass_at_1,
                record.tokens as f64 / record.seconds.total.max(1e-9)
            );
            (record.evaluation, improved) = (Some(evaluation), best);
        }
        if improved || due(every.save_every) {
            let snapshot = self.trainer.snapshot(&self.settings);
            if improved {
                checkpoint::save(&snapshot, &self.dir.best())?;
            }
            if due(every.save_every) {
                self.dir.store().save(&snapshot)?;
                self.dir.store().prune(every.keep)?;
                self.trainer.model().save(&self.dir.path().join(MODEL))?;
            }
        }
        Ok(self.metrics.write(record)?)
    }

    /// Evaluates the best policy and prints the result; the model's folder becomes that policy's.
    fn report(self, seconds: f64) -> Result<()> {
        let Self { args, dir, trainer, .. } = self;
        let (iteration, best) = (trainer.iteration(), trainer.best());
        let name = trainer.task().name().to_string();
        let trainer = match checkpoint::load(&dir.best()) {
            Ok(best) => trainer.restored(&best)?,
            Err(_) => trainer,
        };
        trainer.model().save(&dir.path().join(MODEL))?;
        let greedy = Sampling { temperature: 0.0, ..trainer.sampling() };
        let evaluation = trainer.evaluate(FINAL_PROMPTS, 1, &greedy)?;
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
        let LanguageEvaluation { prompts, reward, pass_at_1, .. } = &report.evaluation;
        tell(format_args!(
            "{iteration} iterations in {seconds:.1} s; the best model is of iteration {} and lies in {}.\n\
             On {prompts} prompts that it was not trained on: mean reward {reward:.4}, all right {:.1} %.",
            report.best_iteration,
            dir.path().join(MODEL).display(),
            100.0 * pass_at_1
        ))
    }
}

/// Evaluates a run's best model: pass@1 and pass@k.
pub fn eval(args: &EvalArgs) -> Result<()> {
    let dir = RunDir::open(Some(args.run.clone()), None)?;
    let checkpoint = match checkpoint::load(&dir.best()) {
        Ok(best) => best,
        Err(_) => dir.latest()?,
    };
    let settings = saved_language_settings(&checkpoint)?;
    let (name, _, mut config) = load_language_settings(settings.clone())?;
    config.seed = args.seed;
    let model = LanguageModel::load(&dir.path().join(MODEL))?;
    let trainer = LanguageTrainer::new(open(&name, &settings)?, config, Some(model))?;
    let trainer = trainer.restored(&checkpoint)?;
    let sampling = trainer.sampling();
    let greedy = Sampling { temperature: 0.0, ..sampling.clone() };
    let greedy = trainer.evaluate(args.episodes, 1, &greedy)?;
    let drawn = trainer.evaluate(args.episodes, args.k, &sampling)?;
    if args.json {
        let result = serde_json::json!({ "task": name, "greedy": greedy, "drawn": drawn });
        return tell_json(&result);
    }
    tell(format_args!(
        "{name}, {} prompts that were not trained on\n\
         most likely tokens   mean reward {:.4}   pass@1 {:.4}\n\
         drawn tokens         mean reward {:.4}   pass@1 {:.4}   pass@{} {:.4}",
        greedy.prompts,
        greedy.reward,
        greedy.pass_at_1,
        drawn.reward,
        drawn.pass_at_1,
        drawn.k,
        drawn.pass_at_k
    ))
}
