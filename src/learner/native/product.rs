//! One matrix product for the forward pass, the gradient of the inputs and that of the weights.
//!
//! Tiles of the result stay in registers while the inner dimension goes by: each step takes a row of
//! `b` and multiplies it by one number of `a` for each row of the tile (the "outer product" form of
//! Goto & van de Geijn 2008). Nothing is packed: the operands of a block of samples lie in the first
//! two caches.

#[cfg(target_family = "wasm")]
use super::quads::{self, Left};
#[cfg(not(target_family = "wasm"))]
use super::tiles::{self, Left};
use crate::model::LANES;
use multiversion::multiversion;
#[cfg(not(target_family = "wasm"))]
use multiversion::target::match_target;

/// Rows of a result come in multiples of this.
pub const ROWS: usize = 4;

/// Inputs of an output that [`narrow`] takes at a time, and outputs.
pub const QUAD: usize = 4;

const _: () = assert!(QUAD * QUAD == LANES, "a quad of inputs of a quad of outputs is a vector");

/// A matrix whose row `i` begins at `values[i * row]`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    /// The numbers.
    pub values: &'a [f32],
    /// From row to row.
    pub row: usize,
}

/// A matrix whose row `i` begins at `values[starts[i]]`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The numbers.
    pub values: &'a [f32],
    /// Where the rows begin.
    pub starts: &'a [usize],
}

/// A matrix with rows and columns exchanged.
#[derive(Clone, Copy)]
pub struct Transposed<L>(pub L);

/// What becomes of a product.
#[derive(Clone, Copy)]
pub enum Store<'a> {
    /// `c = bias + a b`, the bias `[columns]` the same for all rows.
    Biased(&'a [f32]),
    /// The same where it is positive, else 0.
    Rectified(&'a [f32]),
    /// `c += a b`.
    Added,
    /// `c *= a b`, element by element.
    Multiplied,
    /// `c = a b` where `c` was positive, else 0.
    Gated,
}

/// Multiplies `a`, `[rows, inner]`, by `b`, `[inner, columns]`, into `c`, `[rows, columns]`; `a` is [`Strided`],
/// [`Rows`] or [`Transposed`], `b` and `c` are row-major and without gaps.
///
/// `rows` must be a multiple of [`ROWS`] and `columns` of [`LANES`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn multiply<L: Left>(a: L, b: &[f32], c: &mut [f32], columns: usize, store: Store) {
    #[cfg(target_family = "wasm")]
    quads::multiply(a, b, c, columns, store);
    // With 32 registers of 16 lanes a tile can be four times as wide.
    #[cfg(not(target_family = "wasm"))]
    match_target! {
        "x86_64+avx512f" => tiles::multiply::<L, 4>(a, b, c, columns, store),
        _ => tiles::multiply::<L, 1>(a, b, c, columns, store),
    }
}

/// The logits of `samples` rows of `inputs`, `[samples, width]`: `logits`, `[rows, stride]`, of which
/// the first `samples` columns are filled.
///
/// A product with so few columns would leave most of each vector empty. Here a vector holds [`QUAD`]
/// inputs of each of [`QUAD`] outputs, whose sums are added up at the end. `weight`, `[rows / QUAD,
/// width / QUAD][QUAD outputs][QUAD inputs]`, is as [`pack`] made it. `samples` must be a multiple of
/// [`LANES`], the length of `bias`, `[rows]`, and the `width` multiples of [`QUAD`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn narrow(inputs: &[f32], weight: &[f32], bias: &[f32], logits: &mut [f32], stride: usize) {
    #[cfg(target_family = "wasm")]
    quads::narrow(inputs, weight, bias, logits, stride);
    // As many independent sums as there are registers for.
    #[cfg(not(target_family = "wasm"))]
    match_target! {
        "x86_64+avx512f" => tiles::narrow::<{ 2 * ROWS }>(inputs, weight, bias, logits, stride),
        _ => tiles::narrow::<ROWS>(inputs, weight, bias, logits, stride),
    }
}

/// Fills `packed` with `weight`, `[rows, width]`, in the order of [`narrow`].
pub fn pack(weight: &[f32], width: usize, packed: &mut [f32]) {
    for (strip, packed) in packed.chunks_exact_mut(QUAD * width).enumerate() {
        for (i, to) in packed.iter_mut().enumerate() {
            let (quad, row, input) = (i / LANES, i % LANES / QUAD, i % QUAD);
            *to = weight[(strip * QUAD + row) * width + quad * QUAD + input];
        }
    }
}
