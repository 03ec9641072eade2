//! Reading language models.

use crate::program::output::eprint_line;
use crate::program::progress_note::with_note;
use crate::program::session::warn;
use crate::run::{self, CONFIG, FoundCheckpoint, ModelPlace, RunFolder};
use crate::text::LanguageModel;
use crate::trainer::text::{TINY, load_language_model};
use anyhow::{Context, Result, bail};
use std::path::Path;

/// Message shown while a model is read.
pub const READING_MODEL: &str = "Reading the model.";

/// Loads the initial model of a run by the setting `model.path`; `None` for a new one.
pub fn load_initial_model(setting: &str) -> Result<Option<LanguageModel>> {
    if setting == TINY {
        return Ok(None);
    }
    let path = Path::new(setting);
    let model = path.join("model");
    if path.join(CONFIG).is_file() && model.is_dir() {
        bail!("{setting} is a run, not a model; give its model, {}", model.display());
    }
    load_model(path).map(Some)
}

/// Loads the model in a folder or file.
fn load_model(path: &Path) -> Result<LanguageModel> {
    let model = with_note(READING_MODEL, || run::load_model(path));
    model.with_context(|| format!("cannot use the model in {}", path.display()))
}

/// Loads the model that a path names: the best one of a run, that of a checkpoint, or one in a folder or file.
pub fn load_named_model(path: &Path) -> Result<LanguageModel> {
    let FoundCheckpoint { checkpoint, warnings } = match run::find_language_model(path)? {
        ModelPlace::Folder(path) => return load_model(&path),
        ModelPlace::Checkpoint(saved) => saved,
    };
    warn(&warnings);
    if RunFolder::find(path).is_ok() {
        let iteration = checkpoint.iteration;
        eprint_line!("Taking the model of iteration {iteration}, since the run has not ended.");
    }
    let model = with_note(READING_MODEL, || load_language_model(&checkpoint, None));
    model.with_context(|| format!("cannot use the model in {}", path.display()))
}
