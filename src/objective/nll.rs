//! NLL: the weighted negative log-likelihood `-w log pi`, for supervised learning.
//!
//! The weight `w` takes the place of the advantage: 1 for behaviour cloning, or a quality measure
//! of the data. The behaviour policy is irrelevant, so the ratio is not used.

use super::{Averaging, Coefficients, LossConfig, Objective, Step, TensorSteps, TensorTerms, Term};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The loss of supervised learning.
#[derive(Clone, Copy, Debug)]
pub struct Nll;

impl Objective for Nll {
    const AVERAGING: Averaging = Averaging::Minibatch;
    const CLIPS: bool = false;

    fn tensors(steps: &TensorSteps, _config: &LossConfig) -> TensorTerms {
        let TensorSteps { advantages, logprobs, .. } = steps;
        let values = -(advantages.clone() * logprobs.clone());
        TensorTerms { clipped: advantages.zeros_like(), values }
    }
}

#[cube]
#[inline(always)]
pub(super) fn term(step: &Step, _by: &Coefficients) -> Term {
    let slope = -step.advantage;
    Term { value: slope * step.logprob, slope, clipped: 0.0f32.runtime() }
}
