//! BNPO: the clipped surrogate, averaged over all steps of the minibatch (TRL's `bnpo`).

use super::clip::{surrogate, surrogate_host};
use super::{Averaging, Coefficients, HostSteps, HostTerms, LossConfig, Objective, Step, Term};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The loss that is normalised by its own minibatch.
#[derive(Clone, Copy, Debug)]
pub struct Bnpo;

impl Objective for Bnpo {
    const AVERAGING: Averaging = Averaging::Minibatch;
    const CLIPS: bool = true;

    fn host(steps: &HostSteps, config: &LossConfig) -> HostTerms {
        surrogate_host(steps, config)
    }
}

#[cube]
#[inline(always)]
pub(super) fn term(step: &Step, by: &Coefficients) -> Term {
    surrogate(step, by)
}
