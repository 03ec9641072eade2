//! Kernels of queries and keys of whole texts: rotations of rows, norms and rotation of heads, and their backward pass.

use super::UNITS;
use super::heads::{Heads, compute_roots, compute_rotation};
use super::rows::ROWS_PER_CUBE;
use crate::device::buffers::Buffer;
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
/// Buffers: those of [`Segments`]; the rotations of low and high parts, `[low + high, half, 2]`; `[rows, half, 2]`.
#[cube(launch_unchecked)]
pub(crate) fn text_rotation_kernel(
    segments: &Segments,
    table: &[f32],
    rotations: &mut [f32],
    low: usize,
    high: usize,
    #[comptime] half: usize,
) {
    let unit = ABSOLUTE_POS;
    if unit < segments.rows * half {
        let (row, pair) = (unit / half, unit % half);
        let position = segments.position(row);
        let (cosine, sine) = compute_rotation(table, position, pair, low, high, half);
        rotations[2 * unit] = cosine;
        rotations[2 * unit + 1] = sine;
    }
}

/// Computes the index of the first weight of a head's norm; those of head 0 begin at `first`.
#[cube]
fn find_weights(head: usize, #[comptime] first: usize, #[comptime] heads: Heads) -> usize {
    let mut first_weight = comptime!(first).runtime();
    if comptime!(heads.norms_all) {
        first_weight += head * comptime!(heads.dim);
    }
    first_weight
}

/// Norms and rotates queries and keys, and multiplies queries by `scale`; one cube per row.
///
/// Buffers: `[rows, query_size]`; `[rows, key_size]`; rotations `[rows, half, 2]`; weights of the norms of queries and
/// keys; the results, of the shapes of the inputs. Workgroup memory: a float per head.
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
    #[comptime] heads: Heads,
    #[define(C)] _element: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let (dim, half, query_heads) = comptime!((heads.dim, heads.half, heads.queries));
        let all_heads = comptime!(heads.queries + heads.keys);
        let query_start = row * comptime!(heads.query_size());
        let key_start = row * comptime!(heads.key_size());
        let mut roots = Shared::<[f32]>::new_slice(all_heads);
        if comptime!(heads.has_head_norms()) {
            compute_roots(queries, query_start, keys, key_start, &mut roots, eps, heads, UNITS);
        }
        let rotation = row * comptime!(2 * heads.half);
        for item in range_stepped(UNIT_POS as usize, all_heads * dim, UNITS) {
            let (head, i) = (item / dim, item % dim);
            // The element that this one rotates with.
            let mut other = i;
            let mut cos = 1.0f32;
            let mut sin = 0.0f32;
            if i < half {
                other = i + half;
                cos = rotations[rotation + 2 * i];
                sin = -rotations[rotation + 2 * i + 1];
            } else if i < 2 * half {
                other = i - half;
                cos = rotations[rotation + 2 * other];
                sin = rotations[rotation + 2 * other + 1];
            }
            if head < query_heads {
                let at = query_start + head * dim;
                let mut a = queries[at + i];
                let mut b = queries[at + other];
                if comptime!(heads.has_head_norms()) {
                    let w = find_weights(head, 0usize, heads);
                    a = a / roots[head] * weights[w + i];
                    b = b / roots[head] * weights[w + other];
                }
                rotated_queries[at + i] = (a * cos + b * sin) * scale;
            } else {
                let at = key_start + (head - query_heads) * dim;
                let mut a = keys[at + i];
                let mut b = keys[at + other];
                if comptime!(heads.has_head_norms()) {
                    let w =
                        find_weights(head - query_heads, comptime!(heads.query_norm_size()), heads);
                    a = a / roots[head] * weights[w + i];
                    b = b / roots[head] * weights[w + other];
                }
                rotated_keys[at + i] = C::cast_from(a * cos + b * sin);
            }
        }
    }
}

/// Computes the gradient of element `i` of a head before its rotation, from that of the rotated head at `at`.
#[cube]
fn unrotate(
    d: &[f32],
    at: usize,
    i: usize,
    rotations: &[f32],
    rotation: usize,
    #[comptime] half: usize,
) -> f32 {
    let mut result = d[at + i];
    if i < half {
        let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
        result = d[at + i] * cos + d[at + half + i] * sin;
    } else if i < 2 * half {
        let pair = i - half;
        let (cos, sin) = (rotations[rotation + 2 * pair], rotations[rotation + 2 * pair + 1]);
        result = d[at + i] * cos - d[at + pair] * sin;
    }
    result
}

/// Computes the gradients of queries and keys from those of the rotated ones, for layers without norms of heads; one
/// unit per pair, or element that does not rotate.
///
/// Buffers: rotations `[rows, half, 2]`; the gradients of rotated queries and keys, and of those before, `[rows,
/// query_size]` and `[rows, key_size]` each.
#[cube(launch_unchecked)]
pub(crate) fn unrotate_kernel<N: Float>(
    rotations: &[f32],
    d_rotated_queries: &[f32],
    d_rotated_keys: &[f32],
    d_queries: &mut [N],
    d_keys: &mut [N],
    rows: usize,
    scale: f32,
    #[comptime] heads: Heads,
    #[define(N)] _element: ElemType,
) {
    let (dim, half, query_heads) = comptime!((heads.dim, heads.half, heads.queries));
    let (all_heads, items) = comptime!((heads.queries + heads.keys, heads.dim - heads.half));
    let item = ABSOLUTE_POS;
    if item < rows * comptime!(all_heads * items) {
        let (row, head) = (item / comptime!(all_heads * items), item / items % all_heads);
        let i = item % items;
        let rotation = row * comptime!(2 * heads.half);
        if head < query_heads {
            let at = row * comptime!(heads.query_size()) + head * dim;
            unrotate_item(d_rotated_queries, d_queries, at, i, rotations, rotation, scale, half);
        } else {
            let at = row * comptime!(heads.key_size()) + (head - query_heads) * dim;
            unrotate_item(d_rotated_keys, d_keys, at, i, rotations, rotation, 1.0f32, half);
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
    #[comptime] half: usize,
) {
    if i < half {
        let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
        let (a, b) = (d_rotated[at + i], d_rotated[at + half + i]);
        d[at + i] = N::cast_from((a * cos + b * sin) * factor);
        d[at + half + i] = N::cast_from((b * cos - a * sin) * factor);
    } else {
        d[at + half + i] = N::cast_from(d_rotated[at + half + i] * factor);
    }
}

/// Sums over one head what the gradient of its norm needs: the squares of the elements, and their products with weights
/// and gradients.
#[cube]
fn sum_head(
    x: &[f32],
    d: &[f32],
    at: usize,
    rotations: &[f32],
    rotation: usize,
    weights: &[f32],
    first_weight: usize,
    #[comptime] heads: Heads,
) -> (f32, f32) {
    let mut square = 0.0f32;
    let mut dot = 0.0f32;
    for i in 0..comptime!(heads.dim) {
        let element = x[at + i];
        let d_normed = unrotate(d, at, i, rotations, rotation, comptime!(heads.half));
        square += element * element;
        dot += d_normed * weights[first_weight + i] * element;
    }
    (square, dot)
}

/// Turns the gradient of one rotated head into that of the head before norm and rotation, in place.
#[cube]
fn backpropagate_head(
    x: &[f32],
    d: &mut [f32],
    at: usize,
    rotations: &[f32],
    rotation: usize,
    weights: &[f32],
    first_weight: usize,
    root: f32,
    dot: f32,
    factor: f32,
    #[comptime] heads: Heads,
) {
    let (dim, half) = comptime!((heads.dim, heads.half));
    for i in 0..half {
        let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
        let (a, b) = (d[at + i], d[at + half + i]);
        d[at + i] = (a * cos + b * sin) * factor;
        d[at + half + i] = (b * cos - a * sin) * factor;
    }
    for i in comptime!(2 * heads.half)..dim {
        d[at + i] *= factor;
    }
    for i in 0..dim {
        d[at + i] = d[at + i] * weights[first_weight + i] / root - x[at + i] * dot * factor;
    }
}

/// Turns the gradients of rotated and normed queries and keys into those of the products, in place, and computes
/// partial sums of those of their norms' weights; one cube per [`ROWS_PER_CUBE`] rows.
///
/// Buffers: queries and keys before their norms; rotations `[rows, half, 2]`; weights of the norms of queries and keys;
/// the gradients, `[rows, query_size]` and `[rows, key_size]`; partial sums, `[cubes, weights]`. Workgroup memory: 2 x
/// [`ROWS_PER_CUBE`] floats per head.
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
    #[comptime] heads: Heads,
) {
    let begin = CUBE_POS * ROWS_PER_CUBE;
    if begin < rows {
        let unit = UNIT_POS as usize;
        let (dim, half, query_heads) = comptime!((heads.dim, heads.half, heads.queries));
        let all_heads = comptime!(heads.queries + heads.keys);
        let (query_size, key_size) = comptime!((heads.query_size(), heads.key_size()));
        let mut num_rows = rows - begin;
        if num_rows > ROWS_PER_CUBE {
            num_rows = ROWS_PER_CUBE.runtime();
        }
        let mut roots =
            Shared::<[f32]>::new_slice(comptime!(ROWS_PER_CUBE * (heads.queries + heads.keys)));
        let mut dots =
            Shared::<[f32]>::new_slice(comptime!(ROWS_PER_CUBE * (heads.queries + heads.keys)));
        for item in range_stepped(unit, num_rows * all_heads, UNITS) {
            let (row, head) = (begin + item / all_heads, item % all_heads);
            let rotation = row * comptime!(2 * heads.half);
            if head < query_heads {
                let w = find_weights(head, 0usize, heads);
                let at = row * query_size + head * dim;
                let (square, dot) =
                    sum_head(queries, &*d_queries, at, rotations, rotation, weights, w, heads);
                roots[item] = square;
                dots[item] = dot;
            } else {
                let w = find_weights(head - query_heads, comptime!(heads.query_norm_size()), heads);
                let at = row * key_size + (head - query_heads) * dim;
                let (square, dot) =
                    sum_head(keys, &*d_keys, at, rotations, rotation, weights, w, heads);
                roots[item] = square;
                dots[item] = dot;
            }
        }
        sync_cube();
        // A norm over all heads has the same sums for each of them.
        if comptime!(heads.norms_all) {
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
                    square += roots[at];
                    dot += dots[at];
                }
                for at in from..to {
                    roots[at] = square;
                    dots[at] = dot;
                }
            }
            sync_cube();
        }
        for item in range_stepped(unit, num_rows * all_heads, UNITS) {
            let mut num_elements = comptime!(heads.dim as f32).runtime();
            if comptime!(heads.norms_all) {
                num_elements = comptime!(heads.query_size() as f32);
                if item % all_heads >= query_heads {
                    num_elements = comptime!(heads.key_size() as f32);
                }
            }
            let root = (roots[item] / num_elements + eps).sqrt();
            roots[item] = root;
            dots[item] /= num_elements * root * root * root;
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
                let rotation = (begin + row) * comptime!(2 * heads.half);
                if is_query {
                    let mut from = 0usize.runtime();
                    let mut to = comptime!(heads.queries).runtime();
                    if comptime!(heads.norms_all) {
                        from = weight / dim;
                        to = from + 1;
                    }
                    for head in from..to {
                        let at = (begin + row) * query_size + head * dim;
                        let d = unrotate(&*d_queries, at, weight % dim, rotations, rotation, half);
                        sum +=
                            d * scale * queries[at + weight % dim] / roots[row * all_heads + head];
                    }
                } else {
                    let mut from = 0usize.runtime();
                    let mut to = comptime!(heads.keys).runtime();
                    if comptime!(heads.norms_all) {
                        from = weight / dim;
                        to = from + 1;
                    }
                    for head in from..to {
                        let at = (begin + row) * key_size + head * dim;
                        let d = unrotate(&*d_keys, at, weight % dim, rotations, rotation, half);
                        sum += d * keys[at + weight % dim]
                            / roots[row * all_heads + query_heads + head];
                    }
                }
            }
            partials[CUBE_POS * comptime!(heads.norm_size()) + i] = sum;
        }
        // The gradients that were read above change now.
        sync_cube();
        for item in range_stepped(unit, num_rows * all_heads, UNITS) {
            let (row, head) = (begin + item / all_heads, item % all_heads);
            let rotation = row * comptime!(2 * heads.half);
            let (root, dot) = (roots[item], dots[item]);
            if head < query_heads {
                let w = find_weights(head, 0usize, heads);
                let at = row * query_size + head * dim;
                backpropagate_head(
                    queries, d_queries, at, rotations, rotation, weights, w, root, dot, scale,
                    heads,
                );
            } else {
                let w = find_weights(head - query_heads, comptime!(heads.query_norm_size()), heads);
                let at = row * key_size + (head - query_heads) * dim;
                backpropagate_head(
                    keys, d_keys, at, rotations, rotation, weights, w, root, dot, 1.0f32, heads,
                );
            }
        }
    }
}
