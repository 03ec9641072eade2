//! Metrics of an update.

use crate::objective::Loss;

/// Means over the steps that an update learnt from, and over its optimizer steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateMeans {
    /// Mean estimate of KL(old || new) over the counted steps of all epochs; where `update.target_kl` ended the update,
    /// over those of the minibatch that was not learnt from.
    pub approx_kl: f64,
    /// Fraction of the counted steps that were learnt from with active clipping.
    pub clip_fraction: f64,
    /// Mean entropy over the steps of [`clip_fraction`](Self::clip_fraction), in nats.
    pub entropy: f64,
    /// Mean estimate of KL(policy || reference) over these steps.
    pub reference_kl: f64,
    /// Mean loss over optimizer steps.
    pub loss: f64,
    /// Mean gradient norm before clipping over optimizer steps.
    pub grad_norm: f64,
}

impl UpdateMeans {
    /// Number of means.
    pub const LEN: usize = 6;

    /// Creates the means from their values in the order of the fields.
    pub fn new(means: [f64; Self::LEN]) -> Self {
        let [approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm] = means;
        Self { approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm }
    }

    /// The means in the order of the fields.
    pub fn values(self) -> [f64; Self::LEN] {
        let Self { approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm } = self;
        [approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm]
    }

    /// The same metrics with `approx_kl` 0: demonstrations have no behaviour policy to diverge from.
    pub fn without_approx_kl(self) -> Self {
        Self { approx_kl: 0.0, ..self }
    }
}

/// Number of sums reported beside a gradient: those of [`Loss::SUM_NAMES`], and the loss.
pub(super) const NUM_SUMS: usize = Loss::SUM_NAMES.len() + 1;
/// Index of the sum of each metric: those of [`Loss::SUM_NAMES`], in their order, then the loss.
pub(super) const APPROX_KL: usize = 0;
pub(super) const CLIP_FRACTION: usize = 1;
pub(super) const ENTROPY: usize = 2;
pub(super) const REFERENCE_KL: usize = 3;
pub(super) const LOSS: usize = 4;

/// Sums over the optimizer steps of an update in host memory.
#[derive(Default)]
pub(super) struct UpdateSums {
    sums: [f64; NUM_SUMS],
    norm_sum: f64,
    num_steps: f64,
}

impl UpdateSums {
    /// Adds the sums, `[NUM_SUMS]`, and the gradient norm of a minibatch.
    pub fn add(&mut self, sums: &[f64], norm: f32) {
        self.sums.iter_mut().zip(sums).for_each(|(sum, x)| *sum += x);
        self.norm_sum += f64::from(norm);
        self.num_steps += 1.0;
    }

    /// Adds norms of minibatches that were added without theirs.
    pub fn add_norms(&mut self, norms: &[f32]) {
        self.norm_sum += norms.iter().map(|norm| f64::from(*norm)).sum::<f64>();
    }

    /// The means over `steps` counted steps; 0 if there were none.
    pub fn means(&self, steps: f64) -> UpdateMeans {
        let (steps, num_steps) = (steps.max(1.0), self.num_steps.max(1.0));
        let [approx_kl, clipped, entropy, reference_kl, loss] = self.sums;
        let [loss, norm] = [loss, self.norm_sum].map(|sum| sum / num_steps);
        let [approx_kl, clipped, entropy, reference_kl] =
            [approx_kl, clipped, entropy, reference_kl].map(|sum| sum / steps);
        UpdateMeans::new([approx_kl, clipped, entropy, reference_kl, loss, norm])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_in_the_order_of_their_names() {
        let indices = ["approx_kl", "clip_fraction", "entropy", "reference_kl"]
            .map(|name| Loss::SUM_NAMES.iter().position(|sum| *sum == name));
        assert_eq!(indices, [APPROX_KL, CLIP_FRACTION, ENTROPY, REFERENCE_KL].map(Some));
        assert_eq!(LOSS, NUM_SUMS - 1);
    }
}
