//! Checkpoints of a training run: its state as named sections.

use super::engine::Engine;
use super::{BestEvaluation, Trainer};
use crate::checkpoint::{Checkpoint, CheckpointError, Section};
use crate::model::Parameter;
use crate::model::policy_file::{self, PolicyFileError};
use crate::parallel::TeamError;
use crate::rollout::EnvStatesError;
use crate::settings::{ConfigError, overlay};
use crate::text::LanguageError;
use burn::cubecl::future::block_on;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub(super) const CONFIG: &str = "config.toml";
pub(super) const STATE: &str = "state.json";
pub(super) const WEIGHTS: &str = "weights.safetensors";
pub(super) const FIRST_MOMENT: &str = "first_moment.safetensors";
pub(super) const SECOND_MOMENT: &str = "second_moment.safetensors";
pub(super) const REFERENCE: &str = "reference.safetensors";
/// Version of the sections, unless their name is beside another one.
pub(super) const VERSION: u32 = 1;

/// Counters of a run, saved in `state.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Number of iterations done.
    #[serde(rename = "iteration")]
    pub iterations_done: u32,
    /// Number of optimizer steps done.
    pub optimizer_steps: u64,
    pub(super) best_score: Option<f64>,
    pub(super) best_iteration: Option<u32>,
    /// Number of steps played, where it does not follow from the number of iterations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub played_steps: Option<u64>,
    /// Counters of a language model's run.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub text: Option<LanguageCounters>,
}

/// Counters that only a language model's run has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanguageCounters {
    /// Index of the next prompt.
    pub next_prompt: u64,
    /// Number of tokens generated, and learnt from by SFT.
    #[serde(default)]
    pub env_steps: u64,
    /// Largest number of held-out prompts of a validation, which later final scores leave out.
    #[serde(default)]
    pub validation_prompts: u64,
}

impl Counters {
    /// The same counters with this best evaluation.
    fn with_best(self, best: Option<BestEvaluation>) -> Self {
        let (best_score, best_iteration) =
            best.map(|best| (best.value, best.iterations_done)).unzip();
        Self { best_score, best_iteration, ..self }
    }

    /// Reads the counters of a checkpoint.
    ///
    /// # Errors
    /// If there are no counters, or they cannot be read.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self, SnapshotError> {
        let section = checkpoint.section(STATE, VERSION)?;
        serde_json::from_slice(&section.bytes).map_err(|e| unreadable_error(STATE, e))
    }

    /// The best evaluation so far.
    pub fn best(&self) -> Option<BestEvaluation> {
        let (value, iterations_done) = self.best_score.zip(self.best_iteration)?;
        Some(BestEvaluation { value, iterations_done })
    }

    /// Serializes the counters as `state.json`.
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("counters are plain numbers");
        bytes.push(b'\n');
        bytes
    }
}

/// Reasons why a checkpoint cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A section is missing or of another version.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The saved settings cannot be read.
    #[error("the checkpoint's settings cannot be used: {0}")]
    Config(ConfigError),
    /// The saved language model cannot be used.
    #[error(transparent)]
    Language(#[from] LanguageError),
    /// The weights of the model differ from those that the saved adapters were trained with.
    #[error(
        "the model in {path} is not the one that the run's adapters are for, by the SHA-256 of its weights \
         ({found:.8}..., not {expected:.8}...); put that one there, or name it with --model PATH (`grove eval`, \
         `grove train --resume`)"
    )]
    OtherBase {
        path: PathBuf,
        /// SHA-256 of its weights, hexadecimal.
        found: String,
        /// SHA-256 of the weights at the start of the run.
        expected: String,
    },
    /// The configuration of the model differs from that of the model that the saved adapters were trained with.
    #[error(
        "the config.json of the model in {0} differs from that of the model that the run's adapters are for; put that \
         one there, or name it with --model PATH (`grove eval`, `grove train --resume`)"
    )]
    OtherBaseShape(PathBuf),
    /// The model that the saved adapters were trained with does not exist.
    #[error(
        "there is no model in {0}, which the run's adapters are for; put it there, or name it with --model PATH \
         (`grove eval`, `grove train --resume`)"
    )]
    MissingBase(PathBuf),
    /// A model is named for a run that needs none.
    #[error(
        "--model {0} is not needed: the run has no adapters, and its checkpoint has all of its weights"
    )]
    UnneededBase(PathBuf),
    /// The saved game states have the wrong size.
    #[error(transparent)]
    Games(#[from] EnvStatesError),
    /// The checkpoint is of another game.
    #[error("the checkpoint is of the game `{found}`, not `{expected}`")]
    OtherGame { expected: String, found: String },
    /// The checkpoint is of a model that this program does not have.
    #[error(
        "the checkpoint is of the model `{name}`, which this program does not have; use the program that adds it"
    )]
    OtherModel { name: String },
    /// The parameters are of another network, or cannot be read.
    #[error("the checkpoint's {section}: {cause}")]
    Params { section: String, cause: PolicyFileError },
    /// A section has an invalid format.
    #[error("the checkpoint's {section} cannot be read: {reason}")]
    Unreadable { section: String, reason: String },
}

impl From<ConfigError> for SnapshotError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// An engine whose state can be saved.
#[allow(async_fn_in_trait, reason = "futures stay on the thread that made them")]
pub trait Persistent: Engine {
    /// Exports the sections of a checkpoint after `iterations_done` iterations, the settings first, and its counters
    /// but for the best evaluation. All ranks must call this.
    ///
    /// # Errors
    /// If another rank fails or does not respond.
    async fn export_sections(
        &self,
        iterations_done: u32,
    ) -> Result<(Vec<Section>, Counters), TeamError>;

    /// Restores the state of a checkpoint with these counters.
    ///
    /// # Errors
    /// If the checkpoint lacks a section or does not fit.
    fn import_sections(
        &mut self,
        checkpoint: &Checkpoint,
        counters: &Counters,
    ) -> Result<(), SnapshotError>;
}

impl<E: Persistent> Trainer<E> {
    /// Takes a checkpoint of everything needed to resume the run. On a device this reads back. All ranks must call
    /// this.
    ///
    /// # Errors
    /// If another rank fails or does not respond.
    pub fn snapshot(&self) -> Result<Checkpoint, TeamError> {
        block_on(self.snapshot_async())
    }

    /// Asynchronous form of [`Trainer::snapshot`], for threads that must not block.
    pub async fn snapshot_async(&self) -> Result<Checkpoint, TeamError> {
        let (mut sections, counters) = self.engine.export_sections(self.iterations_done).await?;
        sections.insert(1, new_section(STATE, counters.with_best(self.best).to_json()));
        Ok(Checkpoint { iteration: u64::from(self.iterations_done), sections })
    }

    /// Returns the run in the state of a checkpoint, whose settings may differ where no shape depends on them.
    ///
    /// # Errors
    /// If the checkpoint lacks a section or does not fit.
    pub fn with_checkpoint(mut self, checkpoint: &Checkpoint) -> Result<Self, SnapshotError> {
        self.restore(checkpoint)?;
        Ok(self)
    }

    /// Restores the state of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint lacks a section or does not fit.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SnapshotError> {
        let counters = Counters::read(checkpoint)?;
        self.engine.import_sections(checkpoint, &counters)?;
        (self.iterations_done, self.best) = (counters.iterations_done, counters.best());
        Ok(())
    }
}

/// Creates a section of version [`VERSION`].
pub(super) fn new_section(name: impl Into<String>, bytes: Vec<u8>) -> Section {
    Section { name: name.into(), version: VERSION, bytes }
}

/// The error for a section that cannot be read.
pub(super) fn unreadable_error(section: &str, reason: impl ToString) -> SnapshotError {
    SnapshotError::Unreadable { section: section.to_string(), reason: reason.to_string() }
}

/// Reads the settings of a checkpoint.
///
/// # Errors
/// If there are no settings, or they cannot be read.
pub fn read_settings(checkpoint: &Checkpoint) -> Result<toml::Table, SnapshotError> {
    let section = checkpoint.section(CONFIG, VERSION)?;
    let text = std::str::from_utf8(&section.bytes).map_err(|e| unreadable_error(CONFIG, e))?;
    Ok(overlay::parse(CONFIG, text)?)
}

/// Replaces the settings in a checkpoint by these, in TOML.
pub fn replace_settings(checkpoint: &mut Checkpoint, settings: &str) {
    let sections = checkpoint.sections.iter_mut();
    for section in sections.filter(|section| section.name == CONFIG) {
        section.bytes = settings.into();
    }
}

/// Reads the parameter vector of a section.
pub(super) fn read_params(
    checkpoint: &Checkpoint,
    name: &str,
    layout: &[Parameter],
) -> Result<Vec<f32>, SnapshotError> {
    let section = checkpoint.section(name, VERSION)?;
    let values = policy_file::read_params(&section.bytes, layout);
    values.map_err(|cause| SnapshotError::Params { section: name.to_string(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_score_is_read_to_the_last_bit() {
        for score in [-1.3863341014583905, 0.1 + 0.2, f64::MIN_POSITIVE] {
            let best = BestEvaluation { value: score, iterations_done: 1 };
            let counters =
                Counters { iterations_done: 1, ..Counters::default() }.with_best(Some(best));
            let sections = vec![new_section(STATE, counters.to_json())];
            let checkpoint = Checkpoint { iteration: 1, sections };
            assert_eq!(Counters::read(&checkpoint).unwrap(), counters);
        }
    }
}
