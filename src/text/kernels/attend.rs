//! The kernel of attention over caches.

use super::UNITS;
use super::heads::{Heads, Progress};
use crate::device::buffers::Buffer;
use crate::math::exp;
use crate::math::softmax::ILLEGAL;
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Keys and values of completions and of their prompts.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Cached<C: Float> {
    /// `[rows, most, key_size]` each.
    pub keys: Buffer<C>,
    /// Values beside the keys.
    pub values: Buffer<C>,
    /// `[groups, longest, key_size]` each.
    pub prompt_keys: Buffer<C>,
    /// Values beside the prompts' keys.
    pub prompt_values: Buffer<C>,
    /// Room for tokens of a completion.
    pub most: usize,
    /// Tokens of the longest prompt.
    pub longest: usize,
}

/// Attention of one head of one row over its prompt and the tokens of its completion, by blocks of keys with a running
/// softmax (Milakov & Gimelshein 2018); one cube per row and head.
///
/// Buffers: queries `[rows, query_size]`, scaled; those of [`Cached`] and [`Progress`]; `[rows, query_size]`. `bound` is the
/// number of keys, the padding of prompts included, rounded up to a multiple of [`UNITS`].
/// Workgroup memory: 2 x [`UNITS`] floats and a head.
#[cube(launch_unchecked)]
pub(crate) fn attend_kernel<C: Float>(
    queries: &[f32],
    cached: &Cached<C>,
    progress: &Progress,
    attended: &mut [f32],
    rows: usize,
    window: usize,
    bound: usize,
    #[comptime] heads: Heads,
    #[define(C)] _cache: ElemType,
) {
    let (dim, count) = comptime!((heads.dim, heads.queries));
    let cube = CUBE_POS;
    if cube < rows * count {
        let unit = UNIT_POS as usize;
        let (row, head) = (cube / count, cube % count);
        let group = row / progress.members;
        let of_head = head / comptime!(heads.queries / heads.keys) * dim;
        let own = row * cached.most * comptime!(heads.key_size()) + of_head;
        let shared = group * cached.longest * comptime!(heads.key_size()) + of_head;
        let (prompt, longest) = (progress.prompt(row), cached.longest);
        let taken = progress.taken();
        let position = prompt + taken;

        let mut query = Shared::<[f32]>::new_slice(dim);
        for i in range_stepped(unit, dim, UNITS) {
            query[i] = queries[cube * dim + i];
        }
        sync_cube();
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
        let end = longest + taken + 1;
        // The bound is an argument, so that all units surely reach each barrier.
        for start in range_stepped(0, bound, UNITS) {
            let i = start + unit;
            let mut score = f32::new(ILLEGAL);
            if i < end {
                let mut at = i;
                let mut is_token = i < prompt;
                if i >= longest {
                    at = prompt + i - longest;
                    is_token = true;
                }
                if is_token && at + window > position {
                    let mut product = 0.0f32;
                    if i < longest {
                        let place = shared + i * comptime!(heads.key_size());
                        for d in 0..dim {
                            product += query[d] * f32::cast_from(cached.prompt_keys[place + d]);
                        }
                    } else {
                        let place = own + (i - longest) * comptime!(heads.key_size());
                        for d in 0..dim {
                            product += query[d] * f32::cast_from(cached.keys[place + d]);
                        }
                    }
                    score = product;
                }
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
            let mut last = UNITS.runtime();
            if start + UNITS > end {
                last = end - start;
            }
            for key in 0..last {
                let (weight, i) = (weights[key], start + key);
                sum += weight;
                #[unroll]
                for part in 0..parts {
                    let d = unit + comptime!(part * UNITS);
                    if d < dim {
                        if i < longest {
                            let place = shared + i * comptime!(heads.key_size());
                            sums[part] += weight * f32::cast_from(cached.prompt_values[place + d]);
                        } else {
                            let place = own + (i - longest) * comptime!(heads.key_size());
                            sums[part] += weight * f32::cast_from(cached.values[place + d]);
                        }
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
    }
}
