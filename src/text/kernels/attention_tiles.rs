//! Tiles of queries and of keys in workgroup memory, for attention over whole texts.

use super::heads::KernelHeadShape;
use super::text_heads::{
    COMPLETIONS_START, OWN_END, OWN_START, PROMPT_END, PROMPT_START, Segments,
};
use super::{LOADS_AT_ONCE, UNITS};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Number of elements of a head that a unit reads at a time from workgroup memory.
pub(super) const WIDTH: usize = 4;
/// The [`TileCounts::floats_per_query`] for which tiles are shrunk: the most that any kernel has, so that all shrink
/// alike.
const FITTED_QUERY_FLOATS: usize = 3;

/// Tiles of queries and of keys in workgroup memory; a compile-time value of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tiles {
    /// Queries of a tile: heads that share keys, of one or several rows.
    pub queries: usize,
    /// Keys of a tile.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Units of a cube.
    pub units: usize,
}

/// Numbers of arrays in the workgroup memory of a cube.
#[derive(Clone, Copy)]
pub(crate) struct TileCounts {
    /// Number of tiles of queries, and of tiles of keys.
    pub num_tiles: usize,
    /// Number of products of a tile of queries with one of keys.
    pub num_products: usize,
    /// Floats of each query.
    pub floats_per_query: usize,
}

/// Numbers of queries and of keys of a unit's part of a product, or of the units along them.
#[derive(Clone, Copy)]
pub(crate) struct ProductShape {
    pub queries: usize,
    pub keys: usize,
}

impl Tiles {
    /// Halves queries or keys, down to `min_queries` queries, until these arrays fit in `bytes` of workgroup memory, or
    /// nothing is left to halve. `counts.floats_per_query` is ignored: room is made for as many as any kernel has.
    pub fn shrink_to_fit(self, min_queries: usize, counts: TileCounts, bytes: usize) -> Self {
        let counts = TileCounts { floats_per_query: FITTED_QUERY_FLOATS, ..counts };
        let mut tiles = self;
        while tiles.bytes(counts) > bytes {
            let Tiles { queries, keys, .. } = &mut tiles;
            let can_halve_queries = *queries / 2 >= min_queries.max(WIDTH);
            if can_halve_queries && (*queries > *keys || *keys == WIDTH) {
                *queries /= 2;
            } else if *keys > WIDTH {
                *keys /= 2;
            } else {
                break;
            }
        }
        tiles
    }

    /// Workgroup memory of these arrays, bytes.
    pub fn bytes(self, counts: TileCounts) -> usize {
        let Self { queries, keys, .. } = self;
        let floats = counts.num_tiles * (queries + keys) * self.stride()
            + counts.num_products * queries * self.row_size()
            + counts.floats_per_query * queries;
        floats * size_of::<f32>()
    }

    /// Floats of a row of a tile: a head's, padded with zeros to a multiple of [`WIDTH`], which units read at a time,
    /// and [`WIDTH`] more, so that rows start in different banks.
    pub const fn stride(self) -> usize {
        self.dim.next_multiple_of(WIDTH) + WIDTH
    }

    /// Floats of a row of the products of a tile of queries with one of keys.
    pub const fn row_size(self) -> usize {
        self.keys + 1
    }

    /// Groups of units along the queries of a product, and along its keys.
    pub const fn groups(self) -> ProductShape {
        let max_groups = if self.units > UNITS { 16 } else { 8 };
        let keys = if self.keys < max_groups { self.keys } else { max_groups };
        ProductShape { queries: self.units / keys, keys }
    }

    /// Queries and keys of a unit's part of a product, each a group apart.
    pub const fn part_shape(self) -> ProductShape {
        let groups = self.groups();
        ProductShape {
            queries: self.queries.div_ceil(groups.queries),
            keys: self.keys / groups.keys,
        }
    }

    /// Groups of [`WIDTH`] elements in a head.
    pub const fn columns(self) -> usize {
        self.dim.div_ceil(WIDTH)
    }

    /// Parts of [`WIDTH`] rows and as many elements that each of [`UNITS`] units has of a matrix of this many rows of
    /// heads.
    pub const fn num_shares(self, rows: usize) -> usize {
        (rows / WIDTH * self.columns()).div_ceil(UNITS)
    }

    /// Number of groups of [`UNITS`] units, each of which takes some of the steps of a sum (split-k).
    pub const fn num_splits(self) -> usize {
        self.units / UNITS
    }
}

/// Rows of a segment that a cube processes, for one head of keys.
#[derive(CubeType, Clone, Copy)]
pub(super) struct RowBlock {
    /// First row, and the end of the rows.
    pub first: usize,
    pub end: usize,
    /// First row of the segment.
    pub segment_start: usize,
    /// First row of the prompt, and the number of its rows.
    pub prompt_start: usize,
    pub prompt_rows: usize,
    /// Index of the head of keys.
    pub head: usize,
    /// Number of the segment's own rows from `first` on; later queries belong to the completions that follow.
    pub own_rows: usize,
    /// First row that follows the segment.
    pub completions_start: usize,
}

#[cube]
impl RowBlock {
    /// Reads the block whose first row, and the end of its rows, are at `entry` in the table of segments.
    pub fn from_table(segments: &Segments, entry: usize, head: usize) -> RowBlock {
        let first = segments.table[entry] as usize;
        let prompt_start = segments.bound(first, PROMPT_START);
        RowBlock {
            first,
            end: segments.table[entry + 1] as usize,
            segment_start: segments.bound(first, OWN_START),
            prompt_start,
            prompt_rows: segments.bound(first, PROMPT_END) - prompt_start,
            head,
            own_rows: segments.bound(first, OWN_END) - first,
            completions_start: segments.bound(first, COMPLETIONS_START),
        }
    }

    /// The row of query `query` of the block, whose heads that share a head of keys come row by row.
    pub fn row(&self, query: usize, #[comptime] heads: KernelHeadShape) -> usize {
        let offset = query / comptime!(heads.heads_per_kv_head());
        let mut row = self.first + offset;
        if offset >= self.own_rows {
            row = self.completions_start + offset - self.own_rows;
        }
        row
    }

    /// The row of key `key` among those that a row may attend to: its prompt's, then its segment's up to itself.
    fn key_row(&self, key: usize) -> usize {
        let mut row = self.prompt_start + key;
        if key >= self.prompt_rows {
            row = self.segment_start + key - self.prompt_rows;
        }
        row
    }

    /// The position of a row of the segment, which is also the index of its own key.
    pub fn position(&self, row: usize) -> usize {
        self.prompt_rows + row - self.segment_start
    }

    /// The index of query `query` of the block among those of all rows.
    pub fn query_index(&self, query: usize, #[comptime] heads: KernelHeadShape) -> usize {
        let heads_per_kv_head = comptime!(heads.heads_per_kv_head());
        self.row(query, heads) * heads.num_query_heads
            + self.head * heads_per_kv_head
            + query % heads_per_kv_head
    }

    /// Number of queries of the block.
    pub fn num_queries(&self, #[comptime] heads: KernelHeadShape) -> usize {
        (self.end - self.first) * comptime!(heads.heads_per_kv_head())
    }

    /// Index of the first key that the block attends to.
    pub fn first_key(&self, window: usize) -> usize {
        let keys = self.position(self.first) + 1;
        let mut first = 0usize.runtime();
        if keys > window {
            first = keys - window;
        }
        first
    }
}

/// Loads queries from index `start` on, or the gradients of their results, to a tile; those past `end` are 0.
#[cube]
pub(super) fn load_queries(
    tile: &mut Shared<[f32]>,
    source: &[f32],
    rows: &RowBlock,
    start: usize,
    end: usize,
    #[comptime] heads: KernelHeadShape,
    #[comptime] tiles: Tiles,
) {
    let count = comptime!(tiles.queries * tiles.dim);
    let at_once = comptime!(LOADS_AT_ONCE.min(count.div_ceil(tiles.units)));
    for first in range_stepped(UNIT_POS as usize, count, comptime!(at_once * tiles.units)) {
        let mut values = Array::<f32>::new(at_once);
        #[unroll]
        for n in 0..at_once {
            let e = first + comptime!(n * tiles.units);
            let query = start + e / tiles.dim;
            let mut value = 0.0f32;
            if e < count && query < end {
                value = source[rows.query_index(query, heads) * tiles.dim + e % tiles.dim];
            }
            values[n] = value;
        }
        fill(tile, &values, first, count, at_once, tiles);
    }
}

/// Loads keys from index `start` on, or their values, to a tile; those past `end` are 0.
#[cube]
pub(super) fn load_keys<C: Float>(
    tile: &mut Shared<[f32]>,
    source: &[C],
    rows: &RowBlock,
    start: usize,
    end: usize,
    #[comptime] heads: KernelHeadShape,
    #[comptime] tiles: Tiles,
) {
    let count = comptime!(tiles.keys * tiles.dim);
    let at_once = comptime!(LOADS_AT_ONCE.min(count.div_ceil(tiles.units)));
    for first in range_stepped(UNIT_POS as usize, count, comptime!(at_once * tiles.units)) {
        let mut values = Array::<f32>::new(at_once);
        #[unroll]
        for n in 0..at_once {
            let e = first + comptime!(n * tiles.units);
            let key = start + e / tiles.dim;
            let mut value = 0.0f32;
            if e < count && key < end {
                let offset = rows.key_row(key) * comptime!(heads.kv_size()) + rows.head * tiles.dim;
                value = f32::cast_from(source[offset + e % tiles.dim]);
            }
            values[n] = value;
        }
        fill(tile, &values, first, count, at_once, tiles);
    }
}

/// Writes a unit's elements to a tile, from its element `first` on.
#[cube]
fn fill(
    tile: &mut Shared<[f32]>,
    values: &Array<f32>,
    first: usize,
    #[comptime] count: usize,
    #[comptime] at_once: usize,
    #[comptime] tiles: Tiles,
) {
    #[unroll]
    for n in 0..at_once {
        let e = first + comptime!(n * tiles.units);
        if e < count {
            tile[e / tiles.dim * comptime!(tiles.stride()) + e % tiles.dim] = values[n];
        }
    }
}

/// Stores a unit's shares of a block's queries.
#[cube]
pub(super) fn store_queries<N: Float>(
    sums: &Array<f32>,
    to: &mut [N],
    rows: &RowBlock,
    #[comptime] heads: KernelHeadShape,
    #[comptime] tiles: Tiles,
) {
    let count = rows.num_queries(heads);
    #[unroll]
    for share in 0..comptime!(tiles.num_shares(tiles.queries)) {
        let item = UNIT_POS as usize + comptime!(share * UNITS);
        let (first, d) =
            (item / comptime!(tiles.columns()) * WIDTH, item % comptime!(tiles.columns()) * WIDTH);
        #[unroll]
        for i in 0..WIDTH {
            if first + i < count {
                let offset = rows.query_index(first + i, heads) * tiles.dim + d;
                #[unroll]
                for c in 0..WIDTH {
                    if d + c < tiles.dim {
                        let sum = comptime!((share * WIDTH + i) * WIDTH + c);
                        to[offset + c] = N::cast_from(sums[sum]);
                    }
                }
            }
        }
    }
}

/// Clears an array.
#[cube]
pub(super) fn clear(values: &mut Array<f32>, #[comptime] count: usize) {
    #[unroll]
    for i in 0..count {
        values[i] = 0.0f32;
    }
}

/// Clears the elements after the heads of a tile.
#[cube]
pub(super) fn pad(tile: &mut Shared<[f32]>, rows: usize, #[comptime] tiles: Tiles) {
    let padding = comptime!(tiles.stride() - tiles.dim);
    for e in range_stepped(UNIT_POS as usize, rows * padding, tiles.units) {
        tile[e / padding * comptime!(tiles.stride()) + tiles.dim + e % padding] = 0.0f32;
    }
}

/// Computes a unit's part of the products of a tile of queries with one of keys, `[part of queries, part of keys]`.
#[cube]
pub(super) fn multiply(
    queries: &Shared<[f32]>,
    keys: &Shared<[f32]>,
    products: &mut Array<f32>,
    #[comptime] tiles: Tiles,
) {
    let (groups, part) = comptime!((tiles.groups(), tiles.part_shape()));
    let stride = comptime!(tiles.stride());
    let (query, key) =
        (UNIT_POS as usize / comptime!(groups.keys), UNIT_POS as usize % comptime!(groups.keys));
    clear(products, comptime!(part.queries * part.keys));
    if query < comptime!(tiles.queries) {
        let mut query_elements = Array::<f32>::new(comptime!(part.queries * WIDTH));
        for column in 0..comptime!(tiles.columns()) {
            let d = column * WIDTH;
            #[unroll]
            for i in 0..comptime!(part.queries) {
                let start = (query + comptime!(i * groups.queries)) * stride + d;
                #[unroll]
                for c in 0..WIDTH {
                    query_elements[comptime!(i * WIDTH + c)] = queries[start + c];
                }
            }
            #[unroll]
            for j in 0..comptime!(part.keys) {
                let start = (key + comptime!(j * groups.keys)) * stride + d;
                #[unroll]
                for c in 0..WIDTH {
                    let element = keys[start + c];
                    #[unroll]
                    for i in 0..comptime!(part.queries) {
                        products[comptime!(i * part.keys + j)] +=
                            query_elements[comptime!(i * WIDTH + c)] * element;
                    }
                }
            }
        }
    }
}

/// Adds products of weights with a tile of heads, `[steps, dim]`, to a unit's shares of `[rows, dim]`. The weight of
/// row `r` and step `k` is at `r * row_stride + k * step_stride`; each of [`Tiles::num_splits`] takes some of the
/// steps, and has shares of its own.
#[cube]
pub(super) fn accumulate(
    sums: &mut Array<f32>,
    weights: &Shared<[f32]>,
    tile: &Shared<[f32]>,
    row_stride: usize,
    step_stride: usize,
    steps: usize,
    #[comptime] rows: usize,
    #[comptime] tiles: Tiles,
) {
    let (columns, stride) = comptime!((tiles.columns(), tiles.stride()));
    #[unroll]
    for share in 0..comptime!(tiles.num_shares(rows)) {
        let item = UNIT_POS as usize % UNITS + comptime!(share * UNITS);
        if item < comptime!(rows / WIDTH * tiles.columns()) {
            let (row, d) = (item / columns * WIDTH, item % columns * WIDTH);
            let mut values = Array::<f32>::new(WIDTH);
            for k in range_stepped(UNIT_POS as usize / UNITS, steps, comptime!(tiles.num_splits()))
            {
                #[unroll]
                for c in 0..WIDTH {
                    values[c] = tile[k * stride + d + c];
                }
                #[unroll]
                for i in 0..WIDTH {
                    let weight = weights[(row + i) * row_stride + k * step_stride];
                    #[unroll]
                    for c in 0..WIDTH {
                        sums[comptime!((share * WIDTH + i) * WIDTH + c)] += weight * values[c];
                    }
                }
            }
        }
    }
}

/// Adds the shares of all splits to those of the first, in order, through a tile.
#[cube]
pub(super) fn add_splits(
    sums: &mut Array<f32>,
    tile: &mut Shared<[f32]>,
    #[comptime] tiles: Tiles,
) {
    let (unit, split) = (UNIT_POS as usize % UNITS, UNIT_POS as usize / UNITS);
    let count = comptime!(tiles.num_shares(tiles.keys) * WIDTH * WIDTH);
    // A part of the shares at a time, since a tile has no room for all.
    #[unroll]
    for part in 0..comptime!(count / WIDTH) {
        sync_cube();
        #[unroll]
        for c in 0..WIDTH {
            tile[(split * WIDTH + c) * UNITS + unit] = sums[comptime!(part * WIDTH + c)];
        }
        sync_cube();
        if split == 0 {
            #[unroll]
            for other in 1..comptime!(tiles.num_splits()) {
                #[unroll]
                for c in 0..WIDTH {
                    sums[comptime!(part * WIDTH + c)] +=
                        tile[comptime!((other * WIDTH + c) * UNITS) + unit];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_made_smaller_until_they_have_room() {
        let tiles = Tiles { queries: 32, keys: 32, dim: 64, units: UNITS };
        let counts = TileCounts { num_tiles: 2, num_products: 1, floats_per_query: 3 };
        for min_queries in [1, 8, 16] {
            for bytes in [16 << 10, 32 << 10, 256 << 10] {
                let fitting = tiles.shrink_to_fit(min_queries, counts, bytes);
                assert!(fitting.bytes(counts) <= bytes, "{fitting:?}");
                assert!(fitting.queries >= min_queries && fitting.keys >= WIDTH, "{fitting:?}");
            }
        }
        assert_eq!(tiles.shrink_to_fit(1, counts, 256 << 10), tiles);
        // Nothing is left to halve.
        let fitting = Tiles { dim: 4096, ..tiles }.shrink_to_fit(16, counts, 1 << 10);
        assert_eq!((fitting.queries, fitting.keys), (16, WIDTH));
        assert!(fitting.bytes(TileCounts { floats_per_query: 0, ..counts }) > 1 << 10);
    }

    #[test]
    fn the_units_of_a_cube_have_each_product_once() {
        for (queries, keys, units) in
            [(16, 32, 64), (8, 8, 64), (4, 16, 64), (16, 4, 64), (32, 16, 256), (32, 8, 256)]
        {
            let tiles = Tiles { queries, keys, dim: 5, units };
            let (groups, part) = (tiles.groups(), tiles.part_shape());
            let mut found = vec![0; queries * keys];
            for unit in 0..units {
                for (i, j) in (0..part.queries).flat_map(|i| (0..part.keys).map(move |j| (i, j))) {
                    let query = unit / groups.keys + i * groups.queries;
                    if query < queries {
                        found[query * keys + unit % groups.keys + j * groups.keys] += 1;
                    }
                }
            }
            assert!(found.iter().all(|count| *count == 1), "{tiles:?}: {found:?}");
        }
    }
}
