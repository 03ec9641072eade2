//! Four numbers side by side in WebAssembly's vectors, spelled out: its compilers leave half of the tiles of
//! a product scalar.

use std::arch::wasm32::{f32x4_pmax, f32x4_splat, v128, v128_load, v128_store};

/// Numbers of a [`Quad`].
pub const QUAD: usize = 4;

/// Four numbers.
pub type Quad = v128;

/// The first four of the numbers.
#[inline(always)]
pub fn load(values: &[f32]) -> Quad {
    let values: &[f32; QUAD] = values.first_chunk().expect("four numbers");
    // SAFETY: there are four, and a load need not be aligned.
    unsafe { v128_load(values.as_ptr().cast()) }
}

/// Puts four numbers in the place of the first four.
#[inline(always)]
pub fn store(quad: Quad, values: &mut [f32]) {
    let values: &mut [f32; QUAD] = values.first_chunk_mut().expect("four numbers");
    // SAFETY: there is room for four, and a store need not be aligned.
    unsafe { v128_store(values.as_mut_ptr().cast(), quad) }
}

/// The number four times.
#[inline(always)]
pub fn splat(x: f32) -> Quad {
    f32x4_splat(x)
}

/// `a * b + c`, in one rounding in a module for browsers that have that.
#[inline(always)]
pub fn mul_add(a: Quad, b: Quad, c: Quad) -> Quad {
    #[cfg(target_feature = "relaxed-simd")]
    return std::arch::wasm32::f32x4_relaxed_madd(a, b, c);
    #[cfg(not(target_feature = "relaxed-simd"))]
    std::arch::wasm32::f32x4_add(std::arch::wasm32::f32x4_mul(a, b), c)
}

/// [`at_least`](super::at_least) of each.
#[inline(always)]
pub fn at_least(floor: f32, x: Quad) -> Quad {
    f32x4_pmax(x, f32x4_splat(floor))
}
