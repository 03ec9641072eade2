//! The clipped surrogate (Schulman et al. 2017) with an optional dual clip (Ye et al. 2020).
//!
//! With ratio `r`, advantage `A` and dual clip `c` the term is `-min(min(r, c) A, clip(r) A)`. Its
//! derivative with respect to `ln r` is `-A r` where it is not clipped: up to `1 + clip_eps_high` for `A > 0`,
//! from `1 - clip_eps_low` to `c` for `A < 0`; elsewhere 0.

use super::{LossConfig, LossParams, Step, TensorSteps, TensorTerms, Term};
use crate::math::{at_least, at_most};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Computes the clipped surrogate of one step.
#[cube]
#[inline(always)]
pub(super) fn term(step: &Step, loss_params: &LossParams) -> Term {
    let unclipped = at_most(loss_params.dual_clip, step.ratio) * step.advantage;
    let within = at_most(loss_params.max_ratio, at_least(loss_params.min_ratio, step.ratio))
        * step.advantage;
    let above = select(step.ratio > loss_params.max_ratio, 1.0f32, 0.0f32);
    let beyond = select(step.ratio > loss_params.dual_clip, 1.0f32, 0.0f32);
    let outside = select(step.ratio < loss_params.min_ratio, 1.0f32, beyond);
    let down = select(step.advantage < 0.0f32, outside, 0.0f32);
    let clipped = select(step.advantage > 0.0f32, above, down);
    let d_logprob = select(clipped > 0.0f32, 0.0f32, -step.ratio * step.advantage);
    Term { value: -at_most(within, unclipped), d_logprob, clipped }
}

/// Computes the clipped surrogate of each step, in tensors.
pub(super) fn tensor_terms(steps: &TensorSteps, config: &LossConfig) -> TensorTerms {
    let TensorSteps { ratio, advantages, .. } = steps;
    let (low, high) = (1.0 - config.clip_eps_low, config.upper_bound());
    let bounded = if config.dual_clip > 0.0 {
        ratio.clone().clamp_max(config.dual_clip)
    } else {
        ratio.clone()
    };
    let within = ratio.clone().clamp(low, high);
    let values = -(bounded * advantages.clone()).min_pair(within * advantages.clone());

    // Clipping is active if the ratio exceeds the bound in the direction of the advantage.
    let ratio = ratio.clone().detach();
    let above = ratio.clone().greater_elem(high).float();
    let mut outside = ratio.clone().lower_elem(low).float();
    if config.dual_clip > 0.0 {
        outside = outside + ratio.greater_elem(config.dual_clip).float();
    }
    let up = advantages.clone().greater_elem(0.0).float();
    let down = advantages.clone().lower_elem(0.0).float();
    TensorTerms { values, clipped: above * up + outside * down }
}
