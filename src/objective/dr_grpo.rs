//! Dr. GRPO: the clipped surrogate, divided by a constant (Liu et al. 2025).
//!
//! The constant is the most steps that a game can be learnt from, `learn_steps`, times the games: the
//! analogue of the `max_completion_length` that TRL divides by. A step weighs the same however long its game.

pub(super) use super::clip::surrogate as term;
use super::clip::surrogate_host;
use super::{Averaging, HostSteps, HostTerms, LossConfig, Objective};

/// The loss of "Understanding R1-Zero-like training".
#[derive(Clone, Copy, Debug)]
pub struct DrGrpo;

impl Objective for DrGrpo {
    const AVERAGING: Averaging = Averaging::Constant;
    const CLIPS: bool = true;

    fn host(steps: &HostSteps, config: &LossConfig) -> HostTerms {
        surrogate_host(steps, config)
    }
}
