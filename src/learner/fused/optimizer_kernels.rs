//! The end of an optimizer step in two kernels: the sum of partial gradients; global norm, clipping
//! and AdamW.

use crate::learner::means::NUM_SUMS;
use crate::math::adamw::{Factors, ParamState, clip_scale, step};
use crate::math::reduction::cube_sum;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Parameters per cube of [`sum_kernel`].
pub(super) const COLUMNS: usize = 8;
/// Number of partial sums of each column, computed in parallel.
const PARTIAL_SUMS: usize = 32;
/// Units per cube of [`sum_kernel`].
pub(super) const SUM_UNITS: usize = COLUMNS * PARTIAL_SUMS;
/// Units per cube of [`adamw_kernel`].
pub(super) const UNITS: usize = 256;

/// Sums partial gradients. One unit sums one parameter over one of [`PARTIAL_SUMS`] runs of rows; the unit
/// of the first run then sums over runs.
///
/// Buffers: `[rows, stride]`; `[width]`. Workgroup memory: [`SUM_UNITS`] floats.
#[cube(launch_unchecked)]
pub(super) fn sum_kernel(
    partials: &[f32],
    totals: &mut [f32],
    rows: usize,
    width: usize,
    stride: usize,
) {
    let column = UNIT_POS as usize % COLUMNS;
    let run = UNIT_POS as usize / COLUMNS;
    let at = CUBE_POS * COLUMNS + column;
    let mut sum = 0.0f32;
    if at < width {
        for row in run * rows / PARTIAL_SUMS..(run + 1) * rows / PARTIAL_SUMS {
            sum += partials[row * stride + at];
        }
    }
    let mut sums = Shared::<[f32]>::new_slice(SUM_UNITS);
    sums[UNIT_POS as usize] = sum;
    sync_cube();
    if run == 0 && at < width {
        let mut total = 0.0f32;
        #[unroll]
        for run in 0..PARTIAL_SUMS {
            total += sums[comptime!(run * COLUMNS) + column];
        }
        totals[at] = total;
    }
}

/// Steps one parameter per unit. Every cube computes the gradient norm redundantly and in the same
/// order, which saves a launch.
///
/// Buffers: gradient and sums `[num_params + NUM_SUMS]`; parameters, first and second moments before and after the
/// step, `[3, num_params]` each; the sums of the update, `[NUM_SUMS + 1]`, to which sums and gradient norm are added.
/// Workgroup memory: [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(super) fn adamw_kernel(
    gradient: &[f32],
    before: &[f32],
    after: &mut [f32],
    update_sums: &mut [f32],
    factors: Factors,
    max_norm: f32,
    #[comptime] num_params: usize,
    #[comptime] clips: bool,
) {
    let unit = UNIT_POS as usize;
    let mut sum = 0.0f32;
    for i in range_stepped(unit, num_params, UNITS) {
        sum += gradient[i] * gradient[i];
    }
    let norm = cube_sum(sum, UNITS).sqrt();
    let mut scale = 1.0f32;
    if comptime!(clips) {
        scale = clip_scale(norm, max_norm);
    }

    let i = CUBE_POS * UNITS + unit;
    if i < num_params {
        let (first, second) = (num_params + i, 2 * num_params + i);
        let old = ParamState { param: before[i], first: before[first], second: before[second] };
        let moved = step(&old, gradient[i] * scale, &factors);
        after[i] = moved.param;
        after[first] = moved.first;
        after[second] = moved.second;
    }
    if CUBE_POS == 0 {
        if unit < comptime!(NUM_SUMS) {
            update_sums[unit] += gradient[num_params + unit];
        } else if unit == NUM_SUMS {
            update_sums[unit] += norm;
        }
    }
}
