//! Tiles of a product, and how cubes divide them.

// Keeps compile-time conditions separate from run-time ones.
#![allow(clippy::collapsible_if)]

use super::operands::{Block, RightOperands};
use super::staging::{Tile, TileLayout};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Rows, columns and inner steps of a fragment, which a plane's matrix units multiply at a time.
pub(super) const FRAGMENT: usize = 16;

/// The division of a tile of the product among a cube's units; a compile-time value of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// Rows and columns of a part.
    pub part: [usize; 2],
    /// Parts of a tile, along its rows and its columns.
    pub parts: [usize; 2],
    /// Units that compute a part: one, or the plane whose matrix units do.
    pub units_per_part: usize,
    /// Groups that divide the inner dimension among them.
    pub groups: usize,
    /// Steps of the inner dimension that a group has in workgroup memory.
    pub depth: usize,
    /// Whether neighbours in memory differ in the inner index, for each operand. It decides which unit reads which
    /// element.
    pub is_inner_near: [bool; 2],
    /// Elements of each operand that a unit reads at a time.
    pub vector_sizes: [usize; 2],
    /// Whether a bias is added.
    pub has_bias: bool,
    /// Number of right operands, 1 to [`MAX_RIGHT_OPERANDS`](super::operands::MAX_RIGHT_OPERANDS).
    pub num_rights: usize,
}

impl Default for Tiling {
    /// A tile of one element by one unit.
    fn default() -> Self {
        Self {
            part: [1; 2],
            parts: [1; 2],
            units_per_part: 1,
            groups: 1,
            depth: 1,
            is_inner_near: [false; 2],
            vector_sizes: [1; 2],
            has_bias: false,
            num_rights: 1,
        }
    }
}

impl Tiling {
    /// The tiling with as many of its groups as have room in workgroup memory, bytes.
    pub fn within(mut self, bytes: usize) -> Self {
        while self.groups > 1 && self.bytes() > bytes {
            self.groups /= 2;
        }
        self
    }

    /// Whether matrix units multiply.
    pub fn has_matrix_units(&self) -> bool {
        self.units_per_part > 1
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
    pub fn group_units(&self) -> usize {
        self.parts[0] * self.parts[1] * self.units_per_part
    }

    /// Units of a cube.
    pub fn cube_units(&self) -> usize {
        self.group_units() * self.groups
    }

    /// The tile of an operand.
    pub fn layout(&self, operand: usize) -> TileLayout {
        let width = if operand == 0 { self.rows() } else { self.columns() };
        let (is_inner_near, keeps_order) = (self.is_inner_near[operand], self.has_matrix_units());
        TileLayout {
            width,
            depth: self.depth,
            num_units: self.group_units(),
            is_inner_near,
            vector_size: self.vector_sizes[operand],
            keeps_order,
            // Padded, so that rows start in different banks: by 16 bytes.
            stride: if keeps_order { 8 } else { 4 }
                + if keeps_order && is_inner_near { self.depth } else { width },
        }
    }

    /// Elements of a group's tiles in workgroup memory.
    pub fn staged_elements(&self) -> usize {
        self.layout(0).elements() + self.layout(1).elements()
    }

    /// Number of sums of a group in workgroup memory: a tile where groups add theirs up, or a fragment of each plane on
    /// its way from the matrix units to the product.
    pub fn num_sums(&self) -> usize {
        match (self.groups, self.units_per_part) {
            (1, 1) => 0,
            (1, _) => self.parts[0] * self.parts[1] * FRAGMENT * FRAGMENT,
            _ => self.rows() * self.columns(),
        }
    }

    /// Bytes of workgroup memory. Matrix units read operands in half precision; without them, sums reuse the
    /// operands' memory.
    fn bytes(&self) -> usize {
        let group = if self.has_matrix_units() {
            size_of::<u16>() * self.staged_elements() + size_of::<f32>() * self.num_sums()
        } else {
            size_of::<f32>() * self.staged_elements().max(self.num_sums())
        };
        self.groups * group
    }
}

/// Sizes of a product.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub batches: usize,
    pub rows: usize,
    /// Elements of the result of a span: those of all blocks.
    pub elements: usize,
    pub inner: usize,
    /// Inner steps of a span, which are those of a cube.
    pub span_steps: usize,
    /// Spans, and so cubes along the inner dimension.
    pub spans: usize,
    /// Tiles along the rows.
    pub row_tiles: usize,
    /// Tiles along the columns of all blocks.
    pub column_tiles: usize,
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
    /// Index of the span of the inner dimension.
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
    pub fn of_cube<B: Float, W: Size>(
        rights: &RightOperands<B, W>,
        sizes: &Sizes,
        #[comptime] tiling: Tiling,
    ) -> Work {
        let column_tile = CUBE_POS % sizes.column_tiles;
        let rest = CUBE_POS / sizes.column_tiles;
        let row_tile = rest % sizes.row_tiles;
        let rest = rest / sizes.row_tiles;
        let (span, batch) = (rest % sizes.spans, rest / sizes.spans);
        let block = Block::at::<B, W>(column_tile, rights, comptime!(tiling.num_rights));
        let column = (column_tile - block.first_tile) * comptime!(tiling.columns());
        let to = (batch * sizes.spans + span) * sizes.elements + block.place;
        let first = span * sizes.span_steps;
        let mut end = first + sizes.span_steps;
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

    /// The tile of an operand from index `outer` of its outer dimension on; its matrices are `batch_stride` apart.
    pub fn tile(
        &self,
        batch_stride: usize,
        outer: usize,
        outer_end: usize,
        offset: usize,
        unit: usize,
    ) -> Tile {
        let matrix = self.batch * batch_stride;
        Tile { matrix, outer, outer_end, inner_end: self.end, offset, unit }
    }
}

/// Stores a sum, with the bias of its column if there is one, unless it is beyond the block.
#[cube]
pub(super) fn store<B: Float, W: Size>(
    product: &mut [f32],
    work: &Work,
    rights: &RightOperands<B, W>,
    rows: usize,
    row: usize,
    column: usize,
    sum: f32,
    #[comptime] tiling: Tiling,
) {
    let columns = work.block.columns;
    if row < rows && column < columns {
        let mut sum = sum;
        if comptime!(tiling.has_bias) {
            // Once for all spans.
            if work.span == 0 {
                let mut bias = rights.first.bias[column];
                if comptime!(tiling.num_rights > 1) {
                    if work.block.right_index == 1 {
                        bias = rights.second.bias[column];
                    }
                }
                if comptime!(tiling.num_rights > 2) {
                    if work.block.right_index == 2 {
                        bias = rights.third.bias[column];
                    }
                }
                sum += bias;
            }
        }
        product[work.to + row * columns + column] = sum;
    }
}

/// Adds up the sums of the groups, `[groups, rows, columns]`, and stores them.
#[cube]
pub(super) fn add_groups<B: Float, W: Size>(
    sums: &Shared<[f32]>,
    work: &Work,
    rights: &RightOperands<B, W>,
    product: &mut [f32],
    rows: usize,
    #[comptime] tiling: Tiling,
) {
    let columns = comptime!(tiling.columns());
    let tile = comptime!(tiling.rows() * tiling.columns());
    for e in range_stepped(UNIT_POS as usize, tile, comptime!(tiling.cube_units())) {
        let mut sum = sums[e];
        #[unroll]
        for group in 1..comptime!(tiling.groups) {
            sum += sums[comptime!(group * tile) + e];
        }
        let (r, c) = (work.row + e / columns, work.column + e % columns);
        store::<B, W>(product, work, rights, rows, r, c, sum, tiling);
    }
}
