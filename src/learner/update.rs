//! The loop of every update, wherever gradients are computed.

use crate::parallel::TeamError;
use crate::settings::UpdateConfig;
use burn::tensor::Tensor;

/// A learner in the middle of an update.
pub(super) trait UpdateSteps {
    /// The data of one optimizer step.
    type Minibatch;
    /// A gradient with the sums of its loss, in host memory or on the device that computed it.
    type Gradient;

    /// Computes the gradient of the minibatch with this index in the update, over all ranks; `None` skips the step.
    fn compute_gradient(
        &mut self,
        index: usize,
        minibatch: &Self::Minibatch,
    ) -> Result<Option<Self::Gradient>, TeamError>;

    /// Mean `approx_kl` of the steps of minibatch `index`, the same on all ranks. On a device this is a read-back.
    fn approx_kl(&self, index: usize, gradient: &Self::Gradient) -> f64;

    /// Clips a gradient, takes optimizer step `index` of the update with it, and adds its sums and its norm to the
    /// update's totals.
    fn step(&mut self, index: usize, gradient: Self::Gradient) -> Result<(), TeamError>;
}

/// The course of an update.
pub(super) struct StepsTaken {
    /// Number of minibatches that were processed.
    pub count: usize,
    /// Mean `approx_kl` of the minibatch before whose step the update ended; `None` if it did not end early.
    pub ending_kl: Option<f64>,
}

impl StepsTaken {
    /// Replaces the mean `approx_kl` by the one that ended the update, as CleanRL records it. The mean over the steps
    /// taken would always be below the limit, and 0 if only one was taken.
    pub fn write_ending_kl(&self, approx_kl: &mut f64) {
        if let Some(kl) = self.ending_kl {
            *approx_kl = kl;
        }
    }

    /// [`StepsTaken::write_ending_kl`] for means of which `approx_kl` is the first: `[UpdateMeans::LEN]`.
    pub fn write_ending_kl_first(&self, means: Tensor<1>) -> Tensor<1> {
        let Some(kl) = self.ending_kl else { return means };
        let [len] = means.dims();
        let kl = Tensor::from_floats([kl as f32], &means.device());
        Tensor::cat(vec![kl, means.narrow(0, 1, len - 1)], 0)
    }
}

/// Takes an optimizer step for each minibatch, until `target_kl` ends the update.
pub(super) fn take_steps<U: UpdateSteps>(
    update: &mut U,
    minibatches: &[U::Minibatch],
    config: &UpdateConfig,
) -> Result<StepsTaken, TeamError> {
    for (index, minibatch) in minibatches.iter().enumerate() {
        let Some(gradient) = update.compute_gradient(index, minibatch)? else { continue };
        // Without a limit the divergence is not read back.
        if config.target_kl > 0.0 {
            let kl = update.approx_kl(index, &gradient);
            if config.ends_at(kl) {
                // Ratios without bound do no harm where no step is taken, and a record holds finite numbers only.
                let ending_kl = Some(kl.min(f32::MAX.into()));
                return Ok(StepsTaken { count: index, ending_kl });
            }
        }
        update.step(index, gradient)?;
    }
    Ok(StepsTaken { count: minibatches.len(), ending_kl: None })
}
