//! Dr. GRPO: the clipped surrogate, divided by a constant (Liu et al. 2025).
//!
//! The constant is the number of games times `learn_steps`, the maximum number of learnt steps per
//! game, in analogy to TRL's `max_completion_length`. All steps have equal weight, whatever the
//! length of their game.

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
