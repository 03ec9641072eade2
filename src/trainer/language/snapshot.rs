//! A run of a language model as the sections of a checkpoint, and back.

use super::{LanguageConfig, LanguageTrainer};
use crate::checkpoint::{Checkpoint, Section};
use crate::config::{ConfigError, overlay};
use crate::learner::Moments;
use crate::model::language::TokenDecoder;
use crate::model::saved::{read_params, write_params};
use crate::trainer::SnapshotError;
use crate::trainer::snapshot::{
    CONFIG, Counters, FIRST_MOMENT, REFERENCE, SECOND_MOMENT, STATE, TextCounters, VERSION,
    WEIGHTS, unreadable,
};
use toml::{Table, Value};

/// The settings of a run as they are saved and shown: those of the task `name`, whose own settings are `task`.
pub fn language_settings(name: &str, task: &Table, config: &LanguageConfig) -> Table {
    let mut table = Table::new();
    table.insert("task".to_string(), name.into());
    table.extend(overlay::to_table(config));
    table.insert(name.to_string(), task.clone().into());
    table
}

/// The task's name, its settings and those of the run, from a table made by [`language_settings`].
///
/// # Errors
/// If something is missing, or of another type.
pub fn load_language_settings(
    mut table: Table,
) -> Result<(String, Table, LanguageConfig), ConfigError> {
    let Some(Value::String(name)) = table.remove("task") else {
        return Err(ConfigError::OutOfRange("the settings name no task".to_string()));
    };
    let task = match table.remove(&name) {
        Some(Value::Table(task)) => task,
        _ => Table::new(),
    };
    Ok((name, task, overlay::from_table(table)?))
}

/// The settings in a checkpoint.
///
/// # Errors
/// If there are none.
pub fn saved_language_settings(checkpoint: &Checkpoint) -> Result<Table, SnapshotError> {
    let section = checkpoint.section(CONFIG, VERSION)?;
    let text = std::str::from_utf8(&section.bytes).map_err(|e| unreadable(CONFIG, e))?;
    Ok(overlay::parse(CONFIG, text)?)
}

impl LanguageTrainer {
    /// Everything that the run needs to continue, besides the model's vocabulary. `settings` are saved with it.
    pub fn snapshot(&self, settings: &Table) -> Checkpoint {
        let names = self.model.trained_parameters();
        let moments = &self.learner.moments;
        let text = TextCounters { next_prompt: self.next_prompt, env_steps: self.steps };
        let state = Counters::new(self.iteration, moments.steps, self.best, Some(text));
        let bytes = |params: &[f32]| write_params(&names, params, None);
        let mut sections = vec![
            (CONFIG, settings.to_string().into_bytes()),
            (STATE, state.to_json()),
            (WEIGHTS, bytes(self.learner.decoder.trained())),
            (FIRST_MOMENT, bytes(&moments.first_moment)),
            (SECOND_MOMENT, bytes(&moments.second_moment)),
        ];
        if let Some(reference) = &self.learner.reference {
            // With adapters the reference is the model without them.
            if self.model.adapters.is_none() {
                sections.push((REFERENCE, bytes(reference.params())));
            }
        }
        let section = |(name, bytes): (&str, Vec<u8>)| {
            let name = name.to_string();
            Section { name, version: VERSION, bytes }
        };
        let sections = sections.into_iter().map(section).collect();
        Checkpoint { iteration: u64::from(self.iteration), sections }
    }

    /// The run as it was when the checkpoint was saved.
    ///
    /// # Errors
    /// As [`LanguageTrainer::restore`].
    pub fn restored(mut self, checkpoint: &Checkpoint) -> Result<Self, SnapshotError> {
        self.restore(checkpoint)?;
        Ok(self)
    }

    /// Returns to the state of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint is not one of such a run.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SnapshotError> {
        let names = self.model.trained_parameters();
        let params = |name: &str| {
            let section = checkpoint.section(name, VERSION)?;
            read_params(&section.bytes, &names)
                .map_err(|source| SnapshotError::Params { section: name.to_string(), source })
        };
        let state = Counters::of(checkpoint)?;
        let text = state.text.ok_or_else(|| unreadable(STATE, "it is of a game"))?;
        let (first_moment, second_moment) = (params(FIRST_MOMENT)?, params(SECOND_MOMENT)?);
        self.learner.moments =
            Moments { first_moment, second_moment, steps: state.optimizer_steps };
        let weights = params(WEIGHTS)?;
        self.learner.decoder.update(|trained| trained.copy_from_slice(&weights));
        if self.learner.reference.is_some() && self.model.adapters.is_none() {
            let shape = self.model.shape.clone();
            self.learner.reference = Some(TokenDecoder::new(shape, params(REFERENCE)?));
        }
        (self.next_prompt, self.steps) = (text.next_prompt, text.env_steps);
        (self.iteration, self.best) = (state.iteration, state.best());
        Ok(())
    }
}
