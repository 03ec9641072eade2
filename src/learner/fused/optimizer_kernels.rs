//! The end of an optimiser step in two kernels: the sum of the partial gradients, then the global
//! norm, clipping and AdamW.

use super::tiles::SUMS;
use crate::device::buffers::Buffer;
use crate::math::adamw::{Factors, Moving, clip_scale, step};
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

/// Parameters, then their first, then their second moments, `[3, num_params]`, before a step and after it.
#[derive(CubeType, CubeLaunch)]
pub(super) struct MovingParams {
    before: Buffer<f32>,
    after: Buffer<f32>,
}

#[cube]
impl MovingParams {
    /// Parameter `i` before the step.
    fn load(&self, i: usize, #[comptime] num_params: usize) -> Moving {
        Moving {
            param: self.before[i],
            first: self.before[num_params + i],
            second: self.before[2 * num_params + i],
        }
    }

    /// Leaves parameter `i` after the step.
    fn store(&mut self, i: usize, moved: &Moving, #[comptime] num_params: usize) {
        self.after[i] = moved.param;
        self.after[num_params + i] = moved.first;
        self.after[2 * num_params + i] = moved.second;
    }
}

/// The means of an update, to which every optimiser step adds its share.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Means {
    /// The update's summary, the first of which is the number of steps that count.
    summary: Buffer<f32>,
    /// The means so far, `[SUMS + 1]`: those of the sums, then the gradient's norm.
    means: Buffer<f32>,
    /// Epochs of the update.
    epochs: f32,
    /// Its optimiser steps.
    updates: f32,
}

#[cube]
impl Means {
    /// Adds the share of a step to mean number `i`, if there is one: of a gradient with the sums behind
    /// it, and its norm. Sums over steps become means over the steps of all epochs, the rest over
    /// optimiser steps.
    fn add(&mut self, i: usize, gradient: &[f32], norm: f32, #[comptime] num_params: usize) {
        if i < comptime!(SUMS - 1) {
            self.means[i] += gradient[num_params + i] / (self.summary[0] * self.epochs);
        } else if i == comptime!(SUMS - 1) {
            self.means[i] += gradient[num_params + i] / self.updates;
        } else if i == SUMS {
            self.means[i] += norm / self.updates;
        }
    }
}

/// One unit steps one parameter. Every cube adds up the gradient's norm for itself, all in the same
/// order, which spares a launch.
///
/// Buffers: gradient and sums `[num_params + SUMS]`; those of [`MovingParams`] and [`Means`]. Workgroup
/// memory: [`ADAMW_UNITS`] floats.
#[cube(launch_unchecked)]
pub(super) fn adamw_kernel(
    gradient: &[f32],
    params: &mut MovingParams,
    means: &mut Means,
    by: Factors,
    max_norm: f32,
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
        scale = clip_scale(norm, max_norm);
    }

    let i = CUBE_POS * ADAMW_UNITS + unit;
    if i < num_params {
        let moved = step(&params.load(i, num_params), gradient[i] * scale, &by);
        params.store(i, &moved, num_params);
    }
    if CUBE_POS == 0 {
        means.add(unit, gradient, norm, num_params);
    }
}
