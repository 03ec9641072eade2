//! Kernels of queries, keys and values: positions, norms, rotation, and the write into the caches.

use super::progress::Progress;
use super::rows::{RowLayout, read, write};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Computes cosine and sine of a pair at a position, from the rotations of its low and of its high part.
#[cube]
pub(super) fn rotation(
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
        let number = progress.chosen();
        if unit == 0 {
            progress.set_passing(number);
        }
        let position = progress.prompt_length(row) + number;
        let (cosine, sine) = rotation(table, position, pair, low, high, half);
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
    /// Pairs of a head that rotate.
    pub half: usize,
    /// Whether each head of queries and keys is normed.
    pub norms_heads: bool,
    /// Whether all heads of queries, and all of keys, are normed together.
    pub norms_all: bool,
}

impl Heads {
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

    /// Weights of the norm of queries.
    pub const fn query_weights(self) -> usize {
        if self.norms_all { self.query_size() } else { self.dim }
    }

    /// Weights of the norms of queries and keys.
    pub const fn weights(self) -> usize {
        if self.norms_all { self.query_size() + self.key_size() } else { 2 * self.dim }
    }
}

/// Heads of queries or of keys of one row, whose elements are shared out among the units of a cube: pairs that rotate,
/// and elements that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rotated {
    heads: Heads,
    /// Heads of the row.
    count: usize,
    units: usize,
}

impl Rotated {
    /// Pairs, and elements that do not rotate, of a head.
    fn items(self) -> usize {
        self.heads.dim - self.heads.half
    }

    /// Items of a unit.
    fn parts(self) -> usize {
        (self.count * self.items()).div_ceil(self.units)
    }
}

/// The items of a unit, normed and rotated.
#[derive(CubeType)]
struct Items {
    first: Array<f32>,
    /// The second number of each pair.
    second: Array<f32>,
}

/// Norms and rotates the heads of the row that begins at `start`; `roots` are the heads' roots, from number `first` on,
/// and weights begin at `weight`.
#[cube]
fn rotate_heads(
    row_of: &mut [f32],
    start: usize,
    rotations: &[f32],
    rotation: usize,
    weights: &[f32],
    #[comptime] weight: usize,
    roots: &Shared<[f32]>,
    #[comptime] first: usize,
    factor: f32,
    #[comptime] form: Rotated,
) -> Items {
    let heads = comptime!(form.heads);
    let (dim, half, items) = comptime!((heads.dim, heads.half, form.items()));
    let mut all = Items {
        first: Array::<f32>::new(comptime!(form.parts())),
        second: Array::<f32>::new(comptime!(form.parts())),
    };
    #[unroll]
    for part in 0..comptime!(form.parts()) {
        let item = UNIT_POS as usize + comptime!(part * form.units);
        let mut a = 0.0f32;
        let mut b = 0.0f32;
        if item < comptime!(form.count * form.items()) {
            let (head, i) = (item / items, item % items);
            let at = start + head * dim;
            // A pair, or a number that does not rotate.
            let is_pair = i < half;
            let mut place = i;
            if !is_pair {
                place = i + half;
            }
            a = row_of[at + place] * factor;
            let mut w = weight + place;
            if comptime!(heads.norms_all) {
                w += head * dim;
            }
            if comptime!(heads.has_head_norms()) {
                a = a / roots[first + head] * weights[w];
            }
            if is_pair {
                b = row_of[at + half + i] * factor;
                if comptime!(heads.has_head_norms()) {
                    b = b / roots[first + head] * weights[w + half];
                }
                let (cos, sin) = (rotations[rotation + 2 * i], rotations[rotation + 2 * i + 1]);
                let before = a;
                a = before * cos - b * sin;
                b = b * cos + before * sin;
            }
        }
        all.first[part] = a;
        all.second[part] = b;
    }
    all
}

/// Writes the items of a unit into the row that begins at `start`.
#[cube]
fn write_heads<C: Float>(row_of: &mut [C], start: usize, all: &Items, #[comptime] form: Rotated) {
    let (dim, half, items) = comptime!((form.heads.dim, form.heads.half, form.items()));
    #[unroll]
    for part in 0..comptime!(form.parts()) {
        let item = UNIT_POS as usize + comptime!(part * form.units);
        if item < comptime!(form.count * form.items()) {
            let (head, i) = (item / items, item % items);
            let at = start + head * dim;
            if i < half {
                row_of[at + i] = C::cast_from(all.first[part]);
                row_of[at + half + i] = C::cast_from(all.second[part]);
            } else {
                row_of[at + half + i] = C::cast_from(all.first[part]);
            }
        }
    }
}

/// Computes the roots by which the heads of queries and keys of one row are divided, queries first.
#[cube]
pub(crate) fn head_roots(
    queries: &mut [f32],
    query: usize,
    keys: &mut [f32],
    key: usize,
    roots: &mut Shared<[f32]>,
    eps: f32,
    #[comptime] heads: Heads,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let (dim, count) = comptime!((heads.dim, heads.queries));
    let all = comptime!(heads.queries + heads.keys);
    for head in range_stepped(unit, all, units) {
        let mut square = 0.0f32;
        for i in 0..dim {
            if head < count {
                let x = queries[query + head * dim + i];
                square += x * x;
            } else {
                let x = keys[key + (head - count) * dim + i];
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
        for head in 0..count {
            query_square += roots[head];
        }
        let mut key_square = 0.0f32;
        for head in count..all {
            key_square += roots[head];
        }
        sync_cube();
        for head in range_stepped(unit, all, units) {
            if head < count {
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
        let (query, key) = (row * comptime!(heads.query_size()), row * comptime!(heads.key_size()));
        let mut roots = Shared::<[f32]>::new_slice(comptime!(heads.queries + heads.keys));
        if comptime!(heads.has_head_norms()) {
            head_roots(queries, query, keys, key, &mut roots, eps, heads, units);
        }
        let rotation = row * comptime!(2 * heads.half);
        let of_values = comptime!(RowLayout { size: heads.key_size(), units });
        let of_queries = comptime!(Rotated { heads, count: heads.queries, units });
        let of_keys = comptime!(Rotated { heads, count: heads.keys, units });
        let place = (row * max_tokens + progress.passing()) * comptime!(heads.key_size());
        // All loads precede the first store, so that a unit waits for memory once.
        let new_values = read(values, key, of_values);
        let new_queries = rotate_heads(
            queries, query, rotations, rotation, weights, 0usize, &roots, 0usize, scale, of_queries,
        );
        let new_keys = rotate_heads(
            keys,
            key,
            rotations,
            rotation,
            weights,
            comptime!(heads.query_weights()),
            &roots,
            comptime!(heads.queries),
            1.0f32,
            of_keys,
        );
        write_heads(queries, query, &new_queries, of_queries);
        write_heads(key_cache, place, &new_keys, of_keys);
        write(value_cache, place, &new_values, of_values);
    }
}
