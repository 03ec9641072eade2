//! Finite differences: the reference for the backward pass of every operator; and numbers for tests.

use crate::rng::{draw, uniform};
use burn::tensor::Tensor;

/// Samples of a sine, `sin(rate * i)`.
pub(crate) fn wave(count: usize, rate: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * rate).sin()).collect()
}

/// The numbers of a tensor in double precision.
pub(crate) fn doubles<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// A source of reproducible numbers for property tests.
pub(crate) struct Draws {
    key: u32,
    count: u32,
}

impl Draws {
    pub(crate) fn new(key: u32) -> Self {
        Self { key, count: 0 }
    }

    /// Draws numbers in -1..1.
    pub(crate) fn next_numbers(&mut self, count: usize) -> Vec<f32> {
        let first = self.count + 1;
        self.count += count as u32;
        (first..=self.count).map(|i| 2.0 * uniform(draw(self.key, i)) - 1.0).collect()
    }

    /// Draws a size in `1..=max`.
    pub(crate) fn next_size(&mut self, max: usize) -> usize {
        self.count += 1;
        1 + draw(self.key, self.count) as usize % max
    }
}

/// Asserts that `gradient` is the derivative of `loss` at `x`, by central differences.
///
/// `loss` is the weighted sum of a forward pass in `f32`, whose rounding limits the precision to about 1e-3.
pub(crate) fn assert_gradient(
    what: &str,
    x: &[f32],
    gradient: &[f32],
    loss: impl Fn(&[f32]) -> f64,
) {
    assert_eq!(x.len(), gradient.len(), "{what}");
    let largest = gradient.iter().fold(1e-2f32, |largest, g| largest.max(g.abs()));
    let mut moved = x.to_vec();
    for (i, gradient) in gradient.iter().enumerate() {
        const STEP: f32 = 1.0 / 128.0;
        moved[i] = x[i] + STEP;
        let above = loss(&moved);
        moved[i] = x[i] - STEP;
        let below = loss(&moved);
        moved[i] = x[i];
        let want = (above - below) / (2.0 * f64::from(STEP));
        let off = (f64::from(*gradient) - want).abs();
        assert!(off < 4e-3 * f64::from(largest), "{what} {i}: {gradient} instead of {want}");
    }
}

/// The sum of `values` weighted by `weights`, in double precision.
pub(crate) fn weighted_sum(values: &[f32], weights: &[f32]) -> f64 {
    assert_eq!(values.len(), weights.len());
    values.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
}
