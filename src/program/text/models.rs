//! Reading language models.

use crate::program::progress_note::with_note;
use crate::run;
use crate::text::LanguageModel;
use crate::trainer::text::TINY;
use anyhow::{Context, Result};
use std::path::Path;

/// Message shown while a model is read.
pub const READING_MODEL: &str = "Reading the model.";

/// Loads the initial model of a run by the setting `model.path`; `None` for a new one.
pub fn load_initial_model(setting: &str) -> Result<Option<LanguageModel>> {
    if setting == TINY {
        return Ok(None);
    }
    load_model(Path::new(setting)).map(Some)
}

/// Loads the model in a folder or file.
pub fn load_model(path: &Path) -> Result<LanguageModel> {
    let model = with_note(READING_MODEL, || run::load_model(path));
    model.with_context(|| format!("cannot use the model in {}", path.display()))
}
