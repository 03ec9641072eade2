//! Matrix product for the forward pass, input gradients and weight gradients.
//!
//! Tiles of the result stay in registers during the inner loop: each step multiplies a row of `b`
//! by one element of `a` per row of the tile (the outer-product form of Goto & van de Geijn 2008).
//! Nothing is packed, because the operands of a block of samples fit in the L1 and L2 caches.

#[cfg(target_family = "wasm")]
use super::quads::{self, Left};
#[cfg(not(target_family = "wasm"))]
use super::tiles::{self, Left};
use crate::model::LANES;
use multiversion::multiversion;
#[cfg(not(target_family = "wasm"))]
use multiversion::target::match_target;

/// Rows of a result are a multiple of this.
pub const ROWS: usize = 4;

/// Inputs and outputs per tile of [`narrow`].
pub const QUAD: usize = 4;

const _: () = assert!(QUAD * QUAD == LANES, "a quad of inputs of a quad of outputs is a vector");

/// A matrix whose row `i` starts at `values[i * row]`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    /// Values.
    pub values: &'a [f32],
    /// Distance between rows.
    pub row: usize,
}

/// A matrix whose row `i` starts at `values[starts[i]]`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Values.
    pub values: &'a [f32],
    /// Start of each row.
    pub starts: &'a [usize],
}

/// The transpose of a matrix.
#[derive(Clone, Copy)]
pub struct Transposed<L>(pub L);

/// Epilogue of a product.
#[derive(Clone, Copy)]
pub enum Store<'a> {
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

/// Multiplies `a`, `[rows, inner]`, by `b`, `[inner, columns]`, into `c`, `[rows, columns]`. `a` is
/// [`Strided`], [`Rows`] or [`Transposed`]; `b` and `c` are row-major and contiguous.
///
/// `rows` must be a multiple of [`ROWS`] and `columns` of [`LANES`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn multiply<L: Left>(a: L, b: &[f32], c: &mut [f32], columns: usize, store: Store) {
    #[cfg(target_family = "wasm")]
    quads::multiply(a, b, c, columns, store);
    // With 32 registers of 16 lanes, tiles can be four times as wide.
    #[cfg(not(target_family = "wasm"))]
    match_target! {
        "x86_64+avx512f" => tiles::multiply::<L, 4>(a, b, c, columns, store),
        _ => tiles::multiply::<L, 1>(a, b, c, columns, store),
    }
}

/// Computes the logits of `samples` rows of `inputs`, `[samples, width]`, into the first `samples`
/// columns of `logits`, `[rows, stride]`.
///
/// A regular product with so few columns would leave vectors mostly empty. Instead, a vector holds
/// [`QUAD`] inputs of each of [`QUAD`] outputs, whose partial sums are added at the end. `weight`,
/// `[rows / QUAD, width / QUAD][QUAD outputs][QUAD inputs]`, comes from [`pack`]. `samples` must be
/// a multiple of [`LANES`]; `width` and the length of `bias`, `[rows]`, multiples of [`QUAD`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn narrow(inputs: &[f32], weight: &[f32], bias: &[f32], logits: &mut [f32], stride: usize) {
    #[cfg(target_family = "wasm")]
    quads::narrow(inputs, weight, bias, logits, stride);
    // As many independent sums as there are registers.
    #[cfg(not(target_family = "wasm"))]
    match_target! {
        "x86_64+avx512f" => tiles::narrow::<{ 2 * ROWS }>(inputs, weight, bias, logits, stride),
        _ => tiles::narrow::<ROWS>(inputs, weight, bias, logits, stride),
    }
}

/// Reorders `weight`, `[rows, width]`, for [`narrow`].
pub fn pack(weight: &[f32], width: usize, packed: &mut [f32]) {
    for (strip, packed) in packed.chunks_exact_mut(QUAD * width).enumerate() {
        for (i, to) in packed.iter_mut().enumerate() {
            let (quad, row, input) = (i / LANES, i % LANES / QUAD, i % QUAD);
            *to = weight[(strip * QUAD + row) * width + quad * QUAD + input];
        }
    }
}
