//! The end of an optimiser step in two kernels: the sum of the partial gradients, then the global
//! norm, clipping and AdamW.

use super::gradient_kernel::SUMS;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Parameters that a cube of [`sum_kernel`] adds up.
pub(super) const COLUMNS: usize = 8;
/// Runs of partial gradients that are added up side by side.
const RUNS: usize = 32;
/// Units of a cube of [`sum_kernel`].
pub(super) const SUM_UNITS: usize = COLUMNS * RUNS;
/// Units of a cube of [`adamw_kernel`].
pub(super) const ADAMW_UNITS: usize = 256;

/// One unit adds up one parameter's gradient over one of [`RUNS`] runs of cubes; the first run's
/// unit then adds up the runs.
///
/// Buffers: `[rows, width]`; `[width]`. Workgroup memory: [`SUM_UNITS`] floats.
#[cube(launch_unchecked)]
pub(super) fn sum_kernel(partials: &[f32], totals: &mut [f32], rows: usize, width: usize) {
    let column = UNIT_POS as usize % COLUMNS;
    let run = UNIT_POS as usize / COLUMNS;
    let at = CUBE_POS * COLUMNS + column;
    let mut sum = 0.0f32;
    if at < width {
        for row in run * rows / RUNS..(run + 1) * rows / RUNS {
            sum += partials[row * width + at];
        }
    }
    let mut sums = Shared::<[f32]>::new_slice(SUM_UNITS);
    sums[UNIT_POS as usize] = sum;
    sync_cube();
    if run == 0 && at < width {
        let mut total = 0.0f32;
        #[unroll]
        for r in 0..RUNS {
            total += sums[comptime!(r * COLUMNS) + column];
        }
        totals[at] = total;
    }
}

/// The numbers of an optimiser step, as in [`super::AdamW::step`].
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct AdamNumbers {
    /// The share of the old first moment.
    pub beta1: f32,
    /// The share of the new gradient.
    pub rest1: f32,
    /// The share of the old second moment.
    pub beta2: f32,
    /// The share of the new gradient's square.
    pub rest2: f32,
    /// The root of the second moment's bias correction.
    pub correction2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// The share of the parameters that the weight decay leaves.
    pub decay: f32,
    /// The learning rate over the first moment's bias correction.
    pub rate: f32,
    /// The largest norm of the gradient.
    pub max_norm: f32,
}

/// One unit steps one parameter. Every cube adds up the gradient's norm for itself, all in the same
/// order, which spares a launch.
///
/// Buffers: gradient and sums `[num_params + SUMS]`; parameters, first and second moments
/// `[3, num_params]`, before and after; facts, the first of which is the number of steps that
/// count; the means of the update so far `[SUMS + 1]`. Workgroup memory: [`ADAMW_UNITS`] floats.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub(super) fn adamw_kernel(
    gradient: &[f32],
    before: &[f32],
    after: &mut [f32],
    facts: &[f32],
    means: &mut [f32],
    by: AdamNumbers,
    epochs: f32,
    updates: f32,
    #[comptime] num_params: usize,
    #[comptime] clip: bool,
) {
    let unit = UNIT_POS as usize;
    let mut sum = 0.0f32;
    for i in range_stepped(unit, num_params, ADAMW_UNITS) {
        sum += gradient[i] * gradient[i];
    }
    let mut squares = Shared::<[f32]>::new_slice(ADAMW_UNITS);
    squares[unit] = sum;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(ADAMW_UNITS.ilog2()) {
        let half = comptime!(ADAMW_UNITS >> (level + 1));
        if unit < half {
            squares[unit] += squares[unit + half];
        }
        sync_cube();
    }
    let norm = squares[0].sqrt();
    let mut scale = 1.0f32;
    if comptime!(clip) {
        scale = by.max_norm / (norm + 1e-6f32);
        scale = select(scale > 1.0f32, 1.0f32, scale);
    }

    let i = CUBE_POS * ADAMW_UNITS + unit;
    if i < num_params {
        let g = gradient[i] * scale;
        let m = before[num_params + i] * by.beta1 + g * by.rest1;
        let v = before[2 * num_params + i] * by.beta2 + g * g * by.rest2;
        let root = v.sqrt() / by.correction2 + by.epsilon;
        after[i] = before[i] * by.decay - m / root * by.rate;
        after[num_params + i] = m;
        after[2 * num_params + i] = v;
    }
    // Sums over steps become means over the steps of all epochs, the rest over optimiser steps.
    if CUBE_POS == 0 {
        if unit < comptime!(SUMS - 1) {
            means[unit] += gradient[num_params + unit] / (facts[0] * epochs);
        } else if unit == comptime!(SUMS - 1) {
            means[unit] += gradient[num_params + unit] / updates;
        } else if unit == SUMS {
            means[unit] += norm / updates;
        }
    }
}
