//! The gradient of an optimizer step over texts: on the CPU or on a device, and summed over ranks.

#[cfg(text_kernels)]
use super::device;
use super::differentiation::{Differentiation, TokenSums};
use super::shard_sums::ShardSums;
use crate::parallel::{PartialSumLen, TeamError};
use std::ops::Range;

/// The gradient of an optimizer step, in the memory of the device that computed it.
pub(super) enum Gradient {
    /// In host memory: `[num_trainable]`.
    Host(Vec<f32>),
    /// On a device, parameter by parameter.
    #[cfg(text_kernels)]
    Device(device::DeviceGradient),
}

impl Gradient {
    /// Copies the gradient to host memory: `[num_trainable]`.
    #[cfg_attr(not(text_kernels), expect(unused_variables, reason = "of devices"))]
    pub fn into_vec(self, num_trainable: usize) -> Vec<f32> {
        match self {
            Self::Host(vector) => vector,
            #[cfg(text_kernels)]
            Self::Device(gradient) => gradient.read(num_trainable),
        }
    }
}

impl Differentiation<'_> {
    /// Computes the gradient of the loss of the `chosen` groups, in ascending order and the same on all ranks. The
    /// maximum in the sums is that of this rank's groups.
    pub fn compute_gradient(&self, chosen: &[usize]) -> Result<(Gradient, TokenSums), TeamError> {
        let chosen = self.select_effective(chosen);
        #[cfg(text_kernels)]
        if self.team.size() == 1
            && let Some((gradient, sums)) = device::compute_gradient(self, &chosen)
        {
            return Ok((Gradient::Device(gradient), sums));
        }
        let (vector, sums) = self.host_gradient(&chosen)?;
        Ok((Gradient::Host(vector), sums))
    }

    /// Computes the gradient in host memory, summed over all ranks: `[num_trainable]`.
    fn host_gradient(&self, chosen: &[usize]) -> Result<(Vec<f32>, TokenSums), TeamError> {
        let (ranks, shards) = (self.team.size(), self.shards.count());
        let can_pipeline = (2..=shards).contains(&ranks) && !self.team.has_devices();
        if can_pipeline && !self.decoder.is_sequential() {
            return self.pipelined_gradient(chosen);
        }
        let mut max_ratio_distance = 0.0f64;
        let local = self.shards.own_nodes().into_iter().map(|range| {
            self.partial_sum_on_any_device(chosen, range).into_sum(&mut max_ratio_distance)
        });
        let numbers = TokenSums::NUM_ADDITIVE;
        let len = PartialSumLen { vector: self.decoder.num_trainable(), numbers };
        let sum = self.team.all_reduce_shards(self.shards, local.collect(), len)?;
        Ok((sum.vector, TokenSums::from_additive(&sum.numbers, max_ratio_distance)))
    }

    /// Computes [`Differentiation::partial_sum`] on the decoder's device, if it has one.
    fn partial_sum_on_any_device(&self, chosen: &[usize], shards: Range<usize>) -> ShardSums {
        #[cfg(text_kernels)]
        if let Some(sum) = device::partial_sum(self, chosen, &shards) {
            return sum;
        }
        self.partial_sum(chosen, shards)
    }
}
