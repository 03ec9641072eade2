//! GRPO: the clipped surrogate, every game with the same weight, however long (Shao et al. 2024).

use super::clip::{surrogate, surrogate_host};
use super::{Averaging, Coefficients, HostSteps, HostTerms, LossConfig, Objective, Step, Term};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The loss of DeepSeekMath.
#[derive(Clone, Copy, Debug)]
pub struct Grpo;

impl Objective for Grpo {
    const AVERAGING: Averaging = Averaging::Game;
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
