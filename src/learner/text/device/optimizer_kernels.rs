//! Kernels of an optimiser step whose parameters are tensors of their own: sums of squares, the norm of all, AdamW.

use crate::device::buffers::{argument, cube_tensor, grid, uninit};
use crate::math::adamw::{Factors, FactorsLaunch, Moving, clip_scale, step};
use burn::backend::{Cube, DType};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;

/// Units of a cube.
const UNITS: usize = 256;
/// Numbers that a cube of [`squares_kernel`] sums.
const PORTION: usize = UNITS * 64;

/// Sums a number of each unit of the cube.
#[cube]
fn total(own: f32) -> f32 {
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

/// Sums the squares of a parameter's gradient, one cube per [`PORTION`].
///
/// Buffers: `[count]`; the sums of all parameters' portions, this one's from number `first` on. Workgroup memory:
/// [`UNITS`] floats.
#[cube(launch_unchecked)]
fn squares_kernel(gradient: &[f32], sums: &mut [f32], count: usize, first: usize) {
    let start = CUBE_POS * PORTION;
    if start < count {
        let mut end = start + PORTION;
        if end > count {
            end = count;
        }
        let unit = UNIT_POS as usize;
        let mut sum = 0.0f32;
        for i in range_stepped(start + unit, end, UNITS) {
            sum += gradient[i] * gradient[i];
        }
        let sum = total(sum);
        if unit == 0 {
            sums[first + CUBE_POS] = sum;
        }
    }
}

/// Computes the norm of all gradients, and the factor that clips them; one cube.
///
/// Buffers: `[count]`; `[2]`. Workgroup memory: [`UNITS`] floats.
#[cube(launch_unchecked)]
fn norm_kernel(
    sums: &[f32],
    norm: &mut [f32],
    count: usize,
    max_norm: f32,
    #[comptime] clips: bool,
) {
    let unit = UNIT_POS as usize;
    let mut sum = 0.0f32;
    for i in range_stepped(unit, count, UNITS) {
        sum += sums[i];
    }
    let sum = total(sum);
    if unit == 0 {
        let length = sum.sqrt();
        norm[0] = length;
        let mut scale = 1.0f32;
        if comptime!(clips) {
            scale = clip_scale(length, max_norm);
        }
        norm[1] = scale;
    }
}

/// Steps one number of a parameter per unit, in place.
///
/// Buffers: the gradient, the parameter and its two moments, `[count]`; the norm and the factor of [`norm_kernel`].
#[cube(launch_unchecked)]
fn adamw_kernel(
    gradient: &[f32],
    params: &mut [f32],
    firsts: &mut [f32],
    seconds: &mut [f32],
    norm: &[f32],
    by: Factors,
    count: usize,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let before = Moving { param: params[i], first: firsts[i], second: seconds[i] };
        let after = step(&before, gradient[i] * norm[1], &by);
        params[i] = after.param;
        firsts[i] = after.first;
        seconds[i] = after.second;
    }
}

/// The kernels of one step.
pub(super) struct Kernels {
    /// The norm of all gradients, and the factor that clips them: `[2]`.
    norm: CubeTensor,
}

/// A tensor in memory that nothing else refers to, so that a kernel may change it.
fn owned(tensor: Tensor<1>) -> CubeTensor {
    let tensor = cube_tensor(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

impl Kernels {
    /// Begins a step with these gradients, each `[count]`, of which there is at least one.
    pub fn new(gradients: &[Tensor<1>], max_norm: f64) -> Self {
        let gradients: Vec<CubeTensor> = gradients.iter().cloned().map(cube_tensor).collect();
        let cubes = |gradient: &CubeTensor| gradient.meta.num_elements().div_ceil(PORTION);
        let count = gradients.iter().map(cubes).sum();
        let sums = uninit(&gradients[0], &[count], DType::F32);
        let mut first = 0;
        for gradient in &gradients {
            // SAFETY: accesses stay below the numbers of the gradient and of the sums; all units of a cube reach its
            // barriers.
            unsafe {
                squares_kernel::launch_unchecked(
                    &sums.client,
                    grid(&sums, cubes(gradient)),
                    CubeDim::new_1d(UNITS as u32),
                    argument(gradient),
                    argument(&sums),
                    gradient.meta.num_elements(),
                    first,
                );
            }
            first += cubes(gradient);
        }
        let norm = uninit(&sums, &[2], DType::F32);
        // SAFETY: accesses stay below `count` and the two results; all units reach the barriers.
        unsafe {
            norm_kernel::launch_unchecked(
                &sums.client,
                CubeCount::new_single(),
                CubeDim::new_1d(UNITS as u32),
                argument(&sums),
                argument(&norm),
                count,
                max_norm as f32,
                max_norm != 0.0,
            );
        }
        Self { norm }
    }

    /// Steps a parameter and its moments, given after its gradient.
    pub fn step(&self, values: [Tensor<1>; 4], by: &Factors) -> [Tensor<1>; 3] {
        let [gradient, param, first, second] = values;
        let (gradient, moving) = (cube_tensor(gradient), [param, first, second].map(owned));
        let count = gradient.meta.num_elements();
        // SAFETY: accesses stay below `count`; nothing else refers to the memory that is written.
        unsafe {
            adamw_kernel::launch_unchecked(
                &gradient.client,
                grid(&gradient, count.div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                argument(&gradient),
                argument(&moving[0]),
                argument(&moving[1]),
                argument(&moving[2]),
                argument(&self.norm),
                FactorsLaunch::new(
                    by.keep1,
                    by.add1,
                    by.keep2,
                    by.add2,
                    by.correction,
                    by.epsilon,
                    by.decay,
                    by.rate,
                ),
                count,
            );
        }
        moving.map(Tensor::<1>::from_primitive::<Cube>)
    }

    /// The norm of all gradients: `[1]`.
    pub fn norm(self) -> Tensor<1> {
        Tensor::<1>::from_primitive::<Cube>(self.norm).narrow(0, 0, 1)
    }
}
