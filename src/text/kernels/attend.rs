//! The kernel of attention over caches.

// Compile-time conditions are apart from run-time ones.
#![allow(clippy::collapsible_if)]

use super::heads::KernelHeadShape;
use super::progress::Progress;
use super::{LOADS_AT_ONCE, UNITS};
use crate::device::buffers::Buffer;
use crate::math::exp;
use crate::math::softmax::MASKED_LOGIT;
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Cached keys and values of completions and of their prompts.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct CachedKeysValues<C: Float, V: Size> {
    /// `[rows, max_tokens, kv_size]` each.
    pub keys: Buffer<Vector<C, V>>,
    /// Values, of the shape of the keys.
    pub values: Buffer<Vector<C, V>>,
    /// `[num_prompts, longest_prompt, kv_size]` each.
    pub prompt_keys: Buffer<Vector<C, V>>,
    /// Values of the prompts, of the shape of their keys.
    pub prompt_values: Buffer<Vector<C, V>>,
    /// Maximum number of tokens of a completion.
    pub max_tokens: usize,
    /// Tokens of the longest prompt.
    pub longest_prompt: usize,
}

/// Distribution of the values of a block of [`UNITS`] keys over the units of a cube; a compile-time value. Each unit
/// processes some vectors of a head, for one in [`ValueLayout::keys_at_once`] keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ValueLayout {
    /// Vectors of a head.
    vectors: usize,
    /// Units that process neighbouring vectors of a key.
    columns: usize,
    keys_at_once: usize,
}

impl ValueLayout {
    fn new(heads: KernelHeadShape, vector_size: usize) -> Self {
        let vectors = heads.head_dim / vector_size;
        let columns = vectors.min(UNITS);
        Self { vectors, columns, keys_at_once: UNITS / columns }
    }

    /// Vectors of a head that a unit processes.
    fn vectors_per_unit(self) -> usize {
        self.vectors.div_ceil(self.columns)
    }

    /// Keys of a block that a unit processes.
    fn keys_per_unit(self) -> usize {
        UNITS.div_ceil(self.keys_at_once)
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
    #[comptime] heads: KernelHeadShape,
    #[comptime] vector_size: usize,
    #[define(C)] _element: ElemType,
    #[define(V)] _size: usize,
) {
    let query_heads = comptime!(heads.num_query_heads);
    let layout = comptime!(ValueLayout::new(heads, vector_size));
    let (vectors, columns, parts) =
        comptime!((layout.vectors, layout.columns, layout.vectors_per_unit()));
    let cube = CUBE_POS;
    if cube < rows * query_heads {
        let unit = UNIT_POS as usize;
        let (row, head) = (cube / query_heads, cube % query_heads);
        let prompt = row / progress.completions_per_prompt;
        let key_stride = comptime!(heads.num_kv_heads * layout.vectors);
        let head_offset = head / comptime!(heads.heads_per_kv_head()) * vectors;
        let completion_start = row * cached.max_tokens * key_stride + head_offset;
        let prompt_start = prompt * cached.longest_prompt * key_stride + head_offset;
        let (prompt_length, longest_prompt) = (progress.prompt_length(row), cached.longest_prompt);
        let input_index = progress.input_index();
        let position = prompt_length + input_index;

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
        let end = longest_prompt + input_index + 1;
        // The bound is an argument, so that control flow at the barriers is uniform.
        for start in range_stepped(0, key_bound, UNITS) {
            let i = start + unit;
            let mut score = f32::new(MASKED_LOGIT);
            if i < end {
                let mut key_position = i;
                let mut is_token = i < prompt_length;
                if i >= longest_prompt {
                    key_position = prompt_length + i - longest_prompt;
                    is_token = true;
                }
                if is_token && key_position + window > position {
                    if i < longest_prompt {
                        let offset = prompt_start + i * key_stride;
                        score =
                            dot::<C, V>(&query, &cached.prompt_keys, offset, vectors, vector_size);
                    } else {
                        let offset = completion_start + (i - longest_prompt) * key_stride;
                        score = dot::<C, V>(&query, &cached.keys, offset, vectors, vector_size);
                    }
                }
            }
            scores[unit] = score;
            sync_cube();
            let last_peak = peak;
            for first in range_stepped(0, UNITS, LOADS_AT_ONCE) {
                #[unroll]
                for n in 0..LOADS_AT_ONCE {
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
            let rescale = exp(last_peak - peak);
            sum *= rescale;
            for first in range_stepped(0, UNITS, LOADS_AT_ONCE) {
                #[unroll]
                for n in 0..LOADS_AT_ONCE {
                    sum += weights[first + n];
                }
            }
            #[unroll]
            for part in 0..parts {
                sums[part] *= Vector::<f32, V>::new(rescale);
            }
            // Keys of the block, for units that take some.
            let mut keys = 0usize.runtime();
            if start < end && first_key < comptime!(layout.keys_at_once) {
                keys = end - start;
                if keys > UNITS {
                    keys = UNITS.runtime();
                }
            }
            for step in range_stepped(0, layout.keys_per_unit(), LOADS_AT_ONCE) {
                #[unroll]
                for part in 0..parts {
                    let column = column + comptime!(part * columns);
                    let mut key_end = keys;
                    if comptime!(layout.vectors_per_unit() * columns > vectors) {
                        if column >= vectors {
                            key_end = 0usize.runtime();
                        }
                    }
                    let mut loaded = Array::<Vector<C, V>>::new(LOADS_AT_ONCE);
                    let mut scales = Array::<f32>::new(LOADS_AT_ONCE);
                    #[unroll]
                    for n in 0..LOADS_AT_ONCE {
                        let key = first_key + (step + n) * layout.keys_at_once;
                        let i = start + key;
                        let mut value = Vector::<C, V>::new(C::from_int(0));
                        let mut scale = 0.0f32;
                        if key < key_end {
                            scale = weights[key];
                            if i < longest_prompt {
                                value =
                                    cached.prompt_values[prompt_start + i * key_stride + column];
                            } else {
                                value = cached.values
                                    [completion_start + (i - longest_prompt) * key_stride + column];
                            }
                        }
                        loaded[n] = value;
                        scales[n] = scale;
                    }
                    #[unroll]
                    for n in 0..LOADS_AT_ONCE {
                        let value = Vector::<f32, V>::cast_from(loaded[n]);
                        sums[part] += Vector::<f32, V>::new(scales[n]) * value;
                    }
                }
            }
        }
        let mut unit_sums =
            Shared::<[Vector<f32, V>]>::new_slice(comptime!(UNITS * layout.vectors_per_unit()));
        #[unroll]
        for part in 0..parts {
            unit_sums[unit + comptime!(part * UNITS)] = sums[part];
        }
        sync_cube();
        #[unroll]
        for part in 0..parts {
            let vector = unit + comptime!(part * columns);
            if unit < columns && vector < vectors {
                let mut total = unit_sums[unit + comptime!(part * UNITS)];
                #[unroll]
                for key in 1..comptime!(layout.keys_at_once) {
                    total += unit_sums[unit + comptime!(part * UNITS + key * columns)];
                }
                let result = total / Vector::<f32, V>::new(sum);
                attended[cube * vectors + vector] = Vector::<C, V>::cast_from(result);
            }
        }
    }
}

/// Computes the dot product of a query and the key that begins at `offset`.
#[cube]
fn dot<C: Float, V: Size>(
    query: &Shared<[Vector<f32, V>]>,
    keys: &[Vector<C, V>],
    offset: usize,
    #[comptime] vectors: usize,
    #[comptime] vector_size: usize,
) -> f32 {
    let mut products = Vector::<f32, V>::new(0.0f32);
    for first in range_stepped(0, comptime!(vectors / LOADS_AT_ONCE * LOADS_AT_ONCE), LOADS_AT_ONCE)
    {
        let mut loaded = Array::<Vector<C, V>>::new(LOADS_AT_ONCE);
        #[unroll]
        for n in 0..LOADS_AT_ONCE {
            loaded[n] = keys[offset + first + n];
        }
        #[unroll]
        for n in 0..LOADS_AT_ONCE {
            products += query[first + n] * Vector::<f32, V>::cast_from(loaded[n]);
        }
    }
    #[unroll]
    for i in comptime!(vectors / LOADS_AT_ONCE * LOADS_AT_ONCE)..vectors {
        products += query[i] * Vector::<f32, V>::cast_from(keys[offset + i]);
    }
    let mut product = products.extract(0usize);
    #[unroll]
    for j in 1..vector_size {
        product += products.extract(j);
    }
    product
}
