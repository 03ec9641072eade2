//! The stand-in for `device` in a build without the general engine: every decoder is on the CPU.

use super::Group;
use super::differentiation::Differentiation;
use crate::parallel::Node;
use crate::text::TokenDecoder;
use std::ops::Range;

/// No log-probabilities.
pub(super) fn logprobs(_: &TokenDecoder, _: &[Group], _: f32) -> Option<Vec<Vec<Vec<f32>>>> {
    None
}

/// No gradient.
pub(super) fn node(
    _: &Differentiation,
    _: &[Group],
    _: &[usize],
    _: &Range<usize>,
) -> Option<(Node, f64)> {
    None
}
