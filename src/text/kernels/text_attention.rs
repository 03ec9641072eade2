//! Kernels of attention over whole texts, both ways: a running softmax forward, probabilities recomputed backward (Dao et
//! al. 2022), so that memory is linear in the length. A row's gradient is one cube's, so nothing is added atomically.

use super::UNITS;
use super::heads::Heads;
use super::text_heads::Pieces;
use crate::math::softmax::ILLEGAL;
use crate::math::{exp, ln};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// The row of key number `i` among those that a row may see: its prompt's, then its piece's up to itself.
#[cube]
fn key_row(i: usize, prompt_begin: usize, prompt: usize, begin: usize) -> usize {
    let mut row = prompt_begin + i;
    if i >= prompt {
        row = begin + i - prompt;
    }
    row
}

/// Attention of one head of one row; one cube per row and head.
///
/// Buffers: queries `[rows, query_size]`, scaled; keys and values `[rows, key_size]`; those of [`Pieces`];
/// `[rows, query_size]`; for each row and head the logarithm of its softmax's denominator, and a second number that
/// [`delta_kernel`] writes, `[rows, heads, 2]`. Workgroup memory: 2 x [`UNITS`] floats and a head.
#[cube(launch_unchecked)]
pub(crate) fn text_attend_kernel<C: Float>(
    queries: &[f32],
    keys: &[C],
    values: &[C],
    pieces: &Pieces,
    attended: &mut [f32],
    figures: &mut [f32],
    window: usize,
    #[comptime] heads: Heads,
    #[define(C)] _cache: ElemType,
) {
    let (dim, count) = comptime!((heads.dim, heads.queries));
    let cube = CUBE_POS;
    if cube < pieces.rows * count {
        let unit = UNIT_POS as usize;
        let (row, head) = (cube / count, cube % count);
        let of_head = head / comptime!(heads.queries / heads.keys) * dim;
        let (begin, prompt_begin) = (pieces.bound(row, 0usize), pieces.bound(row, 2usize));
        let prompt = pieces.bound(row, 3usize) - prompt_begin;
        // Keys of the text up to this row; the last one is its own.
        let end = prompt + row - begin + 1;
        let mut first = 0usize.runtime();
        if end > window {
            first = end - window;
        }
        let mut query = Shared::<[f32]>::new_slice(dim);
        for i in range_stepped(unit, dim, UNITS) {
            query[i] = queries[cube * dim + i];
        }
        let mut scores = Shared::<[f32]>::new_slice(UNITS);
        let mut weights = Shared::<[f32]>::new_slice(UNITS);
        let parts = comptime!(heads.dim.div_ceil(UNITS));
        let mut sums = Array::<f32>::new(parts);
        #[unroll]
        for part in 0..parts {
            sums[part] = 0.0f32;
        }
        let mut most = f32::new(ILLEGAL);
        let mut sum = 0.0f32;
        sync_cube();
        for start in range_stepped(first, end, UNITS) {
            let i = start + unit;
            let mut score = f32::new(ILLEGAL);
            if i < end {
                let place =
                    key_row(i, prompt_begin, prompt, begin) * comptime!(heads.key_size()) + of_head;
                let mut product = 0.0f32;
                for d in 0..dim {
                    product += query[d] * f32::cast_from(keys[place + d]);
                }
                score = product;
            }
            scores[unit] = score;
            sync_cube();
            let before = most;
            for i in 0..UNITS {
                if scores[i] > most {
                    most = scores[i];
                }
            }
            let mut weight = 0.0f32;
            if score > ILLEGAL {
                weight = exp(score - most);
            }
            weights[unit] = weight;
            sync_cube();
            let kept = exp(before - most);
            sum *= kept;
            #[unroll]
            for part in 0..parts {
                sums[part] *= kept;
            }
            let mut last = end - start;
            if last > UNITS {
                last = UNITS.runtime();
            }
            for key in 0..last {
                let weight = weights[key];
                sum += weight;
                let place = key_row(start + key, prompt_begin, prompt, begin)
                    * comptime!(heads.key_size())
                    + of_head;
                #[unroll]
                for part in 0..parts {
                    let d = unit + comptime!(part * UNITS);
                    if d < dim {
                        sums[part] += weight * f32::cast_from(values[place + d]);
                    }
                }
            }
        }
        #[unroll]
        for part in 0..parts {
            let d = unit + comptime!(part * UNITS);
            if d < dim {
                attended[cube * dim + d] = sums[part] / sum;
            }
        }
        if unit == 0 {
            figures[2 * cube] = most + ln(sum);
        }
    }
}

/// Computes the product of the result of attention with its gradient, for each row and head; one unit each.
///
/// Buffers: the result and its gradient, `[count, dim]`; `[count, 2]`, the second numbers of which are written.
#[cube(launch_unchecked)]
pub(crate) fn delta_kernel(
    attended: &[f32],
    d_attended: &[f32],
    figures: &mut [f32],
    count: usize,
    #[comptime] dim: usize,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let mut sum = 0.0f32;
        for d in 0..dim {
            sum += attended[i * dim + d] * d_attended[i * dim + d];
        }
        figures[2 * i + 1] = sum;
    }
}

/// The gradient of queries; one cube per row and head.
///
/// Buffers: queries and the gradient of the result, `[rows, query_size]`; keys and values `[rows, key_size]`;
/// the figures of [`text_attend_kernel`]; those of [`Pieces`]; `[rows, query_size]`. Workgroup memory: [`UNITS`] floats
/// and two heads.
#[cube(launch_unchecked)]
pub(crate) fn query_gradient_kernel<C: Float>(
    queries: &[f32],
    d_attended: &[f32],
    keys: &[C],
    values: &[C],
    figures: &[f32],
    pieces: &Pieces,
    d_queries: &mut [f32],
    window: usize,
    #[comptime] heads: Heads,
    #[define(C)] _cache: ElemType,
) {
    let (dim, count) = comptime!((heads.dim, heads.queries));
    let cube = CUBE_POS;
    if cube < pieces.rows * count {
        let unit = UNIT_POS as usize;
        let (row, head) = (cube / count, cube % count);
        let of_head = head / comptime!(heads.queries / heads.keys) * dim;
        let (begin, prompt_begin) = (pieces.bound(row, 0usize), pieces.bound(row, 2usize));
        let prompt = pieces.bound(row, 3usize) - prompt_begin;
        let end = prompt + row - begin + 1;
        let mut first = 0usize.runtime();
        if end > window {
            first = end - window;
        }
        let mut query = Shared::<[f32]>::new_slice(dim);
        let mut d_result = Shared::<[f32]>::new_slice(dim);
        for i in range_stepped(unit, dim, UNITS) {
            query[i] = queries[cube * dim + i];
            d_result[i] = d_attended[cube * dim + i];
        }
        let (log_total, delta) = (figures[2 * cube], figures[2 * cube + 1]);
        let mut slopes = Shared::<[f32]>::new_slice(UNITS);
        let parts = comptime!(heads.dim.div_ceil(UNITS));
        let mut sums = Array::<f32>::new(parts);
        #[unroll]
        for part in 0..parts {
            sums[part] = 0.0f32;
        }
        for start in range_stepped(first, end, UNITS) {
            sync_cube();
            let i = start + unit;
            if i < end {
                let place =
                    key_row(i, prompt_begin, prompt, begin) * comptime!(heads.key_size()) + of_head;
                let mut score = 0.0f32;
                let mut of_weight = 0.0f32;
                for d in 0..dim {
                    score += query[d] * f32::cast_from(keys[place + d]);
                    of_weight += d_result[d] * f32::cast_from(values[place + d]);
                }
                slopes[unit] = exp(score - log_total) * (of_weight - delta);
            }
            sync_cube();
            let mut last = end - start;
            if last > UNITS {
                last = UNITS.runtime();
            }
            for key in 0..last {
                let slope = slopes[key];
                let place = key_row(start + key, prompt_begin, prompt, begin)
                    * comptime!(heads.key_size())
                    + of_head;
                #[unroll]
                for part in 0..parts {
                    let d = unit + comptime!(part * UNITS);
                    if d < dim {
                        sums[part] += slope * f32::cast_from(keys[place + d]);
                    }
                }
            }
        }
        #[unroll]
        for part in 0..parts {
            let d = unit + comptime!(part * UNITS);
            if d < dim {
                d_queries[cube * dim + d] = sums[part];
            }
        }
    }
}

/// The gradient of keys, or of values; one cube per row and head of keys. The rows that see a key are those of its piece
/// from its own on, and those of the completions that follow it.
///
/// Buffers: those of [`query_gradient_kernel`], but for the last: `[rows, key_size]`. Workgroup memory: [`UNITS`] floats
/// and two heads.
#[cube(launch_unchecked)]
pub(crate) fn key_gradient_kernel<C: Float>(
    queries: &[f32],
    d_attended: &[f32],
    keys: &[C],
    values: &[C],
    figures: &[f32],
    pieces: &Pieces,
    gradient: &mut [f32],
    window: usize,
    #[comptime] heads: Heads,
    #[comptime] of_values: bool,
    #[define(C)] _cache: ElemType,
) {
    let (dim, count) = comptime!((heads.dim, heads.keys));
    let cube = CUBE_POS;
    if cube < pieces.rows * count {
        let unit = UNIT_POS as usize;
        let (row, head) = (cube / count, cube % count);
        let members = comptime!(heads.queries / heads.keys);
        let follower = pieces.bound(row, 4usize);
        let own = pieces.bound(row, 1usize) - row;
        // Rows and heads that see the key.
        let end = (own + pieces.bound(row, 5usize) - follower) * members;
        let position = pieces.position(row);
        let mut key = Shared::<[f32]>::new_slice(dim);
        let mut value = Shared::<[f32]>::new_slice(dim);
        for i in range_stepped(unit, dim, UNITS) {
            key[i] = f32::cast_from(keys[cube * dim + i]);
            value[i] = f32::cast_from(values[cube * dim + i]);
        }
        let mut slopes = Shared::<[f32]>::new_slice(UNITS);
        let mut places = Shared::<[u32]>::new_slice(UNITS);
        let parts = comptime!(heads.dim.div_ceil(UNITS));
        let mut sums = Array::<f32>::new(parts);
        #[unroll]
        for part in 0..parts {
            sums[part] = 0.0f32;
        }
        for start in range_stepped(0, end, UNITS) {
            sync_cube();
            let i = start + unit;
            if i < end {
                let number = i / members;
                let mut by = row + number;
                if number >= own {
                    by = follower + number - own;
                }
                let place = by * comptime!(heads.queries) + head * members + i % members;
                let mut slope = 0.0f32;
                if pieces.position(by) < position + window {
                    let mut score = 0.0f32;
                    let mut of_weight = 0.0f32;
                    for d in 0..dim {
                        score += key[d] * queries[place * dim + d];
                        of_weight += value[d] * d_attended[place * dim + d];
                    }
                    slope = exp(score - figures[2 * place]);
                    if comptime!(!of_values) {
                        slope *= of_weight - figures[2 * place + 1];
                    }
                }
                slopes[unit] = slope;
                places[unit] = place as u32;
            }
            sync_cube();
            let mut last = end - start;
            if last > UNITS {
                last = UNITS.runtime();
            }
            for number in 0..last {
                let (slope, place) = (slopes[number], places[number] as usize);
                #[unroll]
                for part in 0..parts {
                    let d = unit + comptime!(part * UNITS);
                    if d < dim {
                        if comptime!(of_values) {
                            sums[part] += slope * d_attended[place * dim + d];
                        } else {
                            sums[part] += slope * queries[place * dim + d];
                        }
                    }
                }
            }
        }
        #[unroll]
        for part in 0..parts {
            let d = unit + comptime!(part * UNITS);
            if d < dim {
                gradient[cube * dim + d] = sums[part];
            }
        }
    }
}
