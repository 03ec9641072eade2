//! The operands of a product of matrices: one on the left, and up to three on the right, whose products with it are
//! blocks of one buffer.

// Keeps compile-time conditions separate from run-time ones.
#![allow(clippy::collapsible_if)]

use crate::nn::buffers::Buffer;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Maximum number of right operands of a launch.
pub(super) const MAX_RIGHT_OPERANDS: usize = 3;

/// An operand: a batch of matrices, read in vectors of `V` elements. Distances are counted in vectors.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Operand<N: Float, V: Size> {
    pub elements: Buffer<Vector<N, V>>,
    /// Distance from one batch to the next; 0 if all batches have the same matrix.
    pub batch_stride: usize,
    /// Distance along the dimension in which neighbours are read: the inner one, or the rows of the product for the
    /// left operand, its columns for the right one. It is 1 for vectors of several numbers.
    pub near_stride: usize,
    /// Distance along the other dimension.
    pub far_stride: usize,
}

/// A right operand, and the block of the result that it gives. The column tiles of the blocks of a launch follow each
/// other.
#[derive(CubeType, CubeLaunch)]
pub(super) struct RightOperand<N: Float, V: Size> {
    pub operand: Operand<N, V>,
    pub columns: usize,
    /// First column tile.
    pub first_tile: usize,
    /// Place of the block in the result of a span.
    pub place: usize,
    /// The bias, `[columns]`.
    pub bias: Buffer<f32>,
}

/// The right operands of a launch; those beyond [`Tiling::num_rights`](super::tiles::Tiling::num_rights) are not read.
#[derive(CubeType, CubeLaunch)]
pub(super) struct RightOperands<N: Float, V: Size> {
    pub first: RightOperand<N, V>,
    pub second: RightOperand<N, V>,
    pub third: RightOperand<N, V>,
}

/// The block of the result that a cube works on.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Block {
    /// Index of the right operand.
    pub right_index: usize,
    pub columns: usize,
    pub first_tile: usize,
    pub place: usize,
}

#[cube]
impl Block {
    /// The block that has a column tile.
    pub fn at<N: Float, V: Size>(
        tile: usize,
        rights: &RightOperands<N, V>,
        #[comptime] num_rights: usize,
    ) -> Block {
        let right = &rights.first;
        let mut right_index = 0usize;
        let mut columns = right.columns;
        let mut first_tile = right.first_tile;
        let mut place = right.place;
        if comptime!(num_rights > 1) {
            let right = &rights.second;
            if tile >= right.first_tile {
                right_index = 1;
                columns = right.columns;
                first_tile = right.first_tile;
                place = right.place;
            }
        }
        if comptime!(num_rights > 2) {
            let right = &rights.third;
            if tile >= right.first_tile {
                right_index = 2;
                columns = right.columns;
                first_tile = right.first_tile;
                place = right.place;
            }
        }
        Block { right_index, columns, first_tile, place }
    }
}
