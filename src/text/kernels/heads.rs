//! Kernels of queries, keys and values: positions, norms, rotation, and the write into the caches.

use super::progress::Progress;
use super::rows::{RowLayout, read, write};
use crate::math::rotate_pair;
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
    #[comptime] num_pairs: usize,
) -> (f32, f32) {
    let a = 2 * (position % low * num_pairs + pair);
    let b = 2 * ((low + position / low % high) * num_pairs + pair);
    let (cl, sl, ch, sh) = (table[a], table[a + 1], table[b], table[b + 1]);
    (ch * cl - sh * sl, sh * cl + ch * sl)
}

/// Computes cosine and sine of each pair of a head at the position of each row, and moves progress on to the token
/// chosen; one unit per row and pair.
///
/// Buffers: those of [`Progress`]; the rotations of low and high parts, `[low + high, num_pairs, 2]`;
/// `[rows, num_pairs, 2]`.
#[cube(launch_unchecked)]
pub(crate) fn rotation_kernel(
    progress: &mut Progress,
    table: &[f32],
    rotations: &mut [f32],
    rows: usize,
    low: usize,
    high: usize,
    #[comptime] num_pairs: usize,
) {
    let unit = ABSOLUTE_POS;
    if unit < rows * num_pairs {
        let (row, pair) = (unit / num_pairs, unit % num_pairs);
        let token_index = progress.chosen_index();
        if unit == 0 {
            progress.set_input_index(token_index);
        }
        let position = progress.prompt_length(row) + token_index;
        let (cosine, sine) = compute_rotation(table, position, pair, low, high, num_pairs);
        rotations[2 * unit] = cosine;
        rotations[2 * unit + 1] = sine;
    }
}

/// The heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelHeadShape {
    /// Heads of queries.
    pub num_query_heads: usize,
    /// Heads of keys, and of values.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Pairs of elements of a head that rotate: half of the rotary dimensions.
    pub num_rotary_pairs: usize,
    /// How queries and keys are normed.
    pub qk_norm: QkNorm,
}

impl KernelHeadShape {
    /// The heads of a decoder's layers.
    pub fn from_shape(shape: &DecoderShape) -> Self {
        Self {
            num_query_heads: shape.num_heads,
            num_kv_heads: shape.num_kv_heads,
            head_dim: shape.head_dim,
            num_rotary_pairs: shape.rotary_dim() / 2,
            qk_norm: shape.qk_norm,
        }
    }

    /// Elements of a row of queries.
    pub const fn query_size(self) -> usize {
        self.num_query_heads * self.head_dim
    }

    /// Elements of a row of keys.
    pub const fn kv_size(self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Heads of queries that share a head of keys and values.
    pub const fn heads_per_kv_head(self) -> usize {
        self.num_query_heads / self.num_kv_heads
    }

    /// Whether queries and keys are normed.
    pub const fn has_head_norms(self) -> bool {
        !matches!(self.qk_norm, QkNorm::None)
    }

    /// Whether one norm covers all heads of queries, and one all heads of keys.
    const fn norms_all_heads(self) -> bool {
        matches!(self.qk_norm, QkNorm::AllHeads)
    }

    /// Number of weights of the norm of queries.
    pub const fn query_norm_size(self) -> usize {
        if self.norms_all_heads() { self.query_size() } else { self.head_dim }
    }

    /// Number of weights of the norms of queries and keys.
    pub const fn norm_size(self) -> usize {
        if self.norms_all_heads() { self.query_size() + self.kv_size() } else { 2 * self.head_dim }
    }
}

/// Heads of queries or of keys of one row, distributed over the units of a cube by items: pairs that rotate, and
/// elements that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct HeadLayout {
    heads: KernelHeadShape,
    /// Heads of the row.
    count: usize,
    units: usize,
}

impl HeadLayout {
    /// Items of a head.
    fn head_items(self) -> usize {
        self.heads.head_dim - self.heads.num_rotary_pairs
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

/// Norms and rotates the heads of the row that begins at `start` in `elements`; `head_rms` has the RMS of each head,
/// from `first_rms` on, and weights begin at `first_weight`.
#[cube]
fn rotate_heads(
    elements: &mut [f32],
    start: usize,
    rotations: &[f32],
    rotation: usize,
    weights: &[f32],
    #[comptime] first_weight: usize,
    head_rms: &Shared<[f32]>,
    #[comptime] first_rms: usize,
    factor: f32,
    #[comptime] layout: HeadLayout,
) -> RotatedItems {
    let heads = comptime!(layout.heads);
    let (dim, num_pairs, items) =
        comptime!((heads.head_dim, heads.num_rotary_pairs, layout.head_items()));
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
            let is_pair = i < num_pairs;
            let mut offset = i;
            if !is_pair {
                offset = i + num_pairs;
            }
            a = elements[at + offset] * factor;
            let mut w = first_weight + offset;
            if comptime!(heads.qk_norm == QkNorm::AllHeads) {
                w += head * dim;
            }
            if comptime!(heads.has_head_norms()) {
                a = a / head_rms[first_rms + head] * weights[w];
            }
            if is_pair {
                b = elements[at + num_pairs + i] * factor;
                if comptime!(heads.has_head_norms()) {
                    b = b / head_rms[first_rms + head] * weights[w + num_pairs];
                }
                let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
                let (first, second) = rotate_pair(a, b, cos, sin);
                a = first;
                b = second;
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
    let (dim, num_pairs, items) =
        comptime!((layout.heads.head_dim, layout.heads.num_rotary_pairs, layout.head_items()));
    #[unroll]
    for part in 0..comptime!(layout.num_parts()) {
        let item = UNIT_POS as usize + comptime!(part * layout.units);
        if item < comptime!(layout.count * layout.head_items()) {
            let (head, i) = (item / items, item % items);
            let at = start + head * dim;
            if i < num_pairs {
                elements[at + i] = C::cast_from(rotated.first[part]);
                elements[at + num_pairs + i] = C::cast_from(rotated.second[part]);
            } else {
                elements[at + num_pairs + i] = C::cast_from(rotated.first[part]);
            }
        }
    }
}

/// Computes the RMS by which each head of queries and keys of one row is divided, queries first. Their elements
/// begin at `query_start` and `key_start`.
#[cube]
pub(crate) fn compute_head_rms(
    queries: &[f32],
    query_start: usize,
    keys: &[f32],
    key_start: usize,
    head_rms: &mut Shared<[f32]>,
    eps: f32,
    #[comptime] heads: KernelHeadShape,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let (dim, query_heads) = comptime!((heads.head_dim, heads.num_query_heads));
    let all_heads = comptime!(heads.num_query_heads + heads.num_kv_heads);
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
        if comptime!(heads.qk_norm == QkNorm::PerHead) {
            square = (square / comptime!(heads.head_dim as f32) + eps).sqrt();
        }
        head_rms[head] = square;
    }
    sync_cube();
    if comptime!(heads.qk_norm == QkNorm::AllHeads) {
        let mut query_square = 0.0f32;
        for head in 0..query_heads {
            query_square += head_rms[head];
        }
        let mut key_square = 0.0f32;
        for head in query_heads..all_heads {
            key_square += head_rms[head];
        }
        sync_cube();
        for head in range_stepped(unit, all_heads, units) {
            if head < query_heads {
                let mean = query_square / comptime!(heads.query_size() as f32);
                head_rms[head] = (mean + eps).sqrt();
            } else {
                let mean = key_square / comptime!(heads.kv_size() as f32);
                head_rms[head] = (mean + eps).sqrt();
            }
        }
        sync_cube();
    }
}

/// Norms and rotates queries, in place, and keys, multiplies queries by `scale`, and stores keys and values in their
/// caches; one cube per row.
///
/// Buffers: `[rows, query_size]`; `[rows, kv_size]` twice; rotations `[rows, num_pairs, 2]`; weights of the norms of
/// queries and keys; caches `[rows, max_tokens, kv_size]`; those of [`Progress`]. Workgroup memory: a float per head.
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
    #[comptime] heads: KernelHeadShape,
    #[comptime] units: usize,
    #[define(C)] _element: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let query_start = row * comptime!(heads.query_size());
        let key_start = row * comptime!(heads.kv_size());
        let mut head_rms =
            Shared::<[f32]>::new_slice(comptime!(heads.num_query_heads + heads.num_kv_heads));
        if comptime!(heads.has_head_norms()) {
            compute_head_rms(
                &*queries,
                query_start,
                &*keys,
                key_start,
                &mut head_rms,
                eps,
                heads,
                units,
            );
        }
        let rotation = row * comptime!(2 * heads.num_rotary_pairs);
        let value_layout = comptime!(RowLayout { size: heads.kv_size(), units });
        let query_layout = comptime!(HeadLayout { heads, count: heads.num_query_heads, units });
        let key_layout = comptime!(HeadLayout { heads, count: heads.num_kv_heads, units });
        let cache_start = (row * max_tokens + progress.input_index()) * comptime!(heads.kv_size());
        // All loads precede the first store, so that a unit waits for memory once.
        let new_values = read(values, key_start, value_layout);
        let new_queries = rotate_heads(
            queries,
            query_start,
            rotations,
            rotation,
            weights,
            0usize,
            &head_rms,
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
            &head_rms,
            comptime!(heads.num_query_heads),
            1.0f32,
            key_layout,
        );
        write_heads(queries, query_start, &new_queries, query_layout);
        write_heads(key_cache, cache_start, &new_keys, key_layout);
        write(value_cache, cache_start, &new_values, value_layout);
    }
}
