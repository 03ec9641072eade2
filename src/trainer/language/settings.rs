//! The settings of a run that trains a language model, by TRL's names where it has them.

use crate::config::{
    CheckpointConfig, LrSchedule, OptimizerConfig, Precision, Scale, UpdateConfig,
};
use crate::learner::language::LanguageRule;
use crate::model::language::LoraConfig;
use crate::model::{DecoderConfig, DecoderShape};
use crate::objective::{LossConfig, LossType};
use crate::rollout::generate::Sampling;
use serde::{Deserialize, Serialize};

/// What begins from nothing.
pub const TINY: &str = "tiny";

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanguageConfig {
    /// Decides everything that is random.
    pub seed: u64,
    /// Iterations of the run; the schedules end with it.
    pub iterations: u32,
    /// What the products of a model on a device take their numbers in; the CPU has f32 alone.
    #[serde(default)]
    pub precision: Precision,
    /// The model that is trained.
    pub model: ModelConfig,
    /// What is learnt in the place of the model's weights, if anything is.
    pub lora: LoraConfig,
    /// Imitation of solutions at the beginning.
    pub fit: FitConfig,
    /// What is made of a prompt.
    pub generation: GenerationConfig,
    /// How a completion is compared with its group.
    pub reward: RewardConfig,
    /// What is minimised.
    pub loss: LossConfig,
    /// How often the completions are used. A shard is of whole groups; `num_shards = 0` is for 16 of them, or
    /// one where all weights of a large model are learnt, since each takes as much memory as the weights.
    pub update: UpdateConfig,
    /// AdamW and its learning rate.
    pub optimizer: OptimizerConfig,
    /// When the run is measured and saved.
    pub checkpoint: CheckpointConfig,
}

/// The model that is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// A Hugging Face folder, a GGUF file, or `tiny`: a fresh decoder over the task's characters.
    pub path: String,
    /// The sizes of `tiny`.
    #[serde(flatten)]
    pub tiny: DecoderConfig,
}

/// What is made of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationConfig {
    /// Prompts of an iteration.
    pub num_prompts: usize,
    /// Completions of a prompt (TRL: `num_generations`).
    pub group_size: usize,
    /// Tokens of a completion at most (TRL: `max_completion_length`); 0 for what the task says.
    pub max_new_tokens: usize,
    /// What logits are divided by, above 0.
    pub temperature: f32,
    /// As many of the likeliest tokens can be drawn; 0 for all.
    pub top_k: usize,
    /// The likeliest tokens of this share of the probability can be drawn; 1 for all.
    pub top_p: f32,
    /// Tokens below this share of the likeliest one's probability cannot be drawn.
    pub min_p: f32,
    /// Completions under way at a time. The result does not depend on it.
    pub slots: usize,
    /// Times that prompts whose completions are all worth the same are replaced by others (DAPO's dynamic
    /// sampling); 0 for never.
    pub resample: u32,
    /// Texts that end a completion and are no part of it.
    #[serde(default)]
    pub stop: Vec<String>,
}

/// How a completion is compared with its group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardConfig {
    /// What the advantages are divided by.
    pub scale_rewards: Scale,
    /// What a reward is compared with.
    #[serde(default)]
    pub baseline: Baseline,
    /// Whether nothing is learnt from completions that were cut off.
    pub mask_truncated_completions: bool,
    /// The share of the tokens, those of the highest entropy, that is learnt from (Wang et al. 2025); 1 for
    /// all. Entropies are those of the policy that acted.
    pub top_entropy_quantile: f64,
    /// Tokens before the longest completion from which on length costs reward (DAPO's overlong shaping); 0
    /// for none.
    pub overlong_buffer: usize,
    /// Weights of parts of the reward that are not to be the task's, such as `tests=0.9,types=0.1` (TRL:
    /// `reward_weights`).
    #[serde(default)]
    pub weights: String,
}

/// What a completion's reward is compared with to say how good a token of it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Baseline {
    /// The mean of its group: the same for all of its tokens (GRPO).
    #[default]
    Group,
    /// The mean over those of its group that had the same tokens before. Only a choice in which they part is praised
    /// or blamed then, which is less noise where they have much in common; nothing is learnt from what no
    /// other begins like.
    Prefix,
}

/// Imitation of the task's solutions: before there is any reward, or, where the loss is `nll`, all that the
/// run does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FitConfig {
    /// Iterations of it before there is any reward, which count among the run's.
    pub iterations: u32,
    /// Its learning rate there, which stays.
    pub learning_rate: f64,
    /// Passes over the prompts of a run that does nothing else, where `iterations` is not told.
    #[serde(default)]
    pub epochs: u32,
    /// Evaluations without a better one after which such a run ends; 0 for never.
    #[serde(default)]
    pub patience: u32,
}

/// Parameters below which a model learns with the steps of a fresh one.
const SMALL: usize = 1 << 24;

impl LanguageConfig {
    /// The defaults for a model that is `tiny`, or else a large one.
    pub fn for_model(path: &str) -> Self {
        Self::of(path, path == TINY)
    }

    /// The defaults for a model of so many parameters. One that has learnt before needs not imitate first.
    pub fn for_trained(path: &str, num_params: usize) -> Self {
        let mut config = Self::of(path, num_params < SMALL);
        config.fit.iterations = 0;
        config
    }

    /// The defaults for a run that only imitates, of a model of so many parameters; `None` for `tiny`.
    pub fn imitating(path: &str, num_params: Option<usize>) -> Self {
        let is_small = num_params.is_none_or(|num_params| num_params < SMALL);
        let mut config = Self::of(path, is_small);
        config.loss.loss_type = LossType::Nll;
        config.iterations = 400;
        config.fit.iterations = 0;
        config.fit.epochs = if is_small { 40 } else { 3 };
        config.optimizer.learning_rate = if is_small { 1e-3 } else { 2e-5 };
        config.optimizer.warmup_ratio = 0.05;
        config.checkpoint.eval_every = 10;
        config.checkpoint.eval_episodes = if is_small { 64 } else { 0 };
        config
    }

    /// Iterations in which a run that imitates passes over so many prompts `fit.epochs` times.
    pub fn epochs(&self, prompts: u64) -> u32 {
        let texts = prompts.saturating_mul(u64::from(self.fit.epochs));
        let iterations = texts.div_ceil(self.generation.num_prompts as u64);
        iterations.clamp(1, u32::MAX.into()) as u32
    }

    /// Whether the run imitates and knows no rewards.
    pub fn imitates(&self) -> bool {
        self.loss.loss_type == LossType::Nll
    }

    fn of(path: &str, is_tiny: bool) -> Self {
        let tiny = DecoderConfig {
            hidden_size: 128,
            num_layers: 4,
            num_heads: 4,
            num_kv_heads: 2,
            intermediate_size: 384,
            context: 1024,
        };
        Self {
            seed: 1,
            precision: Precision::F32,
            iterations: if is_tiny { 400 } else { 100 },
            model: ModelConfig { path: path.to_string(), tiny },
            lora: LoraConfig::new(0),
            fit: FitConfig {
                iterations: if is_tiny { 100 } else { 0 },
                learning_rate: 1e-3,
                epochs: 0,
                patience: 0,
            },
            generation: GenerationConfig {
                num_prompts: if is_tiny { 32 } else { 8 },
                group_size: 8,
                max_new_tokens: 0,
                temperature: 1.0,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                slots: 256,
                resample: 0,
                stop: Vec::new(),
            },
            reward: RewardConfig {
                scale_rewards: Scale::Group,
                baseline: Baseline::Group,
                mask_truncated_completions: false,
                top_entropy_quantile: 1.0,
                overlong_buffer: 0,
                weights: String::new(),
            },
            loss: LossConfig { loss_type: LossType::Dapo, ..LossConfig::new() },
            update: UpdateConfig {
                update_epochs: 1,
                num_minibatches: 1,
                gradient_accumulation_steps: 1,
                num_shards: 0,
                max_grad_norm: 1.0,
                gradient_checkpointing: false,
            },
            optimizer: OptimizerConfig {
                learning_rate: if is_tiny { 2e-4 } else { 1e-5 },
                lr_scheduler_type: LrSchedule::Linear,
                warmup_ratio: 0.02,
                adam_beta1: 0.9,
                adam_beta2: 0.99,
                adam_epsilon: 1e-8,
                weight_decay: 0.0,
            },
            checkpoint: CheckpointConfig {
                save_every: 50,
                keep: 2,
                eval_every: 25,
                eval_episodes: 256,
            },
        }
    }

    /// The sizes of a fresh model, in Qwen2's shape.
    pub fn tiny_shape(&self) -> DecoderShape {
        let sizes = &self.model.tiny;
        DecoderShape {
            hidden_size: sizes.hidden_size,
            num_layers: sizes.num_layers,
            num_heads: sizes.num_heads,
            num_kv_heads: sizes.num_kv_heads,
            head_dim: sizes.hidden_size / sizes.num_heads.max(1),
            intermediate_size: sizes.intermediate_size,
            context: sizes.context,
            ..DecoderShape::qwen2()
        }
    }

    /// How tokens are chosen; with which a completion ends is the model's to say.
    pub fn sampling(&self, stop_tokens: &[u32]) -> Sampling {
        let GenerationConfig { temperature, top_k, top_p, min_p, max_new_tokens, .. } =
            self.generation;
        let stop_tokens = stop_tokens.to_vec();
        Sampling { temperature, top_k, top_p, min_p, max_new_tokens, stop_tokens }
    }

    /// How the completions are learnt from; `fit`: as what somebody else has shown.
    pub fn rule(&self, fit: bool) -> LanguageRule {
        let loss_type = if fit { LossType::Nll } else { self.loss.loss_type };
        LanguageRule {
            loss: LossConfig { loss_type, ..self.loss.clone() },
            update: self.update.clone(),
            optimizer: self.optimizer.clone(),
            temperature: if fit { 1.0 } else { self.generation.temperature },
            max_new_tokens: self.generation.max_new_tokens,
        }
    }

    /// Optimiser steps of an iteration.
    pub fn updates(&self) -> usize {
        self.update.update_epochs * self.update.num_minibatches
    }

    /// What is out of range, in a sentence.
    ///
    /// # Errors
    /// If anything is.
    pub fn validate(&self) -> Result<(), String> {
        let GenerationConfig { num_prompts, group_size, temperature, top_p, min_p, slots, .. } =
            self.generation;
        let stop = &self.generation.stop;
        let tiny = &self.model.tiny;
        for (is_right, what) in [
            (self.iterations > 0, "iterations must be 1 or more"),
            (num_prompts > 0, "generation.num_prompts must be 1 or more"),
            (group_size > 1, "generation.group_size must be 2 or more"),
            (slots > 0, "generation.slots must be 1 or more"),
            (!stop.contains(&String::new()), "generation.stop has an empty text"),
            (
                temperature > 0.0 && temperature.is_finite(),
                "generation.temperature must be above 0",
            ),
            (top_p > 0.0 && top_p <= 1.0, "generation.top_p must be above 0 and at most 1"),
            ((0.0..1.0).contains(&min_p), "generation.min_p must be 0 or more and below 1"),
            (
                self.reward.top_entropy_quantile > 0.0 && self.reward.top_entropy_quantile <= 1.0,
                "reward.top_entropy_quantile must be above 0 and at most 1",
            ),
            (
                self.update.update_epochs > 0 && self.update.num_minibatches > 0,
                "update.update_epochs and update.num_minibatches must be 1 or more",
            ),
            (
                self.update.gradient_accumulation_steps == 1,
                "update.gradient_accumulation_steps is for games: texts are learnt from a group at a time anyhow",
            ),
            (self.update.num_shards <= 4096, "update.num_shards must be at most 4096"),
            (self.loss.label_smoothing == 0.0, "loss.label_smoothing is for datasets of games"),
            (self.optimizer.learning_rate >= 0.0, "optimizer.learning_rate must be 0 or more"),
            (self.checkpoint.keep > 0, "checkpoint.keep must be 1 or more"),
            (
                self.checkpoint.eval_episodes > 0 || self.imitates(),
                "checkpoint.eval_episodes must be 1 or more",
            ),
            (
                self.fit.iterations == 0 || !self.imitates(),
                "fit.iterations must be 0 where the loss is nll, which imitates throughout",
            ),
            (
                tiny.num_heads > 0
                    && tiny.num_kv_heads > 0
                    && tiny.num_heads.is_multiple_of(tiny.num_kv_heads)
                    && tiny.hidden_size.is_multiple_of(2 * tiny.num_heads)
                    && tiny.hidden_size > 0
                    && tiny.num_layers > 0,
                "model.hidden_size must be a multiple of twice num_heads, and num_heads one of num_kv_heads",
            ),
        ] {
            if !is_right {
                return Err(what.to_string());
            }
        }
        self.lora.validate()
    }
}
