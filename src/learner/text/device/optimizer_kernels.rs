//! Kernels of an optimizer step whose parameters are in arenas: sums of squares, the norm of all, AdamW.

use crate::device::buffers::{argument, cube_ints, cube_tensor, grid, uninit};
use crate::learner::optimizer::ParamTensors;
use crate::math::adamw::{Factors, ParamState, clip_scale, step};
use crate::math::reduction::cube_sum;
use crate::text::{Packing, upload_integers};
use burn::backend::{Cube, DType};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{Device, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Units per cube.
const UNITS: usize = 256;
/// Elements of a parameter that a cube of [`squares_kernel`] sums.
const PORTION: usize = UNITS * 64;
/// Elements that a cube of [`adamw_kernel`] steps.
const PIECE: usize = UNITS * 16;
/// Columns of a table of [`Portions`]: begin and end in the arena, and the index among the portions of all parameters.
const COLUMNS: usize = 3;

/// Sums the squares of each portion of an arena of gradients, one cube per portion.
///
/// Buffers: `[len]`; `[count, COLUMNS]`; the sums of the portions of all arenas, by their indices. Workgroup memory:
/// [`UNITS`] floats.
#[cube(launch_unchecked)]
fn squares_kernel(gradient: &[f32], portions: &[i32], sums: &mut [f32], count: usize) {
    let at = CUBE_POS * COLUMNS;
    if CUBE_POS < count {
        let (start, end) = (portions[at] as usize, portions[at + 1] as usize);
        let unit = UNIT_POS as usize;
        let mut sum = 0.0f32;
        for i in range_stepped(start + unit, end, UNITS) {
            sum += gradient[i] * gradient[i];
        }
        let sum = cube_sum(sum, UNITS);
        if unit == 0 {
            sums[portions[at + 2] as usize] = sum;
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
    let sum = cube_sum(sum, UNITS);
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

/// Steps the parameters of an arena in place, one cube per [`PIECE`] of a portion.
///
/// Buffers: the gradient, the parameters and their two moments, `[len]`; `[count, COLUMNS]`; the norm and the factor of
/// [`norm_kernel`].
#[cube(launch_unchecked)]
fn adamw_kernel(
    gradient: &[f32],
    params: &mut [f32],
    firsts: &mut [f32],
    seconds: &mut [f32],
    portions: &[i32],
    norm: &[f32],
    factors: Factors,
    count: usize,
) {
    let pieces = comptime!(PORTION / PIECE);
    let portion = CUBE_POS / pieces;
    if portion < count {
        let start = portions[portion * COLUMNS] as usize + CUBE_POS % pieces * PIECE;
        let mut end = portions[portion * COLUMNS + 1] as usize;
        if end > start + PIECE {
            end = start + PIECE;
        }
        for i in range_stepped(start + UNIT_POS as usize, end, UNITS) {
            let before = ParamState { param: params[i], first: firsts[i], second: seconds[i] };
            let after = step(&before, gradient[i] * norm[1], &factors);
            params[i] = after.param;
            firsts[i] = after.first;
            seconds[i] = after.second;
        }
    }
}

/// Tables that assign portions of the parameters to cubes and skip the padding between parameters.
#[derive(Clone, Debug)]
pub(super) struct Portions {
    /// The table of each arena, `[count, COLUMNS]`.
    tables: Vec<CubeTensor>,
    /// Portions of all arenas.
    count: usize,
}

impl Portions {
    /// Uploads the tables. Portions are numbered in the order of the parameters, independent of the arenas.
    pub fn new(packing: &Packing, device: &Device) -> Self {
        let firsts = packing
            .counts()
            .scan(0, |end, count| Some(std::mem::replace(end, *end + count.div_ceil(PORTION))));
        let firsts: Vec<usize> = firsts.collect();
        let upload_table = |arena: usize| {
            let mut table = Vec::new();
            for (parameter, range) in packing.ranges_in(arena) {
                for (start, index) in range.clone().step_by(PORTION).zip(firsts[parameter]..) {
                    let end = (start + PORTION).min(range.end);
                    table.extend([start, end, index].map(|x| x as i32));
                }
            }
            cube_ints(upload_integers(&table, [table.len() / COLUMNS, COLUMNS], device))
        };
        let tables = (0..packing.len()).map(upload_table).collect();
        Self { tables, count: packing.counts().map(|count| count.div_ceil(PORTION)).sum() }
    }
}

/// Rows of a table of [`Portions`].
fn num_rows(table: &CubeTensor) -> usize {
    table.meta.num_elements() / COLUMNS
}

/// The kernels of one step.
pub(super) struct StepKernels {
    portions: Portions,
    /// The norm of all gradients, and the factor that clips them: `[2]`.
    norm: CubeTensor,
}

/// Copies a tensor unless its memory has no other owner, so that a kernel may change it.
fn copy_if_shared(tensor: Tensor<1>) -> CubeTensor {
    let tensor = cube_tensor(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

impl StepKernels {
    /// Begins a step with the arenas of a gradient, each `[len]`, of which there is at least one.
    pub fn new(gradients: &[Tensor<1>], portions: Portions, max_norm: f64) -> Self {
        let gradients: Vec<CubeTensor> = gradients.iter().cloned().map(cube_tensor).collect();
        let sums = uninit(&gradients[0], &[portions.count], DType::F32);
        for (gradient, table) in gradients.iter().zip(&portions.tables) {
            // SAFETY: accesses stay below the rows of the table, and below the ends and the indices there, which are
            // those of the gradient and of the sums; all units of a cube reach its barriers.
            unsafe {
                squares_kernel::launch_unchecked(
                    &sums.client,
                    grid(&sums, num_rows(table)),
                    CubeDim::new_1d(UNITS as u32),
                    argument(gradient),
                    argument(table),
                    argument(&sums),
                    num_rows(table),
                );
            }
        }
        let norm = uninit(&sums, &[2], DType::F32);
        // SAFETY: accesses stay below the count and the two results; all units reach the barriers.
        unsafe {
            norm_kernel::launch_unchecked(
                &sums.client,
                CubeCount::new_single(),
                CubeDim::new_1d(UNITS as u32),
                argument(&sums),
                argument(&norm),
                portions.count,
                max_norm as f32,
                max_norm != 0.0,
            );
        }
        Self { portions, norm }
    }

    /// Steps an arena of parameters and their moments.
    pub fn step(
        &self,
        arena: usize,
        before: ParamTensors,
        gradient: Tensor<1>,
        factors: &Factors,
    ) -> ParamTensors {
        let gradient = cube_tensor(gradient);
        let ParamTensors { params, first, second } = before;
        let (params, first, second) =
            (copy_if_shared(params), copy_if_shared(first), copy_if_shared(second));
        let table = &self.portions.tables[arena];
        // SAFETY: accesses stay below the rows of the table and the ends there, which are places of the arena; nothing
        // else refers to the memory that is written.
        unsafe {
            adamw_kernel::launch_unchecked(
                &gradient.client,
                grid(&gradient, num_rows(table) * (PORTION / PIECE)),
                CubeDim::new_1d(UNITS as u32),
                argument(&gradient),
                argument(&params),
                argument(&first),
                argument(&second),
                argument(table),
                argument(&self.norm),
                factors.launch(),
                num_rows(table),
            );
        }
        let [params, first, second] =
            [params, first, second].map(Tensor::<1>::from_primitive::<Cube>);
        ParamTensors { params, first, second }
    }

    /// The norm of all gradients: `[1]`.
    pub fn norm(&self) -> Tensor<1> {
        Tensor::<1>::from_primitive::<Cube>(self.norm.clone()).narrow(0, 0, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::model::Parameter;
    use crate::rng::{draw, uniform};
    use crate::text::Arenas;
    use std::sync::Arc;

    /// Matrices and vectors, of several portions, of a part of one, and of a single number.
    fn parameters() -> Vec<Parameter> {
        let shapes: [&[usize]; 8] =
            [&[170, 130], &[130], &[7, 11], &[1], &[PORTION + 1], &[128, 128], &[1, 1], &[33]];
        shapes.map(|shape| Parameter { name: String::new(), shape: shape.to_vec() }).to_vec()
    }

    /// Steps parameters in arenas of at most `max_len` elements. Returns them, their moments and the norm.
    fn step_arenas(max_len: usize, device: &Device) -> [Vec<f32>; 4] {
        let packing = Arc::new(Packing::with_max_len(&parameters(), max_len));
        let count: usize = packing.counts().sum();
        let random_arenas = |key: u32, offset: f32| {
            let values: Vec<f32> =
                (0..count as u32).map(|i| uniform(draw(key, i)) + offset).collect();
            let zeros = Arenas::zeros(packing.clone(), device);
            zeros.upload(&values, |values| device::upload(values, device))
        };
        let mut gradient = random_arenas(1, -0.5);
        let mut values = [random_arenas(2, -0.5), random_arenas(3, -0.5), random_arenas(4, 0.0)];
        let portions = Portions::new(&packing, device);
        assert_eq!(portions.count, 2 + 1 + 1 + 1 + 2 + 1 + 1 + 1);
        let gradients: Vec<Tensor<1>> = gradient.arenas().collect();
        let kernels = StepKernels::new(&gradients, portions, 0.5);
        let factors = Factors {
            beta1: 0.9,
            one_minus_beta1: 0.1,
            beta2: 0.99,
            one_minus_beta2: 0.01,
            bias_correction2_sqrt: 0.7,
            epsilon: 1e-3,
            decay: 0.999,
            step_size: 0.1,
        };
        for (arena, gradient) in gradients.into_iter().enumerate() {
            let [params, first, second] = values.each_mut().map(|all| all.take(arena));
            let before = ParamTensors { params, first, second };
            let after = kernels.step(arena, before, gradient, &factors);
            let stepped = [after.params, after.first, after.second];
            values.iter_mut().zip(stepped).for_each(|(all, stepped)| all.put(arena, stepped));
        }
        let [params, firsts, seconds] = values.map(|all| all.download(device::read));
        [params, firsts, seconds, device::read(kernels.norm())]
    }

    #[test]
    fn an_optimizer_step_on_arenas_equals_one_per_parameter() {
        for device in device::adapters() {
            let alone = step_arenas(0, &device);
            let count: usize = parameters().iter().map(Parameter::num_elements).sum();
            assert!(alone[3][0] > 0.2 * (count as f32).sqrt() && alone[0].len() == count);
            for max_len in [30_000, 1 << 20] {
                assert!(step_arenas(max_len, &device) == alone, "arenas of {max_len}");
            }
        }
    }
}
