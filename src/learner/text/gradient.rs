//! The gradient of an optimiser step over texts: on the CPU or on a device, and summed over ranks.

#[cfg(text_kernels)]
use super::device;
use super::differentiation::{Differentiation, Sums};
use crate::parallel::{Node, NodeLen, TeamError, nodes};
use std::ops::Range;

/// The gradient of an optimiser step, where it was computed.
pub(super) enum Gradient {
    /// In host memory: `[num_trained]`.
    Host(Vec<f32>),
    /// On a device, parameter by parameter.
    #[cfg(text_kernels)]
    Device(device::Gradient),
}

impl Gradient {
    /// The gradient in host memory, of parameters whose numbers of elements are `sizes`.
    #[cfg_attr(not(text_kernels), expect(unused_variables, reason = "of devices"))]
    pub fn into_host(self, sizes: &[usize]) -> Vec<f32> {
        match self {
            Self::Host(vector) => vector,
            #[cfg(text_kernels)]
            Self::Device(gradient) => gradient.fetch(sizes),
        }
    }
}

impl Differentiation<'_> {
    /// The gradient of the loss of the `chosen` groups, which are in order, the same at all members. The largest ratio is
    /// that of our groups.
    pub fn gradient(&self, chosen: &[usize]) -> Result<(Gradient, Sums), TeamError> {
        let chosen = self.effective(chosen);
        #[cfg(text_kernels)]
        if self.team.size() == 1
            && let Some((gradient, sums)) = device::gradient(self, &chosen)
        {
            return Ok((Gradient::Device(gradient), sums));
        }
        let (vector, sums) = self.shared_gradient(&chosen)?;
        Ok((Gradient::Host(vector), sums))
    }

    /// The gradient in host memory, where those of all members are added up: `[num_trained]`.
    fn shared_gradient(&self, chosen: &[usize]) -> Result<(Vec<f32>, Sums), TeamError> {
        let len = self.decoder.num_trained();
        let (members, shards) = (self.team.size(), self.shards.count());
        let on_cpus = (2..=shards).contains(&members) && !self.team.has_devices();
        if on_cpus && !self.decoder.is_small() {
            return self.in_pieces(chosen);
        }
        let mut ratio = 0.0f64;
        let ours = nodes(self.shards.count(), &self.shards.own()).into_iter().map(|node| {
            let (sum, largest) = self.node_anywhere(chosen, node);
            ratio = ratio.max(largest);
            sum
        });
        let ours = ours.collect();
        let sum =
            self.team.sum(self.shards, ours, NodeLen { vector: len, numbers: Sums::ADDED })?;
        Ok((sum.vector, Sums::of(&sum.numbers, ratio)))
    }

    /// The gradient and the sums of the chosen groups in a node's shards, and the largest distance of a ratio from 1: on the
    /// decoder's device, if it has one.
    fn node_anywhere(&self, chosen: &[usize], shards: Range<usize>) -> (Node, f64) {
        #[cfg(text_kernels)]
        if let Some(found) = device::node(self, chosen, &shards) {
            return found;
        }
        self.node(chosen, shards)
    }
}
