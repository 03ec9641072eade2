//! Matrix product for the forward pass, input gradients and weight gradients.
//!
//! Tiles of the result stay in registers during the inner loop: each step multiplies a row of `b`
//! by one element of `a` per row of the tile (the outer-product form of Goto & van de Geijn 2008).
//! Nothing is packed, because the operands of a block of samples fit in the L1 and L2 caches.

use super::operands::{Epilogue, QUAD};
#[cfg(target_family = "wasm")]
use super::quads::{self, Lhs};
#[cfg(not(target_family = "wasm"))]
use super::tiles::{self, Lhs};
use crate::model::LANES;
use multiversion::multiversion;
#[cfg(not(target_family = "wasm"))]
use multiversion::target::match_target;

/// Multiplies `a`, `[rows, inner]`, by `b`, `[inner, columns]`, into `c`, `[rows, columns]`. `a` is
/// [`Strided`](super::operands::Strided), [`Rows`](super::operands::Rows) or
/// [`Transpose`](super::operands::Transpose); `b` and `c` are row-major and contiguous.
///
/// `rows` must be a multiple of [`TILE_ROWS`](super::operands::TILE_ROWS) and `columns` of [`LANES`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn multiply<L: Lhs>(a: L, b: &[f32], c: &mut [f32], columns: usize, epilogue: Epilogue) {
    #[cfg(target_family = "wasm")]
    quads::multiply(a, b, c, columns, epilogue);
    // With 32 registers of 16 lanes, tiles can be four times as wide.
    #[cfg(not(target_family = "wasm"))]
    match_target! {
        "x86_64+avx512f" => tiles::multiply::<L, 4>(a, b, c, columns, epilogue),
        _ => tiles::multiply::<L, 1>(a, b, c, columns, epilogue),
    }
}

/// Computes the logits of `samples` rows of `inputs`, `[samples, width]`, into the first `samples`
/// columns of `logits`, `[rows, stride]`.
///
/// A regular product with so few columns would leave vectors mostly empty. Instead, a vector holds
/// [`QUAD`] inputs of each of [`QUAD`] outputs, whose partial sums are added at the end. `weight`,
/// `[rows / QUAD, width / QUAD][QUAD outputs][QUAD inputs]`, comes from [`pack_narrow`]. `samples` must be
/// a multiple of [`LANES`]; `width` and the length of `bias`, `[rows]`, multiples of [`QUAD`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn multiply_narrow(
    inputs: &[f32],
    weight: &[f32],
    bias: &[f32],
    logits: &mut [f32],
    stride: usize,
) {
    #[cfg(target_family = "wasm")]
    quads::multiply_narrow(inputs, weight, bias, logits, stride);
    // As many independent sums as there are registers.
    #[cfg(not(target_family = "wasm"))]
    match_target! {
        "x86_64+avx512f" => tiles::multiply_narrow::<{ 2 * tiles::TILE_ROWS }>(inputs, weight, bias, logits, stride),
        _ => tiles::multiply_narrow::<{ tiles::TILE_ROWS }>(inputs, weight, bias, logits, stride),
    }
}

/// Reorders `weight`, `[rows, width]`, for [`multiply_narrow`].
pub fn pack_narrow(weight: &[f32], width: usize, packed: &mut [f32]) {
    for (strip, packed) in packed.chunks_exact_mut(QUAD * width).enumerate() {
        for (i, to) in packed.iter_mut().enumerate() {
            let (quad, row, input) = (i / LANES, i % LANES / QUAD, i % QUAD);
            *to = weight[(strip * QUAD + row) * width + quad * QUAD + input];
        }
    }
}
