//! NLL: the weighted negative log-likelihood `-w log pi`, for learning from data.
//!
//! The weight `w` stands where the advantage does: 1 for imitation, a measure of quality to prefer the
//! better of the data. What acted does not matter, so the ratio is not used.

use super::{Averaging, Coefficients, HostSteps, HostTerms, LossConfig, Objective, Step, Term};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The loss of supervised learning.
#[derive(Clone, Copy, Debug)]
pub struct Nll;

impl Objective for Nll {
    const AVERAGING: Averaging = Averaging::Minibatch;
    const CLIPS: bool = false;

    fn host(steps: &HostSteps, _config: &LossConfig) -> HostTerms {
        let HostSteps { advantages, logprobs, .. } = steps;
        let values = -(advantages.clone() * logprobs.clone());
        HostTerms { clipped: advantages.zeros_like(), values }
    }
}

#[cube]
#[inline(always)]
pub(super) fn term(step: &Step, _by: &Coefficients) -> Term {
    let slope = -step.advantage;
    Term { value: slope * step.logprob, slope, clipped: 0.0f32.runtime() }
}
