//! Attention over whole texts, by a running softmax.
//!
//! A cube processes a block of neighbouring rows of a segment, and loads the keys and values that they attend to tile
//! by tile into workgroup memory.

use super::UNITS;
use super::attention_tiles::{
    RowBlock, Tiles, WIDTH, accumulate, clear, load_keys, load_queries, multiply, pad,
    store_queries,
};
use super::heads::KernelHeadShape;
use super::text_heads::Segments;
use crate::math::softmax::MASKED_LOGIT;
use crate::math::{exp, ln};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Attention of the heads that share a head of keys, for a block of rows; one cube per block and head of keys.
///
/// Buffers: queries `[rows, query_size]`, scaled; keys and values `[rows, kv_size]`; those of [`Segments`], with the
/// blocks from `first_entry` on; `[rows, query_size]`; for each row and head the log-sum-exp of its scores, and delta,
/// which [`delta_kernel`](super::text_gradients::delta_kernel) writes, `[rows, heads, 2]`. Workgroup memory: a tile of
/// queries, one of keys, their products, and three floats per query.
#[cube(launch_unchecked)]
pub(crate) fn text_attend_kernel<C: Float>(
    queries: &[f32],
    keys: &[C],
    values: &[C],
    segments: &Segments,
    attended: &mut [C],
    log_sum_exp_and_delta: &mut [f32],
    first_entry: usize,
    blocks: usize,
    window: usize,
    #[comptime] heads: KernelHeadShape,
    #[comptime] tiles: Tiles,
    #[define(C)] _element: ElemType,
) {
    let block = CUBE_POS / comptime!(heads.num_kv_heads);
    if block < blocks {
        let unit = UNIT_POS as usize;
        let (stride, row_size) = comptime!((tiles.stride(), tiles.row_size()));
        let (groups, part) = comptime!((tiles.groups(), tiles.part_shape()));
        let heads_per_kv_head = comptime!(heads.heads_per_kv_head());
        let rows = RowBlock::from_table(
            segments,
            first_entry + 2 * block,
            CUBE_POS % comptime!(heads.num_kv_heads),
        );
        let count = rows.num_queries(heads);

        let mut query_tile =
            Shared::<[f32]>::new_aligned_slice(comptime!(tiles.queries * stride), 16usize);
        let mut key_tile =
            Shared::<[f32]>::new_aligned_slice(comptime!(tiles.keys * stride), 16usize);
        let mut weights = Shared::<[f32]>::new_slice(comptime!(tiles.queries * row_size));
        let mut peaks = Shared::<[f32]>::new_slice(comptime!(tiles.queries));
        let mut totals = Shared::<[f32]>::new_slice(comptime!(tiles.queries));
        let mut rescales = Shared::<[f32]>::new_slice(comptime!(tiles.queries));
        load_queries(&mut query_tile, queries, &rows, 0, rows.num_queries(heads), heads, tiles);
        pad(&mut query_tile, tiles.queries, tiles);
        pad(&mut key_tile, tiles.keys, tiles);
        // A tile may have more queries than the cube has units.
        for query in range_stepped(unit, tiles.queries, UNITS) {
            peaks[query] = f32::new(MASKED_LOGIT);
            totals[query] = 0.0f32;
        }
        let mut products = Array::<f32>::new(comptime!(part.queries * part.keys));
        let num_shares = comptime!(tiles.num_shares(tiles.queries));
        let mut sums = Array::<f32>::new(comptime!(num_shares * WIDTH * WIDTH));
        clear(&mut sums, comptime!(num_shares * WIDTH * WIDTH));

        // Keys up to the last row's own.
        let end = rows.position(rows.end);
        for start in range_stepped(rows.first_key(window), end, comptime!(tiles.keys)) {
            sync_cube();
            load_keys::<C>(&mut key_tile, keys, &rows, start, end, heads, tiles);
            sync_cube();
            multiply(&query_tile, &key_tile, &mut products, tiles);
            #[unroll]
            for i in 0..comptime!(part.queries) {
                let query = unit / comptime!(groups.keys) + comptime!(i * groups.queries);
                let position = rows.position(rows.first + query / heads_per_kv_head);
                #[unroll]
                for j in 0..comptime!(part.keys) {
                    let key = unit % comptime!(groups.keys) + comptime!(j * groups.keys);
                    let key_index = start + key;
                    let is_visible =
                        query < count && key_index <= position && key_index + window > position;
                    let mut score = f32::new(MASKED_LOGIT);
                    if is_visible {
                        score = products[comptime!(i * part.keys + j)];
                    }
                    products[comptime!(i * part.keys + j)] = score;
                    if query < comptime!(tiles.queries) {
                        weights[query * row_size + key] = score;
                    }
                }
            }
            sync_cube();
            for query in range_stepped(unit, tiles.queries, UNITS) {
                let last_peak = peaks[query];
                let mut peak = last_peak;
                for key in 0..comptime!(tiles.keys) {
                    let score = weights[query * row_size + key];
                    if score > peak {
                        peak = score;
                    }
                }
                peaks[query] = peak;
                rescales[query] = exp(last_peak - peak);
            }
            // Values overwrite keys.
            load_keys::<C>(&mut key_tile, values, &rows, start, end, heads, tiles);
            sync_cube();
            #[unroll]
            for i in 0..comptime!(part.queries) {
                let query = unit / comptime!(groups.keys) + comptime!(i * groups.queries);
                #[unroll]
                for j in 0..comptime!(part.keys) {
                    let key = unit % comptime!(groups.keys) + comptime!(j * groups.keys);
                    let score = products[comptime!(i * part.keys + j)];
                    let mut weight = 0.0f32;
                    if score > MASKED_LOGIT {
                        weight = exp(score - peaks[query]);
                    }
                    if query < comptime!(tiles.queries) {
                        weights[query * row_size + key] = weight;
                    }
                }
            }
            sync_cube();
            for query in range_stepped(unit, tiles.queries, UNITS) {
                let mut total = totals[query] * rescales[query];
                for key in 0..comptime!(tiles.keys) {
                    total += weights[query * row_size + key];
                }
                totals[query] = total;
            }
            #[unroll]
            for share in 0..num_shares {
                let item = unit + comptime!(share * UNITS);
                let row = item / comptime!(tiles.columns()) * WIDTH;
                if row < comptime!(tiles.queries) {
                    #[unroll]
                    for i in 0..WIDTH {
                        let factor = rescales[row + i];
                        #[unroll]
                        for c in 0..WIDTH {
                            sums[comptime!((share * WIDTH + i) * WIDTH + c)] *= factor;
                        }
                    }
                }
            }
            let mut steps = end - start;
            if steps > comptime!(tiles.keys) {
                steps = tiles.keys.runtime();
            }
            accumulate(&mut sums, &weights, &key_tile, row_size, 1, steps, tiles.queries, tiles);
        }
        sync_cube();
        #[unroll]
        for share in 0..num_shares {
            let row = (unit + comptime!(share * UNITS)) / comptime!(tiles.columns()) * WIDTH;
            if row < comptime!(tiles.queries) {
                #[unroll]
                for i in 0..WIDTH {
                    let total = totals[row + i];
                    #[unroll]
                    for c in 0..WIDTH {
                        sums[comptime!((share * WIDTH + i) * WIDTH + c)] /= total;
                    }
                }
            }
        }
        store_queries(&sums, attended, &rows, heads, tiles);
        for query in range_stepped(unit, count, UNITS) {
            log_sum_exp_and_delta[2 * rows.query_index(query, heads)] =
                peaks[query] + ln(totals[query]);
        }
    }
}
