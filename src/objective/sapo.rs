//! SAPO: Soft Adaptive Policy Optimization (Gao et al. 2025, arXiv 2511.20347), as in TRL's `sapo`.
//!
//! Instead of clipping, the ratio `r` passes a gate with temperature `t`, one for positive
//! advantages and one for all others: the term is `-(4 / t) s A` with `s = sigmoid(t (r - 1))`. Its
//! derivative with respect to `ln r` is `-4 s (1 - s) r A`: equal to the unclipped surrogate's at `r = 1`,
//! vanishing on both sides.

use super::{LossConfig, LossParams, Step, TensorSteps, TensorTerms, Term};
use crate::math::sigmoid;
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::activation;

/// Computes the policy term of one step.
#[cube]
#[inline(always)]
pub(super) fn term(step: &Step, loss_params: &LossParams) -> Term {
    let t = select(
        step.advantage > 0.0f32,
        loss_params.sapo_temperature_pos,
        loss_params.sapo_temperature_neg,
    );
    let gate = sigmoid(t * (step.ratio - 1.0f32));
    let d_ratio = -4.0f32 * gate * (1.0f32 - gate) * step.advantage;
    Term {
        value: -4.0f32 * gate / t * step.advantage,
        d_logprob: d_ratio * step.ratio,
        clipped: 0.0f32.runtime(),
    }
}

/// Computes the policy term of each step, in tensors.
pub(super) fn tensor_terms(steps: &TensorSteps, config: &LossConfig) -> TensorTerms {
    let TensorSteps { ratio, advantages, .. } = steps;
    let up = advantages.clone().greater_elem(0.0).float();
    let (positive, negative) = (config.sapo_temperature_pos, config.sapo_temperature_neg);
    let temperature = up * (positive - negative) + negative;
    let gate = activation::sigmoid((ratio.clone() - 1.0) * temperature.clone());
    let values = -(gate * 4.0 / temperature * advantages.clone());
    TensorTerms { clipped: values.zeros_like(), values }
}
