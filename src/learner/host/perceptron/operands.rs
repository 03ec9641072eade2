//! Operands and epilogues of the matrix product, and the sizes of its tiles.

use crate::model::LANES;

/// Rows of a result are a multiple of this.
pub const ROWS: usize = 4;

/// Inputs and outputs per tile of [`multiply_narrow`](super::product::multiply_narrow).
pub const QUAD: usize = 4;

const _: () = assert!(QUAD * QUAD == LANES, "a quad of inputs of a quad of outputs is a vector");

/// A matrix whose row `i` starts at `values[i * row]`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    /// All numbers, of which the rows are slices.
    pub values: &'a [f32],
    /// Distance between rows.
    pub row: usize,
}

/// A matrix whose row `i` starts at `values[starts[i]]`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// All numbers, of which the rows are slices.
    pub values: &'a [f32],
    /// Start of each row.
    pub starts: &'a [usize],
}

/// The transpose of a matrix.
#[derive(Clone, Copy)]
pub struct Transposed<L>(pub L);

/// Epilogue of a product.
#[derive(Clone, Copy)]
pub enum Epilogue<'a> {
    /// `c = bias + a b`, with the bias `[columns]` broadcast over rows.
    Biased(&'a [f32]),
    /// `c = max(bias + a b, 0)`.
    Rectified(&'a [f32]),
    /// `c += a b`.
    Added,
    /// `c *= a b`, element by element.
    Multiplied,
    /// `c = a b` where `c` was positive, else 0.
    Gated,
}
