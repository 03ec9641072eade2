//! Kernels that take whole rows: the norm with the addition before it, and the gate.

use super::UNITS;
use crate::math::{sigmoid, tanh};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Sums a number of each unit of the cube.
#[cube]
pub(crate) fn total(own: f32) -> f32 {
    let unit = UNIT_POS as usize;
    let mut sums = Shared::<[f32]>::new_slice(UNITS);
    sums[unit] = own;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(UNITS.ilog2()) {
        let half = comptime!(UNITS >> (level + 1));
        if unit < half {
            sums[unit] += sums[unit + half];
        }
        sync_cube();
    }
    sums[0]
}

/// The largest number of a cube's units.
#[cube]
pub(crate) fn largest(own: f32) -> f32 {
    let unit = UNIT_POS as usize;
    let mut most = Shared::<[f32]>::new_slice(UNITS);
    most[unit] = own;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(UNITS.ilog2()) {
        let half = comptime!(UNITS >> (level + 1));
        if unit < half && most[unit + half] > most[unit] {
            most[unit] = most[unit + half];
        }
        sync_cube();
    }
    most[0]
}

/// The parts of an addition to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AddNorm {
    /// Numbers of a row.
    pub size: usize,
    /// Whether a block's output is added.
    pub adds: bool,
    /// Whether that output is normed first.
    pub norms_output: bool,
    /// Whether the sum is normed.
    pub norms_sum: bool,
}

/// Adds a block's output to the residual stream and norms the sum; one cube per row.
///
/// Buffers: the stream and the output, `[rows, size]`; weights of the norm of the sum and of that of the output,
/// `[2, size]`; the new stream, and the normed sum, `[rows, size]`. Workgroup memory: 2 x [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn add_norm_kernel(
    stream: &[f32],
    output: &[f32],
    weights: &[f32],
    sum: &mut [f32],
    normed: &mut [f32],
    rows: usize,
    eps: f32,
    #[comptime] form: AddNorm,
) {
    let row = CUBE_POS;
    if row < rows {
        let size = comptime!(form.size);
        let (first, unit) = (row * size, UNIT_POS as usize);
        let mut root = 1.0f32;
        if comptime!(form.norms_output) {
            let mut square = 0.0f32;
            for i in range_stepped(unit, size, UNITS) {
                square += output[first + i] * output[first + i];
            }
            root = (total(square) / comptime!(size as f32) + eps).sqrt();
        }
        let mut square = 0.0f32;
        for i in range_stepped(unit, size, UNITS) {
            let mut x = stream[first + i];
            if comptime!(form.norms_output) {
                x += output[first + i] / root * weights[size + i];
            } else if comptime!(form.adds) {
                x += output[first + i];
            }
            sum[first + i] = x;
            square += x * x;
        }
        if comptime!(form.norms_sum) {
            let root = (total(square) / comptime!(size as f32) + eps).sqrt();
            // Each unit reads the numbers that it wrote.
            for i in range_stepped(unit, size, UNITS) {
                normed[first + i] = sum[first + i] / root * weights[i];
            }
        }
    }
}

/// Multiplies the activation of a gate by the values that it lets through; one unit per number.
///
/// Buffers: `[count]` three times.
#[cube(launch_unchecked)]
pub(crate) fn gate_kernel(
    gate: &[f32],
    up: &[f32],
    gated: &mut [f32],
    count: usize,
    #[comptime] is_silu: bool,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let x = gate[i];
        let mut activated = x * sigmoid(x);
        if comptime!(!is_silu) {
            // The tanh approximation of GELU (Hendrycks & Gimpel 2016).
            let inner = (x + x * x * x * 0.044_715f32) * 0.797_884_6f32;
            activated = x * 0.5f32 * (tanh(inner) + 1.0f32);
        }
        gated[i] = activated * up[i];
    }
}
