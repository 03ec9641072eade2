//! Floats as words, natively and in kernels.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// The bits of a float.
pub fn to_bits(x: f32) -> u32 {
    x.to_bits()
}

/// The float that has these bits.
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

/// The kernel side of [`to_bits()`].
pub mod to_bits {
    use super::*;

    /// Expands to a cast that keeps the bits.
    pub fn expand(scope: &Scope, x: NativeExpand<f32>) -> NativeExpand<u32> {
        reinterpret_float::expand(scope, x)
    }
}

/// The kernel side of [`from_bits()`].
pub mod from_bits {
    use super::*;

    /// Expands to a cast that keeps the bits.
    pub fn expand(scope: &Scope, bits: NativeExpand<u32>) -> NativeExpand<f32> {
        reinterpret_word::expand(scope, bits)
    }
}
