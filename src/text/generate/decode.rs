//! Decoding of a batch on a device, in tensors or in kernels.

use super::SampledToken;

/// Decoding steps between two read-backs, by which the host notices ended completions.
pub(super) const READ_BACK_STEPS: usize = 8;

/// A batch of completions that decode together on a device.
pub(super) trait Decode {
    /// Chooses the next token of each row.
    fn advance(&mut self);

    /// Returns the choices of the last `steps` steps, at most [`READ_BACK_STEPS`], row by row.
    fn read(&mut self, steps: usize) -> Vec<Vec<SampledToken>>;
}
