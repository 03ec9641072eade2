//! Rotary positions in tensors.

use crate::nn::ops::rope::{RopeTable, Rotation};
use burn::tensor::{Device, Int, Tensor, TensorData};

impl RopeTable {
    /// The table on a device: cosines and sines of the low parts, then of the high ones: `[parts, rotary_dim / 2]`.
    pub(super) fn tensors(&self, device: &Device) -> [Tensor<2>; 4] {
        let one = |table: &[Rotation], which: usize| {
            let numbers: Vec<f32> = table.iter().map(|rotation| rotation[which]).collect();
            let parts = numbers.len() / self.half;
            Tensor::from_data(TensorData::new(numbers, [parts, self.half]), device)
        };
        [one(&self.low, 0), one(&self.low, 1), one(&self.high, 0), one(&self.high, 1)]
    }
}

/// Cosines and sines of `positions`, `[batch, num_steps]`: `[batch, num_steps, 1, rotary_dim / 2]`, from
/// [`RopeTable::tensors`].
pub(super) fn rotations(table: &[Tensor<2>], positions: Tensor<2, Int>) -> [Tensor<4>; 2] {
    let [batch, steps] = positions.dims();
    let positions = positions.reshape([batch * steps]);
    let [low_parts, high_parts] = [0, 2].map(|which: usize| table[which].dims()[0] as i32);
    let low = positions.clone().remainder_scalar(low_parts);
    let high = positions.div_scalar(low_parts).remainder_scalar(high_parts);
    let at = |which: usize, part: &Tensor<1, Int>| table[which].clone().select(0, part.clone());
    let (cl, sl, ch, sh) = (at(0, &low), at(1, &low), at(2, &high), at(3, &high));
    let cos = ch.clone() * cl.clone() - sh.clone() * sl.clone();
    let sin = sh * cl + ch * sl;
    [cos, sin].map(|x| {
        let half = x.dims()[1];
        x.reshape([batch, steps, 1, half])
    })
}

/// Rotates heads, `[batch, num_steps, heads, head_dim]`; numbers that no rotation is for stay.
pub(super) fn rotate(x: Tensor<4>, [cos, sin]: &[Tensor<4>; 2]) -> Tensor<4> {
    let (dim, half) = (x.dims()[3], cos.dims()[3]);
    let (a, b) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half));
    let left = a.clone() * cos.clone() - b.clone() * sin.clone();
    let right = b * cos.clone() + a * sin.clone();
    let mut parts = vec![left, right];
    if dim > 2 * half {
        parts.push(x.narrow(3, 2 * half, dim - 2 * half));
    }
    Tensor::cat(parts, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_on_a_device_are_those_of_the_host() {
        let device = Device::flex();
        let table = RopeTable::new(&[1.0, 0.3, 0.01], 1.5);
        let positions = [0, 1, 7, 1023, 1024, 5_000, 77_777];
        let ids = Tensor::<1, Int>::from_ints(positions, &device).reshape([1, 7]);
        let on_device = rotations(&table.tensors(&device), ids);
        let [cos, sin] = on_device.map(|x| x.into_data().iter::<f32>().collect::<Vec<_>>());
        for (row, position) in positions.into_iter().enumerate() {
            for (i, [c, s]) in table.at(position as usize).enumerate() {
                let at = row * 3 + i;
                assert!((cos[at] - c).abs() < 3e-7 && (sin[at] - s).abs() < 3e-7, "{position}");
            }
        }
    }
}
