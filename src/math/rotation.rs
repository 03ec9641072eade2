//! Rotation of pairs, for rotary position embeddings (Su et al. 2021).

use burn::cubecl;
use burn::cubecl::prelude::*;

/// Rotates the pair `(a, b)` by an angle of this cosine and sine.
#[cube]
#[inline(always)]
pub(crate) fn rotate_pair(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a * cos - b * sin, b * cos + a * sin)
}

/// Rotates the pair `(a, b)` back: the gradient of a pair, from that of the rotated one.
#[cfg(text_kernels)]
#[cube]
#[inline(always)]
pub(crate) fn unrotate_pair(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a * cos + b * sin, b * cos - a * sin)
}
