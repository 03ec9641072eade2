//! Tasks of new and of saved runs, opened with the file of prompts and the verifier that their settings name.

use super::LanguageRequest;
use super::settings::resolve_settings;
use crate::disk::input;
use crate::program::args::VerifierArgs;
use crate::program::output::eprint_line;
use crate::program::paths::canonical_path;
use crate::program::progress_note::with_note_after;
use crate::program::trust;
use crate::settings::overlay;
use crate::task::{self, Task};
use crate::trainer::text::{LanguageConfig, TINY};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::Table;

/// Delay before the warning about a verifier that does not answer.
const SLOW_VERIFIER_DELAY: Duration = Duration::from_secs(5);
/// The warning about a verifier that does not answer.
const SLOW_VERIFIER_WARNING: &str = "The verifier has not answered its first line yet. An answer is one line, which it must flush: in Python, \
                     print(..., flush=True).";

/// Opens the task on the command line, given by name or by a file of prompts.
pub fn open_requested_task(
    task: Option<String>,
    task_data: Option<PathBuf>,
    verifier: &VerifierArgs,
    assignments: &[String],
) -> Result<Arc<dyn Task>> {
    let request = LanguageRequest { task, task_data, verifier, model: None, is_sft: false };
    let (name, requested) = request.resolve_task(&Table::new())?;
    let defaults = LanguageConfig::for_model(TINY);
    let settings = resolve_settings(&name, requested, defaults, Table::new(), assignments)?;
    trust::require_approval(&name, &settings.task_settings, verifier, assignments)?;
    open_task(&name, settings.task_settings)
}

/// Opens a task and prints its notes.
pub fn open_task(name: &str, task_settings: Table) -> Result<Arc<dyn Task>> {
    let has_verifier = !overlay::text_at(&task_settings, "verifier").is_empty();
    let open = || (task::find(name)?.open)(task_settings);
    let task = if has_verifier {
        with_note_after(SLOW_VERIFIER_DELAY, SLOW_VERIFIER_WARNING, open)?
    } else {
        open()?
    };
    task.notes().iter().for_each(|note| eprint_line!("{note}"));
    Ok(task)
}

/// Opens the task of a saved run, with its file of prompts at the path `data` if given, and its verifier if the command
/// line permits it. Updates the task's settings to match.
pub fn reopen_task(
    name: &str,
    task_settings: &mut Table,
    data: Option<&Path>,
    args: &VerifierArgs,
) -> Result<Arc<dyn Task>> {
    match (PromptFile::find(name, task_settings)?, data) {
        (None, Some(_)) => {
            bail!("the prompts of this run are not in a file; leave out --task-data")
        }
        (Some(PromptFile { key, .. }), Some(data)) => {
            task_settings.insert(key.to_string(), canonical_path(data)?.into());
        }
        (Some(PromptFile { path, .. }), None) if !Path::new(&path).exists() => {
            bail!("{path} no longer exists; pass its new location with --task-data FILE");
        }
        (_, None) => {}
    }
    args.refuse_for_built_in(name)?;
    task_settings.extend(args.restrictions());
    trust::require_approval(name, task_settings, args, &[])?;
    open_task(name, task_settings.clone())
}

/// Opens the task of a new run, and records the absolute path of its file of prompts and the file's SHA-256 in its
/// settings.
pub(super) fn open_new_task(name: &str, task_settings: &mut Table) -> Result<Arc<dyn Task>> {
    let file = PromptFile::find(name, task_settings)?;
    if let Some(PromptFile { key, path }) = &file {
        task_settings.insert(key.to_string(), canonical_path(Path::new(path))?.into());
    }
    let task = open_task(name, task_settings.clone())?;
    if let Some(PromptFile { path, .. }) = file
        && overlay::text_at(task_settings, "digest").is_empty()
    {
        let digest = input::sha256(Path::new(&path), input::MAX_DATA_BYTES);
        let digest = digest.with_context(|| format!("cannot read {path}"))?;
        task_settings.insert("digest".to_string(), digest.into());
    }
    Ok(task)
}

/// The file with the prompts of a task.
pub(super) struct PromptFile {
    /// Setting that names it.
    key: &'static str,
    pub path: String,
}

impl PromptFile {
    /// Finds the file in a task's settings, if its prompts are in a file.
    pub fn find(name: &str, task_settings: &Table) -> Result<Option<Self>> {
        let file = |key| Self { key, path: overlay::text_at(task_settings, key).to_string() };
        Ok(task::find(name)?.path_setting.map(file).filter(|file| !file.path.is_empty()))
    }
}
