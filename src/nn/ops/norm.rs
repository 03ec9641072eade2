//! Root-mean-square norm (Zhang & Sennrich 2019).

use super::{Parallelism, dot, for_rows};
use multiversion::multiversion;

/// Columns of the gradient of the weights in one part.
const PART_COLUMNS: usize = 256;

/// The parameters of a norm: a row becomes `x / sqrt(mean(x^2) + eps) * (offset + weight)`.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// `[size]`.
    pub weight: &'a [f32],
    /// 0, or 1 where weights are stored as differences from 1 (Gemma).
    pub offset: f32,
    /// The number added to the mean square.
    pub eps: f32,
}

/// The activations of a norm that its backward pass needs.
#[derive(Clone, Debug, Default)]
pub struct NormActivations {
    /// The input: `[rows, size]`.
    pub input: Vec<f32>,
    /// The reciprocal root of each row's mean square: `[rows]`; empty where there is no norm.
    pub inverse_rms: Vec<f32>,
}

impl NormActivations {
    /// Norms rows to `output`, and keeps their activations.
    pub fn forward(
        &mut self,
        parallelism: Parallelism,
        x: &[f32],
        norm: RmsNorm,
        output: &mut Vec<f32>,
    ) {
        let rows = x.len() / norm.weight.len();
        let Self { input, inverse_rms } = self;
        input.resize(x.len(), 0.0);
        output.resize(x.len(), 0.0);
        inverse_rms.resize(rows, 0.0);
        let writes: [&mut [f32]; 3] = [input, inverse_rms, output];
        for_rows(parallelism, rows, [x], writes, &|[x], [input, inverse_rms, output]| {
            input.copy_from_slice(x);
            forward(x, norm, inverse_rms, output);
        });
    }

    /// Copies the rows to `output` and keeps them, where an architecture has no norm.
    pub fn forward_identity(&mut self, x: &[f32], output: &mut Vec<f32>) {
        self.inverse_rms.clear();
        x.clone_into(&mut self.input);
        x.clone_into(output);
    }

    /// Recomputes the output from the kept input.
    pub fn recompute(&self, parallelism: Parallelism, norm: RmsNorm, output: &mut Vec<f32>) {
        let Self { input, inverse_rms } = self;
        output.resize(input.len(), 0.0);
        if inverse_rms.is_empty() {
            return output.copy_from_slice(input);
        }
        for_rows(
            parallelism,
            inverse_rms.len(),
            [input, inverse_rms],
            [output],
            &|[x, inverse_rms], [output]| {
                apply(x, norm, inverse_rms, output);
            },
        );
    }

    /// Adds to the gradients of the input, `dx`, and of the weights, if they are learnt, from that of the result, `dy`,
    /// which is overwritten.
    pub fn backward(
        &self,
        parallelism: Parallelism,
        norm: RmsNorm,
        dy: &mut [f32],
        dx: &mut [f32],
        d_weight: Option<&mut [f32]>,
    ) {
        let Self { input, inverse_rms } = self;
        if let Some(d_weight) = d_weight {
            parallelism.each_chunk([(d_weight, PART_COLUMNS)], |i, [part]| {
                weight_grad(input, inverse_rms, dy, i * PART_COLUMNS, norm, part);
            });
        }
        for_rows(
            parallelism,
            inverse_rms.len(),
            [input, inverse_rms],
            [dy, dx],
            &|[x, inverse_rms], [dy, dx]| {
                backward(x, norm, inverse_rms, dy, dx);
            },
        );
    }
}

/// Norms the rows of `x`; `inverse_rms` becomes the factor of each row.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn forward(x: &[f32], norm: RmsNorm, inverse_rms: &mut [f32], y: &mut [f32]) {
    let size = norm.weight.len();
    let rows = x.chunks_exact(size).zip(y.chunks_exact_mut(size));
    for ((x, y), inverse_rms) in rows.zip(inverse_rms) {
        *inverse_rms = 1.0 / (dot(x, x) / size as f32 + norm.eps).sqrt();
        apply_row(x, norm, *inverse_rms, y);
    }
}

/// Norms the rows of `x`, each of which has its factor already.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn apply(x: &[f32], norm: RmsNorm, inverse_rms: &[f32], y: &mut [f32]) {
    let size = norm.weight.len();
    let rows = x.chunks_exact(size).zip(y.chunks_exact_mut(size));
    for ((x, y), inverse_rms) in rows.zip(inverse_rms) {
        apply_row(x, norm, *inverse_rms, y);
    }
}

/// Norms a row by its factor.
#[inline(always)]
fn apply_row(x: &[f32], RmsNorm { weight, offset, .. }: RmsNorm, inverse_rms: f32, y: &mut [f32]) {
    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
        *y = x * inverse_rms * (offset + weight);
    }
}

/// Adds to the gradients of the weights from index `first` on, from the gradient of the result, `dy`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn weight_grad(
    x: &[f32],
    inverse_rms: &[f32],
    dy: &[f32],
    first: usize,
    norm: RmsNorm,
    d_weight: &mut [f32],
) {
    let size = norm.weight.len();
    for ((x, d), inverse_rms) in x.chunks_exact(size).zip(dy.chunks_exact(size)).zip(inverse_rms) {
        let part = first..first + d_weight.len();
        for ((sum, d), x) in d_weight.iter_mut().zip(&d[part.clone()]).zip(&x[part]) {
            *sum += d * x * inverse_rms;
        }
    }
}

/// Adds to the gradients of the rows, from the gradient of the result, `dy`, which is overwritten.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn backward(x: &[f32], norm: RmsNorm, inverse_rms: &[f32], dy: &mut [f32], dx: &mut [f32]) {
    let RmsNorm { weight, offset, .. } = norm;
    let size = weight.len();
    let rows = x.chunks_exact(size).zip(dy.chunks_exact_mut(size));
    for (((x, d), dx), inverse_rms) in rows.zip(dx.chunks_exact_mut(size)).zip(inverse_rms) {
        for i in 0..size {
            d[i] *= offset + weight[i];
        }
        let along = dot(d, x) / size as f32 * inverse_rms * inverse_rms;
        for i in 0..size {
            dx[i] += (d[i] - x[i] * along) * inverse_rms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted_sum};

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(3);
        for round in 0..10 {
            let (rows, size) = (draws.next_size(4), draws.next_size(37));
            let (offset, eps) = (f32::from(round % 2 == 1), 0.1);
            let (x, weight) = (draws.next_numbers(rows * size), draws.next_numbers(size));
            let dy = draws.next_numbers(rows * size);
            let loss = |x: &[f32], weight: &[f32]| {
                let (mut activations, mut output) = (NormActivations::default(), Vec::new());
                let norm = RmsNorm { weight, offset, eps };
                activations.forward(Parallelism::Parallel, x, norm, &mut output);
                weighted_sum(&output, &dy)
            };
            let norm = RmsNorm { weight: &weight, offset, eps };
            let [mut output, mut again] = [Vec::new(), Vec::new()];
            let mut activations = NormActivations::default();
            activations.forward(Parallelism::Sequential, &x, norm, &mut output);
            activations.recompute(Parallelism::Parallel, norm, &mut again);
            assert_eq!(again, output);
            let (mut dx, mut d_weight) = (vec![0.0; x.len()], vec![0.0; size]);
            let parallelism = [Parallelism::Sequential, Parallelism::Parallel][round % 2];
            activations.backward(parallelism, norm, &mut dy.clone(), &mut dx, Some(&mut d_weight));
            let mut frozen = vec![0.0; x.len()];
            activations.backward(parallelism, norm, &mut dy.clone(), &mut frozen, None);
            assert_eq!(frozen, dx);
            assert_gradient("rows", &x, &dx, |x| loss(x, &weight));
            assert_gradient("weights", &weight, &d_weight, |weight| loss(&x, weight));
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours() {
        let mut draws = Draws::new(4);
        let (x, weight) = (draws.next_numbers(3 * 29), draws.next_numbers(29));
        let norm = RmsNorm { weight: &weight, offset: 0.0, eps: 1e-6 };
        let [mut all, mut one] = [Vec::new(), Vec::new()];
        NormActivations::default().forward(Parallelism::Parallel, &x, norm, &mut all);
        NormActivations::default().forward(Parallelism::Sequential, &x[29..58], norm, &mut one);
        assert!(all[29..58] == one);
    }
}
