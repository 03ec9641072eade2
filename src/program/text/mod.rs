//! `grove train` and `grove fit` of a language model: new runs and resumed ones.

pub mod device;
mod models;
mod settings;
mod tasks;

pub use models::{READING_MODEL, load_initial_model, load_named_model};
pub use settings::{resolve_model_path, resolve_settings, validate};
pub use tasks::{open_requested_task, open_task, reopen_task};

use super::args::{FitArgs, RunArgs, TrainArgs, VerifierArgs, agree_on_subject};
use super::games::{Games, SavedRun};
use super::output::eprint_line;
use super::paths::{canonical_path, quote_path, quote_word, resume_arguments, utf8_path};
use super::progress_note::with_note;
use super::ranks;
use super::session::{Origin, Session};
use super::settings::{add_comments, language_defaults};
use super::training_data::{has_given_iterations, note_iterations_for_epochs};
use super::trust;
use crate::disk;
use crate::run::{LanguageRun, RunFolder};
use crate::settings::{RunKind, change_saved_settings};
use crate::task::{self, DataTask, Message, Prompt, Split, Task};
use crate::text::LanguageModel;
use crate::trainer::text::{
    LanguageConfig, LanguageSettings, LanguageTrainer, join_language_settings, load_language_model,
    read_settings, split_language_settings,
};
use anyhow::{Context, Result, bail, ensure};
use device::default_precision;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tasks::{PromptFile, open_new_task};
use toml::{Table, Value};

/// Default time that a rank waits for another. Completions take longer than games, and their lengths differ between
/// ranks.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Error for `--engine` with a language model.
pub const ENGINE_ERROR: &str = "--engine is for games; language models have one engine for the CPU and one for devices (--device)";

/// Whether the command line requests a language model.
pub fn is_requested(args: &TrainArgs) -> bool {
    args.model.is_some()
        || args.task_data.is_some()
        || args.game.as_deref().is_some_and(|name| task::find(name).is_ok())
        || args.run.read_settings().is_ok_and(|file| RunKind::of(&file) == Some(RunKind::Language))
}

/// Whether `fit` learns from texts, in a file or from a task.
pub fn is_fit_of_texts(args: &FitArgs) -> bool {
    let is_file = args.data.exists() && !args.data.is_dir();
    let is_jsonl = is_file || disk::has_extension(&args.data, "jsonl");
    args.model.is_some() || is_jsonl || find_task_name(&args.data).is_some()
}

/// Finds the name of a task, if the path is one and not that of a file.
fn find_task_name(path: &Path) -> Option<String> {
    let name = path.to_str().filter(|name| !path.exists() && task::find(name).is_ok())?;
    Some(name.to_string())
}

/// Trains a new run.
pub fn train(games: &Games, args: TrainArgs) -> Result<()> {
    let TrainArgs { game: task, task_data, verifier, model, from, run, .. } = args;
    if let Some(name) = task.as_deref().filter(|name| games.find(name).is_ok()) {
        if model.is_some() {
            bail!(
                "`{name}` is a game, and --model names the language model of a task ({}); a game's network is set by \
                 --set policy.kind=...",
                task::joined_names()
            );
        }
        if task_data.is_some() {
            bail!("`{name}` is a game, and --task-data has the prompts of a language model");
        }
        bail!("`{name}` is a game, and the settings file is for a task");
    }
    let model = match model {
        Some(model) => Some(model),
        None => from.map(find_exported_model).transpose()?,
    };
    let request = LanguageRequest { task, task_data, verifier: &verifier, model, is_sft: false };
    train_new(games, &request, &run)
}

/// Finds the model exported by another run, which can be used like any other; if `run` is not a run, the path itself.
fn find_exported_model(run: PathBuf) -> Result<PathBuf> {
    let Ok(folder) = RunFolder::find(&run) else { return Ok(run) };
    if !folder.has_language_model() {
        let path = folder.path().display();
        bail!("the run in {path} has no language model; --from needs a run of one here");
    }
    if let Some(warning) = folder.unfinished_model_warning() {
        let arguments = resume_arguments(folder.path());
        eprint_line!("warning: {warning}; `grove train {arguments}` completes it");
    }
    Ok(folder.model_path())
}

/// Fine-tunes a model on the solutions of a task or file.
pub fn fit(games: &Games, args: FitArgs) -> Result<()> {
    let FitArgs { data, model, verifier, run } = args;
    let task = find_task_name(&data);
    let task_data = task.is_none().then_some(data);
    let request = LanguageRequest { task, task_data, verifier: &verifier, model, is_sft: true };
    train_new(games, &request, &run)
}

/// Command line of a new run.
struct LanguageRequest<'a> {
    task: Option<String>,
    /// File of prompts for the task `data`.
    task_data: Option<PathBuf>,
    verifier: &'a VerifierArgs,
    model: Option<PathBuf>,
    /// Whether the run is SFT alone.
    is_sft: bool,
}

impl LanguageRequest<'_> {
    /// Returns the name of the task, and its settings on the command line.
    fn resolve_task(&self, file: &Table) -> Result<(String, Table)> {
        let name = self.task_name(file)?;
        task::find(&name)?;
        self.verifier.refuse_for_built_in(&name)?;
        let mut task_settings = Table::new();
        if let Some(path) = &self.task_data {
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

    /// Returns the name of the task, on the command line or in the settings file.
    fn task_name(&self, file: &Table) -> Result<String> {
        let requested = match (&self.task_data, self.task.as_deref()) {
            (Some(_), Some(other)) if other != DataTask::NAME => {
                bail!("--task-data is a task by itself; leave out `{other}`")
            }
            (Some(_), _) => Some(DataTask::NAME),
            (None, requested) => requested,
        };
        let name = agree_on_subject(requested, file.get("task").and_then(Value::as_str))?;
        name.map(str::to_string).with_context(|| {
            let names = task::joined_names();
            format!("no task is named: it is one of {names}; --task-data FILE.jsonl is a task of your own")
        })
    }

    /// Name of the run directory without its number: that of the task or file.
    fn run_name(&self, task: &str) -> String {
        let stem =
            self.task_data.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy());
        let stem = stem.unwrap_or(task.into());
        let is_plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
        stem.chars().map(|c| if is_plain(c) { c } else { '-' }).collect()
    }

    /// Command to suggest at the end of the run in `folder`: GRPO after SFT alone, if that needs no further settings.
    fn next_command(
        &self,
        task: &dyn Task,
        has_template: bool,
        args: &RunArgs,
        folder: &str,
    ) -> String {
        let is_default = args.set.is_empty() && args.config.is_none();
        match (&self.task_data, self.is_sft && is_default) {
            (Some(data), true) => {
                format!("grove train --task-data {} --from {folder}", quote_path(data))
            }
            (None, true) => format!("grove train {} --from {folder}", task.name()),
            _ => inspection_command(task, has_template, folder),
        }
    }
}

/// Command to look at the model of the run in `folder`, which may have a chat template.
fn inspection_command(task: &dyn Task, has_template: bool, folder: &str) -> String {
    // A prompt over few characters fits on a command line.
    let prompt = task.prompt(Split::Test, 0).ok().filter(|_| task.alphabet().is_some());
    match prompt.and_then(|prompt| prompt_words(&prompt, has_template)) {
        Some(words) => format!("grove generate {folder} {words}"),
        None => format!("grove watch {folder}"),
    }
}

/// Words by which `grove generate` gives a model the same prompt as its training; `None` for conversations that are
/// more than a message of the user.
fn prompt_words(prompt: &Prompt, has_template: bool) -> Option<String> {
    match &prompt.messages[..] {
        _ if !has_template => Some(quote_word(&prompt.text)),
        [] => Some(format!("{} --raw", quote_word(&prompt.text))),
        [message] if prompt.template_values.0.is_empty() => {
            let content = message.content.text();
            (*message == Message::user(content.to_string())).then(|| quote_word(content))
        }
        _ => None,
    }
}

/// Counts the iterations that the epochs of a run of SFT alone take; `None` if its task has no end of prompts.
fn count_iterations_for_epochs(task: &dyn Task, config: &LanguageConfig) -> Option<u32> {
    let prompts = task.num_prompts(Split::Train).filter(|_| config.is_sft_only())?;
    Some(config.iterations_for_epochs(prompts))
}

/// Trains a run on all its ranks, with a new model if `model` is `None`. `next_command` gives the command to suggest at
/// the end, from the run directory.
fn train_on_ranks(
    session: &Session,
    settings: &LanguageSettings,
    task: &Arc<dyn Task>,
    model: Option<LanguageModel>,
    next_command: impl Fn(&str) -> String + Sync,
) -> Result<()> {
    let LanguageSettings { task_name, task_settings, config } = settings;
    let settings = join_language_settings(task_name, task_settings, config);
    let commented_settings = add_comments(&settings, task::find(task_name)?.settings);
    let prompts = PromptFile::find(task_name, task_settings)?.map(|file| file.path);
    let shared_model = Mutex::new(model);
    let lock = || shared_model.lock().unwrap_or_else(PoisonError::into_inner);
    ranks::run(session.args, TIMEOUT, |rank| {
        let (chosen, team) = rank.for_language_model().start_device()?;
        let model = lock().clone();
        team.check_identical("setting", &settings.to_string())?;
        // All ranks have it now, and the first update need not copy the weights.
        *lock() = None;
        ranks::check_same_data(&team, prompts.as_slice())?;
        session.check_same_iteration(&team)?;
        let trainer = LanguageTrainer::for_task_of_team(task.clone(), config.clone(), model, team)?;
        let mut trainer = trainer.with_settings(settings.clone());
        if let Some(checkpoint) = session.checkpoint() {
            trainer.restore(checkpoint)?;
        }
        let run = LanguageRun::new(trainer.with_device(chosen.language_device())?);
        session.train(&chosen, run, &commented_settings, &next_command)
    })
}

fn train_new(games: &Games, request: &LanguageRequest, args: &RunArgs) -> Result<()> {
    ensure!(args.engine.is_none(), ENGINE_ERROR);
    let file = args.read_settings()?;
    let (task_name, task_settings) = request.resolve_task(&file)?;
    let path = resolve_model_path(&task_name, request.model.as_deref(), &file, &args.set)?;
    let model = load_initial_model(&path)?;
    let num_params = model.as_ref().map(|model| model.shape.num_params());
    let has_template = model.as_ref().is_some_and(|model| model.template.is_some());
    let precision = default_precision(&args.device);
    let defaults = if request.is_sft {
        LanguageConfig::for_sft(&path, num_params, precision)
    } else {
        language_defaults(&task_name, &path, num_params, precision)?
    };
    let mut assignments = args.set.clone();
    assignments.extend(args.seed.map(|seed| format!("seed={seed}")));
    assignments.extend(args.iterations.map(|iterations| format!("iterations={iterations}")));
    let has_iterations = args.iterations.is_some() || has_given_iterations(&file, &args.set);
    let mut settings =
        resolve_settings(&task_name, task_settings, defaults, file.clone(), &assignments)?;
    let LanguageSettings { task_settings, config, .. } = &mut settings;
    config.precision = args.precision.unwrap_or(config.precision);
    if request.is_sft && !config.is_sft_only() {
        bail!(
            "loss.loss_type is {}, but `grove fit` learns by nll; leave it out, or use `grove train`",
            config.loss.loss_type
        );
    }
    if let Some(adapters) = model.as_ref().and_then(|model| model.adapters.as_ref()) {
        config.lora.adopt(adapters.config())?;
    }
    trust::require_approval(&task_name, task_settings, request.verifier, &args.set)?;
    let task = open_new_task(&task_name, task_settings)?;
    let iterations_for_epochs = count_iterations_for_epochs(&*task, config);
    if let Some(iterations) = iterations_for_epochs.filter(|_| request.is_sft && !has_iterations) {
        note_iterations_for_epochs(&file, config.iterations, iterations);
        config.iterations = iterations;
    }
    let run_name = request.run_name(&task_name);
    let started = Instant::now();
    let session = Session {
        args,
        games,
        origin: Origin::New(&run_name),
        iterations_for_epochs,
        dataset: None,
        started,
    };
    let next_command = |folder: &str| request.next_command(&*task, has_template, args, folder);
    train_on_ranks(&session, &settings, &task, model, next_command)
}

/// Resumes a run from a checkpoint.
pub fn resume(games: &Games, args: &TrainArgs, run: SavedRun) -> Result<()> {
    let TrainArgs { run: args, task_data, verifier, model, .. } = args;
    let mut saved = read_settings(run.checkpoint)?;
    change_saved_settings(&mut saved, &args.set)?;
    let mut settings = split_language_settings(saved)?;
    let LanguageSettings { task_name, task_settings, config } = &mut settings;
    config.iterations = args.iterations.unwrap_or(config.iterations);
    config.validate()?;
    let task = reopen_task(task_name, task_settings, task_data.as_deref(), verifier)?;
    let load = || load_language_model(run.checkpoint, model.as_deref());
    let model = with_note(READING_MODEL, load)?;
    let has_template = model.template.is_some();
    let session = Session {
        args,
        games,
        origin: Origin::Saved(run),
        iterations_for_epochs: count_iterations_for_epochs(&*task, config),
        dataset: None,
        started: Instant::now(),
    };
    let next_command = |folder: &str| inspection_command(&*task, has_template, folder);
    train_on_ranks(&session, &settings, &task, Some(model), next_command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_gives_the_prompt_of_the_training() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("prompts.jsonl");
        let user = r#"{"role": "user", "content": "2 + 2"}"#;
        let system = r#"{"role": "system", "content": "Add."}"#;
        let command = |prompt: &str, has_template: bool| {
            let line = format!(r#"{{"prompt": {prompt}, "solution": "4", "split": "test"}}"#);
            std::fs::write(&path, line).unwrap();
            inspection_command(&DataTask::open(&path, None).unwrap(), has_template, "run")
        };
        for (prompt, plain, with_template) in [
            (r#""2 + 2""#.to_string(), "generate run '2 + 2'", "generate run '2 + 2' --raw"),
            (format!("[{user}]"), "generate run '2 + 2\n\n'", "generate run '2 + 2'"),
            (format!("[{system}, {user}]"), "generate run 'Add.\n\n2 + 2\n\n'", "watch run"),
            (format!("[{system}]"), "generate run 'Add.\n\n'", "watch run"),
        ] {
            let found = [false, true].map(|has_template| command(&prompt, has_template));
            assert_eq!(found, [plain, with_template].map(|words| format!("grove {words}")));
        }
    }
}
