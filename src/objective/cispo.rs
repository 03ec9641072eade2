//! CISPO: `log pi`, weighted by the advantage and the capped, detached ratio (MiniMax 2025,
//! equations 4 and 5, with the upper bound only, as used there). The cap is `clip_eps_high` itself, as in TRL.

use super::{LossConfig, LossParams, Step, TensorSteps, TensorTerms, Term};
use crate::math::at_most;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Computes the policy term of one step.
#[cube]
#[inline(always)]
pub(super) fn term(step: &Step, loss_params: &LossParams) -> Term {
    let d_logprob = -at_most(loss_params.max_ratio, step.ratio) * step.advantage;
    let above = select(step.ratio > loss_params.max_ratio, 1.0f32, 0.0f32);
    // Without an advantage there is no weight to cap.
    let clipped = select(step.advantage != 0.0f32, above, 0.0f32);
    Term { value: d_logprob * step.logprob, d_logprob, clipped }
}

/// Computes the policy term of each step, in tensors.
pub(super) fn tensor_terms(steps: &TensorSteps, config: &LossConfig) -> TensorTerms {
    let TensorSteps { ratio, advantages, logprobs } = steps;
    let (ratio, high) = (ratio.clone().detach(), config.upper_bound());
    let weight = ratio.clone().clamp_max(high);
    let values = -(weight * advantages.clone() * logprobs.clone());
    let clipped = ratio.greater_elem(high).float() * advantages.clone().not_equal_elem(0.0).float();
    TensorTerms { values, clipped }
}
