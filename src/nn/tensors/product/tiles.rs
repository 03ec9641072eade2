//! Tiles of a product, and how cubes divide them.

// Keeps compile-time conditions separate from run-time ones.
#![allow(clippy::collapsible_if)]

use super::operands::{Block, RightOperands};
use super::staging::{Tile, TileLayout};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Rows, columns and inner steps of a fragment, which a plane's matrix units multiply at a time.
pub(super) const FRAGMENT: usize = 16;

/// The way in which units read an operand; a compile-time value of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OperandTiling {
    /// Whether neighbours in memory differ in the inner index. It decides which unit reads which element.
    pub is_inner_near: bool,
    /// Elements that a unit reads at a time.
    pub vector_size: usize,
}

/// The division of a tile of the product among a cube's units; a compile-time value of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    pub part_rows: usize,
    pub part_columns: usize,
    /// Parts of a tile along its rows.
    pub num_row_parts: usize,
    /// Parts of a tile along its columns.
    pub num_column_parts: usize,
    /// Units that compute a part: one, or the plane whose matrix units do.
    pub units_per_part: usize,
    /// Groups that divide the inner dimension among them.
    pub num_groups: usize,
    /// Steps of the inner dimension that a group has in workgroup memory.
    pub depth: usize,
    /// How units read the left operand.
    pub left: OperandTiling,
    /// How units read the right operands.
    pub right: OperandTiling,
    /// Whether a bias is added.
    pub has_bias: bool,
    /// Number of right operands, 1 to [`MAX_RIGHT_OPERANDS`](super::operands::MAX_RIGHT_OPERANDS).
    pub num_rights: usize,
}

impl Tiling {
    /// A tile of parts of this size, with so many of them in rows and in columns. One unit computes each part, at depth
    /// 1 and without vectors.
    pub fn new(
        [part_rows, part_columns]: [usize; 2],
        [num_row_parts, num_column_parts]: [usize; 2],
    ) -> Self {
        let operand = OperandTiling { is_inner_near: false, vector_size: 1 };
        Self {
            part_rows,
            part_columns,
            num_row_parts,
            num_column_parts,
            units_per_part: 1,
            num_groups: 1,
            depth: 1,
            left: operand,
            right: operand,
            has_bias: false,
            num_rights: 1,
        }
    }

    /// The tiling with as many of its groups as have room in workgroup memory, bytes.
    pub fn within(mut self, bytes: usize) -> Self {
        while self.num_groups > 1 && self.bytes() > bytes {
            self.num_groups /= 2;
        }
        self
    }

    /// Whether matrix units multiply.
    pub fn has_matrix_units(&self) -> bool {
        self.units_per_part > 1
    }

    /// Rows of a tile.
    pub fn rows(&self) -> usize {
        self.part_rows * self.num_row_parts
    }

    /// Columns of a tile.
    pub fn columns(&self) -> usize {
        self.part_columns * self.num_column_parts
    }

    /// Units of a group.
    pub fn units_per_group(&self) -> usize {
        self.num_row_parts * self.num_column_parts * self.units_per_part
    }

    /// Units of a cube.
    pub fn units_per_cube(&self) -> usize {
        self.units_per_group() * self.num_groups
    }

    /// The tile of the left operand.
    pub fn left_layout(&self) -> TileLayout {
        self.layout(self.left, self.rows())
    }

    /// The tile of a right operand.
    pub fn right_layout(&self) -> TileLayout {
        self.layout(self.right, self.columns())
    }

    fn layout(&self, operand: OperandTiling, width: usize) -> TileLayout {
        let OperandTiling { is_inner_near, vector_size } = operand;
        let keeps_order = self.has_matrix_units();
        TileLayout {
            width,
            depth: self.depth,
            num_units: self.units_per_group(),
            is_inner_near,
            vector_size,
            keeps_order,
            // Padded, so that rows start in different banks: by 16 bytes.
            stride: if keeps_order { 8 } else { 4 }
                + if keeps_order && is_inner_near { self.depth } else { width },
        }
    }

    /// Elements of a group's tiles in workgroup memory.
    pub fn num_staged(&self) -> usize {
        self.left_layout().num_elements() + self.right_layout().num_elements()
    }

    /// Number of sums of a group in workgroup memory: a tile where groups add theirs up, or a fragment of each plane on
    /// its way from the matrix units to the product.
    pub fn num_sums(&self) -> usize {
        match (self.num_groups, self.units_per_part) {
            (1, 1) => 0,
            (1, _) => self.num_row_parts * self.num_column_parts * FRAGMENT * FRAGMENT,
            _ => self.rows() * self.columns(),
        }
    }

    /// Bytes of workgroup memory. Matrix units read operands in half precision; without them, sums reuse the
    /// operands' memory.
    fn bytes(&self) -> usize {
        let group = if self.has_matrix_units() {
            size_of::<u16>() * self.num_staged() + size_of::<f32>() * self.num_sums()
        } else {
            size_of::<f32>() * self.num_staged().max(self.num_sums())
        };
        self.num_groups * group
    }
}

/// Sizes of a product.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub num_batches: usize,
    pub rows: usize,
    /// Elements of the result of a span: those of all blocks.
    pub num_elements: usize,
    pub inner: usize,
    /// Inner steps of a span, which are those of a cube.
    pub span_steps: usize,
    /// Spans, and so cubes along the inner dimension.
    pub num_spans: usize,
    /// Tiles along the rows.
    pub num_row_tiles: usize,
    /// Tiles along the columns of all blocks.
    pub num_column_tiles: usize,
}

/// The part of the inner dimension and the tile of a block that a cube works on.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Work {
    /// Whether the cube has work: the grid may have excess cubes.
    pub exists: bool,
    pub block: Block,
    /// First row and column of the tile.
    pub row: usize,
    pub column: usize,
    /// Index of the span of the inner dimension.
    pub span: usize,
    /// First inner step, and the end of these.
    pub first_step: usize,
    pub end_step: usize,
    pub batch: usize,
    /// First element of the block in the result.
    pub result_offset: usize,
}

#[cube]
impl Work {
    /// The work of this cube.
    pub fn of_cube<B: Float, W: Size>(
        rights: &RightOperands<B, W>,
        sizes: &Sizes,
        #[comptime] tiling: Tiling,
    ) -> Work {
        let column_tile = CUBE_POS % sizes.num_column_tiles;
        let row_index = CUBE_POS / sizes.num_column_tiles;
        let row_tile = row_index % sizes.num_row_tiles;
        let span_index = row_index / sizes.num_row_tiles;
        let (span, batch) = (span_index % sizes.num_spans, span_index / sizes.num_spans);
        let block = Block::at::<B, W>(column_tile, rights, comptime!(tiling.num_rights));
        let column = (column_tile - block.first_tile) * comptime!(tiling.columns());
        let result_offset = (batch * sizes.num_spans + span) * sizes.num_elements + block.offset;
        let first_step = span * sizes.span_steps;
        let mut end_step = first_step + sizes.span_steps;
        if end_step > sizes.inner {
            end_step = sizes.inner;
        }
        Work {
            exists: batch < sizes.num_batches,
            block,
            row: row_tile * comptime!(tiling.rows()),
            column,
            span,
            first_step,
            end_step,
            batch,
            result_offset,
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
        let matrix_offset = self.batch * batch_stride;
        Tile { matrix_offset, outer, outer_end, inner_end: self.end_step, offset, unit }
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
        product[work.result_offset + row * columns + column] = sum;
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
    let tile_len = comptime!(tiling.rows() * tiling.columns());
    for e in range_stepped(UNIT_POS as usize, tile_len, comptime!(tiling.units_per_cube())) {
        let mut sum = sums[e];
        #[unroll]
        for group in 1..comptime!(tiling.num_groups) {
            sum += sums[comptime!(group * tile_len) + e];
        }
        let (r, c) = (work.row + e / columns, work.column + e % columns);
        store::<B, W>(product, work, rights, rows, r, c, sum, tiling);
    }
}
