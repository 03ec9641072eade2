//! Bit casts between `f32` and `u32`, natively and in kernels.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// Returns the bits of a float.
#[cube]
#[inline(always)]
pub fn to_bits(x: f32) -> u32 {
    x.to_bits()
}

/// Returns the float with the given bits.
#[cube]
#[inline(always)]
pub fn from_bits(bits: u32) -> f32 {
    f32::from_bits(bits)
}
