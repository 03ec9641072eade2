//! Low-rank adapters (LoRA, Hu et al. 2021): `y += scale x a b`, in addition to the product with a weight. The product
//! `a b` is never computed.

use super::linear::{self, Arithmetic, PackedWeight};
use super::matmul::View;
use super::{Parallelism, WriteMode};

/// A pair of low-rank matrices.
#[derive(Clone, Copy, Debug)]
pub struct LowRankPair<'a> {
    /// `[inputs, rank]`.
    pub a: &'a [f32],
    /// `[rank, outputs]`.
    pub b: &'a [f32],
    /// Columns of `a` and rows of `b`.
    pub rank: usize,
    /// The factor of the result: `lora_alpha / r`.
    pub scale: f32,
}

impl LowRankPair<'_> {
    /// Adds the adapter's result for rows `x`, `[rows, inputs]`, to `y`, `[rows, outputs]`.
    pub fn forward(&self, parallelism: Parallelism, x: &[f32], y: &mut [f32]) {
        let ([inputs, outputs], [a, b]) = self.views();
        let inner = self.multiply_scaled(parallelism, x, a, [inputs, self.rank]);
        let b = pack_f32(b, [self.rank, outputs]);
        linear::forward(parallelism, &inner, &b, y, WriteMode::Accumulate);
    }

    /// Adds to the gradients of the rows and of `a` and `b`, from the gradient of the result, `dy`.
    pub fn backward(
        &self,
        parallelism: Parallelism,
        [x, dy]: [&[f32]; 2],
        dx: &mut [f32],
        [d_a, d_b]: [&mut [f32]; 2],
    ) {
        let ([inputs, outputs], [a, b]) = self.views();
        let d_inner = self.multiply_scaled(parallelism, dy, b.transpose(), [outputs, self.rank]);
        let a_transpose = pack_f32(a.transpose(), [self.rank, inputs]);
        linear::forward(parallelism, &d_inner, &a_transpose, dx, WriteMode::Accumulate);
        linear::weight_grads(Arithmetic::F32, parallelism, x, inputs, [(&d_inner, d_a)]);
        let inner = self.multiply_scaled(parallelism, x, a, [inputs, self.rank]);
        linear::weight_grads(Arithmetic::F32, parallelism, &inner, self.rank, [(dy, d_b)]);
    }

    /// The numbers of inputs and of outputs, and the matrices `a` and `b`.
    fn views(&self) -> ([usize; 2], [View<'_>; 2]) {
        let sizes = [self.a.len() / self.rank, self.b.len() / self.rank];
        (sizes, [View::rows(self.a, self.rank), View::rows(self.b, sizes[1])])
    }

    /// The product of rows and a matrix of these sizes, times the adapter's factor.
    fn multiply_scaled(
        &self,
        parallelism: Parallelism,
        x: &[f32],
        matrix: View,
        sizes: [usize; 2],
    ) -> Vec<f32> {
        let mut y = vec![0.0; x.len() / sizes[0] * sizes[1]];
        linear::forward(parallelism, x, &pack_f32(matrix, sizes), &mut y, WriteMode::Overwrite);
        y.iter_mut().for_each(|y| *y *= self.scale);
        y
    }
}

/// Packs a matrix of these sizes for products in f32.
fn pack_f32(view: View, sizes: [usize; 2]) -> PackedWeight {
    linear::pack(Arithmetic::F32, Parallelism::Sequential, view, sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted_sum};

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(12);
        for parallelism in [Parallelism::Sequential, Parallelism::Parallel] {
            for _ in 0..4 {
                let (rows, inputs) = (draws.next_size(5), draws.next_size(11));
                let (rank, outputs) = (draws.next_size(4), draws.next_size(23));
                let x = draws.next_numbers(rows * inputs);
                let (a, b) =
                    (draws.next_numbers(inputs * rank), draws.next_numbers(rank * outputs));
                let dy = draws.next_numbers(rows * outputs);
                let loss = |x: &[f32], a: &[f32], b: &[f32]| {
                    let mut y = vec![0.0; rows * outputs];
                    LowRankPair { a, b, rank, scale: 1.5 }.forward(parallelism, x, &mut y);
                    weighted_sum(&y, &dy)
                };
                let (mut dx, mut d_a, mut d_b) =
                    (vec![0.0; x.len()], vec![0.0; a.len()], vec![0.0; b.len()]);
                let adapter = LowRankPair { a: &a, b: &b, rank, scale: 1.5 };
                adapter.backward(parallelism, [&x, &dy], &mut dx, [&mut d_a, &mut d_b]);
                assert_gradient("rows", &x, &dx, |x| loss(x, &a, &b));
                assert_gradient("a", &a, &d_a, |a| loss(&x, a, &b));
                assert_gradient("b", &b, &d_b, |b| loss(&x, &a, b));
            }
        }
    }
}
