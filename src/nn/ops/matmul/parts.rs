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
    (x, inner): (&[f32], usize),
    w: impl WeightColumns,
    y: &mut [f32],
    mode: WriteMode,
) {
    if x.len() / inner >= PART_ROWS {
        by_rows(parallelism, (x, inner), w, y, mode);
    } else if parallelism == Parallelism::Sequential {
        w.multiply(x, y, mode);
    } else {
        by_columns((x, inner), w, y, mode);
    }
}

/// Computes parts of the rows in parallel, block by block of a weight that has to be expanded.
fn by_rows(
    parallelism: Parallelism,
    (x, inner): (&[f32], usize),
    w: impl WeightColumns,
    y: &mut [f32],
    mode: WriteMode,
) {
    let (all, columns) = (x.len() / inner, w.columns());
    let rows = match parallelism {
        Parallelism::Sequential => all,
        Parallelism::Parallel => rows_of_part(all),
    };
    let (mut memory, mut from) = (OPERAND.take(), 0);
    for block in w.parts(w.strips_of_block(BLOCK_ELEMENTS)) {
        let strips = block.expanded(parallelism, &mut memory);
        parallelism.each_chunk([(&mut *y, rows * columns)], |number, [y]| {
            let x = View::rows(&x[number * rows * inner..], inner);
            let rows = y.len() / columns;
            let target = Target { values: &mut y[from..], row_stride: columns, mode };
            matmul_packed(x, strips, target, rows);
        });
        from += block.columns();
    }
    OPERAND.set(memory);
}

/// Computes parts of the columns in parallel, each in its own buffer, and copies them to the rows of the result.
fn by_columns((x, inner): (&[f32], usize), w: impl WeightColumns, y: &mut [f32], mode: WriteMode) {
    let (rows, columns) = (x.len() / inner, w.columns());
    let mut scratch = PARTS.take();
    scratch.resize(scratch.len().max(rows * columns), 0.0);
    let mut rest = &mut scratch[..rows * columns];
    let mut parts = Vec::new();
    let (all, threads) = (columns.div_ceil(STRIP_COLUMNS), rayon::current_num_threads());
    let few = all.div_ceil(threads * all.div_ceil(threads * MAX_PART_STRIPS));
    for part in w.parts(few) {
        let (y, after) = rest.split_at_mut(rows * part.columns());
        parts.push((part, y));
        rest = after;
    }
    Parallelism::Parallel
        .each_mut(&mut parts, |_, (part, y)| part.multiply(x, y, WriteMode::Overwrite));
    for (row, mut y) in y.chunks_exact_mut(columns).enumerate() {
        for (part, values) in &parts {
            let (to, after) = y.split_at_mut(part.columns());
            let values = &values[row * to.len()..][..to.len()];
            mode.write_row(to, values);
            y = after;
        }
    }
    PARTS.set(scratch);
}

/// Rows of a part of many: all threads get the same number of parts, and parts fill tiles.
fn rows_of_part(rows: usize) -> usize {
    let threads = rayon::current_num_threads();
    let parts = threads * rows.div_ceil(threads * PART_ROWS);
    rows.div_ceil(parts).next_multiple_of(MAX_TILE_ROWS)
}

/// The product of the columns of `x` from number `k` on, `depth` of its `inner`, and a weight `[depth, columns]`.
pub fn multiply_block(
    (x, k): (&[f32], usize),
    w: View,
    [inner, columns, depth]: [usize; 3],
    y: &mut [f32],
    mode: WriteMode,
) {
    if x.is_empty() {
        return;
    }
    let rows = rows_of_part(x.len() / inner);
    let width = (BLOCK_ELEMENTS / depth).max(1).next_multiple_of(STRIP_COLUMNS);
    let mut block = OPERAND.take();
    for j in (0..columns).step_by(width) {
        let view = View { values: &w.values[j * w.column_stride..], ..w };
        block.pack(Parallelism::Parallel, view, depth, width.min(columns - j));
        Parallelism::Parallel.each_chunk([(&mut *y, rows * columns)], |number, [y]| {
            let x = View::rows(&x[number * rows * inner + k..], inner);
            let rows = y.len() / columns;
            let target = Target { values: &mut y[j..], row_stride: columns, mode };
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
        parallelism.each_chunk([(&mut *gradient, PART_INPUTS * outputs)], |number, [gradient]| {
            let x = View::rows(&x[number * PART_INPUTS..], inputs).transpose();
            let rows = gradient.len() / outputs;
            let target =
                Target { values: gradient, row_stride: outputs, mode: WriteMode::Accumulate };
            matmul_packed(x, packed.strips(), target, rows);
        });
    }
    OPERAND.set(packed);
}
