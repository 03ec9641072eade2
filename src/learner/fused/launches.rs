//! Launches of the kernels that count steps and sum gradients, in grids of any size.

use super::optimizer_kernels::{COLUMNS, SUM_UNITS, sum_kernel};
use super::update_kernels::{COUNT_UNITS, PartSizesLaunch, count_kernel};
use crate::device::buffers::{argument, grid};
use burn::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// Counts the steps of each minibatch in a part ([`count_kernel`]) into `update_summary`. `order` lists the games
/// of the minibatches; `advantages` and `sizes` are those of the part, and `recording_summary` is that of the whole
/// recording.
pub(super) fn launch_count(
    order: &CubeTensor,
    advantages: &CubeTensor,
    recording_summary: &CubeTensor,
    update_summary: &CubeTensor,
    num_minibatches: usize,
    games_per_minibatch: usize,
    sizes: PartSizesLaunch,
) {
    // SAFETY: accesses stay below the numbers of games and minibatches; all units of a cube reach its barrier.
    unsafe {
        count_kernel::launch_unchecked(
            &update_summary.client,
            grid(update_summary, num_minibatches),
            CubeDim::new_1d(COUNT_UNITS as u32),
            argument(order),
            argument(advantages),
            argument(recording_summary),
            argument(update_summary),
            num_minibatches,
            games_per_minibatch,
            sizes,
        );
    }
}

/// Fills `totals`, `[width]`, with the column sums of `partials`, `[rows, stride]`, over the first `width` columns.
pub(super) fn launch_sum(
    partials: &CubeTensor,
    totals: &CubeTensor,
    rows: usize,
    width: usize,
    stride: usize,
) {
    // SAFETY: accesses stay below `rows` and `width`; all units of a cube reach its barrier.
    unsafe {
        sum_kernel::launch_unchecked(
            &partials.client,
            grid(partials, width.div_ceil(COLUMNS)),
            CubeDim::new_1d(SUM_UNITS as u32),
            argument(partials),
            argument(totals),
            rows,
            width,
            stride,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::device::buffers::{cube_ints, cube_tensor, uninit};
    use crate::learner::fused::update_kernels::MINIBATCH_COUNTS;
    use burn::backend::{Cube, DType};
    use burn::tensor::{Device, Tensor};

    /// More cubes than one row of a grid has on most devices.
    const CUBES: usize = 65_535 + 8;

    fn upload(values: impl Iterator<Item = f32>, device: &Device) -> CubeTensor {
        cube_tensor(device::upload(values.collect(), device))
    }

    fn read(tensor: CubeTensor) -> Vec<f32> {
        device::read(Tensor::<1>::from_primitive::<Cube>(tensor))
    }

    #[test]
    fn wide_gradients_are_summed() {
        for device in &device::adapters() {
            let (rows, width) = (3, CUBES * COLUMNS + 3);
            let value = |i: usize| ((i * 7919) % 101) as f32;
            let partials = upload((0..rows * width).map(value), device);
            let totals = uninit(&partials, &[width], DType::F32);
            launch_sum(&partials, &totals, rows, width, width);
            let expected =
                (0..width).map(|at| (0..rows).map(|row| value(row * width + at)).sum::<f32>());
            assert!(read(totals).into_iter().eq(expected));
        }
    }

    #[test]
    fn steps_of_many_minibatches_are_counted() {
        for device in &device::adapters() {
            let games = 3;
            let order: Vec<i32> = (0..CUBES).map(|i| (i * 7 % games) as i32).collect();
            // Advantages of a step, then lengths, then returns.
            let advantages =
                upload([0.0; 3].into_iter().chain([2.0, 5.0, 11.0, 0.0, 0.0, 0.0]), device);
            let recording_summary = upload([18.0, 1.0].into_iter(), device);
            let summary = uninit(&recording_summary, &[MINIBATCH_COUNTS + CUBES], DType::F32);
            let sizes = PartSizesLaunch::new(0, games, 1, 1);
            let order = cube_ints(device::upload_indices(&order, device));
            launch_count(&order, &advantages, &recording_summary, &summary, CUBES, 1, sizes);
            let expected = (0..CUBES).map(|i| [2.0, 5.0, 11.0][i * 7 % games]);
            assert!(read(summary)[MINIBATCH_COUNTS..].iter().copied().eq(expected));
        }
    }
}
