//! Products of rows with a weight: forward, gradient of the input, gradient of the weight.
//!
//! Each number of a result is the same sum in the same order for any number of threads; [`weight_grads`],
//! [`backward_stored`] and [`multiply_unpacked`] add up the inner dimension in blocks of fixed length.

use super::bf16::{self, Bf16Instructions, Side, TiledMatrix};
use super::matmul::{self, PackedMatrix, View, multiply_block};
use super::stored::StoredMatrix;
use super::{Parallelism, WriteMode};
use crate::math::LANES;
use crate::nn::Precision;
use std::cell::RefCell;

/// Length of the blocks in which the gradient of the input of an unpacked weight sums the inner dimension.
pub(crate) const BACKWARD_DEPTH: usize = 2048;

thread_local! {
    /// The memory of expanded weights, for reuse.
    static EXPANDED: RefCell<Vec<f32>> = RefCell::default();
}

/// The arithmetic of products; sums and results are f32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Operands in f32.
    #[default]
    F32,
    /// Operands rounded to bf16.
    Bf16(Bf16Instructions),
}

impl Arithmetic {
    /// The arithmetic of a precision on the CPU, with the fastest instructions of this processor; the CPU has no
    /// products in f16 and tf32 and computes in f32 instead.
    pub fn for_precision(precision: Precision) -> Self {
        match precision {
            Precision::F32 | Precision::Tf32 | Precision::F16 => Self::F32,
            Precision::Bf16 => Self::Bf16(Bf16Instructions::best()),
        }
    }
}

/// A weight, `[inner, columns]`, packed for products.
#[derive(Clone, Debug)]
pub enum PackedWeight {
    /// Packed in f32.
    F32(PackedMatrix),
    /// In the number format of its file, for products in f32.
    Stored(StoredMatrix),
    /// In bf16, with the instructions of its products.
    Bf16(Bf16Instructions, TiledMatrix),
}

impl PackedWeight {
    /// No weight yet.
    pub fn empty(arithmetic: Arithmetic) -> Self {
        match arithmetic {
            Arithmetic::F32 => Self::F32(PackedMatrix::default()),
            Arithmetic::Bf16(instructions) => Self::Bf16(instructions, TiledMatrix::default()),
        }
    }

    /// Packs another weight, in this one's memory unless that is shared.
    pub fn repack(&mut self, parallelism: Parallelism, weight: View, [inner, columns]: [usize; 2]) {
        match self {
            Self::Stored(_) => {
                *self = pack(Arithmetic::F32, parallelism, weight, [inner, columns]);
            }
            Self::F32(to) => to.pack(parallelism, weight, inner, columns),
            Self::Bf16(_, to) => {
                to.pack(parallelism, weight.transpose(), [columns, inner], Side::Right);
            }
        }
    }
}

/// Packs `weight`, `[inner, columns]`.
pub fn pack(
    arithmetic: Arithmetic,
    parallelism: Parallelism,
    weight: View,
    sizes: [usize; 2],
) -> PackedWeight {
    let mut packed = PackedWeight::empty(arithmetic);
    packed.repack(parallelism, weight, sizes);
    packed
}

/// `y = x w`, or `y += x w`, with `x` `[rows, inner]` and `y` `[rows, columns]`.
///
/// With the packed transpose of a weight and the gradient of its result for `x`, this gives the gradient of its input.
pub fn forward(
    parallelism: Parallelism,
    x: &[f32],
    w: &PackedWeight,
    y: &mut [f32],
    mode: WriteMode,
) {
    forward_all(parallelism, x, &mut [(w, y)], mode);
}

/// The products of an input with some weights of one arithmetic, as [`forward`].
pub fn forward_all(
    parallelism: Parallelism,
    x: &[f32],
    products: &mut [(&PackedWeight, &mut [f32])],
    mode: WriteMode,
) {
    let (mut found, mut bf16_products) = (None, Vec::new());
    for (w, y) in products {
        match w {
            PackedWeight::F32(w) => matmul::forward(parallelism, x, w.strips(), y, mode),
            PackedWeight::Stored(w) => matmul::forward(parallelism, x, w.strips(), y, mode),
            PackedWeight::Bf16(instructions, w) => {
                found = Some(*instructions);
                bf16_products.push((w, &mut **y));
            }
        }
    }
    if let Some(instructions) = found {
        bf16::forward(instructions, parallelism, x, &mut bf16_products, mode);
    }
}

/// `y = x w`, or `y += x w`, by all threads, with `w` `[inner, columns]` packed a block at a time: for large weights
/// without a packed copy. The inner dimension is summed in blocks of `depth`.
pub fn multiply_unpacked(
    x: &[f32],
    w: View,
    [inner, columns]: [usize; 2],
    depth: usize,
    y: &mut [f32],
    mode: WriteMode,
) {
    if x.is_empty() {
        return;
    }
    for k in (0..inner).step_by(depth) {
        let x = View::rows(x, inner).columns_from(k);
        let sizes = [depth.min(inner - k), columns];
        multiply_block(x, w.rows_from(k), sizes, y, mode.accumulate_if(k > 0));
    }
}

/// `dx = dy w^T`, or `dx += dy w^T`, by all threads, with `weight` `[inner, columns]` in the number format of its file,
/// expanded and packed a block at a time: [`multiply_unpacked`] by the transposed weight, `BACKWARD_DEPTH` deep.
pub fn backward_stored(dy: &[f32], weight: &StoredMatrix, dx: &mut [f32], mode: WriteMode) {
    if dy.is_empty() {
        return;
    }
    let [columns, inner] = [weight.columns(), weight.inner()];
    let mut expanded = EXPANDED.take();
    for k in (0..columns).step_by(BACKWARD_DEPTH) {
        let depth = BACKWARD_DEPTH.min(columns - k);
        expanded.resize(expanded.len().max(depth * inner), 0.0);
        let block = &mut expanded[..depth * inner];
        Parallelism::Parallel.each_chunk([(&mut *block, LANES * inner)], |strip, [rows]| {
            weight.read_columns(k + LANES * strip, rows);
        });
        let dy = View::rows(dy, columns).columns_from(k);
        let sizes = [depth, inner];
        multiply_block(dy, View::rows(block, inner), sizes, dx, mode.accumulate_if(k > 0));
    }
    EXPANDED.set(expanded);
}

/// Adds `x^T dy` to `gradient`, that of a weight `[inputs, outputs]`, for each of some linear layers with the input
/// `x`, from the gradient `dy` of its result.
pub fn weight_grads<const N: usize>(
    arithmetic: Arithmetic,
    parallelism: Parallelism,
    x: &[f32],
    inputs: usize,
    results: [(&[f32], &mut [f32]); N],
) {
    match arithmetic {
        Arithmetic::F32 => {
            for (dy, gradient) in results {
                matmul::weight_grad(parallelism, [x, dy], inputs, gradient);
            }
        }
        Arithmetic::Bf16(instructions) => {
            bf16::weight_grads(instructions, parallelism, x, inputs, results)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted_sum};
    use crate::nn::ops::stored::NumberFormat;

    const BOTH: [Parallelism; 2] = [Parallelism::Sequential, Parallelism::Parallel];

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(7);
        for round in 0..8 {
            let parallelism = BOTH[round % 2];
            let (rows, inputs, outputs) =
                (draws.next_size(9), draws.next_size(21), draws.next_size(70));
            let (x, w) = (draws.next_numbers(rows * inputs), draws.next_numbers(inputs * outputs));
            let dy = draws.next_numbers(rows * outputs);
            let loss = |x: &[f32], w: &[f32]| {
                let packed =
                    pack(Arithmetic::F32, parallelism, View::rows(w, outputs), [inputs, outputs]);
                let mut y = vec![0.0; rows * outputs];
                forward(parallelism, x, &packed, &mut y, WriteMode::Overwrite);
                weighted_sum(&y, &dy)
            };
            let transpose = View::rows(&w, outputs).transpose();
            let packed = pack(Arithmetic::F32, parallelism, transpose, [outputs, inputs]);
            let (mut dx, mut d_w) = (vec![0.0; x.len()], vec![0.0; w.len()]);
            forward(parallelism, &dy, &packed, &mut dx, WriteMode::Overwrite);
            weight_grads(Arithmetic::F32, parallelism, &x, inputs, [(&dy, &mut d_w)]);
            assert_gradient("rows", &x, &dx, |x| loss(x, &w));
            assert_gradient("weight", &w, &d_w, |w| loss(&x, w));
        }
    }

    #[test]
    fn stored_weights_give_the_bytes_of_expanded_ones() {
        let mut draws = Draws::new(12);
        for [rows, inner, columns] in [[1, 32, 5], [7, 64, 130], [131, 32, 97], [40, 32, 2100]] {
            let codes: Vec<u16> =
                (0..inner * columns).map(|i| (i * 7919 % 255) as u8 as u16).collect();
            let stored =
                StoredMatrix::new(NumberFormat::EightBit, [inner, columns], 32, |j, to| {
                    to.codes.copy_from_slice(&codes[j * inner..][..inner]);
                    to.scales.fill([0.125 / (1.0 + j as f32), 0.0]);
                });
            let mut table = vec![0.0; inner * columns];
            for (j, to) in table.chunks_mut(inner).enumerate() {
                stored.read_column(j, to);
            }
            let (x, dy) = (draws.next_numbers(rows * inner), draws.next_numbers(rows * columns));
            let view = View::rows(&table, inner).transpose();
            let parallelism = Parallelism::Parallel;
            let weights = [
                pack(Arithmetic::F32, parallelism, view, [inner, columns]),
                PackedWeight::Stored(stored.clone()),
            ];
            let [expanded, compact] = weights.map(|weight| {
                let mut y = vec![0.5; rows * columns];
                forward(parallelism, &x, &weight, &mut y, WriteMode::Accumulate);
                y
            });
            assert!(expanded == compact, "{rows} x {inner} x {columns}");
            let [mut expanded, mut compact] = [0; 2].map(|_| vec![0.5; rows * inner]);
            let transpose = view.transpose();
            let (sizes, depth) = ([columns, inner], BACKWARD_DEPTH);
            multiply_unpacked(&dy, transpose, sizes, depth, &mut expanded, WriteMode::Accumulate);
            backward_stored(&dy, &stored, &mut compact, WriteMode::Accumulate);
            assert!(expanded == compact, "backward of {rows} x {inner} x {columns}");
        }
    }

    #[test]
    fn products_of_no_rows_change_nothing() {
        let w = [1.0; 6];
        let view = View::rows(&w, 3);
        let stored = StoredMatrix::new(NumberFormat::EightBit, [2, 3], 2, |_, to| to.codes.fill(1));
        for mode in [WriteMode::Overwrite, WriteMode::Accumulate] {
            multiply_unpacked(&[], view, [2, 3], 2, &mut [], mode);
            backward_stored(&[], &stored, &mut [], mode);
        }
        for arithmetic in [Arithmetic::F32, Arithmetic::Bf16(Bf16Instructions::best())] {
            for parallelism in BOTH {
                let packed = pack(arithmetic, parallelism, view, [2, 3]);
                forward(parallelism, &[], &packed, &mut [], WriteMode::Overwrite);
                let mut gradient = [0.5; 6];
                weight_grads(arithmetic, parallelism, &[], 2, [(&[], &mut gradient)]);
                assert_eq!(gradient, [0.5; 6]);
            }
        }
    }

    #[test]
    fn all_implementations_of_a_product_give_the_same_bytes() {
        let mut draws = Draws::new(8);
        for [rows, inputs, outputs] in [[1, 3, 5], [7, 40, 130], [131, 17, 97]] {
            let (x, w) = (draws.next_numbers(rows * inputs), draws.next_numbers(inputs * outputs));
            let (view, sizes) = (View::rows(&w, outputs), [inputs, outputs]);
            let all = BOTH.map(|parallelism| {
                let mut y = vec![0.5; rows * outputs];
                let packed = pack(Arithmetic::F32, parallelism, view, sizes);
                forward(parallelism, &x, &packed, &mut y, WriteMode::Accumulate);
                y
            });
            let mut unpacked = vec![0.5; rows * outputs];
            multiply_unpacked(&x, view, sizes, inputs, &mut unpacked, WriteMode::Accumulate);
            assert!(all[0] == all[1] && all[0] == unpacked);
        }
    }
}
