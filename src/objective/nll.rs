//! NLL: the weighted negative log-likelihood `-w log pi`, for supervised learning.
//!
//! The weight `w` takes the place of the advantage: 1 for behaviour cloning, or a quality measure
//! of the data. The behaviour policy is irrelevant, so the ratio is not used.

use super::{Step, TensorSteps, TensorTerms, Term};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Computes the policy term of one step.
#[cube]
#[inline(always)]
pub(super) fn term(step: &Step) -> Term {
    let d_logprob = -step.advantage;
    Term { value: d_logprob * step.logprob, d_logprob, clipped: 0.0f32.runtime() }
}

/// Computes the policy term of each step, in tensors.
pub(super) fn tensor_terms(steps: &TensorSteps) -> TensorTerms {
    let TensorSteps { advantages, logprobs, .. } = steps;
    let values = -(advantages.clone() * logprobs.clone());
    TensorTerms { clipped: advantages.zeros_like(), values }
}
