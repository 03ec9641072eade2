//! `grove train` and `grove fit` of a language model: settings, task and model of a run.

use super::args::{FitArgs, RunArgs, TrainArgs};
use super::games::{Games, SavedRun};
use super::output::eprint_line;
use super::progress_note::{with_note, with_note_after};
use super::ranks;
use super::session::{Origin, Session, canonical_path, quote_path, quote_word, utf8_path};
use super::settings::{InitialModel, commented, language_defaults};
use super::source::{names_iterations, note_iterations_of_epochs};
use super::text_device::default_precision;
use super::trust;
use super::verifier::VerifierArgs;
use crate::checkpoint::Checkpoint;
use crate::disk::{self, input};
use crate::parallel::Team;
use crate::run::{RunFolder, TextRun, load_model};
use crate::settings::{Precision, change_saved, overlay};
use crate::task::{self, DataTask, Split, Task};
use crate::text::LanguageModel;
use crate::trainer::text::{
    LanguageConfig, LanguageSettings, LanguageTrainer, TINY, language_settings,
    saved_language_model, saved_language_settings, split_language_settings,
};
use anyhow::{Context, Error, Result, bail};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use toml::{Table, Value};

/// Default time that a rank waits for another. Completions take longer than games, and their lengths differ between
/// ranks.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Error for `--engine` with a language model.
pub const ENGINE: &str = "--engine is for games; language models have one engine for the CPU and one for devices (--device)";

/// Delay before the warning about a verifier that does not answer, and the warning.
const SLOW_VERIFIER_DELAY: Duration = Duration::from_secs(5);
const FLUSH_ADVICE: &str = "The verifier has not answered its first line yet. An answer is one line, which it must flush: in Python, \
                     print(..., flush=True).";

/// Whether the command line requests a language model.
pub fn is_requested(args: &TrainArgs) -> bool {
    args.model.is_some()
        || args.task_data.is_some()
        || args.game.as_deref().is_some_and(|name| task::find(name).is_ok())
        || args.run.settings().is_ok_and(|file| file.contains_key("task"))
}

/// Whether `fit` learns from texts, in a file or from a task.
pub fn is_text(args: &FitArgs) -> bool {
    let is_lines = args.data.is_file() || disk::has_ending(&args.data, "jsonl");
    args.model.is_some() || is_lines || named_task(&args.data).is_some()
}

/// Name of a task, if the path names one and is not a file.
fn named_task(path: &Path) -> Option<String> {
    let name = path.to_str().filter(|name| !path.exists() && task::find(name).is_ok())?;
    Some(name.to_string())
}

/// Message shown while a model is read.
pub const READING_MODEL: &str = "Reading the model.";

/// Whether a checkpoint is of a language model's run.
pub fn is_of(checkpoint: &Checkpoint) -> bool {
    saved_language_settings(checkpoint).is_ok_and(|settings| settings.contains_key("task"))
}

/// Name of the task of a language model's checkpoint.
pub fn saved_task_name(checkpoint: &Checkpoint) -> Result<String> {
    Ok(overlay::text(&saved_language_settings(checkpoint)?, "task").to_string())
}

/// Trains a new run.
pub fn train(games: &Games, args: TrainArgs) -> Result<()> {
    let TrainArgs { game: task, task_data: data, verifier, model, from, run, .. } = args;
    if let Some(name) = task.as_deref().filter(|name| games.find(name).is_ok()) {
        if model.is_some() {
            bail!(
                "`{name}` is a game, and --model names the language model of a task ({}); a game's network is set by \
                 --set policy.kind=...",
                task::names()
            );
        }
        if data.is_some() {
            bail!("`{name}` is a game, and --task-data has the prompts of a language model");
        }
        bail!("`{name}` is a game, and the settings file is for a task");
    }
    let model = match model {
        Some(model) => Some(model),
        None => from.map(model_of).transpose()?,
    };
    begin(games, &TextRequest { task, data, verifier: &verifier, model, fit: false }, &run)
}

/// Path of the model exported by another run, which can be used like any other; if `run` is not a run, the path itself.
fn model_of(run: PathBuf) -> Result<PathBuf> {
    let Ok(folder) = RunFolder::find(&run) else { return Ok(run) };
    if !folder.has_model() {
        let path = folder.path().display();
        bail!("the run in {path} has no language model; --from needs a run of one here");
    }
    Ok(folder.model())
}

/// Fine-tunes a model on the solutions of a task or file.
pub fn fit(games: &Games, args: FitArgs) -> Result<()> {
    let FitArgs { data, model, verifier, run } = args;
    let task = named_task(&data);
    let data = task.is_none().then_some(data);
    begin(games, &TextRequest { task, data, verifier: &verifier, model, fit: true }, &run)
}

/// Command line of a new run.
struct TextRequest<'a> {
    task: Option<String>,
    /// File of prompts for the task `data`.
    data: Option<PathBuf>,
    verifier: &'a VerifierArgs,
    model: Option<PathBuf>,
    /// Whether the run is SFT alone.
    fit: bool,
}

impl TextRequest<'_> {
    /// Name of the task and its settings on the command line.
    fn task(&self, file: &Table) -> Result<(String, Table)> {
        let name = self.task_name(file)?;
        self.verifier.refuse_for_built_in(&name)?;
        let mut task_settings = Table::new();
        if let Some(path) = &self.data {
            task_settings.insert("path".to_string(), canonical_path(path)?.into());
            task_settings.insert("digest".to_string(), "".into());
        }
        if let Some(command) = &self.verifier.verifier {
            let folder = std::env::current_dir().context("cannot find this folder")?;
            task_settings.insert("verifier".to_string(), command.as_str().into());
            task_settings.insert("folder".to_string(), utf8_path(&folder)?.into());
        }
        task_settings.extend(self.verifier.restrictions());
        Ok((name, task_settings))
    }

    /// Name of the task, on the command line or in the settings file.
    fn task_name(&self, file: &Table) -> Result<String> {
        let asked = match (&self.data, self.task.as_deref()) {
            (Some(_), Some(other)) if other != DataTask::NAME => {
                bail!("--task-data is a task by itself; leave out `{other}`")
            }
            (Some(_), _) => Some(DataTask::NAME),
            (None, asked) => asked,
        };
        match (asked, file.get("task").and_then(Value::as_str)) {
            (Some(asked), Some(in_file)) if asked != in_file => {
                bail!("the settings file is for `{in_file}`, not `{asked}`")
            }
            (Some(name), _) | (None, Some(name)) => Ok(name.to_string()),
            (None, None) => bail!(
                "no task is named: it is one of {}; --task-data FILE.jsonl is a task of your own",
                task::names()
            ),
        }
    }

    /// Name of the run directory without its number: that of the task or file.
    fn folder(&self, task: &str) -> String {
        let stem =
            self.data.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy());
        let stem = stem.unwrap_or(task.into());
        let is_plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
        stem.chars().map(|c| if is_plain(c) { c } else { '-' }).collect()
    }

    /// Command to suggest at the end of the run in `folder`: GRPO after SFT alone, if that needs no further settings.
    fn next(&self, task: &dyn Task, args: &RunArgs, folder: &str) -> String {
        let is_default = args.set.is_empty() && args.config.is_none();
        match (&self.data, self.fit && is_default) {
            (Some(data), true) => {
                format!("grove train --task-data {} --from {folder}", quote_path(data))
            }
            (None, true) => format!("grove train {} --from {folder}", task.name()),
            _ => next_look(task, folder),
        }
    }
}

/// Command to look at the model of the run in `folder`.
fn next_look(task: &dyn Task, folder: &str) -> String {
    // A prompt over few characters fits on a command line.
    match task.prompt(Split::Test, 0).ok().filter(|_| task.alphabet().is_some()) {
        Some(prompt) => format!("grove generate {folder} {}", quote_word(&prompt.text)),
        None => format!("grove watch {folder}"),
    }
}

/// Number of iterations that the epochs of a run of SFT alone take; `None` if its task has no end of prompts.
fn iterations_of_epochs(task: &dyn Task, config: &LanguageConfig) -> Option<u32> {
    let prompts = task.num_prompts(Split::Train).filter(|_| config.is_sft_only())?;
    Some(config.epochs(prompts))
}

/// Opens the task of a saved run, with its file of prompts at the path `data` if given, and its verifier if the command
/// line permits it. Updates the task's settings `own` to match.
pub fn reopen(
    name: &str,
    own: &mut Table,
    data: Option<&Path>,
    args: &VerifierArgs,
) -> Result<Arc<dyn Task>> {
    match (file(name, own)?, data) {
        (None, Some(_)) => {
            bail!("the prompts of this run are not in a file; leave out --task-data")
        }
        (Some((key, _)), Some(data)) => {
            own.insert(key.to_string(), canonical_path(data)?.into());
        }
        (Some((_, path)), None) if !Path::new(&path).exists() => {
            bail!("{path} no longer exists; pass its new location with --task-data FILE");
        }
        (_, None) => {}
    }
    args.refuse_for_built_in(name)?;
    own.extend(args.restrictions());
    trust::check(name, own, args, &[])?;
    open(name, own.clone())
}

/// Opens the task of a new run, and records the absolute path of its file of prompts and the file's SHA-256 in its
/// settings.
fn open_new(name: &str, own: &mut Table) -> Result<Arc<dyn Task>> {
    let file = file(name, own)?;
    if let Some((key, path)) = &file {
        own.insert(key.to_string(), canonical_path(Path::new(path))?.into());
    }
    let task = open(name, own.clone())?;
    if let Some((_, path)) = file
        && overlay::text(own, "digest").is_empty()
    {
        let digest = input::sha256(Path::new(&path), input::MAX_DATA_BYTES);
        let digest = digest.with_context(|| format!("cannot read {path}"))?;
        own.insert("digest".to_string(), digest.into());
    }
    Ok(task)
}

/// Setting with a task's file of prompts and its path, if the prompts are in a file.
fn file(name: &str, own: &Table) -> Result<Option<(&'static str, String)>> {
    let file = task::find(name)?.file.map(|key| (key, overlay::text(own, key).to_string()));
    Ok(file.filter(|(_, path)| !path.is_empty()))
}

/// A run of a language model, ready to start or to resume.
struct LanguageRun {
    /// Name and settings of the task.
    name: String,
    own: Table,
    config: LanguageConfig,
    task: Arc<dyn Task>,
    /// Initial model, until all ranks have taken it; `None` for a new one.
    model: Mutex<Option<LanguageModel>>,
}

impl LanguageRun {
    /// Trains the run on all its ranks. `next` gives the command to suggest at the end, from the run directory.
    fn train(&self, session: &Session, next: impl Fn(&str) -> String + Sync) -> Result<()> {
        let Self { name, own, config, task, .. } = self;
        let settings = language_settings(name, own, config);
        let text = commented(&settings.to_string(), task::find(name)?.settings)?;
        let file = file(name, own)?.map(|(_, path)| path);
        ranks::run(session.args, TIMEOUT, |rank| {
            let (chosen, team) = rank.for_texts().choose()?;
            let model = self.take_model(&team, &settings)?;
            ranks::same_data(&team, file.as_slice())?;
            session.agree(&team)?;
            let trainer =
                LanguageTrainer::for_task_of_team(task.clone(), config.clone(), model, team)?;
            let mut trainer = trainer.with_settings(settings.clone());
            if let Some(checkpoint) = session.checkpoint() {
                trainer.restore(checkpoint)?;
            }
            let device = (chosen.info.name != "cpu").then(|| chosen.device.clone());
            session.train(&chosen, TextRun::new(trainer.on(device)?), &text, &next)
        })
    }

    /// Clones the model for a rank, after checking that all ranks train it with these settings. Afterwards the shared
    /// copy is dropped, so that the first update does not copy the weights.
    fn take_model(&self, team: &Team, settings: &Table) -> Result<Option<LanguageModel>> {
        let lock = || self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let model = lock().clone();
        team.check_identical("setting", &settings.to_string())?;
        *lock() = None;
        Ok(model)
    }
}

/// Starts a new run.
fn begin(games: &Games, request: &TextRequest, args: &RunArgs) -> Result<()> {
    if args.engine.is_some() {
        bail!(ENGINE);
    }
    let file = args.settings()?;
    let (name, own) = request.task(&file)?;
    let path = model_path(&name, request.model.as_deref(), &file, &args.set)?;
    let model = load(&path)?;
    let num_params = model.as_ref().map(|model| model.shape.num_params());
    let precision = default_precision(&args.device);
    let defaults =
        language_defaults(&name, request.fit, InitialModel { path: &path, num_params }, precision)?;
    let overrides = TextOverrides { set: &args.set, seed: args.seed, iterations: args.iterations };
    let has_iterations = args.iterations.is_some() || names_iterations(&file, &args.set);
    let (mut own, mut config) = settings(&name, own, defaults, file.clone(), &overrides)?;
    config.precision = args.precision.unwrap_or(config.precision);
    if request.fit && !config.is_sft_only() {
        bail!(
            "loss.loss_type is {}, but `grove fit` learns by nll; leave it out, or use `grove train`",
            config.loss.loss_type
        );
    }
    if let Some(adapters) = model.as_ref().and_then(|model| model.adapters.as_ref()) {
        config.lora.adopt(adapters.config()).map_err(Error::msg)?;
    }
    trust::check(&name, &own, request.verifier, &args.set)?;
    let task = open_new(&name, &mut own)?;
    let of_epochs = iterations_of_epochs(&*task, &config);
    if let Some(iterations) = of_epochs.filter(|_| request.fit && !has_iterations) {
        note_iterations_of_epochs(&file, config.iterations, iterations);
        config.iterations = iterations;
    }
    let (folder, started) = (request.folder(&name), Instant::now());
    let session = Session { args, games, origin: Origin::New(&folder), of_epochs, started };
    let run = LanguageRun { name, own, config, task: task.clone(), model: Mutex::new(model) };
    run.train(&session, |folder| request.next(&*task, args, folder))
}

/// Resumes a run from a checkpoint.
pub fn resume(games: &Games, args: &TrainArgs, run: SavedRun) -> Result<()> {
    let TrainArgs { run: args, task_data, verifier, model, .. } = args;
    let mut saved = saved_language_settings(run.checkpoint)?;
    change_saved(&mut saved, &args.set)?;
    let split = split_language_settings(saved)?;
    let LanguageSettings { task_name: name, task_settings: mut own, mut config } = split;
    config.iterations = args.iterations.unwrap_or(config.iterations);
    config.validate()?;
    let task = reopen(&name, &mut own, task_data.as_deref(), verifier)?;
    let read = || saved_language_model(run.checkpoint, model.as_deref());
    let model = with_note(READING_MODEL, read)?;
    let (origin, of_epochs) = (Origin::Saved(run), iterations_of_epochs(&*task, &config));
    let session = Session { args, games, origin, of_epochs, started: Instant::now() };
    let model = Mutex::new(Some(model));
    let run = LanguageRun { name, own, config, task: task.clone(), model };
    run.train(&session, |folder| next_look(&*task, folder))
}

/// Path of a new run's model: from `--model`, otherwise from the settings in a file or of `--set`.
pub fn model_path(
    task: &str,
    model: Option<&Path>,
    file: &Table,
    set: &[String],
) -> Result<String> {
    if let Some(path) = model {
        return utf8_path(path);
    }
    let defaults = LanguageConfig::for_model(TINY);
    let mut table = language_settings(task, &(task::find(task)?.defaults)(), &defaults);
    overlay::lay_over(&mut table, file.clone())?;
    overlay::apply(&mut table, set)?;
    Ok(overlay::text(&table, "model.path").to_string())
}

/// Options of the command line that override the settings of a new run.
pub struct TextOverrides<'a> {
    /// The `key=value`s of `--set`.
    pub set: &'a [String],
    pub seed: Option<u64>,
    pub iterations: Option<u32>,
}

impl<'a> TextOverrides<'a> {
    /// Overrides by `--set` alone.
    pub fn of(set: &'a [String]) -> Self {
        Self { set, seed: None, iterations: None }
    }
}

/// Settings of a new run, the task's and its own: defaults, file, command line.
pub fn settings(
    name: &str,
    asked: Table,
    defaults: LanguageConfig,
    file: Table,
    overrides: &TextOverrides,
) -> Result<(Table, LanguageConfig)> {
    let TextOverrides { set, seed, iterations } = *overrides;
    for key in asked.keys().filter(|key| !["digest", "folder"].contains(&&***key)) {
        let setting = format!("{name}.{key}");
        if overlay::assigns(set, &setting) {
            bail!(
                "`{setting}` is given twice, by --set and otherwise on the command line; leave one out"
            );
        }
    }
    let path = defaults.model.path.clone();
    let mut table = language_settings(name, &(task::find(name)?.defaults)(), &defaults);
    overlay::lay_over(&mut table, file)?;
    overlay::lay_over(&mut table, Table::from_iter([(name.to_string(), asked.into())]))?;
    overlay::apply(&mut table, set)?;
    let split = split_language_settings(table)?;
    let LanguageSettings { task_settings: own, mut config, .. } = split;
    config.model.path = path;
    config.seed = seed.unwrap_or(config.seed);
    config.iterations = iterations.unwrap_or(config.iterations);
    config.fit.iterations = config.fit.iterations.min(config.iterations);
    config.validate()?;
    Ok((own, config))
}

/// Checks the settings of a new run of a task with these `--set` options. The model, whose size decides the defaults, is not
/// loaded; it is enough that the settings are valid for one size.
pub fn validate(name: &str, set: &[String]) -> Result<()> {
    let path = model_path(name, None, &Table::new(), set)?;
    let sizes = if path == TINY { vec![None] } else { vec![Some(0), Some(usize::MAX)] };
    let check = |size: Option<usize>| -> Result<()> {
        let model = InitialModel { path: &path, num_params: size };
        let defaults = language_defaults(name, false, model, Precision::F32)?;
        let none = Table::new();
        let (own, _) = settings(name, none.clone(), defaults, none, &TextOverrides::of(set))?;
        Ok((task::find(name)?.check)(own)?)
    };
    sizes.into_iter().map(check).reduce(Result::or).unwrap_or(Ok(()))
}

/// Task on the command line, by name or by a file of prompts.
pub fn task(
    task: Option<String>,
    data: Option<PathBuf>,
    verifier: &VerifierArgs,
    set: &[String],
) -> Result<Arc<dyn Task>> {
    let request = TextRequest { task, data, verifier, model: None, fit: false };
    let (name, asked) = request.task(&Table::new())?;
    let defaults = LanguageConfig::for_model(TINY);
    let (own, _) = settings(&name, asked, defaults, Table::new(), &TextOverrides::of(set))?;
    trust::check(&name, &own, verifier, set)?;
    open(&name, own)
}

/// Opens a task and prints its notes.
pub fn open(name: &str, own: Table) -> Result<Arc<dyn Task>> {
    let has_verifier = !overlay::text(&own, "verifier").is_empty();
    let open_task = || (task::find(name)?.open)(own);
    let task = if has_verifier {
        with_note_after(SLOW_VERIFIER_DELAY, FLUSH_ADVICE, open_task)?
    } else {
        open_task()?
    };
    task.notes().iter().for_each(|note| eprint_line!("{note}"));
    Ok(task)
}

/// Loads the initial model of a run; `None` for a new one.
pub fn load(path: &str) -> Result<Option<LanguageModel>> {
    if path == TINY {
        return Ok(None);
    }
    load_from(Path::new(path)).map(Some)
}

/// Loads the model in a folder or file.
pub fn load_from(path: &Path) -> Result<LanguageModel> {
    let model = with_note(READING_MODEL, || load_model(path));
    model.with_context(|| format!("cannot use the model in {}", path.display()))
}
