//! Products in bf16 by operands widened to f32, on any processor.

use super::tiles::TiledMatrix;
use crate::math::{LANES, Lanes};
use crate::nn::ops::matmul;
use crate::nn::ops::stored::{self, Bf16RowPair, Expand, StoredStrips, Strip};
use crate::nn::ops::{Parallelism, WriteMode};
use std::cell::RefCell;

/// The scales of a format that has none.
const UNSCALED: &[[Lanes; 2]] = &[[[0.0; LANES]; 2]];

thread_local! {
    /// The memory of rounded operands, for reuse.
    static ROUNDED: RefCell<[Vec<f32>; 2]> = RefCell::default();
}

/// Products of rows with weights, as [`super::forward`].
pub fn forward(
    parallelism: Parallelism,
    x: &[f32],
    products: &mut [(&TiledMatrix, &mut [f32])],
    mode: WriteMode,
) {
    let [mut rows, other] = ROUNDED.take();
    round(parallelism, x, &mut rows);
    for (w, y) in products {
        let strips = StoredStrips::new(*w, [w.inner(), w.outer()]);
        matmul::forward(parallelism, &rows, strips, y, mode);
    }
    ROUNDED.set([rows, other]);
}

/// Gradients of weights, as [`super::weight_grads`].
pub fn weight_grads<const N: usize>(
    parallelism: Parallelism,
    x: &[f32],
    inputs: usize,
    results: [(&[f32], &mut [f32]); N],
) {
    let [mut rows, mut d_rows] = ROUNDED.take();
    round(parallelism, x, &mut rows);
    for (dy, gradient) in results {
        round(parallelism, dy, &mut d_rows);
        matmul::weight_grad(parallelism, [&rows, &d_rows], inputs, gradient);
    }
    ROUNDED.set([rows, d_rows]);
}

impl TiledMatrix {
    /// A strip of 16 columns.
    fn column_strip(&self, index: usize) -> Strip<'_, Bf16RowPair> {
        Strip { pairs: self.pairs(index), scales: UNSCALED }
    }

    /// The number of rows, since all share the one (unused) scale.
    fn group_size(&self) -> usize {
        self.inner().next_multiple_of(2)
    }
}

impl Expand for TiledMatrix {
    fn expand(&self, strip: usize, vectors: &mut [Lanes], step: usize) {
        stored::expand(self.column_strip(strip), self.group_size(), vectors, step);
    }

    fn multiply(&self, first: usize, columns: usize, x: &[f32], y: &mut [f32], mode: WriteMode) {
        let sizes = [self.inner(), self.group_size()];
        stored::multiply(sizes, |index| self.column_strip(first + index), columns, x, y, mode);
    }
}

/// Fills `rounded` with the numbers rounded to bf16.
fn round(parallelism: Parallelism, numbers: &[f32], rounded: &mut Vec<f32>) {
    numbers.clone_into(rounded);
    super::round(parallelism, rounded);
}
