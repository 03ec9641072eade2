//! The stand-in for `device` in a build without the general engine: every decoder is on the CPU.

use super::Group;
use super::differentiation::{Differentiation, Sums};
use crate::learner::Moments;
use crate::parallel::Node;
use crate::settings::OptimizerConfig;
use crate::text::TokenDecoder;
use burn::tensor::Tensor;
use std::ops::Range;

/// No gradient on a device.
#[derive(Debug)]
pub(super) enum Gradient {}

/// No moments on a device.
#[derive(Clone, Debug)]
pub(super) enum DeviceMoments {}

impl Gradient {
    /// Nothing to download.
    pub fn fetch(self, _: &[usize]) -> Vec<f32> {
        match self {}
    }
}

impl DeviceMoments {
    /// Nothing to upload, as there is no device.
    pub fn upload(_: &Moments, _: &TokenDecoder) -> Self {
        unreachable!("there is no device")
    }

    /// Nothing to download.
    pub fn download(&self) -> Moments {
        match *self {}
    }
}

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

/// No gradient.
pub(super) fn gradient(_: &Differentiation, _: &[Group], _: &[usize]) -> Option<(Gradient, Sums)> {
    None
}

/// No step.
pub(super) fn step(
    _: &mut TokenDecoder,
    _: &mut DeviceMoments,
    gradient: Gradient,
    _: (f64, f64),
    _: &OptimizerConfig,
) -> Tensor<1> {
    match gradient {}
}

/// No norms.
pub(super) fn norms(_: Vec<Tensor<1>>) -> Vec<f32> {
    Vec::new()
}
