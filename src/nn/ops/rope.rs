//! Rotary positions (Su et al. 2021): heads of queries and keys are rotated by angles that grow with the position, so
//! that their products depend on the distance.
//!
//! Elements `i` and `i + rotary_dim / 2` of a head rotate together (Hugging Face's order); those from `rotary_dim` on
//! stay as they are. A position is `high * LOW_PARTS + low`, and the angles of both parts come from tables computed on
//! the host, since some devices' sines of large angles are inaccurate. Frequencies that depend on the position have one
//! table for all positions instead.

use super::{Parallelism, for_rows};
use crate::math::rotate_pair;
use multiversion::multiversion;

/// Number of low parts, and minimum number of high ones.
const LOW_PARTS: usize = 1024;

/// The rotation of a pair of elements: cosine and sine.
pub type Rotation = [f32; 2];

/// The rotations of all positions.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Rotations of the low parts: `[low_parts, num_pairs]`.
    pub low: Vec<Rotation>,
    /// Rotations of the high parts, times the attention factor of the scaling: `[high_parts, num_pairs]`.
    pub high: Vec<Rotation>,
    /// The number of low parts, and of high ones.
    pub parts: [usize; 2],
    /// Pairs of a head that rotate.
    pub num_pairs: usize,
}

impl RopeTable {
    /// The table for these frequencies, in radians a position; cosines and sines are multiplied by `factor`. Positions
    /// repeat after `LOW_PARTS * LOW_PARTS`, or after `positions` in whole high parts if these are more.
    pub fn new(frequencies: &[f64], factor: f64, positions: usize) -> Self {
        let table = |parts: usize, step: usize, factor: f64| {
            let row = |part| rotations_at(part * step, frequencies, factor);
            (0..parts).flat_map(row).collect()
        };
        let high_parts = positions.div_ceil(LOW_PARTS).max(LOW_PARTS);
        let (low, high) = (table(LOW_PARTS, 1, 1.0), table(high_parts, LOW_PARTS, factor));
        Self { low, high, parts: [LOW_PARTS, high_parts], num_pairs: frequencies.len() }
    }

    /// The table of `positions` positions, each with frequencies of its own; further positions repeat them.
    pub fn from_fn(positions: usize, frequencies: impl Fn(usize) -> Vec<f64>) -> Self {
        let row = |position| rotations_at(position, &frequencies(position), 1.0);
        let low: Vec<Rotation> = (0..positions).flat_map(row).collect();
        let num_pairs = low.len() / positions;
        Self { low, high: vec![[1.0, 0.0]; num_pairs], parts: [positions, 1], num_pairs }
    }

    /// The rotation of each pair of a head at a position.
    pub fn at(&self, position: usize) -> impl Iterator<Item = Rotation> {
        let [low, high] = self.parts;
        let low_row = &self.low[position % low * self.num_pairs..][..self.num_pairs];
        let high_row = &self.high[position / low % high * self.num_pairs..][..self.num_pairs];
        low_row
            .iter()
            .zip(high_row)
            .map(|([cl, sl], [ch, sh])| [ch * cl - sh * sl, sh * cl + ch * sl])
    }
}

/// The rotations at a position by these frequencies, times `factor`.
fn rotations_at(position: usize, frequencies: &[f64], factor: f64) -> Vec<Rotation> {
    let rotation = |frequency: &f64| {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        [(cos * factor) as f32, (sin * factor) as f32]
    };
    frequencies.iter().map(rotation).collect()
}

/// The direction of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The direction of the forward pass.
    Forward,
    /// The inverse, for the backward pass.
    Backward,
}

/// Rotates the heads of every row by the row's rotations, `[rows, num_pairs]`.
pub fn rotate(
    parallelism: Parallelism,
    rows: &mut [f32],
    [head_dim, num_pairs]: [usize; 2],
    rotations: &[Rotation],
    direction: Direction,
) {
    let sign = if direction == Direction::Forward { 1.0 } else { -1.0 };
    let count = rotations.len() / num_pairs.max(1);
    for_rows(parallelism, count, [rotations.as_flattened()], [rows], &|[rotations], [rows]| {
        rotate_rows(rows, head_dim, num_pairs, rotations.as_chunks::<2>().0, sign);
    });
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn rotate_rows(
    rows: &mut [f32],
    head_dim: usize,
    num_pairs: usize,
    rotations: &[Rotation],
    sign: f32,
) {
    let width = rows.len() / (rotations.len() / num_pairs);
    for (row, rotations) in rows.chunks_exact_mut(width).zip(rotations.chunks_exact(num_pairs)) {
        for head in row.chunks_exact_mut(head_dim) {
            let (left, right) = head[..2 * num_pairs].split_at_mut(num_pairs);
            for ((a, b), [cos, sin]) in left.iter_mut().zip(right).zip(rotations) {
                (*a, *b) = rotate_pair(*a, *b, *cos, sin * sign);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted_sum};

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(9);
        for _ in 0..8 {
            let (rows, heads, num_pairs) =
                (draws.next_size(4), draws.next_size(3), draws.next_size(5));
            let head_dim = 2 * num_pairs + 2 * (draws.next_size(3) - 1);
            let table = RopeTable::new(&vec![0.3; num_pairs], 1.25, 0);
            let rotations: Vec<Rotation> = (0..rows).flat_map(|row| table.at(row * 700)).collect();
            let x = draws.next_numbers(rows * heads * head_dim);
            let dy = draws.next_numbers(x.len());
            let rotated = |x: &[f32], parallelism, direction| {
                let mut y = x.to_vec();
                rotate(parallelism, &mut y, [head_dim, num_pairs], &rotations, direction);
                y
            };
            let dx = rotated(&dy, Parallelism::Parallel, Direction::Backward);
            assert_gradient("heads", &x, &dx, |x| {
                weighted_sum(&rotated(x, Parallelism::Sequential, Direction::Forward), &dy)
            });
        }
    }

    #[test]
    fn rotations_are_the_sines_of_their_angles_near_and_far() {
        let frequencies = [1.0, 1e4f64.powf(-1.0 / 3.0), 1e4f64.powf(-2.0 / 3.0)];
        let table = RopeTable::new(&frequencies, 1.0, 3 << 20);
        for position in [0, 1, 7, 1023, 1024, 5_000, 77_777, 1_048_576, 3_145_727] {
            for ([cos, sin], frequency) in table.at(position).zip(frequencies) {
                let angle = position as f64 * frequency;
                assert!((f64::from(cos) - angle.cos()).abs() < 3e-7, "{position}");
                assert!((f64::from(sin) - angle.sin()).abs() < 3e-7, "{position}");
            }
        }
    }
}
