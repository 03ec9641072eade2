//! Bit casts between `f32` and `u32`, natively and in kernels.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// Returns the bits of a float.
pub fn to_bits(x: f32) -> u32 {
    x.to_bits()
}

/// Returns the float with the given bits.
pub fn from_bits(bits: u32) -> f32 {
    f32::from_bits(bits)
}

#[cube]
fn reinterpret_float(x: f32) -> u32 {
    u32::reinterpret(x)
}

#[cube]
fn reinterpret_word(bits: u32) -> f32 {
    f32::reinterpret(bits)
}

/// Kernel-side form of [`to_bits()`].
pub mod to_bits {
    use super::*;

    /// Expands to a bit cast.
    pub fn expand(scope: &Scope, x: NativeExpand<f32>) -> NativeExpand<u32> {
        reinterpret_float::expand(scope, x)
    }
}

/// Kernel-side form of [`from_bits()`].
pub mod from_bits {
    use super::*;

    /// Expands to a bit cast.
    pub fn expand(scope: &Scope, bits: NativeExpand<u32>) -> NativeExpand<f32> {
        reinterpret_word::expand(scope, bits)
    }
}
