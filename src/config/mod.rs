//! Settings: what a run may be told, the defaults of each game, and the checks.
//!
//! A run starts from [`TrainConfig::for_game`], takes what a TOML file and `--set key=value` say
//! ([`overlay`]), and is then checked as a whole ([`TrainConfig::validate`]). Names and meanings
//! follow TRL's `GRPOConfig` where it has the same thing; TRL's own spellings are accepted too.

mod check;
mod defaults;
mod describe;
pub mod overlay;

pub use defaults::IMITATION;
pub use describe::{Description, describe, descriptions};

pub use crate::math::Activation;
pub use crate::model::{DecoderConfig, ModelKind, PolicyConfig, Precision};
pub use crate::objective::{KlEstimator, LossConfig, LossType};

use serde::{Deserialize, Serialize};

/// Everything about a training run but the game's own parameters and the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    /// The seed of every draw of the run, 0 to 2^63 - 1.
    pub seed: u64,
    /// Iterations of rollout and update.
    pub iterations: u32,
    /// Which of the two ways plays and learns.
    pub engine: Engine,
    /// What products are computed with, on devices that have it.
    #[serde(default)]
    pub precision: Precision,
    /// The network.
    pub policy: PolicyConfig,
    /// How data are collected.
    pub rollout: RolloutConfig,
    /// How an action is compared with its group.
    pub advantage: AdvantageConfig,
    /// What is minimised.
    pub loss: LossConfig,
    /// How often the data are used.
    pub update: UpdateConfig,
    /// AdamW and its learning rate.
    pub optimizer: OptimizerConfig,
    /// When the run is measured and saved.
    pub checkpoint: CheckpointConfig,
    /// What is learnt from instead of games, if anything is.
    #[serde(default)]
    pub data: DataConfig,
}

/// As many shards as eight members share well.
fn sixteen() -> usize {
    16
}

impl TrainConfig {
    /// How `items` groups of games or windows of a dataset are cut: the number of shards, and that of the strata they
    /// are made of. There are `update.num_shards` strata, or as many as get something of every minibatch, and as many
    /// shards, or as many as have `least` steps of a minibatch.
    pub fn shards(&self, items: usize, least: usize) -> [usize; 2] {
        let (size, steps) = match self.data.is_on() {
            true => (self.data.batch_size.min(items), self.data.window),
            false => {
                let games = items * self.rollout.group_size;
                (games / self.update.num_minibatches, self.rollout.learn_steps)
            }
        };
        let most = self.update.num_shards.clamp(1, items);
        let gets = |strata: &usize| items / strata * size >= items;
        let strata = (1..=most).rev().find(gets).unwrap_or(1);
        [(size * steps / least).clamp(1, strata), strata]
    }

    /// Steps that an iteration learns from at most: those that its games play, or those of its batches
    /// of windows.
    pub fn steps_per_iteration(&self) -> u64 {
        let steps = match self.data.is_on() {
            true => self.update.num_minibatches * self.data.batch_size * self.data.window,
            false => self.rollout.num_envs() * self.rollout.num_steps,
        };
        steps as u64
    }
}

/// Learning from a dataset instead of from games (`grove fit`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataConfig {
    /// The folder of the dataset; empty where the run plays games.
    pub path: String,
    /// Steps of a window, the piece of an episode that is learnt from at a time. What a model remembers
    /// starts anew with it.
    pub window: usize,
    /// Steps before a window that are seen and not learnt from, as far as the episode has them: what a
    /// model needs to remember at the window's first.
    pub history: usize,
    /// Windows of an optimiser step.
    pub batch_size: usize,
    /// MiB that the data may take where they are learnt from, to stay there; more are read from their
    /// files as they are needed, with the same result. 0 is half of the memory that the machine has free.
    pub resident_mb: u64,
    /// Share of the episodes that are held out to measure what is learnt, above 0 and at most 0.5.
    pub validation: f64,
    /// Passes over what is learnt from. Where `iterations` is not told on the command line, it follows
    /// from this.
    pub epochs: u32,
    /// How much each action weighs.
    pub class_weights: ClassWeights,
    /// Evaluations without a better one after which the run ends; 0 for never.
    pub patience: u32,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            path: String::new(),
            window: 1,
            history: 0,
            batch_size: 256,
            resident_mb: 0,
            validation: 0.1,
            epochs: 30,
            class_weights: ClassWeights::None,
            patience: 0,
        }
    }
}

impl DataConfig {
    /// Whether the run learns from data.
    pub fn is_on(&self) -> bool {
        !self.path.is_empty()
    }
}

/// How much the steps of each action weigh in a dataset, besides the weights that it has itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassWeights {
    /// Every step as much.
    None,
    /// All steps of an action together as much as those of any other.
    Balanced,
}

/// Which engine plays and learns. All do the same; rounding differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The fused engine where there is one for the device and the policy, else the general one.
    Auto,
    /// The fused engine: native code on the CPU, fused kernels elsewhere.
    Fused,
    /// The general engine: Burn's operations and autodiff, on any device.
    General,
}

impl std::str::FromStr for Engine {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        match name {
            "auto" => Ok(Self::Auto),
            "fused" => Ok(Self::Fused),
            "general" => Ok(Self::General),
            _ => Err(ConfigError::WrongValue {
                key: "engine".to_string(),
                value: format!("`{name}`"),
                expected: "there are auto, fused and general".to_string(),
            }),
        }
    }
}

impl std::str::FromStr for Precision {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "bf16" => Ok(Self::Bf16),
            _ => Err(ConfigError::WrongValue {
                key: "precision".to_string(),
                value: format!("`{name}`"),
                expected: "there are f32, f16 and bf16".to_string(),
            }),
        }
    }
}

/// Games played in parallel: `num_envs = num_groups * group_size`, each for `num_steps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutConfig {
    /// Groups; the members of one share a level.
    pub num_groups: usize,
    /// Members of a group, 2 or more (TRL: `num_generations`).
    pub group_size: usize,
    /// Steps that each game is played in an iteration.
    pub num_steps: usize,
    /// Steps, from the first, that are learnt from, 1 to `num_steps`. The others only show what
    /// those have led to.
    pub learn_steps: usize,
    /// Where the games of an iteration start.
    pub start: Start,
    /// Whether a game whose episode ends within a rollout goes on with the next level. Otherwise
    /// the rest of its steps do not count.
    pub auto_reset: bool,
}

impl RolloutConfig {
    /// Games played in parallel.
    pub fn num_envs(&self) -> usize {
        self.num_groups * self.group_size
    }
}

/// Where the games of an iteration start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// At the start of a new level, the same for all members of a group.
    Level,
    /// In the middle of a game: all members of a group start from the state in which one of them
    /// was in the last iteration, at a step of `1..=learn_steps`, both drawn at random. A group then
    /// compares actions in one and the same situation (as in the "vine" of Schulman et al. 2015).
    /// What the environment draws from there on is new in each iteration, and the same for all members.
    Branch,
}

/// Group-relative advantages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdvantageConfig {
    /// What an action is credited with.
    pub estimator: Estimator,
    /// Discount of later rewards a step, above 0 and at most 1.
    pub discount: f64,
    /// What the advantages are divided by.
    pub scale_rewards: Scale,
}

/// What an action is credited with, before the group's mean is subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// The sum of all rewards of the game, the same for all its steps (Shao et al. 2024, outcome
    /// supervision).
    Return,
    /// The discounted sum of the rewards from this step to the end of the episode or rollout,
    /// against the group's mean at the same step.
    RewardToGo,
}

/// What the advantages are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// The standard deviation within the group (for reward-to-go, at the same step).
    Group,
    /// The standard deviation of all advantages of the iteration.
    Batch,
    /// Nothing (Dr. GRPO).
    None,
}

/// How often and in what portions the data of an iteration are used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateConfig {
    /// Passes over the data (TRL: `num_iterations`).
    pub update_epochs: usize,
    /// Optimiser steps a pass; each takes its share of the games.
    pub num_minibatches: usize,
    /// Parts that a minibatch is worked off in, to save memory; the update is the same.
    pub gradient_accumulation_steps: usize,
    /// Logical shards of a batch, at most: what each gives is added up in one tree, so that the result does not
    /// depend on how many threads, devices or processes share them.
    #[serde(default = "sixteen")]
    pub num_shards: usize,
    /// Whether a decoder that learns on the CPU keeps only what lies between its layers and computes them
    /// anew on the way back (Chen et al. 2016): less memory, a third more work, the same update.
    #[serde(default)]
    pub gradient_checkpointing: bool,
    /// Largest norm of the gradient of all parameters together; 0 for no clipping.
    pub max_grad_norm: f64,
}

/// AdamW (Loshchilov & Hutter 2019) with PyTorch's defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// The highest learning rate of the run.
    pub learning_rate: f64,
    /// How it goes down.
    pub lr_scheduler_type: LrSchedule,
    /// Share of the run over which it rises linearly from 0 at first, 0 to 1.
    pub warmup_ratio: f64,
    /// Decay of the first moment.
    pub adam_beta1: f64,
    /// Decay of the second moment.
    pub adam_beta2: f64,
    /// Added to the root of the second moment.
    pub adam_epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// The course of the learning rate after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrSchedule {
    /// It stays.
    Constant,
    /// Linearly to 0 at the end of the run.
    Linear,
    /// Along a half cosine to 0 at the end of the run.
    Cosine,
}

/// When a run is measured and saved, in iterations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointConfig {
    /// Iterations between two checkpoints; the last iteration is always saved.
    pub save_every: u32,
    /// Checkpoints kept, beside the best, 1 or more.
    pub keep: usize,
    /// Iterations between two evaluations with the greedy policy.
    pub eval_every: u32,
    /// Episodes of an evaluation.
    pub eval_episodes: usize,
}

/// What is wrong with a setting.
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
    /// A short key that stands for several.
    #[error("the setting `{key}` is ambiguous; write one of: {}", .candidates.join(", "))]
    AmbiguousKey {
        /// The key as written.
        key: String,
        /// What it could mean.
        candidates: Vec<String>,
    },
    /// A value of the wrong type, or not one of the names allowed.
    #[error("`{key}` cannot be {value}: {expected}")]
    WrongValue {
        /// The setting.
        key: String,
        /// The value as written.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// A value that is out of range, alone or beside the others.
    #[error("{0}")]
    OutOfRange(String),
    /// Text that is not TOML.
    #[error("{what} is not valid TOML: {message}")]
    Syntax {
        /// The file or argument.
        what: String,
        /// What the parser says, with the line.
        message: String,
    },
}
