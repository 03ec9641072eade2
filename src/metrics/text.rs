//! Metrics of language models, in addition to those that all runs have.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Metrics of an iteration about completions and tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LanguageRecord {
    /// Whether the iteration was supervised fine-tuning (SFT); there are no completions and no rewards then.
    pub is_sft: bool,
    /// Mean of each part of the reward, without its weight; empty if no completion could be judged.
    #[serde(default)]
    pub rewards: BTreeMap<String, f64>,
    /// Completions that the verifier could not judge; means of scores and rewards leave them out.
    #[serde(default)]
    pub num_unjudged: usize,
    /// The reason why it could not judge the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_problem: Option<String>,
    /// Mean of the highest scores that the judged completions could have; not saved.
    #[serde(skip)]
    pub highest_score: Option<f64>,
    /// Groups without variance in their rewards that were replaced by others.
    #[serde(default)]
    pub num_resampled_groups: usize,
    /// Mean length of a completion, tokens.
    #[serde(default)]
    pub completion_length: f64,
    /// Fraction of the completions that were cut off at their maximum length.
    #[serde(default)]
    pub truncated_fraction: f64,
    /// Fraction of a group's completions that are distinct texts, mean over the groups.
    #[serde(default)]
    pub distinct_fraction: f64,
    /// Tokens generated, those of replaced groups included.
    #[serde(default)]
    pub num_tokens: u64,
    /// Mean entropy of the policy that generated, nats per token.
    #[serde(default)]
    pub sampling_entropy: f64,
    /// Largest distance of a token's importance ratio from 1 in the first optimizer step; `None` if no group had
    /// a gradient there. It is 0 on the CPU, which generates and learns with the same arithmetic.
    pub first_ratio_distance: Option<f64>,
    /// Tokens generated per second.
    #[serde(default)]
    pub generated_tokens_per_second: f64,
    /// Tokens learnt from per second.
    #[serde(default)]
    pub learnt_tokens_per_second: f64,
    /// A collapse that begins with this iteration, in words
    /// ([`CollapseMonitor`](crate::trainer::text::CollapseMonitor)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Metrics of an evaluation about completions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LanguageEvaluation {
    /// Completions per prompt.
    pub completions_per_prompt: usize,
    /// Fraction of the completions with the highest possible score; `None` if a reward is above 1, so that it is not
    /// known, or no completion could be judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_at_1: Option<f64>,
    /// Fraction of the prompts with such a completion among their `completions_per_prompt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_at_k: Option<f64>,
    /// Completions that the verifier could not judge, which all other metrics but `truncated_fraction` and
    /// [`mean_length`](super::EvaluationRecord::mean_length) leave out.
    #[serde(default)]
    pub num_unjudged: usize,
    /// Mean of each part of the reward, without its weight; empty if no completion could be judged.
    pub rewards: BTreeMap<String, f64>,
    /// Fraction of the completions that were cut off at their maximum length.
    pub truncated_fraction: f64,
}
