//! Settings of runs: their declarations, the defaults of each game, and how a file and a command line are
//! laid over them.
//!
//! A run starts from [`TrainConfig::for_game`], for a user-defined game [`TrainConfig::with_defaults_of`], or
//! [`LanguageConfig::for_model`], takes the changes of a TOML file and of `--set key=value` ([`overlay`]), and is then
//! checked as a whole ([`TrainConfig::validate`]).
//! Names and meanings follow TRL's `GRPOConfig` where it has the same thing; TRL's own spellings are
//! accepted too.

mod checkpoint;
mod conversion;
mod data;
mod defaults;
mod file_schema;
pub(crate) mod foreign;
mod language;
pub mod overlay;
mod resumed;
mod rollout;
mod train;
mod update;

pub use checkpoint::{CheckpointConfig, StopConfig, TrackingConfig};
pub use data::{ClassWeights, DataConfig};
pub use defaults::IMITATION_DEFAULTS;
pub use file_schema::file_schema;
pub use language::{
    Baseline, CompletionsConfig, FitConfig, GenerationConfig, LanguageConfig, ModelConfig,
    RewardConfig, TINY,
};
pub use resumed::change_saved_settings;
pub use rollout::{AdvantageConfig, AdvantageScale, CreditEstimator, GroupStart, RolloutConfig};
pub use train::{EngineChoice, ShardCounts, TrainConfig};
pub use update::{LrSchedule, MomentPrecision, OptimizerConfig, UpdateConfig};

pub use crate::math::Activation;
pub use crate::model::LoraConfig;
pub use crate::model::{DecoderConfig, ModelKind, PolicyConfig, Precision};
pub use crate::objective::{KlEstimator, LossConfig, LossType};
pub use crate::schema::OutOfRange;

use crate::schema::{Setting, Settings, ValueRange};
use toml::Table;

/// The kinds of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// A policy for a game, trained by playing it or from a dataset.
    Game,
    /// A language model.
    Language,
}

impl RunKind {
    /// The kind of the run with these settings, which name its game, `env`, or its task, `task`; `None` if they name
    /// neither.
    pub fn of(table: &Table) -> Option<Self> {
        // A game, whose parameters are a section of its name, may be called `task`.
        if table.contains_key("env") {
            Some(Self::Game)
        } else {
            table.contains_key("task").then_some(Self::Language)
        }
    }
}

/// Declarations of the settings of the run in a complete table, and the narrower ranges that some of them have there.
pub fn declarations(table: &Table) -> (&'static [Setting], &'static [(&'static str, ValueRange)]) {
    // A game, too, may be called `generation`.
    if table.contains_key("generation") && !table.contains_key("env") {
        (LanguageConfig::SETTINGS, LanguageConfig::NARROWED_RANGES)
    } else {
        (TrainConfig::SETTINGS, TrainConfig::NARROWED_RANGES)
    }
}

/// An error in settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A key that does not exist.
    #[error("unknown setting `{key}`{}", suggestion.as_deref().map(|s| format!("; did you mean `{s}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The nearest existing one.
        suggestion: Option<String>,
    },
    /// A setting of a value function.
    #[error("unknown setting `{key}`: GRPO has no value function; see docs/coming-from.md")]
    ValueFunction {
        /// The key as written.
        key: String,
    },
    /// A setting of another game, or of another kind of runs.
    #[error("`{key}` is a setting of {owner}: this run trains {run}")]
    OtherRun {
        /// The key as written.
        key: String,
        /// The game, or the kind of runs, that has this setting.
        owner: &'static str,
        /// The game or the task of the run.
        run: String,
    },
    /// A short key that matches several settings.
    #[error("the setting `{key}` is ambiguous; write one of: {}", .candidates.join(", "))]
    AmbiguousKey {
        /// The key as written.
        key: String,
        /// The settings that it matches.
        candidates: Vec<String>,
    },
    /// A setting that a saved run keeps.
    #[error(
        "`{key}` cannot be changed when resuming (the run uses {old}); settings that can: {changeable}"
    )]
    Fixed {
        /// The setting.
        key: String,
        /// The saved value.
        old: String,
        /// Settings that a saved run may change.
        changeable: String,
    },
    /// A value of the wrong type.
    #[error("`{key}` cannot be {value}: {expected}")]
    WrongValue {
        /// The setting.
        key: String,
        /// The value as written.
        value: String,
        /// The type expected.
        expected: String,
    },
    /// A value out of its range, alone or beside the others.
    #[error("{0}")]
    OutOfRange(String),
    /// Settings that cannot stand beside each other.
    #[error("{0}")]
    Conflict(String),
    /// Settings of another kind of run, or of none.
    #[error("{0}")]
    OtherKind(String),
    /// A change that cannot be made as it is written.
    #[error("{0}")]
    Malformed(String),
    /// Text that is not TOML.
    #[error("{what} is not valid TOML: {message}")]
    Syntax {
        /// The file or argument.
        what: String,
        /// The parser's message, with the line.
        message: String,
    },
}

impl From<OutOfRange> for ConfigError {
    fn from(error: OutOfRange) -> Self {
        Self::OutOfRange(error.to_string())
    }
}
