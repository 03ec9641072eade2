//! Layers of a tile of samples, computed by all units of a cube together, and their gradients.
//!
//! Inputs, activations and derivatives are in workgroup memory, so that any unit can take any part of a layer. A unit
//! computes a few neurons for several samples, or the gradients of the weights from a few inputs to a few neurons: each
//! number that it reads is a factor of several products, and its sums are in registers, at places that the compiler
//! knows. Each sum goes over inputs or samples in their order, whichever unit computes it.

use super::tiles::Tiling;
use crate::math::activation::{derivative_by_value, value_and_derivative};
use crate::model::kernels::{DenseLayout, load_rounded, round_to};
use crate::settings::Activation;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Samples read from workgroup memory at once.
const SAMPLES_AT_ONCE: usize = 4;

/// Numbers that a unit reads from workgroup memory per iteration of a loop over inputs, at most.
const MAX_LOADS: usize = 32;

/// The number of inputs or neurons that a unit takes at a time: at most 4, and a divisor of their count.
fn several(count: usize) -> usize {
    [4, 3, 2].into_iter().find(|n| count.is_multiple_of(*n)).unwrap_or(1)
}

/// Layer of a perceptron in a kernel; a compile-time value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layer {
    /// Widths, and place among the parameters.
    pub dense: DenseLayout,
    /// Row of the first input in workgroup memory.
    pub from: usize,
    /// Row of the first neuron. Its activations give way to derivatives.
    pub to: usize,
    /// Row of the first neuron among the kept derivatives.
    pub derivatives: usize,
}

/// A factor of a product among the parameters: its number for input `k` and neuron `n` is at
/// `first + k * by_input + n * by_neuron`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Factor {
    first: usize,
    inputs: usize,
    neurons: usize,
    by_input: usize,
    by_neuron: usize,
    /// Row of the other factor's first input in workgroup memory.
    row: usize,
}

impl Layer {
    /// The factor of the layer's inputs.
    fn forward(&self) -> Factor {
        let DenseLayout { weight, inputs, outputs, .. } = self.dense;
        let (neurons, row) = (outputs, self.from);
        Factor { first: weight, inputs, neurons, by_input: outputs, by_neuron: 1, row }
    }

    /// The factor of the derivatives by the layer's neurons.
    fn backward(&self) -> Factor {
        let DenseLayout { weight, inputs, outputs, .. } = self.dense;
        let (neurons, row) = (inputs, self.to);
        Factor { first: weight, inputs: outputs, neurons, by_input: 1, by_neuron: outputs, row }
    }
}

impl Factor {
    /// Neurons of a unit, which are a number of columns apart.
    fn block(&self) -> usize {
        several(self.neurons)
    }

    fn columns(&self) -> usize {
        self.neurons / self.block()
    }

    /// Inputs per iteration, each of which has `part` samples.
    fn step(&self, part: usize) -> usize {
        let few = several(self.inputs);
        if part * 2 * few <= MAX_LOADS && self.inputs.is_multiple_of(2 * few) {
            2 * few
        } else {
            few
        }
    }
}

/// Adds the products of a unit to its sums, `[neurons][samples]`, of neurons from `column` and samples from `sample`
/// on. Parameters are rounded to `I`, and values in workgroup memory to `V`.
#[cube]
fn add_products<I: Float, V: Float>(
    params: &[f32],
    room: &[f32],
    sums: &mut Array<f32>,
    column: usize,
    sample: usize,
    #[comptime] factor: Factor,
    #[comptime] tiling: Tiling,
) {
    let (part, stride) = comptime!((tiling.part(), tiling.stride));
    let (block, columns) = comptime!((factor.block(), factor.columns()));
    let step = comptime!(factor.step(part));
    let mut values = Array::<f32>::new(part);
    let start = comptime!(factor.first) + column * factor.by_neuron;
    let mut k = 0usize;
    while k < factor.inputs {
        #[unroll]
        for c in 0..step {
            let at = (k + comptime!(c + factor.row)) * stride + sample;
            #[unroll]
            for s in 0..part {
                values[s] = round_to::<V>(room[at + s]);
            }
            let first = start + (k + c) * factor.by_input;
            #[unroll]
            for n in 0..block {
                let at = first + comptime!(n * columns * factor.by_neuron);
                let w = load_rounded::<f32, I>(params, at);
                #[unroll]
                for s in 0..part {
                    sums[comptime!(n * part + s)] += w * values[s];
                }
            }
        }
        k += step;
    }
}

/// Computes a hidden layer: its activations, and their derivatives by the pre-activations in `derivatives` if they are
/// kept.
#[cube]
pub(super) fn forward<I: Float>(
    params: &[f32],
    room: &mut [f32],
    derivatives: &mut [f32],
    #[comptime] layer: Layer,
    #[comptime] activation: Activation,
    #[comptime] tiling: Tiling,
) {
    let (part, stride) = comptime!((tiling.part(), tiling.stride));
    let parts = comptime!(tiling.tile / part);
    let factor = comptime!(layer.forward());
    let (block, columns) = comptime!((factor.block(), factor.columns()));
    let mut item = UNIT_POS as usize;
    while item < comptime!(columns * parts) {
        // The remainder tells the compiler that offsets do not overflow.
        let (column, sample) = (item / parts % columns, item % parts * part);
        let mut sums = Array::<f32>::new(comptime!(block * part));
        #[unroll]
        for n in 0..block {
            let at = comptime!(layer.dense.bias + n * columns) + column;
            let bias = load_rounded::<f32, I>(params, at);
            #[unroll]
            for s in 0..part {
                sums[comptime!(n * part + s)] = bias;
            }
        }
        add_products::<I, I>(params, &*room, &mut sums, column, sample, factor, tiling);
        #[unroll]
        for n in 0..block {
            let row = (column + comptime!(n * columns)) * stride + sample;
            #[unroll]
            for s in 0..part {
                let output = value_and_derivative(sums[comptime!(n * part + s)], activation);
                room[row + comptime!(layer.to * stride + s)] = round_to::<I>(output.value);
                if comptime!(tiling.keeps_derivatives) {
                    derivatives[row + comptime!(layer.derivatives * stride + s)] =
                        output.derivative;
                }
            }
        }
        item += comptime!(tiling.units);
    }
}

/// Replaces the activations of a layer by the loss's derivatives by its pre-activations, from those of the layer
/// `next`.
#[cube]
pub(super) fn backward<I: Float>(
    params: &[f32],
    room: &mut [f32],
    derivatives: &[f32],
    #[comptime] layer: Layer,
    #[comptime] next: Layer,
    #[comptime] activation: Activation,
    #[comptime] tiling: Tiling,
) {
    let (part, stride) = comptime!((tiling.part(), tiling.stride));
    let parts = comptime!(tiling.tile / part);
    let factor = comptime!(next.backward());
    let (block, columns) = comptime!((factor.block(), factor.columns()));
    let mut item = UNIT_POS as usize;
    while item < comptime!(columns * parts) {
        // The remainder tells the compiler that offsets do not overflow.
        let (column, sample) = (item / parts % columns, item % parts * part);
        let mut sums = Array::<f32>::new(comptime!(block * part));
        #[unroll]
        for i in 0..comptime!(block * part) {
            sums[i] = 0.0f32;
        }
        add_products::<I, f32>(params, &*room, &mut sums, column, sample, factor, tiling);
        #[unroll]
        for n in 0..block {
            let row = (column + comptime!(n * columns)) * stride + sample;
            #[unroll]
            for s in 0..part {
                let at = row + comptime!(layer.to * stride + s);
                let derivative = if comptime!(tiling.keeps_derivatives) {
                    derivatives[row + comptime!(layer.derivatives * stride + s)]
                } else {
                    derivative_by_value(room[at], activation)
                };
                room[at] = sums[comptime!(n * part + s)] * derivative;
            }
        }
        item += comptime!(tiling.units);
    }
}

/// Adds the gradient of a tile, from a layer's inputs and the derivatives by its neurons, to the cube's row, which
/// starts at `row`; the first tile replaces what is there.
#[cube]
pub(super) fn add_gradient<I: Float>(
    partials: &mut [f32],
    room: &[f32],
    row: usize,
    is_first: bool,
    #[comptime] layer: Layer,
    #[comptime] tiling: Tiling,
) {
    let (tile, stride) = comptime!((tiling.tile, tiling.stride));
    let DenseLayout { weight, bias, inputs, outputs } = comptime!(layer.dense);
    let (rows, block) = comptime!((several(inputs), several(outputs)));
    let columns = comptime!(outputs / block);
    let mut item = UNIT_POS as usize;
    while item < comptime!(inputs / rows * columns) {
        // The first input and the first neuron; other neurons are a number of columns apart.
        let (first, column) = (item / columns * rows, item % columns);
        let (inputs_at, derivatives_at) =
            ((first + comptime!(layer.from)) * stride, (column + comptime!(layer.to)) * stride);
        let mut sums = Array::<f32>::new(comptime!(rows * block));
        #[unroll]
        for i in 0..comptime!(rows * block) {
            sums[i] = 0.0f32;
        }
        let together = comptime!(SAMPLES_AT_ONCE.min(tile));
        let mut derivatives = Array::<f32>::new(comptime!(block * together));
        let mut s = 0usize;
        while s < tile {
            #[unroll]
            for n in 0..block {
                #[unroll]
                for c in 0..together {
                    derivatives[comptime!(n * together + c)] =
                        room[derivatives_at + s + comptime!(n * columns * stride + c)];
                }
            }
            #[unroll]
            for i in 0..rows {
                #[unroll]
                for c in 0..together {
                    let value = round_to::<I>(room[inputs_at + s + comptime!(i * stride + c)]);
                    #[unroll]
                    for n in 0..block {
                        sums[comptime!(i * block + n)] +=
                            value * derivatives[comptime!(n * together + c)];
                    }
                }
            }
            s += together;
        }
        let at = row + weight + first * outputs + column;
        if is_first {
            #[unroll]
            for i in 0..rows {
                #[unroll]
                for n in 0..block {
                    partials[at + comptime!(i * outputs + n * columns)] =
                        0.0f32 + sums[comptime!(i * block + n)];
                }
            }
        } else {
            #[unroll]
            for i in 0..rows {
                #[unroll]
                for n in 0..block {
                    partials[at + comptime!(i * outputs + n * columns)] +=
                        sums[comptime!(i * block + n)];
                }
            }
        }
        item += comptime!(tiling.units);
    }
    let mut neuron = UNIT_POS as usize;
    while neuron < outputs {
        let mut sum = select(is_first, 0.0f32, partials[row + bias + neuron]);
        #[unroll]
        for s in 0..tile {
            sum += room[(neuron + comptime!(layer.to)) * stride + comptime!(s)];
        }
        partials[row + bias + neuron] = sum;
        neuron += comptime!(tiling.units);
    }
}
