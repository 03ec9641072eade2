//! Softmax in incremental pieces, and action sampling by inverse transform.
//!
//! With the largest logit `m` and `s = sum exp(z - m)`, the log-probability is `z - m - ln s`.

use super::{at_least, exp, ln};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Normalization of logits to probabilities.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct Normalizer {
    /// The largest logit.
    pub max: f32,
    /// `ln s`.
    pub log_sum: f32,
    /// `1 / s`.
    pub inverse_sum: f32,
}

/// Logit of a masked action, or score of a masked key: finite, with probability 0 beside any legal action.
pub const MASKED_LOGIT: f32 = -1e30;

/// Unnormalized probability of a logit, `exp(z - m)`.
#[cube]
#[inline(always)]
pub fn unnormalized_prob(logit: f32, max: f32) -> f32 {
    exp(logit - max)
}

/// Computes the normalizer from the largest logit and the sum of [`unnormalized_prob()`].
#[cube]
#[inline(always)]
pub fn compute_normalizer(max: f32, sum: f32) -> Normalizer {
    Normalizer { max, log_sum: ln(sum), inverse_sum: 1.0f32 / sum }
}

/// Log-probability of a logit.
#[cube]
#[inline(always)]
pub fn logprob(logit: f32, normalizer: &Normalizer) -> f32 {
    logit - normalizer.max - normalizer.log_sum
}

/// Probability of a logit.
#[cube]
#[inline(always)]
pub fn prob(logit: f32, normalizer: &Normalizer) -> f32 {
    unnormalized_prob(logit, normalizer.max) * normalizer.inverse_sum
}

/// Contribution of one action to the entropy, in nats.
#[cube]
#[inline(always)]
pub fn entropy_term(prob: f32, logprob: f32) -> f32 {
    -prob * logprob
}

/// Lower bound of the sampling threshold. Since [`exp()`] never returns 0, `u = 0` could otherwise
/// select a masked action. The total is at least 1 and nonzero `u` are at least 2^-24, so no other
/// draw changes.
pub(crate) const MIN_THRESHOLD: f32 = 1e-30;

/// 1 if an action precedes the sampled one: the cumulative sum of [`unnormalized_prob()`] up to it does
/// not exceed `u` times the total, for `u` uniform in `[0, 1)`.
#[cube]
#[inline(always)]
pub fn lies_before(sum: f32, u: f32, total: f32) -> u32 {
    select(sum <= at_least(MIN_THRESHOLD, u * total), 1u32, 0u32)
}

/// A sampled action.
#[derive(CubeType, Clone, Copy, Debug, PartialEq)]
pub struct SampledAction {
    /// Index of the action.
    pub action: u32,
    /// Log-probability of the action.
    pub logprob: f32,
}

/// Samples an action by inverse transform: the first one whose cumulative probability exceeds `u`,
/// uniform in `[0, 1)`. The logits are `logits[first..first + num_actions]`.
#[cube]
pub fn sample_action(
    logits: &[f32],
    first: usize,
    u: f32,
    #[comptime] num_actions: usize,
) -> SampledAction {
    let mut max = logits[first];
    #[unroll]
    for a in 1..num_actions {
        max = at_least(logits[first + a], max);
    }
    let mut total = 0.0f32;
    #[unroll]
    for a in 0..num_actions {
        total += unnormalized_prob(logits[first + a], max);
    }
    let mut num_before = 0u32;
    let mut sum = 0.0f32;
    #[unroll]
    for a in 0..num_actions {
        sum += unnormalized_prob(logits[first + a], max);
        num_before += lies_before(sum, u, total);
    }
    let last = comptime!(num_actions as u32 - 1);
    let action = select(num_before > last, last, num_before);
    let logprob = logprob(logits[first + action as usize], &compute_normalizer(max, total));
    SampledAction { action, logprob }
}
