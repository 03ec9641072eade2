//! Language models in the program: `grove train TASK`, `grove fit` of texts, and `grove eval` of such runs.

mod dry;
mod eval;
mod run;

pub use eval::eval;

use super::fit::RESUME;
use super::games::Games;
use super::members;
use super::run_dir::RunDir;
use super::say::say;
use super::settings::commented;
use super::train::{port, settings_file};
use super::{EvalArgs, FitArgs, RunArgs, TrainArgs};
use crate::checkpoint::Checkpoint;
use crate::config::overlay;
use crate::device::Chosen;
use crate::model::language::LanguageModel;
use crate::parallel::Team;
use crate::task::{self, DataTask, Task};
use crate::trainer::language::{
    LanguageConfig, LanguageTrainer, TINY, describe, language_settings, load_language_settings,
    saved_language_settings,
};
use anyhow::{Context, Result, bail};
use run::{Kept, Run};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use toml::{Table, Value};

/// The folder of a run's model: its vocabulary from the start, its weights from the last save on.
const MODEL: &str = "model";

/// How long a member waits for another, unless it is told otherwise: texts take longer than games, and one member's
/// longer than another's.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What is said of an engine that is asked for.
pub const ENGINE: &str =
    "--engine is for games; language models have one on the CPU and one on devices, by --device";

/// Whether the command line asks for a language model.
pub fn is_asked(args: &TrainArgs) -> bool {
    if args.run.resume {
        let dir = RunDir::open(args.run.run_dir.clone(), args.game.as_deref());
        return dir.is_ok_and(|dir| is_run(dir.path()));
    }
    args.model.is_some()
        || args.task_data.is_some()
        || args.game.as_deref().is_some_and(|name| task::find(name).is_ok())
        || settings_file(&args.run).is_ok_and(|file| file.contains_key("task"))
}

/// Whether `fit` is to learn from texts: of a file, or of a task.
pub fn is_text(args: &FitArgs) -> bool {
    let is_lines = args.data.is_file() || args.data.extension().is_some_and(|end| end == "jsonl");
    args.model.is_some() || is_lines || named_task(&args.data).is_some()
}

/// The task of this name, where nothing else has it.
fn named_task(path: &Path) -> Option<String> {
    let name = path.to_str().filter(|name| !path.exists() && task::find(name).is_ok())?;
    Some(name.to_string())
}

/// Whether a folder is the run of a language model.
fn is_run(path: &Path) -> bool {
    path.join(MODEL).is_dir()
}

/// Whether a checkpoint is of a language model's run.
pub fn is_of(checkpoint: &Checkpoint) -> bool {
    saved_language_settings(checkpoint).is_ok_and(|settings| settings.contains_key("task"))
}

/// Trains, from the start or on.
pub fn train(games: &Games, args: TrainArgs) -> Result<()> {
    let TrainArgs { game: task, task_data: data, verifier, model, from, run } = args;
    if run.resume {
        let dir = RunDir::open(run.run_dir.clone(), task.as_deref())?;
        let _lock = members::is_first().then(|| dir.lock()).transpose()?;
        return resume(games, &run, &dir, &dir.latest()?);
    }
    // A run's model is a folder like any other.
    let model = model.or_else(|| from.map(|run| run.join(MODEL)));
    begin(games, &Asked { task, data, verifier, model, fit: false }, &run)
}

/// Imitates the solutions of a task, or of a file.
pub fn fit(games: &Games, args: FitArgs) -> Result<()> {
    let FitArgs { data, model, run } = args;
    if run.resume {
        bail!(RESUME);
    }
    let task = named_task(&data);
    let data = task.is_none().then_some(data);
    begin(games, &Asked { task, data, verifier: None, model, fit: true }, &run)
}

/// What the command line asks for.
struct Asked {
    task: Option<String>,
    /// The file of a task of one's own.
    data: Option<PathBuf>,
    verifier: Option<String>,
    model: Option<PathBuf>,
    /// Whether nothing but imitation is wanted.
    fit: bool,
}

impl Asked {
    /// The task's name and what the command line says of its settings.
    fn task(&self, file: &Table) -> Result<(String, Table)> {
        let mut own = Table::new();
        let mut asked = self.task.as_deref();
        if let Some(path) = &self.data {
            if let Some(other) = asked.filter(|name| *name != DataTask::NAME) {
                bail!("--task-data is a task of its own; leave out `{other}`");
            }
            asked = Some(DataTask::NAME);
            let whole = path.canonicalize();
            let whole = whole.with_context(|| format!("cannot read {}", path.display()))?;
            own.insert("path".to_string(), whole.display().to_string().into());
        }
        if let Some(command) = &self.verifier {
            let folder = std::env::current_dir().context("cannot find this folder")?;
            own.insert("verifier".to_string(), command.as_str().into());
            own.insert("folder".to_string(), folder.display().to_string().into());
        }
        let in_file = file.get("task").and_then(Value::as_str);
        match (asked, in_file) {
            (Some(asked), Some(in_file)) if asked != in_file => {
                bail!("the settings file is for `{in_file}`, not `{asked}`")
            }
            (Some(name), _) | (None, Some(name)) => Ok((name.to_string(), own)),
            (None, None) => bail!(
                "no task is named; `grove train TASK --model MODEL` learns one of {}, and --task-data \
                 FILE.jsonl one of your own",
                task::names()
            ),
        }
    }

    /// Where the model is: by the command line, else by the settings file.
    fn model(&self, file: &Table) -> String {
        let in_file = || file.get("model")?.get("path")?.as_str();
        match &self.model {
            Some(path) => path.display().to_string(),
            None => in_file().unwrap_or(TINY).to_string(),
        }
    }

    /// The defaults for a model; `None` for a fresh one.
    fn defaults(&self, path: &str, model: Option<&LanguageModel>) -> LanguageConfig {
        let num_params = model.map(|model| model.shape.num_params());
        match (self.fit, num_params) {
            (true, _) => LanguageConfig::imitating(path, num_params),
            (false, Some(num_params)) => LanguageConfig::for_trained(path, num_params),
            (false, None) => LanguageConfig::for_model(path),
        }
    }
}

/// The model that the members of a run begin with, if it is not a fresh one.
struct Given(Mutex<Option<LanguageModel>>);

impl Given {
    /// Gives it to a member, if all are to train it with these settings. Nobody keeps it for others once all
    /// have it, since who changes weights that somebody else has too needs as much memory again.
    fn to(&self, team: &Team, settings: &Table) -> Result<Option<LanguageModel>> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let model = lock().clone();
        team.agree("setting", &settings.to_string())?;
        *lock() = None;
        Ok(model)
    }
}

/// Checks that all members have the same texts, where a task's settings name a file of them.
fn same_data(team: &Team, task: &Table) -> Result<()> {
    let file = task.get("path").and_then(Value::as_str).map(Path::new);
    members::same_data(team, file.as_slice())
}

/// Begins a run.
fn begin(games: &Games, asked: &Asked, args: &RunArgs) -> Result<()> {
    if args.engine.is_some() {
        bail!(ENGINE);
    }
    let file = settings_file(args)?;
    let (name, own) = asked.task(&file)?;
    let path = asked.model(&file);
    let model = load(&path)?;
    let defaults = asked.defaults(&path, model.as_ref());
    let told = (&args.set[..], args.seed, args.iterations);
    let (own, mut config) = settings((&name, own), defaults, file, told)?;
    config.precision = args.precision.unwrap_or(config.precision);
    let task = open(&name, own.clone())?;
    if asked.fit && args.iterations.is_none() {
        let epochs = task.num_prompts(task::Split::Train).map(|prompts| config.epochs(prompts));
        config.iterations = epochs.unwrap_or(config.iterations);
    }
    let settings = language_settings(&name, &own, &config);
    let model = Given(Mutex::new(model));
    members::run(args, TIMEOUT, |member| {
        let (chosen, team) = member.for_texts()?;
        let device = chosen.as_ref().map(|chosen| chosen.device.clone());
        let model = model.to(&team, &settings)?;
        same_data(&team, &own)?;
        if args.dry_run {
            return dry::preview(&task, &config, model.as_ref(), device, args.json);
        }
        let trainer =
            LanguageTrainer::with_team(task.clone(), config.clone(), model, team)?.on(device)?;
        let (port, kept) = match trainer.team().is_root() {
            true => {
                let port = port(args)?;
                let dir = RunDir::create(args.run_dir.clone(), &name)?;
                let lock = Some(dir.lock()?);
                dir.write_config(&commented(&settings.to_string(), describe))?;
                trainer.model().save(&dir.path().join(MODEL))?;
                let what = if asked.fit { "Fitting" } else { "Training" };
                let place = place(chosen.as_ref());
                say!(
                    "{what} {path} to {name}{place}; everything is kept in {}.",
                    dir.path().display()
                );
                (port, Some(Kept::new(dir, lock, settings.clone(), &trainer)?))
            }
            false => (None, None),
        };
        Run { args, kept, trainer }.train(games, port)
    })
}

/// Goes on with a run, which nobody else trains.
fn resume(games: &Games, args: &RunArgs, dir: &RunDir, checkpoint: &Checkpoint) -> Result<()> {
    let settings = saved_language_settings(checkpoint)?;
    let (name, own, mut config) = load_language_settings(settings)?;
    config.iterations = args.iterations.unwrap_or(config.iterations);
    let settings = language_settings(&name, &own, &config);
    let model = LanguageModel::load(&dir.path().join(MODEL))?;
    let (task, model) = (open(&name, own.clone())?, Given(Mutex::new(Some(model))));
    members::run(args, TIMEOUT, |member| {
        let (chosen, team) = member.for_texts()?;
        let device = chosen.as_ref().map(|chosen| chosen.device.clone());
        let model = model.to(&team, &settings)?;
        same_data(&team, &own)?;
        team.agree("iteration in its last checkpoint", &checkpoint.iteration.to_string())?;
        let trainer = LanguageTrainer::with_team(task.clone(), config.clone(), model, team)?;
        let trainer = trainer.restored(checkpoint)?.on(device)?;
        is_anything_left(&trainer, dir)?;
        let (port, kept) = match trainer.team().is_root() {
            true => {
                let port = port(args)?;
                dir.write_config(&commented(&settings.to_string(), describe))?;
                let place = place(chosen.as_ref());
                say!(
                    "Going on with {name}{place} in {} after {}.",
                    dir.path().display(),
                    trainer.iteration()
                );
                (port, Some(Kept::new(dir.clone(), None, settings.clone(), &trainer)?))
            }
            false => (None, None),
        };
        Run { args, kept, trainer }.train(games, port)
    })
}

/// Where texts go through, for people: nothing of the CPU.
fn place(chosen: Option<&Chosen>) -> String {
    chosen.map_or(String::new(), |chosen| format!(" on {}", chosen.info))
}

/// Refuses a run that has come to its end.
fn is_anything_left(trainer: &LanguageTrainer, dir: &RunDir) -> Result<()> {
    let (iteration, total) = (trainer.iteration(), trainer.config().iterations);
    let place = dir.path().display();
    if iteration >= total {
        bail!(
            "the run in {place} has done all its {total} iterations; --iterations with a larger \
             number goes on"
        );
    }
    if trainer.is_done() {
        bail!(
            "the run in {place} has ended with iteration {iteration}: {} evaluations found nothing better \
             (fit.patience)",
            trainer.config().fit.patience
        );
    }
    Ok(())
}

/// The settings of a new run, the task's and its own: defaults, file, command line.
pub(super) fn settings(
    (name, asked): (&str, Table),
    defaults: LanguageConfig,
    file: Table,
    (set, seed, iterations): (&[String], Option<u64>, Option<u32>),
) -> Result<(Table, LanguageConfig)> {
    let path = defaults.model.path.clone();
    let mut table = language_settings(name, &(task::find(name)?.defaults)(), &defaults);
    overlay::lay_over(&mut table, file)?;
    overlay::lay_over(&mut table, Table::from_iter([(name.to_string(), asked.into())]))?;
    overlay::apply(&mut table, set)?;
    let (_, own, mut config) = load_language_settings(table)?;
    config.model.path = path;
    config.seed = seed.unwrap_or(config.seed);
    config.iterations = iterations.unwrap_or(config.iterations);
    config.fit.iterations = config.fit.iterations.min(config.iterations);
    config.validate().map_err(anyhow::Error::msg)?;
    Ok((own, config))
}

/// A task with its settings; what there is to know of it is said.
pub(super) fn open(name: &str, own: Table) -> Result<Arc<dyn Task>> {
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
