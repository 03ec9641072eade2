//! The softmax of an action's logits in its pieces, and the choice of an action by inversion.
//!
//! With the largest logit `m` and `s = sum exp(z - m)`, the log-probability is `z - m - ln s`.

use super::{at_least, exp, ln};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// What makes a logit a probability.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct Normalizer {
    /// The largest logit.
    pub max: f32,
    /// `ln s`.
    pub log_total: f32,
    /// `1 / s`.
    pub share: f32,
}

/// The logit of an action that may not be taken: finite, and of probability 0 beside any other.
pub const ILLEGAL: f32 = -1e30;

/// The probability of a logit before it is divided by their sum: `exp(z - m)`.
#[cube]
#[inline(always)]
pub fn unnormalized(logit: f32, max: f32) -> f32 {
    exp(logit - max)
}

/// The normalizer of logits, from the largest of them and the sum of [`unnormalized()`] over all.
#[cube]
#[inline(always)]
pub fn normalizer(max: f32, total: f32) -> Normalizer {
    Normalizer { max, log_total: ln(total), share: 1.0f32 / total }
}

/// The log-probability of a logit.
#[cube]
#[inline(always)]
pub fn logprob(logit: f32, by: &Normalizer) -> f32 {
    logit - by.max - by.log_total
}

/// The probability of a logit.
#[cube]
#[inline(always)]
pub fn prob(logit: f32, by: &Normalizer) -> f32 {
    unnormalized(logit, by.max) * by.share
}

/// What an action of this probability adds to the entropy.
#[cube]
#[inline(always)]
pub fn entropy_of(prob: f32, logprob: f32) -> f32 {
    -prob * logprob
}

/// Where `u` is 0, actions whose probabilities do not even sum up to this are not drawn: [`exp()`] never gives
/// 0. The total is 1 at least and other `u` are 2^-24 at least, so that nothing else changes.
const LEAST_SUM: f32 = 1e-30;

/// 1 where an action lies before the one drawn: the sum of [`unnormalized()`] up to it does not exceed
/// `u` times the total, for a `u` that is uniform in `[0, 1)`.
#[cube]
#[inline(always)]
pub fn lies_before(sum: f32, u: f32, total: f32) -> u32 {
    select(sum <= at_least(LEAST_SUM, u * total), 1u32, 0u32)
}

/// An action and its log-probability.
#[derive(CubeType, Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The action.
    pub action: u32,
    /// Its log-probability.
    pub logprob: f32,
}

/// Draws an action by inversion of the distribution function: the first action at which the sum of
/// the probabilities exceeds `u`, uniform in `[0, 1)`. The logits are `logits[first..first + actions]`.
#[cube]
pub fn choose(logits: &[f32], first: usize, u: f32, #[comptime] actions: usize) -> Choice {
    let mut max = logits[first];
    #[unroll]
    for a in 1..actions {
        max = at_least(logits[first + a], max);
    }
    let mut total = 0.0f32;
    #[unroll]
    for a in 0..actions {
        total += unnormalized(logits[first + a], max);
    }
    let mut below = 0u32;
    let mut sum = 0.0f32;
    #[unroll]
    for a in 0..actions {
        sum += unnormalized(logits[first + a], max);
        below += lies_before(sum, u, total);
    }
    let last = comptime!(actions as u32 - 1);
    let action = select(below > last, last, below);
    let logprob = logprob(logits[first + action as usize], &normalizer(max, total));
    Choice { action, logprob }
}
