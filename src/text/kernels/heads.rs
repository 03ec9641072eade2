//! Kernels of queries, keys and values: positions, norms, rotation, and the write into the caches.

use super::progress::Progress;
use super::rows::{RowLayout, read, write};
use crate::nn::arch::{DecoderShape, QkNorm};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Computes cosine and sine of a pair at a position, from the rotations of its low and of its high part.
#[cube]
pub(super) fn compute_rotation(
    table: &[f32],
    position: usize,
    pair: usize,
    low: usize,
    high: usize,
    #[comptime] half: usize,
) -> (f32, f32) {
    let a = 2 * (position % low * half + pair);
    let b = 2 * ((low + position / low % high) * half + pair);
    let (cl, sl, ch, sh) = (table[a], table[a + 1], table[b], table[b + 1]);
    (ch * cl - sh * sl, sh * cl + ch * sl)
}

/// Computes cosine and sine of each pair of a head at the position of each row, and moves progress on to the token
/// chosen; one unit per row and pair.
///
/// Buffers: those of [`Progress`]; the rotations of low and high parts, `[low + high, half, 2]`;
/// `[rows, half, 2]`.
#[cube(launch_unchecked)]
pub(crate) fn rotation_kernel(
    progress: &mut Progress,
    table: &[f32],
    rotations: &mut [f32],
    rows: usize,
    low: usize,
    high: usize,
    #[comptime] half: usize,
) {
    let unit = ABSOLUTE_POS;
    if unit < rows * half {
        let (row, pair) = (unit / half, unit % half);
        let token_index = progress.chosen_index();
        if unit == 0 {
            progress.set_passing_index(token_index);
        }
        let position = progress.prompt_length(row) + token_index;
        let (cosine, sine) = compute_rotation(table, position, pair, low, high, half);
        rotations[2 * unit] = cosine;
        rotations[2 * unit + 1] = sine;
    }
}

/// The heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Heads {
    /// Heads of queries.
    pub queries: usize,
    /// Heads of keys, and of values.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Half of the rotary dimensions: the number of pairs of a head that rotate.
    pub half: usize,
    /// Whether each head of queries and keys is normed.
    pub norms_heads: bool,
    /// Whether all heads of queries, and all of keys, are normed together.
    pub norms_all: bool,
}

impl Heads {
    /// The heads of a decoder's layers.
    pub fn from_shape(shape: &DecoderShape) -> Self {
        Self {
            queries: shape.num_heads,
            keys: shape.num_kv_heads,
            dim: shape.head_dim,
            half: shape.rotary_dim() / 2,
            norms_heads: shape.qk_norm == QkNorm::PerHead,
            norms_all: shape.qk_norm == QkNorm::AllHeads,
        }
    }

    /// Elements of a row of queries.
    pub const fn query_size(self) -> usize {
        self.queries * self.dim
    }

    /// Elements of a row of keys.
    pub const fn key_size(self) -> usize {
        self.keys * self.dim
    }

    /// Whether queries and keys are normed.
    pub const fn has_head_norms(self) -> bool {
        self.norms_heads || self.norms_all
    }

    /// Number of weights of the norm of queries.
    pub const fn query_norm_size(self) -> usize {
        if self.norms_all { self.query_size() } else { self.dim }
    }

    /// Number of weights of the norms of queries and keys.
    pub const fn norm_size(self) -> usize {
        if self.norms_all { self.query_size() + self.key_size() } else { 2 * self.dim }
    }
}

/// Heads of queries or of keys of one row, distributed over the units of a cube by items: pairs that rotate, and
/// elements that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct HeadLayout {
    heads: Heads,
    /// Heads of the row.
    count: usize,
    units: usize,
}

impl HeadLayout {
    /// Items of a head.
    fn head_items(self) -> usize {
        self.heads.dim - self.heads.half
    }

    /// Items of a unit, one of each part of the row.
    fn num_parts(self) -> usize {
        (self.count * self.head_items()).div_ceil(self.units)
    }
}

/// The items of a unit, normed and rotated.
#[derive(CubeType)]
struct RotatedItems {
    /// The first element of each pair, and each element that does not rotate.
    first: Array<f32>,
    /// The second element of each pair.
    second: Array<f32>,
}

/// Norms and rotates the heads of the row that begins at `start` in `elements`; `roots` are the heads' roots, from
/// `first_root` on, and weights begin at `first_weight`.
#[cube]
fn rotate_heads(
    elements: &mut [f32],
    start: usize,
    rotations: &[f32],
    rotation: usize,
    weights: &[f32],
    #[comptime] first_weight: usize,
    roots: &Shared<[f32]>,
    #[comptime] first_root: usize,
    factor: f32,
    #[comptime] layout: HeadLayout,
) -> RotatedItems {
    let heads = comptime!(layout.heads);
    let (dim, half, items) = comptime!((heads.dim, heads.half, layout.head_items()));
    let mut rotated = RotatedItems {
        first: Array::<f32>::new(comptime!(layout.num_parts())),
        second: Array::<f32>::new(comptime!(layout.num_parts())),
    };
    #[unroll]
    for part in 0..comptime!(layout.num_parts()) {
        let item = UNIT_POS as usize + comptime!(part * layout.units);
        let mut a = 0.0f32;
        let mut b = 0.0f32;
        if item < comptime!(layout.count * layout.head_items()) {
            let (head, i) = (item / items, item % items);
            let at = start + head * dim;
            let is_pair = i < half;
            let mut offset = i;
            if !is_pair {
                offset = i + half;
            }
            a = elements[at + offset] * factor;
            let mut w = first_weight + offset;
            if comptime!(heads.norms_all) {
                w += head * dim;
            }
            if comptime!(heads.has_head_norms()) {
                a = a / roots[first_root + head] * weights[w];
            }
            if is_pair {
                b = elements[at + half + i] * factor;
                if comptime!(heads.has_head_norms()) {
                    b = b / roots[first_root + head] * weights[w + half];
                }
                let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
                let before = a;
                a = before * cos - b * sin;
                b = b * cos + before * sin;
            }
        }
        rotated.first[part] = a;
        rotated.second[part] = b;
    }
    rotated
}

/// Writes the items of a unit into the row that begins at `start` in `elements`.
#[cube]
fn write_heads<C: Float>(
    elements: &mut [C],
    start: usize,
    rotated: &RotatedItems,
    #[comptime] layout: HeadLayout,
) {
    let (dim, half, items) = comptime!((layout.heads.dim, layout.heads.half, layout.head_items()));
    #[unroll]
    for part in 0..comptime!(layout.num_parts()) {
        let item = UNIT_POS as usize + comptime!(part * layout.units);
        if item < comptime!(layout.count * layout.head_items()) {
            let (head, i) = (item / items, item % items);
            let at = start + head * dim;
            if i < half {
                elements[at + i] = C::cast_from(rotated.first[part]);
                elements[at + half + i] = C::cast_from(rotated.second[part]);
            } else {
                elements[at + half + i] = C::cast_from(rotated.first[part]);
            }
        }
    }
}

/// Computes the roots by which the heads of queries and keys of one row are divided, queries first. Their elements
/// begin at `query_start` and `key_start`.
#[cube]
pub(crate) fn compute_roots(
    queries: &[f32],
    query_start: usize,
    keys: &[f32],
    key_start: usize,
    roots: &mut Shared<[f32]>,
    eps: f32,
    #[comptime] heads: Heads,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let (dim, query_heads) = comptime!((heads.dim, heads.queries));
    let all_heads = comptime!(heads.queries + heads.keys);
    for head in range_stepped(unit, all_heads, units) {
        let mut square = 0.0f32;
        for i in 0..dim {
            if head < query_heads {
                let x = queries[query_start + head * dim + i];
                square += x * x;
            } else {
                let x = keys[key_start + (head - query_heads) * dim + i];
                square += x * x;
            }
        }
        if comptime!(heads.norms_heads) {
            square = (square / comptime!(heads.dim as f32) + eps).sqrt();
        }
        roots[head] = square;
    }
    sync_cube();
    if comptime!(heads.norms_all) {
        let mut query_square = 0.0f32;
        for head in 0..query_heads {
            query_square += roots[head];
        }
        let mut key_square = 0.0f32;
        for head in query_heads..all_heads {
            key_square += roots[head];
        }
        sync_cube();
        for head in range_stepped(unit, all_heads, units) {
            if head < query_heads {
                let mean = query_square / comptime!(heads.query_size() as f32);
                roots[head] = (mean + eps).sqrt();
            } else {
                let mean = key_square / comptime!(heads.key_size() as f32);
                roots[head] = (mean + eps).sqrt();
            }
        }
        sync_cube();
    }
}

/// Norms and rotates queries, in place, and keys, multiplies queries by `scale`, and stores keys and values in their
/// caches; one cube per row.
///
/// Buffers: `[rows, query_size]`; `[rows, key_size]` twice; rotations `[rows, half, 2]`; weights of the norms of
/// queries and keys; caches `[rows, max_tokens, key_size]`; those of [`Progress`]. Workgroup memory: a float per head.
#[cube(launch_unchecked)]
pub(crate) fn store_kernel<C: Float>(
    queries: &mut [f32],
    keys: &mut [f32],
    values: &[f32],
    rotations: &[f32],
    weights: &[f32],
    key_cache: &mut [C],
    value_cache: &mut [C],
    progress: &Progress,
    rows: usize,
    max_tokens: usize,
    scale: f32,
    eps: f32,
    #[comptime] heads: Heads,
    #[comptime] units: usize,
    #[define(C)] _element: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let query_start = row * comptime!(heads.query_size());
        let key_start = row * comptime!(heads.key_size());
        let mut roots = Shared::<[f32]>::new_slice(comptime!(heads.queries + heads.keys));
        if comptime!(heads.has_head_norms()) {
            compute_roots(&*queries, query_start, &*keys, key_start, &mut roots, eps, heads, units);
        }
        let rotation = row * comptime!(2 * heads.half);
        let value_layout = comptime!(RowLayout { size: heads.key_size(), units });
        let query_layout = comptime!(HeadLayout { heads, count: heads.queries, units });
        let key_layout = comptime!(HeadLayout { heads, count: heads.keys, units });
        let cache_start =
            (row * max_tokens + progress.passing_index()) * comptime!(heads.key_size());
        // All loads precede the first store, so that a unit waits for memory once.
        let new_values = read(values, key_start, value_layout);
        let new_queries = rotate_heads(
            queries,
            query_start,
            rotations,
            rotation,
            weights,
            0usize,
            &roots,
            0usize,
            scale,
            query_layout,
        );
        let new_keys = rotate_heads(
            keys,
            key_start,
            rotations,
            rotation,
            weights,
            comptime!(heads.query_norm_size()),
            &roots,
            comptime!(heads.queries),
            1.0f32,
            key_layout,
        );
        write_heads(queries, query_start, &new_queries, query_layout);
        write_heads(key_cache, cache_start, &new_keys, key_layout);
        write(value_cache, cache_start, &new_values, value_layout);
    }
}
