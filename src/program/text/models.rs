//! Reading language models.

use crate::program::progress_note::with_note;
use crate::run;
use crate::text::LanguageModel;
use crate::trainer::text::TINY;
use anyhow::{Context, Result};
use std::path::Path;

/// Message shown while a model is read.
pub const READING_MODEL: &str = "Reading the model.";

/// Loads the initial model of a run; `None` for a new one.
pub fn load_model(path: &str) -> Result<Option<LanguageModel>> {
    if path == TINY {
        return Ok(None);
    }
    load_model_from(Path::new(path)).map(Some)
}

/// Loads the model in a folder or file.
pub fn load_model_from(path: &Path) -> Result<LanguageModel> {
    let model = with_note(READING_MODEL, || run::load_model(path));
    model.with_context(|| format!("cannot use the model in {}", path.display()))
}
