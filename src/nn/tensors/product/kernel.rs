//! The kernel of a product of matrices.
//!
//! A cube computes a tile of the product from tiles of the operands in workgroup memory. Each unit keeps a part of the
//! tile in registers, and the units of a cube may form groups that divide the inner dimension among them: a product of few
//! rows has few tiles, and only so many units keep the device busy. The order of all sums depends on sizes alone.

// Compile-time conditions are apart from run-time ones.
#![allow(clippy::collapsible_if)]

use super::operands::{Block, Operand, Rights};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// How a cube divides a tile of the product among its units; a compile-time value of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// Rows and columns of a unit's part.
    pub part: [usize; 2],
    /// Units of a group, along the rows and the columns of a tile.
    pub units: [usize; 2],
    /// Groups of units.
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

impl Tiling {
    /// The tiling with as many of its groups as have room in workgroup memory, bytes.
    pub fn within(self, bytes: usize) -> Self {
        let mut tiling = self;
        while tiling.groups > 1 && tiling.floats() * size_of::<f32>() > bytes {
            tiling.groups /= 2;
        }
        tiling
    }

    /// Rows of a tile.
    pub fn rows(&self) -> usize {
        self.part[0] * self.units[0]
    }

    /// Columns of a tile.
    pub fn columns(&self) -> usize {
        self.part[1] * self.units[1]
    }

    /// Units of a group.
    pub fn group(&self) -> usize {
        self.units[0] * self.units[1]
    }

    /// Units of a cube.
    pub fn cube(&self) -> usize {
        self.group() * self.groups
    }

    /// Floats of a row of an operand's tile in workgroup memory, `[depth, rows or columns]`. Four more than there are
    /// numbers, so that rows start in different banks.
    fn stride(&self, operand: usize) -> usize {
        4 + if operand == 0 { self.rows() } else { self.columns() }
    }

    /// The tile of an operand.
    fn side(&self, operand: usize) -> Side {
        Side {
            width: if operand == 0 { self.rows() } else { self.columns() },
            stride: self.stride(operand),
            depth: self.depth,
            group: self.group(),
            inner_first: self.inner_first[operand],
        }
    }

    /// Floats of a group's tiles in workgroup memory.
    fn staged(&self) -> usize {
        self.depth * (self.stride(0) + self.stride(1))
    }

    /// Floats of workgroup memory: the operands' tiles, which the groups' sums replace.
    pub fn floats(&self) -> usize {
        let sums = if self.groups > 1 { self.rows() * self.columns() } else { 0 };
        self.groups * self.staged().max(sums)
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
struct Side {
    /// Rows of the left operand's tile, or columns of the right one's.
    width: usize,
    /// Floats of a row of the tile, `[depth, stride]`.
    stride: usize,
    depth: usize,
    /// Units that move it.
    group: usize,
    inner_first: bool,
}

impl Side {
    /// Numbers that each unit moves.
    fn moved(&self) -> usize {
        self.depth * self.width / self.group
    }
}

/// Place of a number within a tile.
#[derive(CubeType, Clone, Copy)]
struct Within {
    outer: usize,
    inner: usize,
}

#[cube]
impl Within {
    /// The place of number `e` of a tile, in the order in which units move them.
    fn of(e: usize, #[comptime] side: Side) -> Within {
        let mut outer = e / side.depth;
        let mut inner = e % side.depth;
        if comptime!(!side.inner_first) {
            outer = e % side.width;
            inner = e / side.width;
        }
        Within { outer, inner }
    }
}

/// Place of an operand's tile, and the unit that moves a part of it.
#[derive(CubeType, Clone, Copy)]
struct Tile {
    /// Place of the batch's matrix in the buffer.
    matrix: usize,
    /// First row or column.
    outer: usize,
    /// End of the matrix's rows or columns.
    outer_end: usize,
    /// End of the inner steps.
    inner_end: usize,
    /// Place in workgroup memory.
    room: usize,
    unit: usize,
}

/// The numbers of a tile that a unit moves to workgroup memory.
#[derive(CubeType)]
struct Moved {
    numbers: Array<f32>,
}

#[cube]
impl Moved {
    fn new(#[comptime] side: Side) -> Moved {
        Moved { numbers: Array::<f32>::new(comptime!(side.moved())) }
    }

    /// Reads a unit's numbers of a tile from inner step `at` on. Those past the ends are 0; the others are rounded to `I`.
    fn read<N: Float, I: Float>(
        &mut self,
        from: &Operand<N>,
        tile: &Tile,
        at: usize,
        #[comptime] side: Side,
    ) {
        #[unroll]
        for i in 0..comptime!(side.moved()) {
            let within = Within::of(tile.unit + comptime!(i * side.group), side);
            let (outer, inner) = (tile.outer + within.outer, at + within.inner);
            let mut number = 0.0f32;
            if outer < tile.outer_end && inner < tile.inner_end {
                let place = tile.matrix + outer * from.outer + inner * from.inner;
                number = f32::cast_from(I::cast_from(from.numbers[place]));
            }
            self.numbers[i] = number;
        }
    }

    /// Reads a unit's numbers of a tile of right operand `number`.
    fn read_right<N: Float, I: Float>(
        &mut self,
        rights: &Rights<N>,
        number: usize,
        tile: &Tile,
        at: usize,
        #[comptime] side: Side,
        #[comptime] joined: usize,
    ) {
        if number == 0 {
            self.read::<N, I>(&rights.first.operand, tile, at, side);
        }
        if comptime!(joined > 1) {
            if number == 1 {
                self.read::<N, I>(&rights.second.operand, tile, at, side);
            }
        }
        if comptime!(joined > 2) {
            if number == 2 {
                self.read::<N, I>(&rights.third.operand, tile, at, side);
            }
        }
    }

    /// Writes them to workgroup memory.
    fn write(&self, room: &mut [f32], tile: &Tile, #[comptime] side: Side) {
        #[unroll]
        for i in 0..comptime!(side.moved()) {
            let within = Within::of(tile.unit + comptime!(i * side.group), side);
            room[tile.room + within.inner * side.stride + within.outer] = self.numbers[i];
        }
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

/// Computes `a b + bias` of each right operand `b`, or for each span of the inner dimension its share, `[batches, spans,
/// numbers]`: the blocks of the right operands, `[rows, columns]`, one behind the other.
///
/// Buffers: those of the operands; the product. Workgroup memory: [`Tiling::floats`].
#[cube(launch_unchecked)]
pub(super) fn product_kernel<A: Float, B: Float, I: Float>(
    a: &Operand<A>,
    rights: &Rights<B>,
    product: &mut [f32],
    sizes: Sizes,
    #[comptime] tiling: Tiling,
    #[define(A)] _left: ElemType,
    #[define(B)] _right: ElemType,
    #[define(I)] _rounded: ElemType,
) {
    let (tile_rows, tile_columns) = comptime!((tiling.rows(), tiling.columns()));
    let (part_rows, part_columns) = comptime!((tiling.part[0], tiling.part[1]));
    let (depth, groups) = comptime!((tiling.depth, tiling.groups));
    let (a_stride, b_stride) = comptime!((tiling.stride(0), tiling.stride(1)));

    // The grid may have excess cubes.
    let column_tile = CUBE_POS % sizes.column_tiles;
    let rest = CUBE_POS / sizes.column_tiles;
    let row_tile = rest % sizes.row_tiles;
    let rest = rest / sizes.row_tiles;
    let (span, batch) = (rest % sizes.spans, rest / sizes.spans);
    if batch < sizes.batches {
        let joined = comptime!(tiling.joined);
        let block = Block::at::<B>(column_tile, rights, joined);
        let group = UNIT_POS as usize / comptime!(tiling.group());
        let unit = UNIT_POS as usize % comptime!(tiling.group());
        let (row, column) = (row_tile * tile_rows, (column_tile - block.first_tile) * tile_columns);
        let mut end = (span + 1) * sizes.span;
        if end > sizes.inner {
            end = sizes.inner;
        }

        let mut room = Shared::<[f32]>::new_aligned_slice(comptime!(tiling.floats()), 16usize);
        let a_room = group * comptime!(tiling.staged());
        let b_room = a_room + comptime!(depth * a_stride);
        let from_row = unit / comptime!(tiling.units[1]) * part_rows;
        let from_column = unit % comptime!(tiling.units[1]) * part_columns;

        let mut sums = Array::<f32>::new(comptime!(part_rows * part_columns));
        #[unroll]
        for i in 0..comptime!(part_rows * part_columns) {
            sums[i] = 0.0f32;
        }
        let a_tile = Tile {
            matrix: batch * a.batch,
            outer: row,
            outer_end: sizes.rows,
            inner_end: end,
            room: a_room,
            unit,
        };
        let b_tile = Tile {
            // Several right operands have no batches.
            matrix: batch * rights.first.operand.batch,
            outer: column,
            outer_end: block.columns,
            inner_end: end,
            room: b_room,
            unit,
        };
        let (a_side, b_side) = comptime!((tiling.side(0), tiling.side(1)));
        let mut a_moved = Moved::new(a_side);
        let mut b_moved = Moved::new(b_side);
        let mut a_values = Array::<f32>::new(part_rows);

        let mut first = span * sizes.span;
        let from = first + group * depth;
        a_moved.read::<A, I>(a, &a_tile, from, a_side);
        b_moved.read_right::<B, I>(rights, block.number, &b_tile, from, b_side, joined);
        while first < end {
            sync_cube();
            a_moved.write(&mut room, &a_tile, a_side);
            b_moved.write(&mut room, &b_tile, b_side);
            sync_cube();
            first += comptime!(depth * groups);
            // The next tiles are on their way while these are multiplied.
            let from = first + group * depth;
            a_moved.read::<A, I>(a, &a_tile, from, a_side);
            b_moved.read_right::<B, I>(rights, block.number, &b_tile, from, b_side, joined);
            #[unroll]
            for k in 0..depth {
                let a_at = a_room + from_row + comptime!(k * a_stride);
                let b_at = b_room + from_column + comptime!(k * b_stride);
                #[unroll]
                for i in 0..part_rows {
                    a_values[i] = room[a_at + i];
                }
                #[unroll]
                for j in 0..part_columns {
                    let value = room[b_at + j];
                    #[unroll]
                    for i in 0..part_rows {
                        sums[comptime!(i * part_columns + j)] += a_values[i] * value;
                    }
                }
            }
        }

        let to = (batch * sizes.spans + span) * sizes.numbers + block.place;
        if comptime!(groups == 1) {
            #[unroll]
            for i in 0..part_rows {
                let r = row + from_row + i;
                #[unroll]
                for j in 0..part_columns {
                    let c = column + from_column + j;
                    if r < sizes.rows && c < block.columns {
                        let sum = sums[comptime!(i * part_columns + j)];
                        product[to + r * block.columns + c] =
                            plus_bias::<B>(sum, rights, block.number, c, span, tiling);
                    }
                }
            }
        } else {
            let tile = comptime!(tile_rows * tile_columns);
            sync_cube();
            let own = group * tile + from_row * tile_columns + from_column;
            #[unroll]
            for i in 0..part_rows {
                #[unroll]
                for j in 0..part_columns {
                    room[own + comptime!(i * tile_columns + j)] =
                        sums[comptime!(i * part_columns + j)];
                }
            }
            sync_cube();
            for e in range_stepped(UNIT_POS as usize, tile, comptime!(tiling.cube())) {
                let mut sum = room[e];
                #[unroll]
                for g in 1..groups {
                    sum += room[comptime!(g * tile) + e];
                }
                let (r, c) = (row + e / tile_columns, column + e % tile_columns);
                if r < sizes.rows && c < block.columns {
                    product[to + r * block.columns + c] =
                        plus_bias::<B>(sum, rights, block.number, c, span, tiling);
                }
            }
        }
    }
}

/// Sums the spans of each batch, in order: from `[batches, spans, numbers]` to `[batches, numbers]`, one unit per number.
#[cube(launch_unchecked)]
pub(super) fn add_spans_kernel(
    shares: &[f32],
    product: &mut [f32],
    spans: usize,
    numbers: usize,
    all: usize,
) {
    let at = ABSOLUTE_POS;
    if at < all {
        let first = at / numbers * spans * numbers + at % numbers;
        let mut sum = shares[first];
        for span in 1..spans {
            sum += shares[first + span * numbers];
        }
        product[at] = sum;
    }
}
