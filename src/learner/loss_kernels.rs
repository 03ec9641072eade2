//! The losses inside kernels: [`super::loss`] of one step, with its derivatives, and the kernels that
//! prepare an update.

use super::fused::Shapes;
use crate::config::{KlEstimator, LossType};
use crate::policy::kernels::{MlpShape, mlp_logits};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Quantities of a step in the buffer of samples, each `[num_steps, num_envs]`.
const ACTION: usize = 0;
const LOGPROB: usize = 1;
const ADVANTAGE: usize = 2;
const MASK: usize = 3;
const REFERENCE: usize = 4;
/// Their number.
pub(super) const SAMPLE: usize = 5;

/// Units of the cubes that [`count_kernel`] adds up by.
pub(super) const COUNT_UNITS: usize = 128;

/// What of the loss a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LossShape {
    /// The loss.
    pub loss_type: LossType,
    /// Whether there is a dual clip.
    pub dual_clip: bool,
    /// The estimator of the divergence from the reference policy, if there is one.
    pub kl: Option<KlEstimator>,
}

/// The numbers of the loss.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Coefficients {
    /// The lower bound of the ratio.
    pub low: f32,
    /// Its upper bound.
    pub high: f32,
    /// The dual clip.
    pub dual_clip: f32,
    /// The weight of the entropy.
    pub entropy: f32,
    /// The weight of the divergence from the reference policy.
    pub kl: f32,
}

/// A minibatch: `games` games, which `order[first..]` lists.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Batch {
    /// Where its games start in the order.
    pub first: usize,
    /// Its number in the update.
    pub number: usize,
    /// Its games.
    pub games: usize,
    /// Steps of each game.
    pub num_steps: usize,
    /// Games of the trajectory.
    pub num_envs: usize,
    /// Minibatches an epoch.
    pub num_minibatches: usize,
    /// Where in the buffer of facts the games' lengths start.
    pub lengths: usize,
}

/// What a learner needs of a step beside its observation.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Sample {
    /// The action taken.
    pub action: u32,
    /// Its log-probability then.
    pub logprob: f32,
    /// The advantage.
    pub advantage: f32,
    /// Whether the step counts.
    pub mask: f32,
    /// The action's log-probability under the reference policy, if there is one.
    pub reference: f32,
}

/// The sample at place `at` of `[num_steps, num_envs]`, whose size is `stride`.
#[cube]
pub(super) fn load_sample(samples: &[f32], at: usize, stride: usize) -> Sample {
    Sample {
        action: samples[comptime!(ACTION) * stride + at] as u32,
        logprob: samples[comptime!(LOGPROB) * stride + at],
        advantage: samples[comptime!(ADVANTAGE) * stride + at],
        mask: samples[comptime!(MASK) * stride + at],
        reference: samples[comptime!(REFERENCE) * stride + at],
    }
}

/// A log-softmax, in the parts that the loss needs.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Softmax {
    /// What is subtracted from a logit to give its log-probability.
    pub log_total: f32,
    /// The log-probability of the action taken.
    pub logprob: f32,
    /// The entropy, nats.
    pub entropy: f32,
}

/// The log-softmax of `logits[first + a * stride]`, with the log-probability of `action`.
#[cube]
pub(super) fn softmax(
    logits: &[f32],
    first: usize,
    action: u32,
    #[comptime] stride: usize,
    #[comptime] actions: usize,
) -> Softmax {
    let mut max = logits[first];
    #[unroll]
    for a in 1..actions {
        let z = logits[first + comptime!(a * stride)];
        max = select(z > max, z, max);
    }
    let mut total = 0.0f32;
    #[unroll]
    for a in 0..actions {
        total += (logits[first + comptime!(a * stride)] - max).exp();
    }
    let log_total = max + total.ln();
    let mut entropy = 0.0f32;
    #[unroll]
    for a in 0..actions {
        let logprob = logits[first + comptime!(a * stride)] - log_total;
        entropy -= logprob.exp() * logprob;
    }
    let logprob = logits[first + action as usize * stride] - log_total;
    Softmax { log_total, logprob, entropy }
}

/// The smaller of two numbers.
#[cube]
fn smaller(a: f32, b: f32) -> f32 {
    select(a < b, a, b)
}

/// `x` within the ratio's bounds.
#[cube]
fn clip(x: f32, by: &Coefficients) -> f32 {
    select(x < by.low, by.low, smaller(x, by.high))
}

/// What the policy loss of a step is; `ratio` is that of the sequence for `gspo`.
#[cube]
pub(super) fn policy_loss(
    ratio: f32,
    advantage: f32,
    logprob: f32,
    by: &Coefficients,
    #[comptime] shape: LossShape,
) -> f32 {
    if comptime!(shape.loss_type == LossType::Cispo) {
        -smaller(ratio, by.high) * advantage * logprob
    } else {
        let bounded = if comptime!(shape.dual_clip) { smaller(ratio, by.dual_clip) } else { ratio };
        -smaller(bounded * advantage, clip(ratio, by) * advantage)
    }
}

/// Whether clipping (for `cispo`: the cap) acts, as 0 or 1.
#[cube]
pub(super) fn clipped(
    ratio: f32,
    advantage: f32,
    by: &Coefficients,
    #[comptime] shape: LossShape,
) -> f32 {
    let above = ratio > by.high;
    if comptime!(shape.loss_type == LossType::Cispo) {
        select(above, 1.0f32, 0.0f32)
    } else {
        let below = if comptime!(shape.dual_clip) {
            ratio < by.low || ratio > by.dual_clip
        } else {
            ratio < by.low
        };
        let acts = (above && advantage > 0.0f32) || (below && advantage < 0.0f32);
        select(acts, 1.0f32, 0.0f32)
    }
}

/// The derivative of [`policy_loss`] by the ratio; not for `cispo`, whose ratio is a constant.
///
/// Where clipping acts it is 0, and `-advantage` elsewhere.
#[cube]
pub(super) fn ratio_slope(
    ratio: f32,
    advantage: f32,
    by: &Coefficients,
    #[comptime] shape: LossShape,
) -> f32 {
    -advantage * (1.0f32 - clipped(ratio, advantage, by, shape))
}

/// KL(policy || reference), estimated from `log_ratio = log reference - log policy`.
#[cube]
pub(super) fn kl(log_ratio: f32, #[comptime] estimator: KlEstimator) -> f32 {
    if comptime!(estimator == KlEstimator::K1) {
        -log_ratio
    } else if comptime!(estimator == KlEstimator::K2) {
        log_ratio * log_ratio * 0.5f32
    } else {
        log_ratio.exp() - 1.0f32 - log_ratio
    }
}

/// The derivative of [`kl`] by the policy's log-probability.
#[cube]
pub(super) fn kl_slope(log_ratio: f32, #[comptime] estimator: KlEstimator) -> f32 {
    if comptime!(estimator == KlEstimator::K1) {
        1.0f32.runtime()
    } else if comptime!(estimator == KlEstimator::K2) {
        -log_ratio
    } else {
        1.0f32 - log_ratio.exp()
    }
}

/// The length of game `env`: its steps that count, at least 1.
#[cube]
pub(super) fn length(facts: &[f32], env: usize, batch: &Batch) -> f32 {
    let length = facts[batch.lengths + env];
    select(length > 1.0f32, length, 1.0f32)
}

/// What the weight of a step of game `env` is, where it counts.
#[cube]
pub(super) fn weight(
    facts: &[f32],
    env: usize,
    batch: &Batch,
    #[comptime] loss_type: LossType,
) -> f32 {
    if comptime!(loss_type == LossType::Grpo || loss_type == LossType::Gspo) {
        1.0f32 / length(facts, env, batch) / batch.games as f32
    } else if comptime!(loss_type == LossType::DrGrpo) {
        1.0f32 / (batch.num_steps * batch.games) as f32
    } else if comptime!(loss_type == LossType::Bnpo) {
        1.0f32 / facts[1 + batch.number]
    } else {
        batch.num_minibatches as f32 / facts[0]
    }
}

/// One unit packs one step: action, log-probability, advantage, mask and, where there is a reference
/// policy, the action's log-probability under that.
///
/// Buffers: actions, log-probabilities, advantages and mask `[num_steps, num_envs]`; observations
/// `[num_steps, num_envs, num_features]`; the reference's parameters `[num_params]`, not read
/// without one; samples `[SAMPLE, num_steps, num_envs]`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub(super) fn pack_kernel(
    actions: &[i32],
    logprobs: &[f32],
    advantages: &[f32],
    mask: &[f32],
    obs: &[f32],
    reference: &[f32],
    samples: &mut [f32],
    count: usize,
    #[comptime] with_reference: bool,
    #[comptime] shape: MlpShape,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let action = actions[at];
        samples[comptime!(ACTION) * count + at] = action as f32;
        samples[comptime!(LOGPROB) * count + at] = logprobs[at];
        samples[comptime!(ADVANTAGE) * count + at] = advantages[at];
        samples[comptime!(MASK) * count + at] = mask[at];
        if comptime!(with_reference) {
            let mut x = Array::<f32>::new(comptime!(shape.features));
            let mut logits = Array::<f32>::new(comptime!(shape.actions));
            load_obs(obs, &mut x, at, shape);
            mlp_logits(reference, &x, &mut logits, shape);
            let soft =
                softmax(logits.as_slice(), 0usize, action as u32, 1usize, comptime!(shape.actions));
            samples[comptime!(REFERENCE) * count + at] = soft.logprob;
        } else {
            samples[comptime!(REFERENCE) * count + at] = 0.0f32;
        }
    }
}

/// The features of the step at place `at`.
#[cube]
fn load_obs(obs: &[f32], x: &mut Array<f32>, at: usize, #[comptime] shape: MlpShape) {
    #[unroll]
    for i in 0..comptime!(shape.features) {
        x[i] = obs[at * comptime!(shape.features) + i];
    }
}

/// One unit counts the steps of one game that count.
///
/// Buffers: samples `[SAMPLE, num_steps, num_envs]`; facts, of which it writes the lengths
/// `[num_envs]`.
#[cube(launch_unchecked)]
pub(super) fn length_kernel(
    samples: &[f32],
    facts: &mut [f32],
    num_steps: usize,
    num_envs: usize,
    lengths: usize,
) {
    let env = ABSOLUTE_POS;
    if env < num_envs {
        let first = comptime!(MASK) * num_steps * num_envs + env;
        let mut sum = 0.0f32;
        for t in 0..num_steps {
            sum += samples[first + t * num_envs];
        }
        facts[lengths + env] = sum;
    }
}

/// One cube adds up the lengths of one minibatch's games; the first, those of all games.
///
/// Buffers: the order `[minibatches of the update, games]`; facts, of which it reads the lengths and
/// writes the counts `[1 + minibatches of the update]`.
#[cube(launch_unchecked)]
pub(super) fn count_kernel(
    order: &[i32],
    facts: &mut [f32],
    games: usize,
    num_envs: usize,
    lengths: usize,
) {
    let unit = UNIT_POS as usize;
    let mut sum = 0.0f32;
    if CUBE_POS == 0 {
        for env in range_stepped(unit, num_envs, comptime!(COUNT_UNITS)) {
            sum += facts[lengths + env];
        }
    } else {
        for i in range_stepped(unit, games, comptime!(COUNT_UNITS)) {
            sum += facts[lengths + order[(CUBE_POS - 1) * games + i] as usize];
        }
    }
    let mut sums = Shared::<[f32]>::new_slice(COUNT_UNITS);
    sums[unit] = sum;
    sync_cube();
    if unit == 0 {
        let mut total = 0.0f32;
        for i in 0..comptime!(COUNT_UNITS) {
            total += sums[i];
        }
        facts[CUBE_POS] = total;
    }
}

/// One unit sees to one game of a minibatch: its ratio, and how the loss depends on it (`gspo`).
///
/// Buffers: parameters `[num_params]`; observations `[num_steps, num_envs, num_features]`; samples
/// `[SAMPLE, num_steps, num_envs]`; the order of the games; facts; for each of the minibatch's games
/// the ratio and the loss's derivative by it, `[2, games]`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub(super) fn sequence_kernel(
    params: &[f32],
    obs: &[f32],
    samples: &[f32],
    order: &[i32],
    facts: &[f32],
    sequences: &mut [f32],
    batch: Batch,
    by: Coefficients,
    #[comptime] shapes: Shapes,
) {
    let game = ABSOLUTE_POS;
    if game < batch.games {
        let shape = comptime!(shapes.mlp);
        let env = order[batch.first + game] as usize;
        let stride = batch.num_steps * batch.num_envs;
        let mut x = Array::<f32>::new(comptime!(shape.features));
        let mut logits = Array::<f32>::new(comptime!(shape.actions));
        let mut sum = 0.0f32;
        for t in 0..batch.num_steps {
            let at = t * batch.num_envs + env;
            let sample = load_sample(samples, at, stride);
            if sample.mask > 0.0f32 {
                load_obs(obs, &mut x, at, shape);
                mlp_logits(params, &x, &mut logits, shape);
                let soft = softmax(
                    logits.as_slice(),
                    0usize,
                    sample.action,
                    1usize,
                    comptime!(shape.actions),
                );
                sum += (soft.logprob - sample.logprob) * sample.mask;
            }
        }
        let ratio = (sum / length(facts, env, &batch)).exp();
        let mut by_ratio = 0.0f32;
        for t in 0..batch.num_steps {
            let sample = load_sample(samples, t * batch.num_envs + env, stride);
            if sample.mask > 0.0f32 {
                by_ratio += sample.mask * ratio_slope(ratio, sample.advantage, &by, shapes.loss);
            }
        }
        sequences[game] = ratio;
        sequences[batch.games + game] = by_ratio * weight(facts, env, &batch, LossType::Gspo);
    }
}
