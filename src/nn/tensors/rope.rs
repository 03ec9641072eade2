//! Rotary positions in tensors.

use crate::nn::ops::rope::RopeTable;
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// The rotations of all positions on a device, as a [`RopeTable`] has them.
#[derive(Module, Debug)]
pub(crate) struct Rope {
    /// Cosines and sines of the low parts, then of the high ones: `[low + high, num_pairs, 2]`.
    pub rotations: Tensor<3>,
    /// The number of low parts, and of high ones.
    #[module(skip)]
    pub parts: [usize; 2],
}

impl Rope {
    /// Uploads a table.
    pub(super) fn new(table: &RopeTable, device: &Device) -> Self {
        let RopeTable { low, high, parts, num_pairs } = table;
        let numbers = [&low[..], &high[..]].concat().into_flattened();
        let sizes = [parts[0] + parts[1], *num_pairs, 2];
        let rotations = Tensor::from_data(TensorData::new(numbers, sizes), device);
        Self { rotations, parts: *parts }
    }

    /// Cosines and sines of `positions`, `[batch, num_steps]`: `[batch, num_steps, 1, num_pairs]`.
    pub(super) fn at(&self, positions: Tensor<2, Int>) -> [Tensor<4>; 2] {
        let ([batch, steps], [_, num_pairs, _]) = (positions.dims(), self.rotations.dims());
        let positions = positions.reshape([batch * steps]);
        let [low_parts, high_parts] = self.parts.map(|count| count as i32);
        let low = positions.clone().remainder_scalar(low_parts);
        let high = positions.div_scalar(low_parts).remainder_scalar(high_parts) + low_parts;
        let select = |indices: Tensor<1, Int>| {
            let rows = self.rotations.clone().select(0, indices);
            [0, 1].map(|part| rows.clone().narrow(2, part, 1))
        };
        let ([cl, sl], [ch, sh]) = (select(low), select(high));
        let cos = ch.clone() * cl.clone() - sh.clone() * sl.clone();
        let sin = sh * cl + ch * sl;
        [cos, sin].map(|x| x.reshape([batch, steps, 1, num_pairs]))
    }
}

/// Rotates heads, `[batch, num_steps, heads, head_dim]`; elements beyond the rotary dimensions stay as they are.
pub(super) fn rotate(x: Tensor<4>, [cos, sin]: &[Tensor<4>; 2]) -> Tensor<4> {
    let (dim, num_pairs) = (x.dims()[3], cos.dims()[3]);
    let (a, b) = (x.clone().narrow(3, 0, num_pairs), x.clone().narrow(3, num_pairs, num_pairs));
    let left = a.clone() * cos.clone() - b.clone() * sin.clone();
    let right = b * cos.clone() + a * sin.clone();
    let mut parts = vec![left, right];
    if dim > 2 * num_pairs {
        parts.push(x.narrow(3, 2 * num_pairs, dim - 2 * num_pairs));
    }
    Tensor::cat(parts, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_on_a_device_are_those_of_the_host() {
        let device = Device::flex();
        let table = RopeTable::new(&[1.0, 0.3, 0.01], 1.5, 0);
        let positions = [0, 1, 7, 1023, 1024, 5_000, 77_777];
        let ids = Tensor::<1, Int>::from_ints(positions, &device).reshape([1, 7]);
        let on_device = Rope::new(&table, &device).at(ids);
        let [cos, sin] = on_device.map(|x| x.into_data().iter::<f32>().collect::<Vec<_>>());
        for (row, position) in positions.into_iter().enumerate() {
            for (i, [c, s]) in table.at(position as usize).enumerate() {
                let at = row * 3 + i;
                assert!((cos[at] - c).abs() < 3e-7 && (sin[at] - s).abs() < 3e-7, "{position}");
            }
        }
    }
}
