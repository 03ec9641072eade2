//! Kernels that take whole rows: the norm with the addition before it, and the gate.

use super::UNITS;
use crate::math::activation::{Activation, activate, activated};
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
/// `[size]`, to which `offset` is added; the new stream, and the normed sum, `[rows, size]`. Workgroup memory:
/// 2 x [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn add_norm_kernel(
    stream: &[f32],
    output: &[f32],
    weights: &[f32],
    output_weights: &[f32],
    sum: &mut [f32],
    normed: &mut [f32],
    rows: usize,
    eps: f32,
    offset: f32,
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
                x += output[first + i] / root * (output_weights[i] + offset);
            } else if comptime!(form.adds) {
                x += output[first + i];
            }
            if comptime!(form.adds) {
                sum[first + i] = x;
            }
            square += x * x;
        }
        if comptime!(form.norms_sum) {
            let root = (total(square) / comptime!(size as f32) + eps).sqrt();
            for i in range_stepped(unit, size, UNITS) {
                // Each unit reads the numbers that it wrote.
                let mut x = stream[first + i];
                if comptime!(form.adds) {
                    x = sum[first + i];
                }
                normed[first + i] = x / root * (weights[i] + offset);
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
    #[comptime] activation: Activation,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        gated[i] = activate(gate[i], activation) * up[i];
    }
}

/// Computes the gradients of a gate and of the values that it lets through; one unit per number.
///
/// Buffers: the gradient of the result, which becomes that of the gate; the gate, the values, and their gradient:
/// `[count]` each.
#[cube(launch_unchecked)]
pub(crate) fn gate_backward_kernel(
    d: &mut [f32],
    gate: &[f32],
    up: &[f32],
    d_up: &mut [f32],
    count: usize,
    #[comptime] activation: Activation,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let open = activated(gate[i], activation);
        let of_result = d[i];
        d_up[i] = of_result * open.value;
        d[i] = of_result * up[i] * open.slope;
    }
}

/// Rows that a cube of a backward kernel takes, one after the other.
pub(crate) const ROWS: usize = 8;

/// The form of [`norm_backward_kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NormBackward {
    /// Numbers of a row.
    pub size: usize,
    /// Whether the gradient of the input is added to what is there.
    pub adds: bool,
    /// Whether the weights are learnt.
    pub learns: bool,
}

/// Computes the gradient of a norm's input, and partial sums of that of its weights, one cube per [`ROWS`] rows.
///
/// Buffers: the input, the weights, `[size]`, the gradients of the result and of the input, `[rows, size]`; the partial
/// sums, `[cubes, size]`, which are not written unless weights are learnt. Workgroup memory: 2 x [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn norm_backward_kernel(
    input: &[f32],
    weights: &[f32],
    d_normed: &[f32],
    d_input: &mut [f32],
    partials: &mut [f32],
    rows: usize,
    eps: f32,
    offset: f32,
    #[comptime] form: NormBackward,
) {
    let begin = CUBE_POS * ROWS;
    if begin < rows {
        let (size, unit) = (comptime!(form.size), UNIT_POS as usize);
        let count = comptime!(form.size as f32);
        let mut end = begin + ROWS;
        if end > rows {
            end = rows;
        }
        for row in begin..end {
            let first = row * size;
            let mut square = 0.0f32;
            let mut dot = 0.0f32;
            for i in range_stepped(unit, size, UNITS) {
                let x = input[first + i];
                square += x * x;
                dot += d_normed[first + i] * (weights[i] + offset) * x;
            }
            let square = total(square);
            let dot = total(dot);
            // Nobody begins the next row's sums before everyone has read these.
            sync_cube();
            let root = (square / count + eps).sqrt();
            let pull = dot / (count * root * root * root);
            for i in range_stepped(unit, size, UNITS) {
                let (x, d) = (input[first + i], d_normed[first + i]);
                let mut of_input = d * (weights[i] + offset) / root - x * pull;
                if comptime!(form.adds) {
                    of_input += d_input[first + i];
                }
                d_input[first + i] = of_input;
                if comptime!(form.learns) {
                    let at = CUBE_POS * size + i;
                    let mut sum = d * x / root;
                    if row > begin {
                        sum += partials[at];
                    }
                    partials[at] = sum;
                }
            }
        }
    }
}

/// Columns of a cube of [`columns_kernel`].
pub(crate) const COLUMNS: usize = 8;

/// Sums the columns of a matrix, one cube per [`COLUMNS`]; each unit sums one column over one of 8 runs of rows.
///
/// Buffers: `[rows, width]`; `[width]`. Workgroup memory: [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn columns_kernel(matrix: &[f32], sums: &mut [f32], rows: usize, width: usize) {
    let runs = comptime!(UNITS / COLUMNS);
    let unit = UNIT_POS as usize;
    let (column, run) = (unit % COLUMNS, unit / COLUMNS);
    let at = CUBE_POS * COLUMNS + column;
    let mut sum = 0.0f32;
    if at < width {
        for row in run * rows / runs..(run + 1) * rows / runs {
            sum += matrix[row * width + at];
        }
    }
    let mut parts = Shared::<[f32]>::new_slice(UNITS);
    parts[unit] = sum;
    sync_cube();
    if run == 0 && at < width {
        let mut all = 0.0f32;
        #[unroll]
        for run in 0..runs {
            all += parts[comptime!(run * COLUMNS) + column];
        }
        sums[at] = all;
    }
}

/// Puts numbers into the place of others, or adds them to these; one unit per number.
///
/// Buffers: `[count]` each.
#[cube(launch_unchecked)]
pub(crate) fn put_kernel(from: &[f32], to: &mut [f32], count: usize, #[comptime] adds: bool) {
    let i = ABSOLUTE_POS;
    if i < count {
        let mut number = from[i];
        if comptime!(adds) {
            number += to[i];
        }
        to[i] = number;
    }
}

/// Adds up rows by destination: `to[to_row] += scale * sum(from[row])` over the rows of each; one cube per destination.
///
/// Buffers: for `count` destinations where the rows of each begin, and the end of the last, `[count + 1]`, then their
/// rows in `to`, `[count]`, then the rows in `from`; `from` and `to`, of rows of `size` numbers.
#[cube(launch_unchecked)]
pub(crate) fn scatter_kernel(
    places: &[i32],
    from: &[f32],
    to: &mut [f32],
    count: usize,
    size: usize,
    scale: f32,
    #[comptime] adds: bool,
) {
    let number = CUBE_POS;
    if number < count {
        let (begin, end) = (places[number] as usize, places[number + 1] as usize);
        let first = places[count + 1 + number] as usize * size;
        for i in range_stepped(UNIT_POS as usize, size, UNITS) {
            let mut sum = 0.0f32;
            for at in begin..end {
                sum += from[places[2 * count + 1 + at] as usize * size + i];
            }
            let mut all = sum * scale;
            if comptime!(adds) {
                all += to[first + i];
            }
            to[first + i] = all;
        }
    }
}
