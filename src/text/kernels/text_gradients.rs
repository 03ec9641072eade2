//! Gradients of attention over whole texts: probabilities are recomputed (Dao et al. 2022), so that memory is linear in
//! the length. A row's gradient is one cube's, so nothing is added atomically.

use super::UNITS;
use super::attention_tiles::{
    RowBlock, Tiles, WIDTH, accumulate, add_splits, clear, load_keys, load_queries, multiply, pad,
    store_queries,
};
use super::heads::KernelHeadShape;
use super::text_heads::{COMPLETIONS_END, Segments};
use crate::math::exp;
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Computes delta, the dot product of the result of attention with its gradient, for each row and head; one unit each.
///
/// Buffers: the result and its gradient, `[count, vectors]`; `[count, 2]`, of which the second column is written.
#[cube(launch_unchecked)]
pub(crate) fn delta_kernel<C: Float, V: Size>(
    attended: &[Vector<C, V>],
    d_attended: &[Vector<f32, V>],
    log_sum_exp_and_delta: &mut [f32],
    count: usize,
    #[comptime] vectors: usize,
    #[comptime] vector_size: usize,
    #[define(C)] _element: ElemType,
    #[define(V)] _size: usize,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let mut sums = Vector::<f32, V>::new(0.0f32);
        for d in 0..vectors {
            let value = Vector::<f32, V>::cast_from(attended[i * vectors + d]);
            sums += value * d_attended[i * vectors + d];
        }
        let mut sum = sums.extract(0usize);
        #[unroll]
        for j in 1..vector_size {
            sum += sums.extract(j);
        }
        log_sum_exp_and_delta[2 * i + 1] = sum;
    }
}

/// Computes the gradient of queries; one cube per block of rows and head of keys.
///
/// Buffers: queries and the gradient of the result, `[rows, query_size]`; keys and values `[rows, kv_size]`;
/// log-sum-exp and delta of each row and head, `[rows, heads, 2]`; those of [`Segments`], with the blocks from
/// `first_entry` on; the gradient of the queries, `[rows, query_size]`. Workgroup memory: two tiles of queries, two of
/// keys, and a product of them.
#[cube(launch_unchecked)]
pub(crate) fn query_gradient_kernel<C: Float>(
    queries: &[f32],
    d_attended: &[f32],
    keys: &[C],
    values: &[C],
    log_sum_exp_and_delta: &[f32],
    segments: &Segments,
    d_queries: &mut [f32],
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

        let size = comptime!(tiles.queries * stride);
        let mut query_tile = Shared::<[f32]>::new_aligned_slice(size, 16usize);
        let mut d_tile = Shared::<[f32]>::new_aligned_slice(size, 16usize);
        let size = comptime!(tiles.keys * stride);
        let mut key_tile = Shared::<[f32]>::new_aligned_slice(size, 16usize);
        let mut value_tile = Shared::<[f32]>::new_aligned_slice(size, 16usize);
        let mut d_scores = Shared::<[f32]>::new_slice(comptime!(tiles.queries * row_size));
        load_queries(&mut query_tile, queries, &rows, 0, count, heads, tiles);
        load_queries(&mut d_tile, d_attended, &rows, 0, count, heads, tiles);
        pad(&mut query_tile, tiles.queries, tiles);
        pad(&mut d_tile, tiles.queries, tiles);
        pad(&mut key_tile, tiles.keys, tiles);
        pad(&mut value_tile, tiles.keys, tiles);
        let mut scores = Array::<f32>::new(comptime!(part.queries * part.keys));
        let mut d_weights = Array::<f32>::new(comptime!(part.queries * part.keys));
        let num_shares = comptime!(tiles.num_shares(tiles.queries));
        let mut sums = Array::<f32>::new(comptime!(num_shares * WIDTH * WIDTH));
        clear(&mut sums, comptime!(num_shares * WIDTH * WIDTH));

        let end = rows.position(rows.end);
        for start in range_stepped(rows.first_key(window), end, comptime!(tiles.keys)) {
            sync_cube();
            load_keys::<C>(&mut key_tile, keys, &rows, start, end, heads, tiles);
            load_keys::<C>(&mut value_tile, values, &rows, start, end, heads, tiles);
            sync_cube();
            multiply(&query_tile, &key_tile, &mut scores, tiles);
            multiply(&d_tile, &value_tile, &mut d_weights, tiles);
            #[unroll]
            for i in 0..comptime!(part.queries) {
                let query = unit / comptime!(groups.keys) + comptime!(i * groups.queries);
                let position = rows.position(rows.first + query / heads_per_kv_head);
                let entry = 2 * rows.query_index(query, heads);
                #[unroll]
                for j in 0..comptime!(part.keys) {
                    let key = unit % comptime!(groups.keys) + comptime!(j * groups.keys);
                    let key_index = start + key;
                    let mut d_score = 0.0f32;
                    if query < count && key_index <= position && key_index + window > position {
                        let weight = exp(
                            scores[comptime!(i * part.keys + j)] - log_sum_exp_and_delta[entry]
                        );
                        d_score = weight
                            * (d_weights[comptime!(i * part.keys + j)]
                                - log_sum_exp_and_delta[entry + 1]);
                    }
                    if query < comptime!(tiles.queries) {
                        d_scores[query * row_size + key] = d_score;
                    }
                }
            }
            sync_cube();
            let mut steps = end - start;
            if steps > comptime!(tiles.keys) {
                steps = tiles.keys.runtime();
            }
            accumulate(&mut sums, &d_scores, &key_tile, row_size, 1, steps, tiles.queries, tiles);
        }
        store_queries(&sums, d_queries, &rows, heads, tiles);
    }
}

/// Number of entries of a block of keys in the table of [`Segments`]: its first row and the end of its rows, the index
/// of this part and the number of all parts, and the first row of the results.
pub(crate) const KEY_BLOCK_ENTRIES: usize = 5;
/// Number of entries of a row in the table of [`Segments`] for [`add_parts_kernel`]: the first of its parts, the
/// distance between them, and their number.
pub(crate) const ROW_ENTRIES: usize = 3;

/// Computes parts of the gradients of keys and values; one cube per part of a block of rows and head of keys. A key is
/// attended to by its own row and the later rows of its segment, and by the rows of the completions that follow the
/// segment: several cubes share these rows if they are many.
///
/// Buffers: those of [`query_gradient_kernel`] except for the last, and with the blocks of [`KEY_BLOCK_ENTRIES`]
/// entries; the parts, `[.., kv_size]` each. Workgroup memory: two tiles of queries, two of keys, and two products of
/// them.
#[cube(launch_unchecked)]
pub(crate) fn key_gradient_kernel<C: Float>(
    queries: &[f32],
    d_attended: &[f32],
    keys: &[C],
    values: &[C],
    log_sum_exp_and_delta: &[f32],
    segments: &Segments,
    key_parts: &mut [f32],
    value_parts: &mut [f32],
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
        let (dim, stride, row_size) = comptime!((tiles.dim, tiles.stride(), tiles.row_size()));
        let (groups, part) = comptime!((tiles.groups(), tiles.part_shape()));
        let heads_per_kv_head = comptime!(heads.heads_per_kv_head());
        let at = first_entry + block * KEY_BLOCK_ENTRIES;
        let rows = RowBlock::from_table(segments, at, CUBE_POS % comptime!(heads.num_kv_heads));
        let part_index = segments.table[at + 2] as usize;
        let parts = segments.table[at + 3] as usize;
        let result_row = segments.table[at + 4] as usize;
        let head_offset = rows.head * dim;
        // All rows and heads that attend to some of the keys.
        let completions = segments.bound(rows.first, COMPLETIONS_END) - rows.completions_start;
        let end = (rows.own_rows + completions) * heads_per_kv_head;

        // The splits also sum their shares in these tiles.
        let size = comptime!((tiles.queries * stride).max(tiles.units * WIDTH));
        let mut query_tile = Shared::<[f32]>::new_aligned_slice(size, 16usize);
        let mut d_tile = Shared::<[f32]>::new_aligned_slice(size, 16usize);
        let size = comptime!(tiles.keys * stride);
        let mut key_tile = Shared::<[f32]>::new_aligned_slice(size, 16usize);
        let mut value_tile = Shared::<[f32]>::new_aligned_slice(size, 16usize);
        let mut weights = Shared::<[f32]>::new_slice(comptime!(tiles.queries * row_size));
        let mut d_scores = Shared::<[f32]>::new_slice(comptime!(tiles.queries * row_size));
        // The block's own keys, whose indices follow those of the prompt's.
        let (key_start, key_end) = (rows.position(rows.first), rows.position(rows.end));
        load_keys::<C>(&mut key_tile, keys, &rows, key_start, key_end, heads, tiles);
        load_keys::<C>(&mut value_tile, values, &rows, key_start, key_end, heads, tiles);
        pad(&mut query_tile, tiles.queries, tiles);
        pad(&mut d_tile, tiles.queries, tiles);
        pad(&mut key_tile, tiles.keys, tiles);
        pad(&mut value_tile, tiles.keys, tiles);
        let mut scores = Array::<f32>::new(comptime!(part.queries * part.keys));
        let mut d_weights = Array::<f32>::new(comptime!(part.queries * part.keys));
        let num_shares = comptime!(tiles.num_shares(tiles.keys));
        let mut key_sums = Array::<f32>::new(comptime!(num_shares * WIDTH * WIDTH));
        let mut value_sums = Array::<f32>::new(comptime!(num_shares * WIDTH * WIDTH));
        clear(&mut key_sums, comptime!(num_shares * WIDTH * WIDTH));
        clear(&mut value_sums, comptime!(num_shares * WIDTH * WIDTH));

        let (first, step) =
            (part_index * comptime!(tiles.queries), parts * comptime!(tiles.queries));
        for start in range_stepped(first, end, step) {
            sync_cube();
            load_queries(&mut query_tile, queries, &rows, start, end, heads, tiles);
            load_queries(&mut d_tile, d_attended, &rows, start, end, heads, tiles);
            sync_cube();
            multiply(&query_tile, &key_tile, &mut scores, tiles);
            multiply(&d_tile, &value_tile, &mut d_weights, tiles);
            #[unroll]
            for i in 0..comptime!(part.queries) {
                let query = unit / comptime!(groups.keys) + comptime!(i * groups.queries);
                let query_index = start + query;
                // Rows that follow the segment attend to all keys within the window.
                let row = rows.row(query_index, heads);
                let mut last = row;
                if query_index / heads_per_kv_head >= rows.own_rows {
                    last = rows.end;
                }
                let entry = 2 * rows.query_index(query_index, heads);
                let mut position = 0usize.runtime();
                if query_index < end {
                    position = segments.position(row);
                }
                #[unroll]
                for j in 0..comptime!(part.keys) {
                    let key = unit % comptime!(groups.keys) + comptime!(j * groups.keys);
                    let key_row = rows.first + key;
                    let mut weight = 0.0f32;
                    let mut d_score = 0.0f32;
                    if query_index < end
                        && key_row < rows.end
                        && key_row <= last
                        && rows.position(key_row) + window > position
                    {
                        weight = exp(
                            scores[comptime!(i * part.keys + j)] - log_sum_exp_and_delta[entry]
                        );
                        d_score = weight
                            * (d_weights[comptime!(i * part.keys + j)]
                                - log_sum_exp_and_delta[entry + 1]);
                    }
                    if query < comptime!(tiles.queries) {
                        weights[query * row_size + key] = weight;
                        d_scores[query * row_size + key] = d_score;
                    }
                }
            }
            sync_cube();
            let mut len = end - start;
            if len > comptime!(tiles.queries) {
                len = tiles.queries.runtime();
            }
            accumulate(&mut key_sums, &d_scores, &query_tile, 1, row_size, len, tiles.keys, tiles);
            accumulate(&mut value_sums, &weights, &d_tile, 1, row_size, len, tiles.keys, tiles);
        }
        if comptime!(tiles.num_splits() > 1) {
            add_splits(&mut key_sums, &mut query_tile, tiles);
            add_splits(&mut value_sums, &mut query_tile, tiles);
        }
        if unit < UNITS {
            #[unroll]
            for share in 0..num_shares {
                let item = unit + comptime!(share * UNITS);
                let (first, d) = (
                    item / comptime!(tiles.columns()) * WIDTH,
                    item % comptime!(tiles.columns()) * WIDTH,
                );
                #[unroll]
                for i in 0..WIDTH {
                    let row = rows.first + first + i;
                    if row < rows.end {
                        let to =
                            (result_row + first + i) * comptime!(heads.kv_size()) + head_offset + d;
                        #[unroll]
                        for c in 0..WIDTH {
                            if d + c < dim {
                                let sum = comptime!((share * WIDTH + i) * WIDTH + c);
                                key_parts[to + c] = key_sums[sum];
                                value_parts[to + c] = value_sums[sum];
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Adds up the parts of the gradients of keys and of values; one unit per element. That of values is of the type of the
/// operands of products, which take it next.
///
/// Buffers: the parts, `[.., size]` each; those of [`Segments`], with the parts of each row from `first_entry` on;
/// `[count]` elements of rows of `size` each.
#[cube(launch_unchecked)]
pub(crate) fn add_parts_kernel<C: Float>(
    key_parts: &[f32],
    value_parts: &[f32],
    segments: &Segments,
    d_keys: &mut [f32],
    d_values: &mut [C],
    first_entry: usize,
    count: usize,
    #[comptime] size: usize,
    #[define(C)] _element: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let entry = first_entry + i / size * ROW_ENTRIES;
        let first = segments.table[entry] as usize * size + i % size;
        let step = segments.table[entry + 1] as usize * size;
        let parts = segments.table[entry + 2] as usize;
        let mut d_key = key_parts[first];
        let mut d_value = value_parts[first];
        for part in 1..parts {
            d_key += key_parts[first + part * step];
            d_value += value_parts[first + part * step];
        }
        d_keys[i] = d_key;
        d_values[i] = C::cast_from(d_value);
    }
}
