//! DAPO: the clipped surrogate, averaged over all steps of the rollout (Yu et al. 2025).

pub(super) use super::clip::surrogate as term;
use super::clip::surrogate_host;
use super::{Averaging, HostSteps, HostTerms, LossConfig, Objective};

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
