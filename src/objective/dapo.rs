//! DAPO: the clipped surrogate, averaged over all steps of the rollout (Yu et al. 2025).

use super::clip::{surrogate, surrogate_host};
use super::{Averaging, Coefficients, HostSteps, HostTerms, LossConfig, Objective, Step, Term};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The loss of DAPO.
#[derive(Clone, Copy, Debug)]
pub struct Dapo;

impl Objective for Dapo {
    const AVERAGING: Averaging = Averaging::Rollout;
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
