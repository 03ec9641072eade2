//! BNPO: the clipped surrogate, averaged over all steps of the minibatch (TRL's `bnpo`).

pub(super) use super::clip::surrogate as term;
use super::clip::surrogate_host;
use super::{Averaging, HostSteps, HostTerms, LossConfig, Objective};

/// The loss normalised by its own minibatch.
#[derive(Clone, Copy, Debug)]
pub struct Bnpo;

impl Objective for Bnpo {
    const AVERAGING: Averaging = Averaging::Minibatch;
    const CLIPS: bool = true;

    fn host(steps: &HostSteps, config: &LossConfig) -> HostTerms {
        surrogate_host(steps, config)
    }
}
