//! Products with stored weights, which are expanded in registers for a few rows, else strip by strip in memory.

use super::codes::RowPair;
use crate::math::{LANES, Lanes, map_array, mul_add};
use crate::nn::ops::matmul::{
    PackedMatrix, STRIP_COLUMNS, Target, View, has_avx512, matmul_packed,
};
use crate::nn::ops::{Parallelism, WriteMode};
use multiversion::multiversion;
use std::cell::RefCell;

/// Strips of columns that are multiplied side by side.
pub const STRIPS_AT_A_TIME: usize = STRIP_COLUMNS / LANES;
/// Maximum number of rows that are multiplied side by side while weights are expanded. With fewer registers than
/// AVX-512 has, the sums of two rows fill them; more pay only where an expansion costs more than the spills.
const ROWS_AT_A_TIME: usize = 4;
/// [`RowPair::MAX_FUSED_ROWS`] of all formats with fewer registers than AVX-512 has.
const MAX_FUSED_ROWS_FEW_REGISTERS: usize = 4;

thread_local! {
    /// The memory of expanded strips, for reuse.
    static EXPANDED: RefCell<PackedMatrix> = RefCell::default();
}

/// A strip of [`LANES`] columns.
#[derive(Clone, Copy)]
pub struct Strip<'a, P> {
    /// `[inner / 2]`.
    pub pairs: &'a [P],
    /// Scales and offsets of each group, `[groups]`; for formats without them, one arbitrary entry.
    pub scales: &'a [[Lanes; 2]],
}

/// `y = x w`, or `y += x w`, with `x` `[rows, inner]`, `y` `[rows, columns]`, and `w` in strips of columns whose scales
/// hold for `group_size` rows each.
pub fn multiply<'a, P: RowPair>(
    [inner, group_size]: [usize; 2],
    strip: impl Fn(usize) -> Strip<'a, P> + Sync,
    columns: usize,
    x: &[f32],
    y: &mut [f32],
    mode: WriteMode,
) {
    let rows = x.len() / inner;
    let has_many = has_avx512();
    let max_fused_rows = if has_many { P::MAX_FUSED_ROWS } else { MAX_FUSED_ROWS_FEW_REGISTERS };
    let takes_two_rows = !has_many && !P::HAS_SCALES;
    let mut expanded = EXPANDED.take();
    for from in (0..columns).step_by(STRIP_COLUMNS) {
        let (first, width) = (from / LANES, STRIP_COLUMNS.min(columns - from));
        let vectors = width.div_ceil(LANES);
        if rows > max_fused_rows {
            expanded.fill(Parallelism::Sequential, [inner, width], |_, lanes| {
                for v in 0..vectors {
                    expand(strip(first + v), group_size, &mut lanes[v..], vectors);
                }
            });
            let y = Target::rows(&mut y[from..], columns, mode);
            matmul_packed(View::rows(x, inner), expanded.strips(), y, rows);
            continue;
        }
        // Where fewer strips are left, the last one is multiplied again and its product dropped.
        let strips = std::array::from_fn(|v| strip(first + v.min(vectors - 1)));
        let mut done = 0;
        while done < rows {
            let x = &x[done * inner..];
            let y = Target::rows(&mut y[done * columns + from..], columns, mode);
            done += match rows - done {
                1 => multiply_fused::<P, 1>(strips, [inner, group_size], x, y, width),
                rows if rows < ROWS_AT_A_TIME || takes_two_rows => {
                    multiply_fused::<P, 2>(strips, [inner, group_size], x, y, width)
                }
                _ => multiply_fused::<P, ROWS_AT_A_TIME>(strips, [inner, group_size], x, y, width),
            };
        }
    }
    EXPANDED.set(expanded);
}

/// Computes the first `width` columns of the product of the first `R` rows of `x` and some strips; returns `R`.
fn multiply_fused<P: RowPair, const R: usize>(
    strips: [Strip<P>; STRIPS_AT_A_TIME],
    [inner, group_size]: [usize; 2],
    x: &[f32],
    y: Target,
    width: usize,
) -> usize {
    let x = std::array::from_fn(|r| &x[r * inner..][..inner]);
    let mut sums = [[[0.0; LANES]; STRIPS_AT_A_TIME]; R];
    add_up::<P, R>(strips, group_size, x, &mut sums);
    for (r, sums) in sums.iter().enumerate() {
        let y_row = &mut y.values[r * y.row_stride..][..width];
        let sums = &sums.as_flattened()[..width];
        y.mode.write_row(y_row, sums);
    }
    R
}

/// Fills the sums of `R` rows and some strips, in the order of the inner dimension.
#[multiversion(targets(
    "x86_64+avx512f+avx512vl+avx512bw+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
fn add_up<P: RowPair, const R: usize>(
    strips: [Strip<P>; STRIPS_AT_A_TIME],
    group_size: usize,
    x: [&[f32]; R],
    results: &mut [[Lanes; STRIPS_AT_A_TIME]; R],
) {
    let mut sums = [[[0.0f32; LANES]; STRIPS_AT_A_TIME]; R];
    let inner = x[0].len();
    for (index, first) in (0..inner).step_by(group_size).enumerate() {
        let scales = map_array(strips, |strip| strip.scales[index]);
        let count = group_size.min(inner - first);
        let x = map_array(x, |x| &x[first..][..count]);
        let pairs = map_array(strips, |strip| &strip.pairs[first / 2..][..count.div_ceil(2)]);
        for k in 0..count.div_ceil(2) {
            let mut numbers = [[[0.0; LANES]; 2]; STRIPS_AT_A_TIME];
            for ((numbers, pairs), scales) in numbers.iter_mut().zip(pairs).zip(&scales) {
                *numbers = pairs[k].expand(scales);
            }
            for odd in 0..2 {
                if 2 * k + odd == count {
                    break;
                }
                for (sums, x) in sums.iter_mut().zip(x) {
                    let x = x[2 * k + odd];
                    for (sums, numbers) in sums.iter_mut().zip(&numbers) {
                        for (sum, number) in sums.iter_mut().zip(&numbers[odd]) {
                            *sum = mul_add(x, *number, *sum);
                        }
                    }
                }
            }
        }
    }
    *results = sums;
}

/// Expands a strip: a vector for each row, `step` apart.
#[multiversion(targets(
    "x86_64+avx512f+avx512vl+avx512bw+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
pub fn expand<P: RowPair>(strip: Strip<P>, group_size: usize, vectors: &mut [Lanes], step: usize) {
    let mut rows = vectors.iter_mut().step_by(step);
    for (pairs, scales) in strip.pairs.chunks(group_size / 2).zip(strip.scales) {
        for pair in pairs {
            for (numbers, vectors) in pair.expand(scales).into_iter().zip(&mut rows) {
                *vectors = numbers;
            }
        }
    }
}
