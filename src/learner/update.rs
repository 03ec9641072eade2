//! The loop of every update, wherever gradients are computed.

use crate::parallel::TeamError;
use crate::settings::UpdateConfig;

/// A learner in the middle of an update.
pub(super) trait UpdateSteps {
    /// The data of one optimizer step.
    type Minibatch;
    /// A gradient with the sums of its loss, in host memory or on the device that computed it.
    type Gradient;

    /// Computes the gradient of the minibatch with this index in the update, over all ranks; `None` skips the step.
    fn gradient(
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

/// Takes an optimizer step for each minibatch, until `target_kl` ends the update. Returns the number of minibatches
/// that were processed.
pub(super) fn take_steps<U: UpdateSteps>(
    update: &mut U,
    minibatches: &[U::Minibatch],
    config: &UpdateConfig,
) -> Result<usize, TeamError> {
    for (index, minibatch) in minibatches.iter().enumerate() {
        let Some(gradient) = update.gradient(index, minibatch)? else { continue };
        // Without a limit the divergence is not read back.
        if config.target_kl > 0.0 && config.ends_at(update.approx_kl(index, &gradient)) {
            return Ok(index);
        }
        update.step(index, gradient)?;
    }
    Ok(minibatches.len())
}
