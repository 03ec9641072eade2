//! The loop of every update, wherever gradients are computed.

use crate::parallel::TeamError;
use crate::settings::UpdateConfig;

/// A learner in the middle of an update.
pub(super) trait Updating {
    /// What one optimizer step learns from.
    type Minibatch;
    /// A gradient with the sums of its loss, where it was computed: in host memory or on a device.
    type Gradient;

    /// Computes the gradient of minibatch `number` over all ranks; `None` leaves its step out.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    fn gradient(
        &mut self,
        number: usize,
        of: &Self::Minibatch,
    ) -> Result<Option<Self::Gradient>, TeamError>;

    /// Mean `approx_kl` of the steps of minibatch `number`, the same on all ranks. On a device this reads back.
    fn approx_kl(&self, number: usize, gradient: &Self::Gradient) -> f64;

    /// Clips a gradient, takes optimizer step `number` of the update with it, and adds its sums and its norm to those of
    /// the update.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    fn step(&mut self, number: usize, gradient: Self::Gradient) -> Result<(), TeamError>;

    /// Takes back the memory of a gradient.
    fn give_back(&mut self, _gradient: Self::Gradient) {}
}

/// Takes an optimizer step for each minibatch, until `target_kl` ends the update. Returns the number of minibatches before
/// its end.
///
/// # Errors
/// If another rank has failed or does not respond.
pub(super) fn take_steps<U: Updating>(
    update: &mut U,
    minibatches: &[U::Minibatch],
    config: &UpdateConfig,
) -> Result<usize, TeamError> {
    for (number, minibatch) in minibatches.iter().enumerate() {
        let Some(gradient) = update.gradient(number, minibatch)? else { continue };
        // Only a limit is worth a read-back.
        if config.target_kl > 0.0 && config.ends_at(update.approx_kl(number, &gradient)) {
            update.give_back(gradient);
            return Ok(number);
        }
        update.step(number, gradient)?;
    }
    Ok(minibatches.len())
}
