//! GSPO: the clipped surrogate with one ratio per game (Zheng et al. 2025).
//!
//! The logarithm of the ratio is the mean of the log-ratios over the unmasked steps of a game. Each
//! of these steps therefore receives the sum of the game's derivatives divided by their number.

use super::clip::{surrogate, surrogate_host};
use super::{Averaging, Coefficients, HostSteps, HostTerms, LossConfig, Objective, Step, Term};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The loss of group sequence policy optimisation.
#[derive(Clone, Copy, Debug)]
pub struct Gspo;

impl Objective for Gspo {
    const AVERAGING: Averaging = Averaging::Game;
    const RATIO_OF_GAME: bool = true;
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
