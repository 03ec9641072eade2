//! The words of a KV cache: one element in f32 each, or two in bf16, which halves the memory that a query passes over.
//!
//! `N` is the number of elements in a word. Two elements stand in adjacent rows, the first in the low half, as those of
//! [`bf16`](crate::nn::ops::bf16): a vector of words becomes two vectors of elements by one operation each.

use crate::math::LANES;
use crate::nn::ops::bf16::to_bf16;

/// A vector of words.
pub type Words = [u32; LANES];

/// The number format of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheFormat {
    /// Single precision.
    #[default]
    F32,
    /// Elements rounded to bf16.
    Bf16,
}

impl CacheFormat {
    /// Number of elements in a word.
    pub fn elements_per_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// The element in row `n` of a word.
#[inline(always)]
pub fn element<const N: usize>(word: u32, n: usize) -> f32 {
    f32::from_bits(match (N, n) {
        (1, _) => word,
        (_, 0) => word << 16,
        _ => word & 0xffff_0000,
    })
}

/// A word with `x` in row `n`, rounded if there are two rows.
#[inline(always)]
pub fn with_element<const N: usize>(word: u32, n: usize, x: f32) -> u32 {
    match (N, n) {
        (1, _) => x.to_bits(),
        (_, 0) => word & 0xffff_0000 | u32::from(to_bf16(x)),
        _ => word & 0xffff | u32::from(to_bf16(x)) << 16,
    }
}
