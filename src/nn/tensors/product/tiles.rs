//! Tiles of a product and of its operands, and their way through workgroup memory.

// Compile-time conditions are apart from run-time ones.
#![allow(clippy::collapsible_if)]

use super::operands::{Block, Operand, Rights};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Rows, columns and inner steps of a fragment, which a plane's matrix units multiply at a time.
pub(super) const FRAGMENT: usize = 16;

/// How a cube divides a tile of the product among its units; a compile-time value of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// Rows and columns of a part.
    pub part: [usize; 2],
    /// Parts of a tile, along its rows and its columns.
    pub parts: [usize; 2],
    /// Units that compute a part: one, or the plane whose matrix units do.
    pub workers: usize,
    /// Groups that divide the inner dimension among them.
    pub groups: usize,
    /// Steps of the inner dimension that a group has in workgroup memory.
    pub depth: usize,
    /// Whether neighbours in memory differ in the inner index, for each operand. It decides which unit reads which number.
    pub inner_first: [bool; 2],
    /// Whether a bias is added.
    pub has_bias: bool,
    /// Right operands, 1 to [`JOINED`](super::operands::JOINED).
    pub joined: usize,
}

impl Default for Tiling {
    /// A tile of one number by one unit.
    fn default() -> Self {
        Self {
            part: [1; 2],
            parts: [1; 2],
            workers: 1,
            groups: 1,
            depth: 1,
            inner_first: [false; 2],
            has_bias: false,
            joined: 1,
        }
    }
}

impl Tiling {
    /// The tiling with as many of its groups as have room in workgroup memory, bytes.
    pub fn within(self, bytes: usize) -> Self {
        let mut tiling = self;
        while tiling.groups > 1 && tiling.bytes() > bytes {
            tiling.groups /= 2;
        }
        tiling
    }

    /// Whether matrix units multiply.
    pub fn has_matrix_units(&self) -> bool {
        self.workers > 1
    }

    /// Rows of a tile.
    pub fn rows(&self) -> usize {
        self.part[0] * self.parts[0]
    }

    /// Columns of a tile.
    pub fn columns(&self) -> usize {
        self.part[1] * self.parts[1]
    }

    /// Units of a group.
    pub fn group(&self) -> usize {
        self.parts[0] * self.parts[1] * self.workers
    }

    /// Units of a cube.
    pub fn cube(&self) -> usize {
        self.group() * self.groups
    }

    /// The tile of an operand.
    pub fn side(&self, operand: usize) -> Side {
        let width = if operand == 0 { self.rows() } else { self.columns() };
        let inner_first = self.inner_first[operand];
        let keeps_order = self.has_matrix_units() && inner_first;
        Side {
            width,
            depth: self.depth,
            group: self.group(),
            inner_first,
            keeps_order,
            // Padded, so that rows start in different banks: by 16 bytes.
            stride: if self.has_matrix_units() { 8 } else { 4 }
                + if keeps_order { self.depth } else { width },
        }
    }

    /// Numbers of a group's tiles in workgroup memory.
    pub fn staged(&self) -> usize {
        self.side(0).numbers() + self.side(1).numbers()
    }

    /// Sums of a group in workgroup memory: a tile where groups add theirs up, or a fragment of each plane on its way
    /// from the matrix units to the product.
    pub fn sums(&self) -> usize {
        match (self.groups, self.workers) {
            (1, 1) => 0,
            (1, _) => self.parts[0] * self.parts[1] * FRAGMENT * FRAGMENT,
            _ => self.rows() * self.columns(),
        }
    }

    /// Bytes of workgroup memory. Matrix units read operands in half precision; else sums take the operands' place.
    fn bytes(&self) -> usize {
        let group = match self.has_matrix_units() {
            true => size_of::<u16>() * self.staged() + size_of::<f32>() * self.sums(),
            false => size_of::<f32>() * self.staged().max(self.sums()),
        };
        self.groups * group
    }
}

/// Sizes of a product.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub batches: usize,
    pub rows: usize,
    /// Numbers of the result of a span: those of all blocks.
    pub numbers: usize,
    pub inner: usize,
    /// Inner steps of a cube.
    pub span: usize,
    /// Cubes along the inner dimension.
    pub spans: usize,
    /// Tiles along the rows.
    pub row_tiles: usize,
    /// Tiles along the columns of all blocks.
    pub column_tiles: usize,
}

/// A tile of an operand in workgroup memory; a compile-time value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    /// Rows of the left operand's tile, or columns of the right one's.
    width: usize,
    depth: usize,
    /// Units that move it.
    group: usize,
    inner_first: bool,
    /// Whether it is `[width, stride]`, as the units read it, instead of `[depth, stride]`.
    pub keeps_order: bool,
    /// Numbers of a row of the tile.
    pub stride: usize,
}

impl Side {
    /// Numbers that each unit moves.
    fn moved(&self) -> usize {
        self.depth * self.width / self.group
    }

    /// Units that move neighbours in memory at a time.
    fn across(&self) -> usize {
        self.group.min(if self.inner_first { self.depth } else { self.width })
    }

    /// Row or column, and inner step, of number `i` of a unit, from its first one on.
    fn place(&self, i: usize) -> (usize, usize) {
        let across = self.across();
        let along = if self.inner_first { self.depth } else { self.width } / across;
        let [near, far] = [i % along * across, i / along * (self.group / across)];
        if self.inner_first { (far, near) } else { (near, far) }
    }

    /// Distance in workgroup memory from a unit's first number to number `i`.
    fn step(&self, i: usize) -> usize {
        let (outer, inner) = self.place(i);
        if self.keeps_order { outer * self.stride + inner } else { inner * self.stride + outer }
    }

    /// Numbers of the tile, with the padding of its rows.
    pub fn numbers(&self) -> usize {
        self.stride * if self.keeps_order { self.width } else { self.depth }
    }
}

/// Place of an operand's tile, and the unit that moves a part of it.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Tile {
    /// Place of the batch's matrix in the buffer.
    pub matrix: usize,
    /// First row or column.
    pub outer: usize,
    /// End of the matrix's rows or columns.
    pub outer_end: usize,
    /// End of the inner steps.
    pub inner_end: usize,
    /// Place in workgroup memory.
    pub room: usize,
    pub unit: usize,
}

/// The numbers of a tile that a unit moves to workgroup memory. They are as in the operand until they are written, so
/// that nothing waits for them before.
#[derive(CubeType)]
pub(super) struct Moved<N: Float> {
    numbers: Array<N>,
}

#[cube]
impl<N: Float> Moved<N> {
    pub fn new(#[comptime] side: Side) -> Moved<N> {
        Moved::<N> { numbers: Array::<N>::new(comptime!(side.moved())) }
    }

    /// Reads a unit's numbers of a tile from inner step `at` on; those past the ends are 0.
    pub fn read(&mut self, from: &Operand<N>, tile: &Tile, at: usize, #[comptime] side: Side) {
        let outer = tile.outer + side_outer(tile.unit, side);
        let inner = at + side_inner(tile.unit, side);
        let mut outer_left = 0usize.runtime();
        if outer < tile.outer_end {
            outer_left = tile.outer_end - outer;
        }
        let mut inner_left = 0usize.runtime();
        if inner < tile.inner_end {
            inner_left = tile.inner_end - inner;
        }
        let place = tile.matrix + outer * from.outer + inner * from.inner;
        #[unroll]
        for i in 0..comptime!(side.moved()) {
            let (outer, inner) = comptime!(side.place(i));
            let mut number = N::from_int(0);
            if outer < outer_left && inner < inner_left {
                number = from.numbers[place + outer * from.outer + inner * from.inner];
            }
            self.numbers[i] = number;
        }
    }

    /// Reads a unit's numbers of a tile of right operand `number`.
    pub fn read_right(
        &mut self,
        rights: &Rights<N>,
        number: usize,
        tile: &Tile,
        at: usize,
        #[comptime] side: Side,
        #[comptime] joined: usize,
    ) {
        if number == 0 {
            self.read(&rights.first.operand, tile, at, side);
        }
        if comptime!(joined > 1) {
            if number == 1 {
                self.read(&rights.second.operand, tile, at, side);
            }
        }
        if comptime!(joined > 2) {
            if number == 2 {
                self.read(&rights.third.operand, tile, at, side);
            }
        }
    }

    /// Writes them to workgroup memory, rounded to `I`.
    pub fn write<I: Float, T: Float>(&self, room: &mut [T], tile: &Tile, #[comptime] side: Side) {
        let to =
            tile.room + place_in(side_outer(tile.unit, side), side_inner(tile.unit, side), side);
        #[unroll]
        for i in 0..comptime!(side.moved()) {
            let number = T::cast_from(I::cast_from(self.numbers[i]));
            room[to + comptime!(side.step(i))] = number;
        }
    }
}

/// The row or column of a unit's first number in a tile.
#[cube]
fn side_outer(unit: usize, #[comptime] side: Side) -> usize {
    let mut outer = unit % comptime!(side.across());
    if comptime!(side.inner_first) {
        outer = unit / comptime!(side.across());
    }
    outer
}

/// The inner step of a unit's first number in a tile.
#[cube]
fn side_inner(unit: usize, #[comptime] side: Side) -> usize {
    let mut inner = unit / comptime!(side.across());
    if comptime!(side.inner_first) {
        inner = unit % comptime!(side.across());
    }
    inner
}

/// The place of a number in a tile in workgroup memory.
#[cube]
pub(super) fn place_in(outer: usize, inner: usize, #[comptime] side: Side) -> usize {
    let mut place = inner * side.stride + outer;
    if comptime!(side.keeps_order) {
        place = outer * side.stride + inner;
    }
    place
}

/// The part of the inner dimension and the tile of a block that a cube works on.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Work {
    /// Whether there is any: the grid may have excess cubes.
    pub is_some: bool,
    pub block: Block,
    /// First row and column of the tile.
    pub row: usize,
    pub column: usize,
    pub span: usize,
    /// First inner step, and the end of these.
    pub first: usize,
    pub end: usize,
    pub batch: usize,
    /// Place of the block in the result.
    pub to: usize,
}

#[cube]
impl Work {
    /// The work of this cube.
    pub fn of_cube<B: Float>(
        rights: &Rights<B>,
        sizes: &Sizes,
        #[comptime] tiling: Tiling,
    ) -> Work {
        let column_tile = CUBE_POS % sizes.column_tiles;
        let rest = CUBE_POS / sizes.column_tiles;
        let row_tile = rest % sizes.row_tiles;
        let rest = rest / sizes.row_tiles;
        let (span, batch) = (rest % sizes.spans, rest / sizes.spans);
        let block = Block::at::<B>(column_tile, rights, comptime!(tiling.joined));
        let column = (column_tile - block.first_tile) * comptime!(tiling.columns());
        let to = (batch * sizes.spans + span) * sizes.numbers + block.place;
        let first = span * sizes.span;
        let mut end = first + sizes.span;
        if end > sizes.inner {
            end = sizes.inner;
        }
        Work {
            is_some: batch < sizes.batches,
            block,
            row: row_tile * comptime!(tiling.rows()),
            column,
            span,
            first,
            end,
            batch,
            to,
        }
    }

    /// The tile of the left operand.
    pub fn left<A: Float>(&self, a: &Operand<A>, rows: usize, room: usize, unit: usize) -> Tile {
        Tile {
            matrix: self.batch * a.batch,
            outer: self.row,
            outer_end: rows,
            inner_end: self.end,
            room,
            unit,
        }
    }

    /// The tile of the right operand.
    pub fn right<B: Float>(&self, rights: &Rights<B>, room: usize, unit: usize) -> Tile {
        Tile {
            // Several right operands have no batches.
            matrix: self.batch * rights.first.operand.batch,
            outer: self.column,
            outer_end: self.block.columns,
            inner_end: self.end,
            room,
            unit,
        }
    }
}

/// Stores a sum, with the bias of its column if there is one, unless it is beyond the block.
#[cube]
pub(super) fn store<B: Float>(
    product: &mut [f32],
    work: &Work,
    rights: &Rights<B>,
    rows: usize,
    row: usize,
    column: usize,
    sum: f32,
    #[comptime] tiling: Tiling,
) {
    let columns = work.block.columns;
    if row < rows && column < columns {
        product[work.to + row * columns + column] =
            plus_bias::<B>(sum, rights, work.block.number, column, work.span, tiling);
    }
}

/// Adds up the sums of the groups, `[groups, rows, columns]`, and stores them.
#[cube]
pub(super) fn add_groups<B: Float>(
    sums: &Shared<[f32]>,
    work: &Work,
    rights: &Rights<B>,
    product: &mut [f32],
    rows: usize,
    #[comptime] tiling: Tiling,
) {
    let columns = comptime!(tiling.columns());
    let tile = comptime!(tiling.rows() * tiling.columns());
    for e in range_stepped(UNIT_POS as usize, tile, comptime!(tiling.cube())) {
        let mut sum = sums[e];
        #[unroll]
        for group in 1..comptime!(tiling.groups) {
            sum += sums[comptime!(group * tile) + e];
        }
        let (r, c) = (work.row + e / columns, work.column + e % columns);
        store::<B>(product, work, rights, rows, r, c, sum, tiling);
    }
}

/// Adds the bias of a column of right operand `number` to a sum, if it has one, once for all spans.
#[cube]
fn plus_bias<N: Float>(
    sum: f32,
    rights: &Rights<N>,
    number: usize,
    column: usize,
    span: usize,
    #[comptime] tiling: Tiling,
) -> f32 {
    let mut sum = sum;
    if comptime!(tiling.has_bias) {
        if span == 0 {
            let mut bias = rights.first.bias[column];
            if comptime!(tiling.joined > 1) {
                if number == 1 {
                    bias = rights.second.bias[column];
                }
            }
            if comptime!(tiling.joined > 2) {
                if number == 2 {
                    bias = rights.third.bias[column];
                }
            }
            sum += bias;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_units_of_a_group_move_each_number_of_a_tile_once() {
        let plain = [([8, 8], [8, 8], 1, 16), ([2, 4], [8, 4], 1, 16), ([8, 4], [8, 4], 1, 16)];
        let on_matrix_units =
            [([32, 32], [2, 4], 32, 32), ([16, 16], [1, 1], 32, 32), ([16, 32], [4, 1], 64, 32)];
        for (part, parts, workers, depth) in plain.into_iter().chain(on_matrix_units) {
            for inner_first in [[false; 2], [true; 2]] {
                let tiling =
                    Tiling { part, parts, workers, depth, inner_first, ..Tiling::default() };
                for side in [tiling.side(0), tiling.side(1)] {
                    let (mut seen, mut places) = (HashSet::new(), HashSet::new());
                    for unit in 0..side.group {
                        let [near, far] = [unit % side.across(), unit / side.across()];
                        let [outer, inner] =
                            if side.inner_first { [far, near] } else { [near, far] };
                        let first = match side.keeps_order {
                            true => outer * side.stride + inner,
                            false => inner * side.stride + outer,
                        };
                        for i in 0..side.moved() {
                            let (more_outer, more_inner) = side.place(i);
                            let number = [outer + more_outer, inner + more_inner];
                            assert!(number[0] < side.width && number[1] < side.depth);
                            assert!(seen.insert(number), "{side:?}: {number:?} twice");
                            let place = first + side.step(i);
                            assert!(place < side.numbers() && places.insert(place), "{side:?}");
                        }
                    }
                    assert_eq!(seen.len(), side.width * side.depth, "{side:?}");
                }
            }
        }
    }
}
