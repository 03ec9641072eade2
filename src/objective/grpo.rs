//! GRPO: the clipped surrogate with equal weight per game, whatever its length (Shao et al. 2024).

pub(super) use super::clip::surrogate as term;
use super::clip::surrogate_host;
use super::{Averaging, HostSteps, HostTerms, LossConfig, Objective};

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
