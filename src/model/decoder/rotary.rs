//! Rotary positions in tensors.

use super::rope::{PARTS, Turns};
use burn::tensor::{Device, Int, Tensor, TensorData};

impl Turns {
    /// Numbers of a table, by position: cosines, or sines.
    fn numbers(&self, table: &[[f32; 2]], which: usize, device: &Device) -> Tensor<2> {
        let numbers: Vec<f32> = table.iter().map(|turn| turn[which]).collect();
        Tensor::from_data(TensorData::new(numbers, [PARTS, self.half]), device)
    }

    /// The turns on a device: cosines and sines of the low parts, then of the high ones.
    pub fn tables(&self, device: &Device) -> [Tensor<2>; 4] {
        let of = |table: &[[f32; 2]], which: usize| self.numbers(table, which, device);
        [of(&self.low, 0), of(&self.low, 1), of(&self.high, 0), of(&self.high, 1)]
    }
}

/// Cosines and sines of `positions`, `[batch, num_steps]`: `[batch, num_steps, 1, head_dim / 2]`, from
/// tables as [`Turns::tables`] gives them.
pub fn turns_of(tables: [&Tensor<2>; 4], positions: Tensor<2, Int>) -> [Tensor<4>; 2] {
    let [batch, steps] = positions.dims();
    let positions = positions.reshape([batch * steps]);
    let low = positions.clone().remainder_scalar(PARTS as i32);
    let high = positions.div_scalar(PARTS as i32).remainder_scalar(PARTS as i32);
    let at = |table: usize, part: &Tensor<1, Int>| tables[table].clone().select(0, part.clone());
    let (cl, sl, ch, sh) = (at(0, &low), at(1, &low), at(2, &high), at(3, &high));
    let cos = ch.clone() * cl.clone() - sh.clone() * sl.clone();
    let sin = sh * cl + ch * sl;
    [cos, sin].map(|x| {
        let half = x.dims()[1];
        x.reshape([batch, steps, 1, half])
    })
}

/// Heads, `[batch, num_steps, heads, head_dim]`, turned.
pub fn turn(x: Tensor<4>, [cos, sin]: &[Tensor<4>; 2]) -> Tensor<4> {
    let half = x.dims()[3] / 2;
    let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
    let left = a.clone() * cos.clone() - b.clone() * sin.clone();
    let right = b * cos.clone() + a * sin.clone();
    Tensor::cat(vec![left, right], 3)
}

#[cfg(test)]
mod tests {
    use super::super::rope::frequency;
    use super::super::shape::{DecoderShape, RopeScaling};
    use super::*;
    use crate::model::{DecoderConfig, PolicyConfig};

    fn config() -> PolicyConfig {
        PolicyConfig::decoder(DecoderConfig::default())
    }

    #[test]
    fn slow_turns_are_slower_in_long_contexts() {
        let scaling = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        let plain =
            DecoderShape { head_dim: 64, rope_theta: 5e5, ..DecoderShape::new(3, 2, &config()) };
        let scaled = DecoderShape { rope_scaling: Some(scaling), ..plain.clone() };
        let shares: Vec<f64> =
            (0..32).map(|i| frequency(&scaled, i) / frequency(&plain, i)).collect();
        assert_eq!((shares[0], shares[31]), (1.0, 0.125));
        assert!(shares.windows(2).all(|pair| pair[1] <= pair[0]), "{shares:?}");
        // Number 17: 8192 * 5e5^(-17/32) / 2 pi turns, the share by the formula of Llama 3.
        let turns = 8192.0 * 5e5f64.powf(-17.0 / 32.0) / std::f64::consts::TAU;
        let smooth = (turns - 1.0) / 3.0;
        assert!((shares[17] - ((1.0 - smooth) / 8.0 + smooth)).abs() < 1e-12);
    }

    #[test]
    fn turns_are_the_sines_of_their_angles_near_and_far() {
        let device = Device::flex();
        let shape =
            DecoderShape { head_dim: 6, rope_theta: 1e4, ..DecoderShape::new(3, 2, &config()) };
        let turns = Turns::new(&shape);
        let positions = [0, 1, 7, 1023, 1024, 5_000, 77_777];
        let tables = turns.tables(&device);
        let ids: Vec<i32> = positions.iter().map(|p| *p as i32).collect();
        let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &device).reshape([1, 7]);
        let on_device = turns_of(tables.each_ref(), ids);
        let [cos, sin] = on_device.map(|x| x.into_data().iter::<f32>().collect::<Vec<_>>());
        for (row, position) in positions.into_iter().enumerate() {
            for (i, [c, s]) in turns.at(position).enumerate() {
                let angle = position as f64 * 1e4f64.powf(-(i as f64) / 3.0);
                assert!((f64::from(c) - angle.cos()).abs() < 3e-7, "{position}");
                assert!((f64::from(s) - angle.sin()).abs() < 3e-7, "{position}");
                let at = row * 3 + i;
                assert!((cos[at] - c).abs() < 3e-7 && (sin[at] - s).abs() < 3e-7, "{position}");
            }
        }
    }
}
