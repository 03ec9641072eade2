//! Operands and epilogues of the matrix product, and the sizes of its tiles.

use crate::model::LANES;

/// Rows of a result are a multiple of this.
pub const TILE_ROWS: usize = 4;

/// Inputs and outputs per tile of [`multiply_narrow`](super::product::multiply_narrow).
pub const QUAD: usize = 4;

const _: () = assert!(QUAD * QUAD == LANES, "a quad of inputs of a quad of outputs is a vector");

/// A matrix whose row `i` starts at `values[i * row_stride]`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    /// Values of which the rows are slices.
    pub values: &'a [f32],
    /// Distance between rows.
    pub row_stride: usize,
}

/// A matrix whose row `i` starts at `values[starts[i]]`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Values of which the rows are slices.
    pub values: &'a [f32],
    /// Start of each row.
    pub starts: &'a [usize],
}

/// The transpose of a matrix.
#[derive(Clone, Copy)]
pub struct Transpose<L>(pub L);

/// Epilogue of a product.
#[derive(Clone, Copy)]
pub enum Epilogue<'a> {
    /// `c = bias + a b`, with the bias `[columns]` broadcast over rows.
    Bias(&'a [f32]),
    /// `c = max(bias + a b, 0)`.
    BiasRelu(&'a [f32]),
    /// `c += a b`.
    Add,
    /// `c *= a b`, element by element.
    Multiply,
    /// `c = a b` where `c` was positive, else 0.
    Gate,
}
