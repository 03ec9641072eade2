//! Kernels over whole rows: addition with norm, gate, column sums and scatter, and their backward passes.

use super::{LOADS_AT_ONCE, UNITS};
use crate::math::activation::{Activation, activate, value_and_derivative};
use crate::math::reduction::cube_sum;
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Computes the maximum over `own` of each unit of a cube of [`UNITS`].
#[cube]
pub(crate) fn cube_max(own: f32) -> f32 {
    let unit = UNIT_POS as usize;
    let mut maxima = Shared::<[f32]>::new_slice(UNITS);
    maxima[unit] = own;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(UNITS.ilog2()) {
        let half = comptime!(UNITS >> (level + 1));
        if unit < half && maxima[unit + half] > maxima[unit] {
            maxima[unit] = maxima[unit + half];
        }
        sync_cube();
    }
    maxima[0]
}

/// Computes the largest logit of a row, multiplied by `inverse_temperature`.
#[cube]
pub(crate) fn find_max_logit(
    logits: &[f32],
    start: usize,
    count: usize,
    inverse_temperature: f32,
) -> f32 {
    let mut own = logits[start] * inverse_temperature;
    for i in range_stepped(UNIT_POS as usize, count, UNITS) {
        let logit = logits[start + i] * inverse_temperature;
        if logit > own {
            own = logit;
        }
    }
    cube_max(own)
}

/// A row of elements, shared out among the units of a cube; a compile-time value of kernels. A unit keeps its elements
/// in registers, so that it waits once for all that it reads of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowLayout {
    /// Elements of the row.
    pub size: usize,
    /// Units of the cube, a power of two.
    pub units: usize,
}

impl RowLayout {
    /// A row of `size` elements: among more than [`UNITS`] units if each would have many.
    pub fn new(size: usize) -> Self {
        Self { size, units: size.div_ceil(16).next_power_of_two().clamp(UNITS, 4 * UNITS) }
    }

    /// Number of elements of a unit: one of each part of the row.
    const fn num_parts(self) -> usize {
        self.size.div_ceil(self.units)
    }

    /// Whether all units have an element of a part.
    const fn is_whole(self, part: usize) -> bool {
        (part + 1) * self.units <= self.size
    }
}

/// Whether the row has an element for this unit in a part.
#[cube]
fn has_element(i: usize, #[comptime] part: usize, #[comptime] row: RowLayout) -> bool {
    let mut is_within = true.runtime();
    if comptime!(!row.is_whole(part)) {
        is_within = i < comptime!(row.size);
    }
    is_within
}

/// Reads a unit's elements of the row that begins at `first`; 0 beyond its end.
#[cube]
pub(super) fn read(from: &[f32], first: usize, #[comptime] row: RowLayout) -> Array<f32> {
    let mut elements = Array::<f32>::new(comptime!(row.num_parts()));
    #[unroll]
    for part in 0..comptime!(row.num_parts()) {
        let i = UNIT_POS as usize + comptime!(part * row.units);
        let mut element = 0.0f32;
        if has_element(i, part, row) {
            element = from[first + i];
        }
        elements[part] = element;
    }
    elements
}

/// Writes a unit's elements of the row that begins at `first`, as elements of another type.
#[cube]
pub(super) fn write<N: Float>(
    to: &mut [N],
    first: usize,
    elements: &Array<f32>,
    #[comptime] row: RowLayout,
) {
    #[unroll]
    for part in 0..comptime!(row.num_parts()) {
        let i = UNIT_POS as usize + comptime!(part * row.units);
        if has_element(i, part, row) {
            to[first + i] = N::cast_from(elements[part]);
        }
    }
}

/// Computes the RMS by which a norm divides a row.
#[cube]
fn compute_rms(elements: &Array<f32>, eps: f32, #[comptime] row: RowLayout) -> f32 {
    let mut square = 0.0f32;
    #[unroll]
    for part in 0..comptime!(row.num_parts()) {
        square += elements[part] * elements[part];
    }
    (cube_sum(square, comptime!(row.units)) / comptime!(row.size as f32) + eps).sqrt()
}

/// The form of [`add_norm_kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AddNormForm {
    pub row: RowLayout,
    /// Whether the output of a block is added.
    pub has_addend: bool,
    /// Whether that output is normed first.
    pub has_output_norm: bool,
    /// Whether the sum is normed.
    pub has_sum_norm: bool,
}

/// Adds a block's output to the residual stream and norms the sum; one cube per row. The normed sum is of the type of
/// the operands of products, which would round it otherwise.
///
/// Buffers: the stream and the output, `[rows, size]`; weights of the norm of the sum and of that of the output,
/// `[size]`, to which `offset` is added; the new stream, and the normed sum, `[rows, size]`. Workgroup memory:
/// 2 floats per unit.
#[cube(launch_unchecked)]
pub(crate) fn add_norm_kernel<N: Float>(
    stream: &[f32],
    output: &[f32],
    weights: &[f32],
    output_weights: &[f32],
    sum: &mut [f32],
    normed: &mut [N],
    rows: usize,
    eps: f32,
    offset: f32,
    #[comptime] form: AddNormForm,
    #[define(N)] _element: ElemType,
) {
    if CUBE_POS < rows {
        let row = comptime!(form.row);
        let first = CUBE_POS * comptime!(row.size);
        let mut elements = read(stream, first, row);
        if comptime!(form.has_addend) {
            let added = read(output, first, row);
            if comptime!(form.has_output_norm) {
                let weights = read(output_weights, 0usize, row);
                let rms = compute_rms(&added, eps, row);
                #[unroll]
                for part in 0..comptime!(row.num_parts()) {
                    elements[part] += added[part] / rms * (weights[part] + offset);
                }
            } else {
                #[unroll]
                for part in 0..comptime!(row.num_parts()) {
                    elements[part] += added[part];
                }
            }
            write(sum, first, &elements, row);
        }
        if comptime!(form.has_sum_norm) {
            let weights = read(weights, 0usize, row);
            let rms = compute_rms(&elements, eps, row);
            #[unroll]
            for part in 0..comptime!(row.num_parts()) {
                elements[part] = elements[part] / rms * (weights[part] + offset);
            }
            write(normed, first, &elements, row);
        }
    }
}

/// Multiplies the activation of a gate by the up projection; one unit per vector.
///
/// Buffers: `[count]` vectors three times.
#[cube(launch_unchecked)]
pub(crate) fn gate_kernel<N: Float, V: Size>(
    gate: &[Vector<f32, V>],
    up: &[Vector<f32, V>],
    gated: &mut [Vector<N, V>],
    count: usize,
    #[comptime] vector_size: usize,
    #[comptime] activation: Activation,
    #[define(N)] _element: ElemType,
    #[define(V)] _size: usize,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let mut elements = gate[i];
        #[unroll]
        for j in 0..vector_size {
            elements.insert(j, activate(elements.extract(j), activation));
        }
        gated[i] = Vector::<N, V>::cast_from(elements * up[i]);
    }
}

/// Computes the gradients of a gate and of the up projection; one unit per vector.
///
/// Buffers: the gradient of the result; the gate, the up projection, and their gradients: `[count]` vectors each.
#[cube(launch_unchecked)]
pub(crate) fn gate_backward_kernel<N: Float, V: Size>(
    d_gated: &[Vector<f32, V>],
    gate: &[Vector<f32, V>],
    up: &[Vector<f32, V>],
    d_gate: &mut [Vector<N, V>],
    d_up: &mut [Vector<N, V>],
    count: usize,
    #[comptime] vector_size: usize,
    #[comptime] activation: Activation,
    #[define(N)] _element: ElemType,
    #[define(V)] _size: usize,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let mut values = gate[i];
        let mut derivatives = gate[i];
        #[unroll]
        for j in 0..vector_size {
            let activated = value_and_derivative(values.extract(j), activation);
            values.insert(j, activated.value);
            derivatives.insert(j, activated.derivative);
        }
        let d = d_gated[i];
        d_up[i] = Vector::<N, V>::cast_from(d * values);
        d_gate[i] = Vector::<N, V>::cast_from(d * up[i] * derivatives);
    }
}

/// Rows that a cube of a backward kernel takes, one after the other.
pub(crate) const ROWS_PER_CUBE: usize = 4;

/// The form of [`norm_backward_kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NormBackwardForm {
    pub row: RowLayout,
    /// Whether the gradient of the input is added to what is there.
    pub is_accumulated: bool,
    /// Whether the gradient of the weights is computed.
    pub has_weight_gradient: bool,
}

/// Computes the gradient of a norm's input, and partial sums of that of its weights, one cube per [`ROWS_PER_CUBE`]
/// rows.
///
/// Buffers: the input, the weights, `[size]`, the gradients of the result and of the input, `[rows, size]`; the partial
/// sums, `[cubes, size]`, which are not written without a gradient of the weights. Workgroup memory: 2 floats per unit.
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
    #[comptime] form: NormBackwardForm,
) {
    let begin = CUBE_POS * ROWS_PER_CUBE;
    if begin < rows {
        let row = comptime!(form.row);
        let (units, num_parts) = comptime!((row.units, row.num_parts()));
        let count = comptime!(row.size as f32);
        let mut end = begin + ROWS_PER_CUBE;
        if end > rows {
            end = rows;
        }
        let weights = read(weights, 0usize, row);
        let mut sums = Array::<f32>::new(num_parts);
        #[unroll]
        for part in 0..num_parts {
            sums[part] = 0.0f32;
        }
        for row_index in begin..end {
            let first = row_index * comptime!(row.size);
            let elements = read(input, first, row);
            let d_outputs = read(d_normed, first, row);
            let mut square = 0.0f32;
            let mut dot = 0.0f32;
            #[unroll]
            for part in 0..num_parts {
                square += elements[part] * elements[part];
                dot += d_outputs[part] * (weights[part] + offset) * elements[part];
            }
            let mut d_elements = Array::<f32>::new(num_parts);
            if comptime!(form.is_accumulated) {
                #[unroll]
                for part in 0..num_parts {
                    let i = UNIT_POS as usize + comptime!(part * row.units);
                    if has_element(i, part, row) {
                        d_elements[part] = d_input[first + i];
                    }
                }
            }
            let square = cube_sum(square, units);
            let dot = cube_sum(dot, units);
            // All units have read these sums before those of the next row are written.
            sync_cube();
            let rms = (square / count + eps).sqrt();
            let norm_grad = dot / (count * rms * rms * rms);
            #[unroll]
            for part in 0..num_parts {
                let (x, d) = (elements[part], d_outputs[part]);
                let mut gradient = d * (weights[part] + offset) / rms - x * norm_grad;
                if comptime!(form.is_accumulated) {
                    gradient += d_elements[part];
                }
                d_elements[part] = gradient;
                sums[part] += d * x / rms;
            }
            write(d_input, first, &d_elements, row);
        }
        if comptime!(form.has_weight_gradient) {
            write(partials, CUBE_POS * comptime!(row.size), &sums, row);
        }
    }
}

/// Columns of a cube of [`column_sums_kernel`].
pub(crate) const COLUMNS_PER_CUBE: usize = 8;

/// Sums the columns of a matrix, one cube per [`COLUMNS_PER_CUBE`]; each unit sums one column over one of 8 runs of
/// rows.
///
/// Buffers: `[rows, width]`; `[width]`. Workgroup memory: [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn column_sums_kernel<N: Float>(
    matrix: &[N],
    sums: &mut [f32],
    rows: usize,
    width: usize,
    #[define(N)] _element: ElemType,
) {
    let runs = comptime!(UNITS / COLUMNS_PER_CUBE);
    let unit = UNIT_POS as usize;
    let (column, run) = (unit % COLUMNS_PER_CUBE, unit / COLUMNS_PER_CUBE);
    let at = CUBE_POS * COLUMNS_PER_CUBE + column;
    let mut sum = 0.0f32;
    if at < width {
        for row in run * rows / runs..(run + 1) * rows / runs {
            sum += f32::cast_from(matrix[row * width + at]);
        }
    }
    let mut parts = Shared::<[f32]>::new_slice(UNITS);
    parts[unit] = sum;
    sync_cube();
    if run == 0 && at < width {
        let mut total = 0.0f32;
        #[unroll]
        for run in 0..runs {
            total += parts[comptime!(run * COLUMNS_PER_CUBE) + column];
        }
        sums[at] = total;
    }
}

/// Copies elements to `to`, or adds them to it; one unit per element.
///
/// Buffers: `[count]` each.
#[cube(launch_unchecked)]
pub(crate) fn copy_or_add_kernel(
    from: &[f32],
    to: &mut [f32],
    count: usize,
    #[comptime] adds: bool,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let mut element = from[i];
        if comptime!(adds) {
            element += to[i];
        }
        to[i] = element;
    }
}

/// Adds up rows by destination: `to[to_row] += scale * sum(from[row])` over the rows of each; one cube per destination
/// and [`UNITS`] elements of a row.
///
/// Buffers: for `count` destinations where the rows of each begin, and the end of the last, `[count + 1]`, then their
/// rows in `to`, `[count]`, then the rows in `from`; `from` and `to`, of rows of `size` elements.
#[cube(launch_unchecked)]
pub(crate) fn scatter_kernel(
    places: &[i32],
    from: &[f32],
    to: &mut [f32],
    count: usize,
    size: usize,
    scale: f32,
) {
    let blocks = size.div_ceil(UNITS);
    let destination = CUBE_POS / blocks;
    let i = CUBE_POS % blocks * UNITS + UNIT_POS as usize;
    if destination < count && i < size {
        let (begin, end) = (places[destination] as usize, places[destination + 1] as usize);
        let first = places[count + 1 + destination] as usize * size;
        let mut sum = 0.0f32;
        for start in range_stepped(begin, end, LOADS_AT_ONCE) {
            let mut elements = Array::<f32>::new(LOADS_AT_ONCE);
            #[unroll]
            for n in 0..LOADS_AT_ONCE {
                let at = start + n;
                let mut element = 0.0f32;
                if at < end {
                    element = from[places[2 * count + 1 + at] as usize * size + i];
                }
                elements[n] = element;
            }
            #[unroll]
            for n in 0..LOADS_AT_ONCE {
                sum += elements[n];
            }
        }
        to[first + i] += sum * scale;
    }
}
