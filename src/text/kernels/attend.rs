//! The kernel of attention over caches.

// Compile-time conditions are apart from run-time ones.
#![allow(clippy::collapsible_if)]

use super::heads::Heads;
use super::progress::Progress;
use super::{AT_ONCE, UNITS};
use crate::device::buffers::Buffer;
use crate::math::exp;
use crate::math::softmax::MASKED_LOGIT;
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Cached keys and values of completions and of their prompts.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct CachedKeysValues<C: Float, V: Size> {
    /// `[rows, max_tokens, key_size]` each.
    pub keys: Buffer<Vector<C, V>>,
    /// Values, of the shape of the keys.
    pub values: Buffer<Vector<C, V>>,
    /// `[groups, longest, key_size]` each.
    pub prompt_keys: Buffer<Vector<C, V>>,
    /// Values of the prompts, of the shape of their keys.
    pub prompt_values: Buffer<Vector<C, V>>,
    /// Maximum number of tokens of a completion.
    pub max_tokens: usize,
    /// Tokens of the longest prompt.
    pub longest: usize,
}

/// Distribution of the values of a block of [`UNITS`] keys over the units of a cube; a compile-time value. Each unit
/// processes some vectors of a head, for one in [`Shares::keys`] keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shares {
    /// Vectors of a head.
    vectors: usize,
    /// Units that process neighbouring vectors of a key.
    columns: usize,
    /// Keys that are processed at a time.
    keys: usize,
}

impl Shares {
    fn new(heads: Heads, vector: usize) -> Self {
        let vectors = heads.dim / vector;
        let columns = vectors.min(UNITS);
        Self { vectors, columns, keys: UNITS / columns }
    }

    /// Vectors of a head that a unit takes.
    fn parts(self) -> usize {
        self.vectors.div_ceil(self.columns)
    }

    /// Keys of a block that a unit takes.
    fn of_unit(self) -> usize {
        UNITS.div_ceil(self.keys)
    }
}

/// Attention of one head of one row over its prompt and the tokens of its completion, by blocks of keys with a running
/// softmax (Milakov & Gimelshein 2018); one cube per row and head. The result is of the type of the caches, which is
/// that of the operands of products.
///
/// Buffers: queries `[rows, query_size]`, scaled; those of [`CachedKeysValues`] and [`Progress`]; the result,
/// `[rows, query_size]`. `key_bound` is the number of keys, the padding of prompts included, rounded up to a multiple
/// of [`UNITS`].
/// Workgroup memory: 2 floats and a vector per unit, and a head.
#[cube(launch_unchecked)]
pub(crate) fn attend_kernel<C: Float, V: Size>(
    queries: &[Vector<f32, V>],
    cached: &CachedKeysValues<C, V>,
    progress: &Progress,
    attended: &mut [Vector<C, V>],
    rows: usize,
    window: usize,
    key_bound: usize,
    #[comptime] heads: Heads,
    #[comptime] vector: usize,
    #[define(C)] _element: ElemType,
    #[define(V)] _size: usize,
) {
    let count = comptime!(heads.queries);
    let shares = comptime!(Shares::new(heads, vector));
    let (vectors, columns, parts) = comptime!((shares.vectors, shares.columns, shares.parts()));
    let cube = CUBE_POS;
    if cube < rows * count {
        let unit = UNIT_POS as usize;
        let (row, head) = (cube / count, cube % count);
        let group = row / progress.completions_per_prompt;
        let of_key = comptime!(heads.keys * shares.vectors);
        let of_head = head / comptime!(heads.queries / heads.keys) * vectors;
        let own = row * cached.max_tokens * of_key + of_head;
        let shared = group * cached.longest * of_key + of_head;
        let (prompt, longest) = (progress.prompt_length(row), cached.longest);
        let passing = progress.passing();
        let position = prompt + passing;

        let mut query = Shared::<[Vector<f32, V>]>::new_slice(vectors);
        for i in range_stepped(unit, vectors, UNITS) {
            query[i] = queries[cube * vectors + i];
        }
        sync_cube();
        let mut scores = Shared::<[f32]>::new_slice(UNITS);
        let mut weights = Shared::<[f32]>::new_slice(UNITS);
        let (column, first_key) = (unit % columns, unit / columns);
        let mut sums = Array::<Vector<f32, V>>::new(parts);
        #[unroll]
        for part in 0..parts {
            sums[part] = Vector::<f32, V>::new(0.0f32);
        }
        let mut peak = f32::new(MASKED_LOGIT);
        let mut sum = 0.0f32;
        let end = longest + passing + 1;
        // The bound is an argument, so that control flow at the barriers is uniform.
        for start in range_stepped(0, key_bound, UNITS) {
            let i = start + unit;
            let mut score = f32::new(MASKED_LOGIT);
            if i < end {
                let mut at = i;
                let mut is_token = i < prompt;
                if i >= longest {
                    at = prompt + i - longest;
                    is_token = true;
                }
                if is_token && at + window > position {
                    if i < longest {
                        let place = shared + i * of_key;
                        score = dot::<C, V>(&query, &cached.prompt_keys, place, vectors, vector);
                    } else {
                        let place = own + (i - longest) * of_key;
                        score = dot::<C, V>(&query, &cached.keys, place, vectors, vector);
                    }
                }
            }
            scores[unit] = score;
            sync_cube();
            let before = peak;
            for first in range_stepped(0, UNITS, AT_ONCE) {
                #[unroll]
                for n in 0..AT_ONCE {
                    let other = scores[first + n];
                    if other > peak {
                        peak = other;
                    }
                }
            }
            let mut weight = 0.0f32;
            if score > MASKED_LOGIT {
                weight = exp(score - peak);
            }
            weights[unit] = weight;
            sync_cube();
            let kept = exp(before - peak);
            sum *= kept;
            for first in range_stepped(0, UNITS, AT_ONCE) {
                #[unroll]
                for n in 0..AT_ONCE {
                    sum += weights[first + n];
                }
            }
            #[unroll]
            for part in 0..parts {
                sums[part] *= Vector::<f32, V>::new(kept);
            }
            // Keys of the block, for units that take some.
            let mut keys = 0usize.runtime();
            if start < end && first_key < comptime!(shares.keys) {
                keys = end - start;
                if keys > UNITS {
                    keys = UNITS.runtime();
                }
            }
            for step in range_stepped(0, shares.of_unit(), AT_ONCE) {
                #[unroll]
                for part in 0..parts {
                    let column = column + comptime!(part * columns);
                    let mut last = keys;
                    if comptime!(shares.parts() * columns > vectors) {
                        if column >= vectors {
                            last = 0usize.runtime();
                        }
                    }
                    let mut read = Array::<Vector<C, V>>::new(AT_ONCE);
                    let mut scales = Array::<f32>::new(AT_ONCE);
                    #[unroll]
                    for n in 0..AT_ONCE {
                        let key = first_key + (step + n) * shares.keys;
                        let i = start + key;
                        let mut value = Vector::<C, V>::new(C::from_int(0));
                        let mut scale = 0.0f32;
                        if key < last {
                            scale = weights[key];
                            if i < longest {
                                value = cached.prompt_values[shared + i * of_key + column];
                            } else {
                                value = cached.values[own + (i - longest) * of_key + column];
                            }
                        }
                        read[n] = value;
                        scales[n] = scale;
                    }
                    #[unroll]
                    for n in 0..AT_ONCE {
                        let value = Vector::<f32, V>::cast_from(read[n]);
                        sums[part] += Vector::<f32, V>::new(scales[n]) * value;
                    }
                }
            }
        }
        let mut all = Shared::<[Vector<f32, V>]>::new_slice(comptime!(UNITS * shares.parts()));
        #[unroll]
        for part in 0..parts {
            all[unit + comptime!(part * UNITS)] = sums[part];
        }
        sync_cube();
        #[unroll]
        for part in 0..parts {
            let vector = unit + comptime!(part * columns);
            if unit < columns && vector < vectors {
                let mut added = all[unit + comptime!(part * UNITS)];
                #[unroll]
                for key in 1..comptime!(shares.keys) {
                    added += all[unit + comptime!(part * UNITS + key * columns)];
                }
                let result = added / Vector::<f32, V>::new(sum);
                attended[cube * vectors + vector] = Vector::<C, V>::cast_from(result);
            }
        }
    }
}

/// The product of a query and of the key that begins at a place.
#[cube]
fn dot<C: Float, V: Size>(
    query: &Shared<[Vector<f32, V>]>,
    keys: &[Vector<C, V>],
    place: usize,
    #[comptime] vectors: usize,
    #[comptime] vector: usize,
) -> f32 {
    let mut products = Vector::<f32, V>::new(0.0f32);
    for first in range_stepped(0, comptime!(vectors / AT_ONCE * AT_ONCE), AT_ONCE) {
        let mut read = Array::<Vector<C, V>>::new(AT_ONCE);
        #[unroll]
        for n in 0..AT_ONCE {
            read[n] = keys[place + first + n];
        }
        #[unroll]
        for n in 0..AT_ONCE {
            products += query[first + n] * Vector::<f32, V>::cast_from(read[n]);
        }
    }
    #[unroll]
    for i in comptime!(vectors / AT_ONCE * AT_ONCE)..vectors {
        products += query[i] * Vector::<f32, V>::cast_from(keys[place + i]);
    }
    let mut product = products.extract(0usize);
    #[unroll]
    for j in 1..vector {
        product += products.extract(j);
    }
    product
}
