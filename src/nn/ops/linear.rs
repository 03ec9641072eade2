//! Products of rows with a weight: forward, gradient of the input, gradient of the weight.
//!
//! In parallel, large products are cut by rows or by columns; each number of a result is still the same sum in the
//! same order, except that [`weight_grads`], [`backward_stored`] and [`multiply_unpacked`] add up the inner dimension in
//! blocks of fixed length.

use super::Parallelism;
use super::half::{self, Kernel, Operand, Side};
use super::matmul::{Columns, Packed, STRIP_COLUMNS, Target, View, matmul_packed};
use super::stored::StoredMatrix;
use crate::math::LANES;
use crate::nn::Precision;
use std::cell::RefCell;

/// The fewest rows of a product that is cut by rows, and the most rows of one part.
const ROWS: usize = 128;
/// Rows of a tile: parts are multiples of it.
const TILE: usize = 8;
/// The most strips of columns in a part of a product of few rows.
const STRIPS: usize = 4;
/// Rows of a weight gradient in one part.
const INPUTS: usize = 64;
/// Rows summed at a time for a weight gradient: as many as the caches hold.
const DEPTH: usize = 512;
/// Length of the blocks in which the gradient of the input of an unpacked weight sums the inner dimension.
pub(crate) const DEPTH_BACKWARD: usize = 2048;
/// Numbers in a block of a large weight.
const BLOCK: usize = 1 << 20;

thread_local! {
    /// The memory of a packed operand, for reuse.
    static OPERAND: RefCell<Packed> = RefCell::default();
    /// The memory of partial results, for reuse.
    static PARTS: RefCell<Vec<f32>> = RefCell::default();
}

/// The arithmetic of products; sums and results are f32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Operands in f32.
    #[default]
    F32,
    /// Operands rounded to bf16.
    Bf16(Kernel),
}

impl Arithmetic {
    /// The arithmetic of a precision on the CPU, with the fastest instructions of this processor; the CPU has no products
    /// in f16 and tf32 and computes in f32 instead.
    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 | Precision::Tf32 | Precision::F16 => Self::F32,
            Precision::Bf16 => Self::Bf16(Kernel::best()),
        }
    }
}

/// A weight, `[inner, columns]`, packed for products.
#[derive(Clone, Debug)]
pub enum Weight {
    /// In f32.
    F32(Packed),
    /// In the number format of its file, for products in f32.
    Stored(StoredMatrix),
    /// In bf16, with the instructions of its products.
    Bf16(Kernel, Operand),
}

impl Weight {
    /// No weight yet.
    pub fn empty(arithmetic: Arithmetic) -> Self {
        match arithmetic {
            Arithmetic::F32 => Self::F32(Packed::default()),
            Arithmetic::Bf16(kernel) => Self::Bf16(kernel, Operand::default()),
        }
    }

    /// The number of rows: the inner dimension of a product.
    pub fn inner(&self) -> usize {
        match self {
            Self::F32(packed) => packed.inner(),
            Self::Stored(matrix) => matrix.inner(),
            Self::Bf16(_, operand) => operand.inner(),
        }
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        match self {
            Self::F32(packed) => packed.columns(),
            Self::Stored(matrix) => matrix.columns(),
            Self::Bf16(_, operand) => operand.outer(),
        }
    }

    /// Packs another weight, in the memory of this one where it has some of its own.
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
) -> Weight {
    let mut packed = Weight::empty(arithmetic);
    packed.repack(parallelism, weight, sizes);
    packed
}

/// `y = x w`, or `y += x w`, with `x` `[rows, inner]` and `y` `[rows, columns]`.
///
/// With the packed transpose of a weight and the gradient of its result for `x`, this gives the gradient of its input.
pub fn forward(parallelism: Parallelism, x: &[f32], w: &Weight, y: &mut [f32], add: bool) {
    forward_all(parallelism, x, &mut [(w, y)], add);
}

/// The products of an input with some weights of one arithmetic, as [`forward`].
pub fn forward_all(
    parallelism: Parallelism,
    x: &[f32],
    products: &mut [(&Weight, &mut [f32])],
    add: bool,
) {
    let mut halves = Vec::new();
    for (w, y) in products {
        match w {
            Weight::F32(w) => forward_f32(parallelism, (x, w.inner()), w.strips(), y, add),
            Weight::Stored(w) => forward_f32(parallelism, (x, w.inner()), w.strips(), y, add),
            Weight::Bf16(kernel, w) => halves.push((*kernel, (w, &mut **y))),
        }
    }
    if let Some((kernel, _)) = halves.first() {
        let kernel = *kernel;
        let mut products: Vec<_> = halves.into_iter().map(|(_, product)| product).collect();
        half::forward(kernel, parallelism, x, &mut products, add);
    }
}

fn forward_f32(
    parallelism: Parallelism,
    (x, inner): (&[f32], usize),
    w: impl Columns,
    y: &mut [f32],
    add: bool,
) {
    if parallelism == Parallelism::Sequential {
        w.multiply(x, y, add);
    } else if x.len() / inner >= ROWS {
        by_rows((x, inner), w, y, add);
    } else {
        by_columns((x, inner), w, y, add);
    }
}

/// Computes parts of the rows side by side.
fn by_rows((x, inner): (&[f32], usize), w: impl Columns, y: &mut [f32], add: bool) {
    let (rows, columns) = (rows_of_part(x.len() / inner), w.columns());
    Parallelism::Parallel.each_chunk([(y, rows * columns)], |number, [y]| {
        let some = y.len() / columns;
        w.multiply(&x[number * rows * inner..][..some * inner], y, add);
    });
}

/// Computes parts of the columns side by side, and puts them together.
fn by_columns((x, inner): (&[f32], usize), w: impl Columns, y: &mut [f32], add: bool) {
    let (rows, columns) = (x.len() / inner, w.columns());
    let mut scratch = PARTS.take();
    scratch.resize(scratch.len().max(rows * columns), 0.0);
    let mut rest = &mut scratch[..rows * columns];
    let mut parts = Vec::new();
    let (all, threads) = (columns.div_ceil(STRIP_COLUMNS), rayon::current_num_threads());
    let few = all.div_ceil(threads * all.div_ceil(threads * STRIPS));
    for part in w.parts(few) {
        let (y, after) = rest.split_at_mut(rows * part.columns());
        parts.push((part, y));
        rest = after;
    }
    Parallelism::Parallel.each_mut(&mut parts, |_, (part, y)| part.multiply(x, y, false));
    for (row, mut y) in y.chunks_exact_mut(columns).enumerate() {
        for (part, values) in &parts {
            let (to, after) = y.split_at_mut(part.columns());
            let values = &values[row * to.len()..][..to.len()];
            match add {
                true => to.iter_mut().zip(values).for_each(|(y, x)| *y += x),
                false => to.copy_from_slice(values),
            }
            y = after;
        }
    }
    PARTS.set(scratch);
}

/// Rows of a part of many: all threads get the same number of parts, and parts fill tiles.
fn rows_of_part(rows: usize) -> usize {
    let threads = rayon::current_num_threads();
    let parts = threads * rows.div_ceil(threads * ROWS);
    rows.div_ceil(parts).next_multiple_of(TILE)
}

/// `y = x w`, or `y += x w`, by all threads, with `w` `[inner, columns]` packed a block at a time: for large weights
/// without a packed copy. The inner dimension is summed in blocks of `depth`.
pub fn multiply_unpacked(
    x: &[f32],
    w: View,
    [inner, columns]: [usize; 2],
    depth: usize,
    y: &mut [f32],
    add: bool,
) {
    for k in (0..inner).step_by(depth) {
        let w = View { values: &w.values[k * w.row..], ..w };
        in_columns((x, k), w, [inner, columns, depth.min(inner - k)], y, add || k > 0);
    }
}

/// `dx = dy w^T`, or `dx += dy w^T`, by all threads, with `weight` `[inner, columns]` in the number format of its file,
/// expanded and packed a block at a time: [`multiply_unpacked`] by the transposed weight, in blocks of
/// `DEPTH_BACKWARD`.
pub fn backward_stored(dy: &[f32], weight: &StoredMatrix, dx: &mut [f32], add: bool) {
    let sizes @ [columns, inner] = [weight.columns(), weight.inner()];
    let mut expanded = PARTS.take();
    for k in (0..columns).step_by(DEPTH_BACKWARD) {
        let some = DEPTH_BACKWARD.min(columns - k);
        expanded.resize(expanded.len().max(some * inner), 0.0);
        let block = &mut expanded[..some * inner];
        Parallelism::Parallel.each_chunk([(&mut *block, LANES * inner)], |strip, [to]| {
            weight.columns_from(k + LANES * strip, to);
        });
        let view = View::rows(block, inner);
        in_columns((dy, k), view, [sizes[0], sizes[1], some], dx, add || k > 0);
    }
    PARTS.set(expanded);
}

/// The product of the columns of `x` from number `k` on, `depth` of its `inner`, and a weight `[depth, columns]`.
fn in_columns(
    (x, k): (&[f32], usize),
    w: View,
    [inner, columns, depth]: [usize; 3],
    y: &mut [f32],
    add: bool,
) {
    if x.is_empty() {
        return;
    }
    let rows = rows_of_part(x.len() / inner);
    let width = (BLOCK / depth).max(1).next_multiple_of(STRIP_COLUMNS);
    let mut block = OPERAND.take();
    for j in (0..columns).step_by(width) {
        let view = View { values: &w.values[j * w.column..], ..w };
        block.pack(Parallelism::Parallel, view, depth, width.min(columns - j));
        Parallelism::Parallel.each_chunk([(&mut *y, rows * columns)], |number, [y]| {
            let x = View::rows(&x[number * rows * inner + k..], inner);
            let rows = y.len() / columns;
            let target = Target { values: &mut y[j..], row: columns, add };
            matmul_packed(x, block.strips(), target, rows);
        });
    }
    OPERAND.set(block);
}

/// Adds `x^T dy` to `gradient`, that of a weight `[inputs, outputs]`, for each of some linear layers with the input `x`, from
/// the gradient `dy` of its result.
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
                weight_grad_f32(parallelism, [x, dy], inputs, gradient);
            }
        }
        Arithmetic::Bf16(kernel) => half::weight_grads(kernel, parallelism, x, inputs, results),
    }
}

fn weight_grad_f32(
    parallelism: Parallelism,
    [x, dy]: [&[f32]; 2],
    inputs: usize,
    gradient: &mut [f32],
) {
    let outputs = gradient.len() / inputs;
    let mut packed = OPERAND.take();
    for (x, dy) in x.chunks(DEPTH * inputs).zip(dy.chunks(DEPTH * outputs)) {
        packed.pack(parallelism, View::rows(dy, outputs), dy.len() / outputs, outputs);
        parallelism.each_chunk([(&mut *gradient, INPUTS * outputs)], |number, [gradient]| {
            let x = View::rows(&x[number * INPUTS..], inputs).transpose();
            let rows = gradient.len() / outputs;
            let target = Target { values: gradient, row: outputs, add: true };
            matmul_packed(x, packed.strips(), target, rows);
        });
    }
    OPERAND.set(packed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted};
    use crate::nn::ops::stored::NumberFormat;

    const BOTH: [Parallelism; 2] = [Parallelism::Sequential, Parallelism::Parallel];

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(7);
        for round in 0..8 {
            let parallelism = BOTH[round % 2];
            let (rows, inputs, outputs) = (draws.size(9), draws.size(21), draws.size(70));
            let (x, w) = (draws.numbers(rows * inputs), draws.numbers(inputs * outputs));
            let dy = draws.numbers(rows * outputs);
            let loss = |x: &[f32], w: &[f32]| {
                let packed =
                    pack(Arithmetic::F32, parallelism, View::rows(w, outputs), [inputs, outputs]);
                let mut y = vec![0.0; rows * outputs];
                forward(parallelism, x, &packed, &mut y, false);
                weighted(&y, &dy)
            };
            let transpose = View::rows(&w, outputs).transpose();
            let packed = pack(Arithmetic::F32, parallelism, transpose, [outputs, inputs]);
            let (mut dx, mut d_w) = (vec![0.0; x.len()], vec![0.0; w.len()]);
            forward(parallelism, &dy, &packed, &mut dx, false);
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
            let stored = StoredMatrix::new(NumberFormat::Eight, [inner, columns], 32, |j, to| {
                to.codes.copy_from_slice(&codes[j * inner..][..inner]);
                to.scales.fill([0.125 / (1.0 + j as f32), 0.0]);
            });
            let mut table = vec![0.0; inner * columns];
            for (j, to) in table.chunks_mut(inner).enumerate() {
                stored.column(j, to);
            }
            let (x, dy) = (draws.numbers(rows * inner), draws.numbers(rows * columns));
            let view = View::rows(&table, inner).transpose();
            let parallelism = Parallelism::Parallel;
            let weights = [
                pack(Arithmetic::F32, parallelism, view, [inner, columns]),
                Weight::Stored(stored.clone()),
            ];
            let [expanded, compact] = weights.map(|weight| {
                let mut y = vec![0.5; rows * columns];
                forward(parallelism, &x, &weight, &mut y, true);
                y
            });
            assert!(expanded == compact, "{rows} x {inner} x {columns}");
            let [mut expanded, mut compact] = [0; 2].map(|_| vec![0.5; rows * inner]);
            let transpose = view.transpose();
            let (sizes, depth) = ([columns, inner], DEPTH_BACKWARD);
            multiply_unpacked(&dy, transpose, sizes, depth, &mut expanded, true);
            backward_stored(&dy, &stored, &mut compact, true);
            assert!(expanded == compact, "backward of {rows} x {inner} x {columns}");
        }
    }

    #[test]
    fn products_of_no_rows_change_nothing() {
        let w = [1.0; 6];
        let view = View::rows(&w, 3);
        let stored = StoredMatrix::new(NumberFormat::Eight, [2, 3], 2, |_, to| to.codes.fill(1));
        for add in [false, true] {
            multiply_unpacked(&[], view, [2, 3], 2, &mut [], add);
            backward_stored(&[], &stored, &mut [], add);
        }
        for arithmetic in [Arithmetic::F32, Arithmetic::Bf16(Kernel::best())] {
            for parallelism in BOTH {
                let packed = pack(arithmetic, parallelism, view, [2, 3]);
                forward(parallelism, &[], &packed, &mut [], false);
                let mut gradient = [0.5; 6];
                weight_grads(arithmetic, parallelism, &[], 2, [(&[], &mut gradient)]);
                assert_eq!(gradient, [0.5; 6]);
            }
        }
    }

    #[test]
    fn all_ways_of_a_product_give_the_same_bytes() {
        let mut draws = Draws::new(8);
        for [rows, inputs, outputs] in [[1, 3, 5], [7, 40, 130], [131, 17, 97]] {
            let (x, w) = (draws.numbers(rows * inputs), draws.numbers(inputs * outputs));
            let view = View::rows(&w, outputs);
            let all = BOTH.map(|parallelism| {
                let mut y = vec![0.5; rows * outputs];
                let packed = pack(Arithmetic::F32, parallelism, view, [inputs, outputs]);
                forward(parallelism, &x, &packed, &mut y, true);
                y
            });
            let mut unpacked = vec![0.5; rows * outputs];
            multiply_unpacked(&x, view, [inputs, outputs], inputs, &mut unpacked, true);
            assert!(all[0] == all[1] && all[0] == unpacked);
        }
    }
}
