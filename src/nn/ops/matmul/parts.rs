//! Products in f32 divided into parts for several threads. Each number of a result is still the same sum in the same
//! order.

use super::{
    MAX_TILE_ROWS, PackedMatrix, STRIP_COLUMNS, Target, View, WeightColumns, matmul_packed,
};
use crate::nn::ops::{Parallelism, WriteMode};
use std::cell::RefCell;

/// Minimum rows of a product that is divided by rows, and maximum rows of one part.
const PART_ROWS: usize = 128;
/// Maximum strips of columns in a part of a product of few rows.
const MAX_PART_STRIPS: usize = 4;
/// Rows of a weight gradient in one part.
const PART_INPUTS: usize = 64;
/// Rows summed at a time for a weight gradient: as many as the caches hold.
const SUMMED_ROWS: usize = 512;
/// Elements in a block of a large weight.
const BLOCK_ELEMENTS: usize = 1 << 20;

thread_local! {
    /// The memory of a packed operand, for reuse.
    static OPERAND: RefCell<PackedMatrix> = RefCell::default();
    /// The memory of partial results, for reuse.
    static PARTS: RefCell<Vec<f32>> = RefCell::default();
}

/// `y = x w`, or `y += x w`, with `x` `[rows, inner]` and `y` `[rows, columns]`.
pub fn forward(
    parallelism: Parallelism,
    x: &[f32],
    w: impl WeightColumns,
    y: &mut [f32],
    mode: WriteMode,
) {
    if x.len() / w.inner() >= PART_ROWS {
        multiply_by_rows(parallelism, x, w, y, mode);
    } else if parallelism == Parallelism::Sequential {
        w.multiply(x, y, mode);
    } else {
        multiply_by_columns(x, w, y, mode);
    }
}

/// Computes parts of the rows in parallel, block by block of a weight that has to be expanded.
fn multiply_by_rows(
    parallelism: Parallelism,
    x: &[f32],
    w: impl WeightColumns,
    y: &mut [f32],
    mode: WriteMode,
) {
    let (inner, columns) = (w.inner(), w.columns());
    let num_rows = x.len() / inner;
    let part_rows = match parallelism {
        Parallelism::Sequential => num_rows,
        Parallelism::Parallel => rows_per_part(num_rows),
    };
    let (mut memory, mut from) = (OPERAND.take(), 0);
    for block in w.parts(w.strips_per_block(BLOCK_ELEMENTS)) {
        let strips = block.expand_into(parallelism, &mut memory);
        parallelism.each_chunk([(&mut *y, part_rows * columns)], |index, [y]| {
            let x = View::rows(x, inner).rows_from(index * part_rows);
            let rows = y.len() / columns;
            let target = Target::rows(&mut y[from..], columns, mode);
            matmul_packed(x, strips, target, rows);
        });
        from += block.columns();
    }
    OPERAND.set(memory);
}

/// Computes parts of the columns in parallel, each in its own buffer, and copies them to the rows of the result.
fn multiply_by_columns(x: &[f32], w: impl WeightColumns, y: &mut [f32], mode: WriteMode) {
    let (rows, columns) = (x.len() / w.inner(), w.columns());
    let mut scratch = PARTS.take();
    scratch.resize(scratch.len().max(rows * columns), 0.0);
    let mut rest = &mut scratch[..rows * columns];
    let mut parts = Vec::new();
    let (num_strips, threads) = (columns.div_ceil(STRIP_COLUMNS), rayon::current_num_threads());
    let part_strips = num_strips.div_ceil(threads * num_strips.div_ceil(threads * MAX_PART_STRIPS));
    for part in w.parts(part_strips) {
        let y = rest.split_off_mut(..rows * part.columns()).expect("the columns of all parts");
        parts.push((part, y));
    }
    Parallelism::Parallel
        .each_mut(&mut parts, |_, (part, y)| part.multiply(x, y, WriteMode::Overwrite));
    for (row, mut y) in y.chunks_exact_mut(columns).enumerate() {
        for (part, values) in &parts {
            let to = y.split_off_mut(..part.columns()).expect("the columns of all parts");
            mode.write_row(to, &values[row * to.len()..][..to.len()]);
        }
    }
    PARTS.set(scratch);
}

/// The rows of a part of a product: all threads get the same number of parts, and parts fill tiles.
fn rows_per_part(rows: usize) -> usize {
    let threads = rayon::current_num_threads();
    let parts = threads * rows.div_ceil(threads * PART_ROWS);
    rows.div_ceil(parts).next_multiple_of(MAX_TILE_ROWS)
}

/// `y = x w`, or `y += x w`, by all threads, with the first `depth` columns of `x`, `w` `[depth, columns]`, packed a
/// block at a time, and `y` `[rows, columns]`, not empty.
pub fn multiply_block(
    x: View,
    w: View,
    [depth, columns]: [usize; 2],
    y: &mut [f32],
    mode: WriteMode,
) {
    let part_rows = rows_per_part(y.len() / columns);
    let width = (BLOCK_ELEMENTS / depth).max(1).next_multiple_of(STRIP_COLUMNS);
    let mut block = OPERAND.take();
    for j in (0..columns).step_by(width) {
        block.pack(Parallelism::Parallel, w.columns_from(j), depth, width.min(columns - j));
        Parallelism::Parallel.each_chunk([(&mut *y, part_rows * columns)], |index, [y]| {
            let x = x.rows_from(index * part_rows);
            let rows = y.len() / columns;
            let target = Target::rows(&mut y[j..], columns, mode);
            matmul_packed(x, block.strips(), target, rows);
        });
    }
    OPERAND.set(block);
}

/// Adds `x^T dy` to `gradient`, `[inputs, outputs]`.
pub fn weight_grad(
    parallelism: Parallelism,
    [x, dy]: [&[f32]; 2],
    inputs: usize,
    gradient: &mut [f32],
) {
    let outputs = gradient.len() / inputs;
    let mut packed = OPERAND.take();
    for (x, dy) in x.chunks(SUMMED_ROWS * inputs).zip(dy.chunks(SUMMED_ROWS * outputs)) {
        packed.pack(parallelism, View::rows(dy, outputs), dy.len() / outputs, outputs);
        parallelism.each_chunk([(&mut *gradient, PART_INPUTS * outputs)], |index, [gradient]| {
            let x = View::rows(x, inputs).columns_from(index * PART_INPUTS).transpose();
            let rows = gradient.len() / outputs;
            let target = Target::rows(gradient, outputs, WriteMode::Accumulate);
            matmul_packed(x, packed.strips(), target, rows);
        });
    }
    OPERAND.set(packed);
}
