//! Explicit 4-lane SIMD for WebAssembly, whose compilers leave matrix products partly scalar.

use std::arch::wasm32::{f32x4_pmax, f32x4_splat, v128, v128_load, v128_store};

/// Lanes of a [`Quad`].
pub const QUAD: usize = 4;

/// A vector of four `f32`.
pub type Quad = v128;

/// Loads the first four values.
#[inline(always)]
pub fn load(values: &[f32]) -> Quad {
    let values: &[f32; QUAD] = values.first_chunk().expect("four numbers");
    // SAFETY: the reference covers four floats, and the load needs no alignment.
    unsafe { v128_load(values.as_ptr().cast()) }
}

/// Stores a vector to the first four values.
#[inline(always)]
pub fn store(quad: Quad, values: &mut [f32]) {
    let values: &mut [f32; QUAD] = values.first_chunk_mut().expect("four numbers");
    // SAFETY: the reference covers four floats, and the store needs no alignment.
    unsafe { v128_store(values.as_mut_ptr().cast(), quad) }
}

/// Broadcasts `x` to all lanes.
#[inline(always)]
pub fn splat(x: f32) -> Quad {
    f32x4_splat(x)
}

/// Computes `a * b + c`, fused in builds with relaxed SIMD.
#[inline(always)]
pub fn mul_add(a: Quad, b: Quad, c: Quad) -> Quad {
    #[cfg(target_feature = "relaxed-simd")]
    return std::arch::wasm32::f32x4_relaxed_madd(a, b, c);
    #[cfg(not(target_feature = "relaxed-simd"))]
    std::arch::wasm32::f32x4_add(std::arch::wasm32::f32x4_mul(a, b), c)
}

/// Lane-wise [`at_least`](super::at_least).
#[inline(always)]
pub fn at_least(floor: f32, x: Quad) -> Quad {
    f32x4_pmax(x, f32x4_splat(floor))
}
