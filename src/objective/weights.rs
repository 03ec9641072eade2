//! Step weights, which implement the averaging of a loss.
//!
//! A weight refers to the whole minibatch or rollout, so the parts of a minibatch add up to its
//! loss and gradient.

use crate::math::at_least;
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

/// Denominators of the step weights, in tensors: the form for autodiff, which does not read counts back from a device.
#[derive(Clone, Debug)]
pub struct TensorStepDenominators {
    /// Number of sequences, that is games or completions, in the minibatch.
    pub sequences: usize,
    /// Number of steps that count in the minibatch: `[1]`.
    pub steps: Tensor<1>,
    /// Number of steps that count in the rollout, divided by the number of minibatches: `[1]`.
    pub rollout_steps_per_minibatch: Tensor<1>,
}

/// Averaging of the terms of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Averaging {
    /// Mean over the steps of each sequence, a game or a completion, then over sequences.
    Sequence,
    /// Sum over all steps, divided by the constant maximum number of steps.
    Constant,
    /// Mean over all steps of the minibatch.
    Minibatch,
    /// Mean over all steps of the rollout, across minibatches.
    Rollout,
}

/// Denominators of the step weights, as scalars: the form for CPU lanes and kernels.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct StepDenominators {
    /// Number of sequences, that is games or completions, in the minibatch.
    pub sequences: f32,
    /// Maximum number of learnt steps per sequence.
    pub learn_steps: f32,
    /// Number of steps that count in the minibatch.
    pub steps: f32,
    /// Number of steps that count in the rollout, divided by the number of minibatches.
    pub rollout_steps_per_minibatch: f32,
}

/// Weight of a step that counts in a sequence with `length` such steps.
#[cube]
#[inline(always)]
pub fn weight(
    length: f32,
    denominators: &StepDenominators,
    #[comptime] averaging: Averaging,
) -> f32 {
    match comptime!(averaging) {
        Averaging::Sequence => 1.0f32 / denominators.sequences / at_least(1.0f32, length),
        Averaging::Constant => 1.0f32 / (denominators.learn_steps * denominators.sequences),
        Averaging::Minibatch => 1.0f32 / denominators.steps,
        Averaging::Rollout => 1.0f32 / denominators.rollout_steps_per_minibatch,
    }
}

/// Weight of each step, `[num_steps, games]`; `mask` is 1 for steps that count, else 0.
pub(super) fn tensor_weights(
    averaging: Averaging,
    mask: &Tensor<2>,
    denominators: &TensorStepDenominators,
) -> Tensor<2> {
    let [learn_steps, _] = mask.dims();
    let divide_by = |count: &Tensor<1>| mask.clone() / count.clone().reshape([1, 1]);
    match averaging {
        Averaging::Sequence => {
            let lengths = mask.clone().sum_dim(0).clamp_min(1.0);
            mask.clone() / lengths / denominators.sequences as f32
        }
        Averaging::Constant => mask.clone() / (learn_steps * denominators.sequences) as f32,
        Averaging::Minibatch => divide_by(&denominators.steps),
        Averaging::Rollout => divide_by(&denominators.rollout_steps_per_minibatch),
    }
}
