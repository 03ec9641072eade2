//! Tiles of queries and of keys in workgroup memory, for attention over whole texts.

use super::heads::Heads;
use super::text_heads::{
    COMPLETIONS_START, OWN_END, OWN_START, PROMPT_END, PROMPT_START, Segments,
};
use super::{AT_ONCE, UNITS};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Number of elements of a head that a unit reads at a time from workgroup memory.
pub(super) const WIDTH: usize = 4;

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

impl Tiles {
    /// Halves queries or keys, down to `min_queries` queries, until `count` tiles of each and `products` of their
    /// products fit in `bytes` of workgroup memory with three floats per query, or nothing is left to halve.
    pub fn within(self, min_queries: usize, [count, products]: [usize; 2], bytes: usize) -> Self {
        let mut tiles = self;
        while tiles.bytes([count, products, 3]) > bytes {
            let Tiles { queries, keys, .. } = &mut tiles;
            match *queries / 2 >= min_queries.max(WIDTH) {
                true if *queries > *keys || *keys == WIDTH => *queries /= 2,
                _ if *keys > WIDTH => *keys /= 2,
                _ => break,
            }
        }
        tiles
    }

    /// Workgroup memory, bytes, of `count` tiles of queries and of keys each, `products` of their products, and
    /// `query_floats` floats of each query.
    pub fn bytes(self, [count, products, query_floats]: [usize; 3]) -> usize {
        let Self { queries, keys, .. } = self;
        let floats = count * (queries + keys) * self.stride()
            + products * queries * self.row()
            + query_floats * queries;
        floats * size_of::<f32>()
    }

    /// Floats of a row of a tile: a head's, padded with zeros to a multiple of [`WIDTH`], which units read at a time,
    /// and [`WIDTH`] more, so that rows start in different banks.
    pub const fn stride(self) -> usize {
        self.dim.next_multiple_of(WIDTH) + WIDTH
    }

    /// Floats of a row of the products of a tile of queries with one of keys.
    pub const fn row(self) -> usize {
        self.keys + 1
    }

    /// Groups of units along the queries of a product, and along its keys.
    pub const fn groups(self) -> [usize; 2] {
        let max_groups = if self.units > UNITS { 16 } else { 8 };
        let keys = if self.keys < max_groups { self.keys } else { max_groups };
        [self.units / keys, keys]
    }

    /// Queries and keys of a unit's part of a product, each a group apart.
    pub const fn part(self) -> [usize; 2] {
        let [queries, keys] = self.groups();
        [self.queries.div_ceil(queries), self.keys / keys]
    }

    /// Groups of [`WIDTH`] elements in a head.
    pub const fn columns(self) -> usize {
        self.dim.div_ceil(WIDTH)
    }

    /// Parts of [`WIDTH`] rows and as many elements that each of [`UNITS`] units has of a matrix of this many rows of
    /// heads.
    pub const fn shares(self, rows: usize) -> usize {
        (rows / WIDTH * self.columns()).div_ceil(UNITS)
    }

    /// Groups of [`UNITS`] units, which divide the steps of a sum among them.
    pub const fn teams(self) -> usize {
        self.units / UNITS
    }
}

/// The row of key `i` among those that a row may attend to: its prompt's, then its segment's up to itself.
#[cube]
fn key_row(i: usize, prompt_start: usize, prompt: usize, begin: usize) -> usize {
    let mut row = prompt_start + i;
    if i >= prompt {
        row = begin + i - prompt;
    }
    row
}

/// Rows of a segment that a cube processes, for one head of keys.
#[derive(CubeType, Clone, Copy)]
pub(super) struct RowBlock {
    /// First row, and the end of the rows.
    pub first: usize,
    pub end: usize,
    /// First row of the segment.
    pub segment_start: usize,
    /// First row of the prompt, and its rows.
    pub prompt_start: usize,
    pub prompt: usize,
    /// Number of the head of keys.
    pub head: usize,
    /// Rows from the first on that queries are taken from; then they are taken from those that follow the segment.
    pub own_rows: usize,
    /// First row that follows the segment.
    pub completions_start: usize,
}

#[cube]
impl RowBlock {
    /// The block whose first row and the end of whose rows are at a place in the table of segments.
    pub fn of(segments: &Segments, place: usize, head: usize) -> RowBlock {
        let first = segments.table[place] as usize;
        let prompt_start = segments.bound(first, PROMPT_START);
        RowBlock {
            first,
            end: segments.table[place + 1] as usize,
            segment_start: segments.bound(first, OWN_START),
            prompt_start,
            prompt: segments.bound(first, PROMPT_END) - prompt_start,
            head,
            own_rows: segments.bound(first, OWN_END) - first,
            completions_start: segments.bound(first, COMPLETIONS_START),
        }
    }

    /// The row of query number `query` of the block, whose heads that share a head of keys come row by row.
    pub fn row(&self, query: usize, #[comptime] heads: Heads) -> usize {
        let number = query / comptime!(heads.queries / heads.keys);
        let mut row = self.first + number;
        if number >= self.own_rows {
            row = self.completions_start + number - self.own_rows;
        }
        row
    }

    /// The position of a row of the segment, which is also the number of its own key.
    pub fn position(&self, row: usize) -> usize {
        self.prompt + row - self.segment_start
    }

    /// The place of query number `query` of the block among those of all rows.
    pub fn place(&self, query: usize, #[comptime] heads: Heads) -> usize {
        let heads_per_key = comptime!(heads.queries / heads.keys);
        self.row(query, heads) * heads.queries + self.head * heads_per_key + query % heads_per_key
    }

    /// Queries of the block.
    pub fn queries(&self, #[comptime] heads: Heads) -> usize {
        (self.end - self.first) * comptime!(heads.queries / heads.keys)
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

/// Loads queries from number `start` on, or the gradients of their results, to a tile; those past `end` are 0.
#[cube]
pub(super) fn load_queries(
    shared: &mut Shared<[f32]>,
    from: &[f32],
    rows: &RowBlock,
    start: usize,
    end: usize,
    #[comptime] heads: Heads,
    #[comptime] tiles: Tiles,
) {
    let count = comptime!(tiles.queries * tiles.dim);
    let at_once = comptime!(AT_ONCE.min(count.div_ceil(tiles.units)));
    for first in range_stepped(UNIT_POS as usize, count, comptime!(at_once * tiles.units)) {
        let mut numbers = Array::<f32>::new(at_once);
        #[unroll]
        for n in 0..at_once {
            let e = first + comptime!(n * tiles.units);
            let query = start + e / tiles.dim;
            let mut number = 0.0f32;
            if e < count && query < end {
                number = from[rows.place(query, heads) * tiles.dim + e % tiles.dim];
            }
            numbers[n] = number;
        }
        fill(shared, &numbers, first, count, at_once, tiles);
    }
}

/// Loads keys from number `start` on, or their values, to a tile; those past `end` are 0.
#[cube]
pub(super) fn load_keys<C: Float>(
    shared: &mut Shared<[f32]>,
    from: &[C],
    rows: &RowBlock,
    start: usize,
    end: usize,
    #[comptime] heads: Heads,
    #[comptime] tiles: Tiles,
) {
    let count = comptime!(tiles.keys * tiles.dim);
    let at_once = comptime!(AT_ONCE.min(count.div_ceil(tiles.units)));
    for first in range_stepped(UNIT_POS as usize, count, comptime!(at_once * tiles.units)) {
        let mut numbers = Array::<f32>::new(at_once);
        #[unroll]
        for n in 0..at_once {
            let e = first + comptime!(n * tiles.units);
            let key = start + e / tiles.dim;
            let mut number = 0.0f32;
            if e < count && key < end {
                let row = key_row(key, rows.prompt_start, rows.prompt, rows.segment_start);
                let place = row * comptime!(heads.key_size()) + rows.head * tiles.dim;
                number = f32::cast_from(from[place + e % tiles.dim]);
            }
            numbers[n] = number;
        }
        fill(shared, &numbers, first, count, at_once, tiles);
    }
}

/// Writes a unit's elements to a tile, from its element `first` on.
#[cube]
fn fill(
    shared: &mut Shared<[f32]>,
    numbers: &Array<f32>,
    first: usize,
    #[comptime] count: usize,
    #[comptime] at_once: usize,
    #[comptime] tiles: Tiles,
) {
    #[unroll]
    for n in 0..at_once {
        let e = first + comptime!(n * tiles.units);
        if e < count {
            shared[e / tiles.dim * comptime!(tiles.stride()) + e % tiles.dim] = numbers[n];
        }
    }
}

/// Stores a unit's shares of a block's queries.
#[cube]
pub(super) fn store_queries<N: Float>(
    sums: &Array<f32>,
    to: &mut [N],
    rows: &RowBlock,
    #[comptime] heads: Heads,
    #[comptime] tiles: Tiles,
) {
    let count = rows.queries(heads);
    #[unroll]
    for share in 0..comptime!(tiles.shares(tiles.queries)) {
        let item = UNIT_POS as usize + comptime!(share * UNITS);
        let (first, d) =
            (item / comptime!(tiles.columns()) * WIDTH, item % comptime!(tiles.columns()) * WIDTH);
        #[unroll]
        for i in 0..WIDTH {
            if first + i < count {
                let place = rows.place(first + i, heads) * tiles.dim + d;
                #[unroll]
                for c in 0..WIDTH {
                    if d + c < tiles.dim {
                        let sum = comptime!((share * WIDTH + i) * WIDTH + c);
                        to[place + c] = N::cast_from(sums[sum]);
                    }
                }
            }
        }
    }
}

/// Clears an array.
#[cube]
pub(super) fn clear(numbers: &mut Array<f32>, #[comptime] count: usize) {
    #[unroll]
    for i in 0..count {
        numbers[i] = 0.0f32;
    }
}

/// Clears the elements after the heads of a tile.
#[cube]
pub(super) fn pad(shared: &mut Shared<[f32]>, rows: usize, #[comptime] tiles: Tiles) {
    let more = comptime!(tiles.stride() - tiles.dim);
    for e in range_stepped(UNIT_POS as usize, rows * more, tiles.units) {
        shared[e / more * comptime!(tiles.stride()) + tiles.dim + e % more] = 0.0f32;
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
    let (groups, part) = comptime!((tiles.groups(), tiles.part()));
    let stride = comptime!(tiles.stride());
    let (query, key) =
        (UNIT_POS as usize / comptime!(groups[1]), UNIT_POS as usize % comptime!(groups[1]));
    clear(products, comptime!(part[0] * part[1]));
    if query < comptime!(tiles.queries) {
        let mut of_query = Array::<f32>::new(comptime!(part[0] * WIDTH));
        for column in 0..comptime!(tiles.columns()) {
            let d = column * WIDTH;
            #[unroll]
            for i in 0..comptime!(part[0]) {
                let from = (query + comptime!(i * groups[0])) * stride + d;
                #[unroll]
                for c in 0..WIDTH {
                    of_query[comptime!(i * WIDTH + c)] = queries[from + c];
                }
            }
            #[unroll]
            for j in 0..comptime!(part[1]) {
                let from = (key + comptime!(j * groups[1])) * stride + d;
                #[unroll]
                for c in 0..WIDTH {
                    let number = keys[from + c];
                    #[unroll]
                    for i in 0..comptime!(part[0]) {
                        products[comptime!(i * part[1] + j)] +=
                            of_query[comptime!(i * WIDTH + c)] * number;
                    }
                }
            }
        }
    }
}

/// Adds products of weights with a tile of heads, `[steps, dim]`, to a unit's shares of `[rows, dim]`. The weight of
/// row `r` and step `k` is at `r * by_row + k * by_step`; each team takes some of the steps, and has shares of its own.
#[cube]
pub(super) fn accumulate(
    sums: &mut Array<f32>,
    weights: &Shared<[f32]>,
    heads_of: &Shared<[f32]>,
    by_row: usize,
    by_step: usize,
    steps: usize,
    #[comptime] rows: usize,
    #[comptime] tiles: Tiles,
) {
    let (columns, stride) = comptime!((tiles.columns(), tiles.stride()));
    #[unroll]
    for share in 0..comptime!(tiles.shares(rows)) {
        let item = UNIT_POS as usize % UNITS + comptime!(share * UNITS);
        if item < comptime!(rows / WIDTH * tiles.columns()) {
            let (row, d) = (item / columns * WIDTH, item % columns * WIDTH);
            let mut numbers = Array::<f32>::new(WIDTH);
            for k in range_stepped(UNIT_POS as usize / UNITS, steps, comptime!(tiles.teams())) {
                #[unroll]
                for c in 0..WIDTH {
                    numbers[c] = heads_of[k * stride + d + c];
                }
                #[unroll]
                for i in 0..WIDTH {
                    let weight = weights[(row + i) * by_row + k * by_step];
                    #[unroll]
                    for c in 0..WIDTH {
                        sums[comptime!((share * WIDTH + i) * WIDTH + c)] += weight * numbers[c];
                    }
                }
            }
        }
    }
}

/// Adds the shares of all teams to those of the first, in order, through a tile.
#[cube]
pub(super) fn add_teams(
    sums: &mut Array<f32>,
    shared: &mut Shared<[f32]>,
    #[comptime] tiles: Tiles,
) {
    let (unit, team) = (UNIT_POS as usize % UNITS, UNIT_POS as usize / UNITS);
    let count = comptime!(tiles.shares(tiles.keys) * WIDTH * WIDTH);
    // A part of the shares at a time, since a tile has no room for all.
    #[unroll]
    for part in 0..comptime!(count / WIDTH) {
        sync_cube();
        #[unroll]
        for c in 0..WIDTH {
            shared[(team * WIDTH + c) * UNITS + unit] = sums[comptime!(part * WIDTH + c)];
        }
        sync_cube();
        if team == 0 {
            #[unroll]
            for other in 1..comptime!(tiles.teams()) {
                #[unroll]
                for c in 0..WIDTH {
                    sums[comptime!(part * WIDTH + c)] +=
                        shared[comptime!((other * WIDTH + c) * UNITS) + unit];
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
        for min_queries in [1, 8, 16] {
            for bytes in [16 << 10, 32 << 10, 256 << 10] {
                let fitting = tiles.within(min_queries, [2, 1], bytes);
                assert!(fitting.bytes([2, 1, 3]) <= bytes, "{fitting:?}");
                assert!(fitting.queries >= min_queries && fitting.keys >= WIDTH, "{fitting:?}");
            }
        }
        assert_eq!(tiles.within(1, [2, 1], 256 << 10), tiles);
        // Nothing is left to halve.
        let fitting = Tiles { dim: 4096, ..tiles }.within(16, [2, 1], 1 << 10);
        assert_eq!((fitting.queries, fitting.keys), (16, WIDTH));
        assert!(fitting.bytes([2, 1, 0]) > 1 << 10);
    }

    #[test]
    fn the_units_of_a_cube_have_each_product_once() {
        for (queries, keys, units) in
            [(16, 32, 64), (8, 8, 64), (4, 16, 64), (16, 4, 64), (32, 16, 256), (32, 8, 256)]
        {
            let tiles = Tiles { queries, keys, dim: 5, units };
            let ([query_groups, key_groups], part) = (tiles.groups(), tiles.part());
            let mut found = vec![0; queries * keys];
            for unit in 0..units {
                for (i, j) in (0..part[0]).flat_map(|i| (0..part[1]).map(move |j| (i, j))) {
                    let query = unit / key_groups + i * query_groups;
                    if query < queries {
                        found[query * keys + unit % key_groups + j * key_groups] += 1;
                    }
                }
            }
            assert!(found.iter().all(|count| *count == 1), "{tiles:?}: {found:?}");
        }
    }
}
