//! Rotary positions (Su et al. 2021): queries and keys are turned by angles that grow with the position,
//! so that their products depend on how far they are apart.
//!
//! Number `i` of a head and number `i + head_dim / 2` are the two coordinates that turn together (Hugging
//! Face's order). A sine of a large angle is worth little on some devices, so that none is computed there:
//! a position is `high * LOW + low`, and the turns of both come from tables of the host.

use burn::tensor::{Device, Int, Tensor, TensorData};

/// Low parts of a position, and high ones: positions repeat after a million.
const PARTS: usize = 1024;

/// The turns of positions, on the host: pairs of a cosine and a sine, `[PARTS, head_dim / 2]`.
#[derive(Clone, Debug)]
pub struct Turns {
    low: Vec<[f32; 2]>,
    high: Vec<[f32; 2]>,
    half: usize,
}

impl Turns {
    /// Those of heads of so many numbers.
    pub fn new(head_dim: usize, theta: f64) -> Self {
        let half = head_dim / 2;
        let turns = |step: usize| {
            let turn = |position: usize, i: usize| {
                let frequency = theta.powf(-(2.0 * i as f64) / head_dim as f64);
                let (sin, cos) = ((position * step) as f64 * frequency).sin_cos();
                [cos as f32, sin as f32]
            };
            (0..PARTS).flat_map(|position| (0..half).map(move |i| turn(position, i))).collect()
        };
        Self { low: turns(1), high: turns(PARTS), half }
    }

    /// Cosines and sines of a position, one pair for each pair of a head's coordinates.
    pub fn at(&self, position: usize) -> impl Iterator<Item = [f32; 2]> {
        let low = &self.low[position % PARTS * self.half..][..self.half];
        let high = &self.high[position / PARTS % PARTS * self.half..][..self.half];
        low.iter().zip(high).map(|([cl, sl], [ch, sh])| [ch * cl - sh * sl, sh * cl + ch * sl])
    }

    /// Numbers of a table, by position: cosines, or sines.
    fn numbers(&self, table: &[[f32; 2]], which: usize, device: &Device) -> Tensor<2> {
        let numbers: Vec<f32> = table.iter().map(|turn| turn[which]).collect();
        Tensor::from_data(TensorData::new(numbers, [PARTS, self.half]), device)
    }

    /// The same on a device: cosines and sines of the low parts, then of the high ones.
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
    use super::*;

    #[test]
    fn turns_are_the_sines_of_their_angles_near_and_far() {
        let device = Device::flex();
        let turns = Turns::new(6, 1e4);
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
