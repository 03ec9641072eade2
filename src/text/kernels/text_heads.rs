//! Kernels of queries and keys of whole texts: rotations of rows, norms and rotation of heads, and their backward pass.

use super::UNITS;
use super::heads::{KernelHeadShape, compute_head_rms, compute_rotation};
use super::rows::ROWS_PER_CUBE;
use crate::device::buffers::Buffer;
use crate::math::unrotate_pair;
use crate::nn::arch::QkNorm;
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Number of entries per segment of text in the table of [`Segments`].
pub(crate) const SEGMENT_BOUNDS: usize = 6;
// Entries of a segment: begin and end of its own rows, of those of its prompt, and of those of the completions that
// follow it.
pub(crate) const OWN_START: usize = 0;
pub(crate) const OWN_END: usize = 1;
pub(crate) const PROMPT_START: usize = 2;
pub(crate) const PROMPT_END: usize = 3;
pub(crate) const COMPLETIONS_START: usize = 4;
pub(crate) const COMPLETIONS_END: usize = 5;

/// The segments that the rows of a pass belong to: prompts, and their completions.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Segments {
    /// The segment of each row, `[rows]`, then the bounds of each segment, `[segments, SEGMENT_BOUNDS]`.
    pub table: Buffer<i32>,
    /// Rows of the pass.
    pub rows: usize,
}

#[cube]
impl Segments {
    /// A bound of a row's segment.
    pub fn bound(&self, row: usize, #[comptime] entry: usize) -> usize {
        self.table[self.rows + self.table[row] as usize * SEGMENT_BOUNDS + entry] as usize
    }

    /// The position of a row in its text.
    pub fn position(&self, row: usize) -> usize {
        row - self.bound(row, OWN_START) + self.bound(row, PROMPT_END)
            - self.bound(row, PROMPT_START)
    }
}

/// Computes cosine and sine of each pair of a head at the position of each row; one unit per row and pair.
///
/// Buffers: those of [`Segments`]; the rotations of low and high parts, `[low + high, num_pairs, 2]`; `[rows,
/// num_pairs, 2]`.
#[cube(launch_unchecked)]
pub(crate) fn text_rotation_kernel(
    segments: &Segments,
    table: &[f32],
    rotations: &mut [f32],
    low: usize,
    high: usize,
    #[comptime] num_pairs: usize,
) {
    let unit = ABSOLUTE_POS;
    if unit < segments.rows * num_pairs {
        let (row, pair) = (unit / num_pairs, unit % num_pairs);
        let position = segments.position(row);
        let (cosine, sine) = compute_rotation(table, position, pair, low, high, num_pairs);
        rotations[2 * unit] = cosine;
        rotations[2 * unit + 1] = sine;
    }
}

/// Computes the index of the first weight of a head's norm; those of head 0 begin at `first`.
#[cube]
fn find_weights(
    head: usize,
    #[comptime] first: usize,
    #[comptime] heads: KernelHeadShape,
) -> usize {
    let mut first_weight = comptime!(first).runtime();
    if comptime!(heads.qk_norm == QkNorm::AllHeads) {
        first_weight += head * comptime!(heads.head_dim);
    }
    first_weight
}

/// Norms and rotates queries and keys, and multiplies queries by `scale`; one cube per row.
///
/// Buffers: `[rows, query_size]`; `[rows, kv_size]`; rotations `[rows, num_pairs, 2]`; weights of the norms of queries
/// and keys; the results, of the shapes of the inputs. Workgroup memory: a float per head.
#[cube(launch_unchecked)]
pub(crate) fn norm_rotate_kernel<C: Float>(
    queries: &[f32],
    keys: &[f32],
    rotations: &[f32],
    weights: &[f32],
    rotated_queries: &mut [f32],
    rotated_keys: &mut [C],
    rows: usize,
    scale: f32,
    eps: f32,
    #[comptime] heads: KernelHeadShape,
    #[define(C)] _element: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let (dim, num_pairs, query_heads) =
            comptime!((heads.head_dim, heads.num_rotary_pairs, heads.num_query_heads));
        let all_heads = comptime!(heads.num_query_heads + heads.num_kv_heads);
        let query_start = row * comptime!(heads.query_size());
        let key_start = row * comptime!(heads.kv_size());
        let mut head_rms = Shared::<[f32]>::new_slice(all_heads);
        if comptime!(heads.has_head_norms()) {
            compute_head_rms(
                queries,
                query_start,
                keys,
                key_start,
                &mut head_rms,
                eps,
                heads,
                UNITS,
            );
        }
        let rotation = row * comptime!(2 * heads.num_rotary_pairs);
        for item in range_stepped(UNIT_POS as usize, all_heads * dim, UNITS) {
            let (head, i) = (item / dim, item % dim);
            // The element that this one rotates with.
            let mut other = i;
            let mut cos = 1.0f32;
            let mut sin = 0.0f32;
            if i < num_pairs {
                other = i + num_pairs;
                cos = rotations[rotation + 2 * i];
                sin = -rotations[rotation + 2 * i + 1];
            } else if i < 2 * num_pairs {
                other = i - num_pairs;
                cos = rotations[rotation + 2 * other];
                sin = rotations[rotation + 2 * other + 1];
            }
            if head < query_heads {
                let at = query_start + head * dim;
                let mut a = queries[at + i];
                let mut b = queries[at + other];
                if comptime!(heads.has_head_norms()) {
                    let w = find_weights(head, 0usize, heads);
                    a = a / head_rms[head] * weights[w + i];
                    b = b / head_rms[head] * weights[w + other];
                }
                rotated_queries[at + i] = (a * cos + b * sin) * scale;
            } else {
                let at = key_start + (head - query_heads) * dim;
                let mut a = keys[at + i];
                let mut b = keys[at + other];
                if comptime!(heads.has_head_norms()) {
                    let w =
                        find_weights(head - query_heads, comptime!(heads.query_norm_size()), heads);
                    a = a / head_rms[head] * weights[w + i];
                    b = b / head_rms[head] * weights[w + other];
                }
                rotated_keys[at + i] = C::cast_from(a * cos + b * sin);
            }
        }
    }
}

/// Indices of what belongs to a head in the buffers of a pass.
#[derive(CubeType, Clone, Copy)]
struct HeadPlace {
    /// The head's first element.
    at: usize,
    /// The rotation of the head's first pair.
    rotation: usize,
    /// The first weight of the head's norm.
    first_weight: usize,
}

/// Computes the gradient of element `i` of a head before its rotation, from that of the rotated head at `at`.
#[cube]
fn unrotate(
    d: &[f32],
    at: usize,
    i: usize,
    rotations: &[f32],
    rotation: usize,
    #[comptime] num_pairs: usize,
) -> f32 {
    let mut result = d[at + i];
    if i < num_pairs {
        let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
        result = d[at + i] * cos + d[at + num_pairs + i] * sin;
    } else if i < 2 * num_pairs {
        let pair = i - num_pairs;
        let (cos, sin) = (rotations[rotation + 2 * pair], rotations[rotation + 2 * pair + 1]);
        result = d[at + i] * cos - d[at + pair] * sin;
    }
    result
}

/// Computes the gradients of queries and keys from those of the rotated ones, for layers without norms of heads; one
/// unit per pair, or element that does not rotate.
///
/// Buffers: rotations `[rows, num_pairs, 2]`; the gradients of rotated queries and keys, and of those before, `[rows,
/// query_size]` and `[rows, kv_size]` each.
#[cube(launch_unchecked)]
pub(crate) fn unrotate_kernel<N: Float>(
    rotations: &[f32],
    d_rotated_queries: &[f32],
    d_rotated_keys: &[f32],
    d_queries: &mut [N],
    d_keys: &mut [N],
    rows: usize,
    scale: f32,
    #[comptime] heads: KernelHeadShape,
    #[define(N)] _element: ElemType,
) {
    let (dim, num_pairs, query_heads) =
        comptime!((heads.head_dim, heads.num_rotary_pairs, heads.num_query_heads));
    let (all_heads, items) = comptime!((
        heads.num_query_heads + heads.num_kv_heads,
        heads.head_dim - heads.num_rotary_pairs
    ));
    let item = ABSOLUTE_POS;
    if item < rows * comptime!(all_heads * items) {
        let (row, head) = (item / comptime!(all_heads * items), item / items % all_heads);
        let i = item % items;
        let rotation = row * comptime!(2 * heads.num_rotary_pairs);
        if head < query_heads {
            let at = row * comptime!(heads.query_size()) + head * dim;
            unrotate_item(
                d_rotated_queries,
                d_queries,
                at,
                i,
                rotations,
                rotation,
                scale,
                num_pairs,
            );
        } else {
            let at = row * comptime!(heads.kv_size()) + (head - query_heads) * dim;
            unrotate_item(d_rotated_keys, d_keys, at, i, rotations, rotation, 1.0f32, num_pairs);
        }
    }
}

/// Computes the gradient of item `i` of the head that begins at `at`, from that of the rotated one: a pair, or an
/// element that does not rotate.
#[cube]
fn unrotate_item<N: Float>(
    d_rotated: &[f32],
    d: &mut [N],
    at: usize,
    i: usize,
    rotations: &[f32],
    rotation: usize,
    factor: f32,
    #[comptime] num_pairs: usize,
) {
    if i < num_pairs {
        let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
        let (a, b) = (d_rotated[at + i], d_rotated[at + num_pairs + i]);
        let (first, second) = unrotate_pair(a, b, cos, sin);
        d[at + i] = N::cast_from(first * factor);
        d[at + num_pairs + i] = N::cast_from(second * factor);
    } else {
        d[at + num_pairs + i] = N::cast_from(d_rotated[at + num_pairs + i] * factor);
    }
}

/// Sums over one head what the gradient of its norm needs: the squares of the elements, and their products with weights
/// and gradients.
#[cube]
fn sum_head(
    x: &[f32],
    d: &[f32],
    rotations: &[f32],
    weights: &[f32],
    place: HeadPlace,
    #[comptime] heads: KernelHeadShape,
) -> (f32, f32) {
    let mut square = 0.0f32;
    let mut dot = 0.0f32;
    for i in 0..comptime!(heads.head_dim) {
        let element = x[place.at + i];
        let d_normed =
            unrotate(d, place.at, i, rotations, place.rotation, comptime!(heads.num_rotary_pairs));
        square += element * element;
        dot += d_normed * weights[place.first_weight + i] * element;
    }
    (square, dot)
}

/// Turns the gradient of one rotated head into that of the head before norm and rotation, in place.
#[cube]
fn backpropagate_head(
    x: &[f32],
    d: &mut [f32],
    rotations: &[f32],
    weights: &[f32],
    place: HeadPlace,
    rms: f32,
    dot: f32,
    factor: f32,
    #[comptime] heads: KernelHeadShape,
) {
    let (dim, num_pairs) = comptime!((heads.head_dim, heads.num_rotary_pairs));
    let (at, rotation, first_weight) = (place.at, place.rotation, place.first_weight);
    for i in 0..num_pairs {
        let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
        let (first, second) = unrotate_pair(d[at + i], d[at + num_pairs + i], cos, sin);
        d[at + i] = first * factor;
        d[at + num_pairs + i] = second * factor;
    }
    for i in comptime!(2 * heads.num_rotary_pairs)..dim {
        d[at + i] *= factor;
    }
    for i in 0..dim {
        d[at + i] = d[at + i] * weights[first_weight + i] / rms - x[at + i] * dot * factor;
    }
}

/// Turns the gradients of rotated and normed queries and keys into those of the products, in place, and computes
/// partial sums of those of their norms' weights; one cube per [`ROWS_PER_CUBE`] rows.
///
/// Buffers: queries and keys before their norms; rotations `[rows, num_pairs, 2]`; weights of the norms of queries and
/// keys; the gradients, `[rows, query_size]` and `[rows, kv_size]`; partial sums, `[cubes, weights]`. Workgroup memory:
/// 2 x [`ROWS_PER_CUBE`] floats per head.
#[cube(launch_unchecked)]
pub(crate) fn norm_rotate_backward_kernel(
    queries: &[f32],
    keys: &[f32],
    rotations: &[f32],
    weights: &[f32],
    d_queries: &mut [f32],
    d_keys: &mut [f32],
    partials: &mut [f32],
    rows: usize,
    scale: f32,
    eps: f32,
    #[comptime] heads: KernelHeadShape,
) {
    let begin = CUBE_POS * ROWS_PER_CUBE;
    if begin < rows {
        let unit = UNIT_POS as usize;
        let (dim, num_pairs, query_heads) =
            comptime!((heads.head_dim, heads.num_rotary_pairs, heads.num_query_heads));
        let all_heads = comptime!(heads.num_query_heads + heads.num_kv_heads);
        let (query_size, kv_size) = comptime!((heads.query_size(), heads.kv_size()));
        let mut num_rows = rows - begin;
        if num_rows > ROWS_PER_CUBE {
            num_rows = ROWS_PER_CUBE.runtime();
        }
        let mut head_rms = Shared::<[f32]>::new_slice(comptime!(
            ROWS_PER_CUBE * (heads.num_query_heads + heads.num_kv_heads)
        ));
        let mut dots = Shared::<[f32]>::new_slice(comptime!(
            ROWS_PER_CUBE * (heads.num_query_heads + heads.num_kv_heads)
        ));
        for item in range_stepped(unit, num_rows * all_heads, UNITS) {
            let (row, head) = (begin + item / all_heads, item % all_heads);
            let rotation = row * comptime!(2 * heads.num_rotary_pairs);
            if head < query_heads {
                let first_weight = find_weights(head, 0usize, heads);
                let at = row * query_size + head * dim;
                let place = HeadPlace { at, rotation, first_weight };
                let (square, dot) =
                    sum_head(queries, &*d_queries, rotations, weights, place, heads);
                head_rms[item] = square;
                dots[item] = dot;
            } else {
                let first_weight =
                    find_weights(head - query_heads, comptime!(heads.query_norm_size()), heads);
                let at = row * kv_size + (head - query_heads) * dim;
                let place = HeadPlace { at, rotation, first_weight };
                let (square, dot) = sum_head(keys, &*d_keys, rotations, weights, place, heads);
                head_rms[item] = square;
                dots[item] = dot;
            }
        }
        sync_cube();
        // A norm over all heads has the same sums for each of them.
        if comptime!(heads.qk_norm == QkNorm::AllHeads) {
            for item in range_stepped(unit, 2 * num_rows, UNITS) {
                // The norm of queries, then that of keys.
                let (first_head, norm) = (item / 2 * all_heads, item % 2);
                let mut from = first_head;
                let mut to = first_head + query_heads;
                if norm == 1 {
                    from = first_head + query_heads;
                    to = first_head + all_heads;
                }
                let mut square = 0.0f32;
                let mut dot = 0.0f32;
                for at in from..to {
                    square += head_rms[at];
                    dot += dots[at];
                }
                for at in from..to {
                    head_rms[at] = square;
                    dots[at] = dot;
                }
            }
            sync_cube();
        }
        for item in range_stepped(unit, num_rows * all_heads, UNITS) {
            let mut num_elements = comptime!(heads.head_dim as f32).runtime();
            if comptime!(heads.qk_norm == QkNorm::AllHeads) {
                num_elements = comptime!(heads.query_size() as f32);
                if item % all_heads >= query_heads {
                    num_elements = comptime!(heads.kv_size() as f32);
                }
            }
            let rms = (head_rms[item] / num_elements + eps).sqrt();
            head_rms[item] = rms;
            dots[item] /= num_elements * rms * rms * rms;
        }
        sync_cube();
        for i in range_stepped(unit, comptime!(heads.norm_size()), UNITS) {
            let mut sum = 0.0f32;
            let mut weight = i;
            let is_query = i < comptime!(heads.query_norm_size());
            if !is_query {
                weight = i - comptime!(heads.query_norm_size());
            }
            for row in 0..num_rows {
                let rotation = (begin + row) * comptime!(2 * heads.num_rotary_pairs);
                if is_query {
                    let mut from = 0usize.runtime();
                    let mut to = comptime!(heads.num_query_heads).runtime();
                    if comptime!(heads.qk_norm == QkNorm::AllHeads) {
                        from = weight / dim;
                        to = from + 1;
                    }
                    for head in from..to {
                        let at = (begin + row) * query_size + head * dim;
                        let d =
                            unrotate(&*d_queries, at, weight % dim, rotations, rotation, num_pairs);
                        sum += d * scale * queries[at + weight % dim]
                            / head_rms[row * all_heads + head];
                    }
                } else {
                    let mut from = 0usize.runtime();
                    let mut to = comptime!(heads.num_kv_heads).runtime();
                    if comptime!(heads.qk_norm == QkNorm::AllHeads) {
                        from = weight / dim;
                        to = from + 1;
                    }
                    for head in from..to {
                        let at = (begin + row) * kv_size + head * dim;
                        let d =
                            unrotate(&*d_keys, at, weight % dim, rotations, rotation, num_pairs);
                        sum += d * keys[at + weight % dim]
                            / head_rms[row * all_heads + query_heads + head];
                    }
                }
            }
            partials[CUBE_POS * comptime!(heads.norm_size()) + i] = sum;
        }
        // The gradients that were read above change now.
        sync_cube();
        for item in range_stepped(unit, num_rows * all_heads, UNITS) {
            let (row, head) = (begin + item / all_heads, item % all_heads);
            let rotation = row * comptime!(2 * heads.num_rotary_pairs);
            let (rms, dot) = (head_rms[item], dots[item]);
            if head < query_heads {
                let first_weight = find_weights(head, 0usize, heads);
                let at = row * query_size + head * dim;
                let place = HeadPlace { at, rotation, first_weight };
                backpropagate_head(
                    queries, d_queries, rotations, weights, place, rms, dot, scale, heads,
                );
            } else {
                let first_weight =
                    find_weights(head - query_heads, comptime!(heads.query_norm_size()), heads);
                let at = row * kv_size + (head - query_heads) * dim;
                let place = HeadPlace { at, rotation, first_weight };
                backpropagate_head(
                    keys, d_keys, rotations, weights, place, rms, dot, 1.0f32, heads,
                );
            }
        }
    }
}
