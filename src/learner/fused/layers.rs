//! Layers of a tile of samples, computed by all units of a cube together, and their gradients.
//!
//! Inputs, activations and derivatives are in workgroup memory, so that any unit can take any part of a layer. A unit
//! computes a few neurons for several samples, or the gradients of the weights from a few inputs to a few neurons: each
//! number that it reads is a factor of several products, and its sums are in registers, at places that the compiler
//! knows. Each sum goes over inputs or samples in their order, whichever unit computes it.

use super::tiles::Tiling;
use crate::math::activation::{derivative_from_value, value_and_derivative};
use crate::model::kernels::{DenseLayout, load_rounded, round_to};
use crate::settings::Activation;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Samples read from workgroup memory at once.
const SAMPLES_AT_ONCE: usize = 4;

/// Numbers that a unit reads from workgroup memory per iteration of a loop over inputs, at most.
const MAX_LOADS: usize = 32;

/// The number of inputs or neurons that a unit takes at a time: at most 4, and a divisor of their count.
fn block_len(count: usize) -> usize {
    [4, 3, 2].into_iter().find(|n| count.is_multiple_of(*n)).unwrap_or(1)
}

/// Layer of a perceptron in a kernel; a compile-time value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layer {
    /// Widths, and place among the parameters.
    pub dense: DenseLayout,
    /// Row of the first input in workgroup memory.
    pub input_row: usize,
    /// Row of the first neuron. Its activations give way to derivatives.
    pub neuron_row: usize,
    /// Row of the first neuron among the kept derivatives.
    pub derivative_row: usize,
}

/// The weights of a layer as a product takes them: the weight of input `k` and neuron `n` is at
/// `first + k * input_stride + n * neuron_stride` among the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WeightView {
    first: usize,
    inputs: usize,
    neurons: usize,
    input_stride: usize,
    neuron_stride: usize,
    /// Row of the first input's values in workgroup memory.
    row: usize,
}

impl Layer {
    /// The weights by which the layer's inputs are multiplied.
    fn forward_weights(&self) -> WeightView {
        let DenseLayout { weight, inputs, outputs, .. } = self.dense;
        let (neurons, row) = (outputs, self.input_row);
        WeightView { first: weight, inputs, neurons, input_stride: outputs, neuron_stride: 1, row }
    }

    /// The weights by which the derivatives with respect to the layer's neurons are multiplied.
    fn backward_weights(&self) -> WeightView {
        let DenseLayout { weight, inputs, outputs, .. } = self.dense;
        let (neurons, row) = (inputs, self.neuron_row);
        WeightView {
            first: weight,
            inputs: outputs,
            neurons,
            input_stride: 1,
            neuron_stride: outputs,
            row,
        }
    }
}

impl WeightView {
    /// Neurons of a unit, [`WeightView::columns`] apart.
    fn neuron_block(&self) -> usize {
        block_len(self.neurons)
    }

    fn columns(&self) -> usize {
        self.neurons / self.neuron_block()
    }

    /// Inputs per iteration of a loop, each of `samples` samples.
    fn inputs_per_iteration(&self, samples: usize) -> usize {
        let inputs = block_len(self.inputs);
        if samples * 2 * inputs <= MAX_LOADS && self.inputs.is_multiple_of(2 * inputs) {
            2 * inputs
        } else {
            inputs
        }
    }
}

/// Adds the products of a unit to its sums, `[neurons][samples]`, of neurons from `column` and samples from `sample`
/// on. Parameters are rounded to `I`, and values in workgroup memory to `V`.
#[cube]
fn add_products<I: Float, V: Float>(
    params: &[f32],
    activations: &[f32],
    sums: &mut Array<f32>,
    column: usize,
    sample: usize,
    #[comptime] weights: WeightView,
    #[comptime] tiling: Tiling,
) {
    let (samples, stride) = comptime!((tiling.unit_samples(), tiling.stride));
    let (neuron_block, columns) = comptime!((weights.neuron_block(), weights.columns()));
    let step = comptime!(weights.inputs_per_iteration(samples));
    let mut values = Array::<f32>::new(samples);
    let start = comptime!(weights.first) + column * weights.neuron_stride;
    let mut k = 0usize;
    while k < weights.inputs {
        #[unroll]
        for c in 0..step {
            let at = (k + comptime!(c + weights.row)) * stride + sample;
            #[unroll]
            for s in 0..samples {
                values[s] = round_to::<V>(activations[at + s]);
            }
            let first = start + (k + c) * weights.input_stride;
            #[unroll]
            for n in 0..neuron_block {
                let at = first + comptime!(n * columns * weights.neuron_stride);
                let w = load_rounded::<f32, I>(params, at);
                #[unroll]
                for s in 0..samples {
                    sums[comptime!(n * samples + s)] += w * values[s];
                }
            }
        }
        k += step;
    }
}

/// Computes a hidden layer: its activations, and their derivatives with respect to the pre-activations in
/// `derivatives` if they are kept.
#[cube]
pub(super) fn forward<I: Float>(
    params: &[f32],
    activations: &mut [f32],
    derivatives: &mut [f32],
    #[comptime] layer: Layer,
    #[comptime] activation: Activation,
    #[comptime] tiling: Tiling,
) {
    let (samples, stride) = comptime!((tiling.unit_samples(), tiling.stride));
    let sample_blocks = comptime!(tiling.tile_samples / samples);
    let weights = comptime!(layer.forward_weights());
    let (neuron_block, columns) = comptime!((weights.neuron_block(), weights.columns()));
    let mut item = UNIT_POS as usize;
    while item < comptime!(columns * sample_blocks) {
        // The remainder tells the compiler that offsets do not overflow.
        let (column, sample) = (item / sample_blocks % columns, item % sample_blocks * samples);
        let mut sums = Array::<f32>::new(comptime!(neuron_block * samples));
        #[unroll]
        for n in 0..neuron_block {
            let at = comptime!(layer.dense.bias + n * columns) + column;
            let bias = load_rounded::<f32, I>(params, at);
            #[unroll]
            for s in 0..samples {
                sums[comptime!(n * samples + s)] = bias;
            }
        }
        add_products::<I, I>(params, &*activations, &mut sums, column, sample, weights, tiling);
        #[unroll]
        for n in 0..neuron_block {
            let row = (column + comptime!(n * columns)) * stride + sample;
            #[unroll]
            for s in 0..samples {
                let output = value_and_derivative(sums[comptime!(n * samples + s)], activation);
                activations[row + comptime!(layer.neuron_row * stride + s)] =
                    round_to::<I>(output.value);
                if comptime!(tiling.keeps_derivatives) {
                    derivatives[row + comptime!(layer.derivative_row * stride + s)] =
                        output.derivative;
                }
            }
        }
        item += comptime!(tiling.num_units);
    }
}

/// Replaces the activations of a layer by the loss's derivatives with respect to its pre-activations, from those
/// of the layer `next`.
#[cube]
pub(super) fn backward<I: Float>(
    params: &[f32],
    activations: &mut [f32],
    derivatives: &[f32],
    #[comptime] layer: Layer,
    #[comptime] next: Layer,
    #[comptime] activation: Activation,
    #[comptime] tiling: Tiling,
) {
    let (samples, stride) = comptime!((tiling.unit_samples(), tiling.stride));
    let sample_blocks = comptime!(tiling.tile_samples / samples);
    let weights = comptime!(next.backward_weights());
    let (neuron_block, columns) = comptime!((weights.neuron_block(), weights.columns()));
    let mut item = UNIT_POS as usize;
    while item < comptime!(columns * sample_blocks) {
        // The remainder tells the compiler that offsets do not overflow.
        let (column, sample) = (item / sample_blocks % columns, item % sample_blocks * samples);
        let mut sums = Array::<f32>::new(comptime!(neuron_block * samples));
        #[unroll]
        for i in 0..comptime!(neuron_block * samples) {
            sums[i] = 0.0f32;
        }
        add_products::<I, f32>(params, &*activations, &mut sums, column, sample, weights, tiling);
        #[unroll]
        for n in 0..neuron_block {
            let row = (column + comptime!(n * columns)) * stride + sample;
            #[unroll]
            for s in 0..samples {
                let at = row + comptime!(layer.neuron_row * stride + s);
                let derivative = if comptime!(tiling.keeps_derivatives) {
                    derivatives[row + comptime!(layer.derivative_row * stride + s)]
                } else {
                    derivative_from_value(activations[at], activation)
                };
                activations[at] = sums[comptime!(n * samples + s)] * derivative;
            }
        }
        item += comptime!(tiling.num_units);
    }
}

/// Adds the gradient of a tile, from a layer's inputs and the derivatives with respect to its neurons, to the cube's
/// row, which starts at `row`; the first tile replaces what is there.
#[cube]
pub(super) fn add_gradient<I: Float>(
    partials: &mut [f32],
    activations: &[f32],
    row: usize,
    is_first: bool,
    #[comptime] layer: Layer,
    #[comptime] tiling: Tiling,
) {
    let (tile_samples, stride) = comptime!((tiling.tile_samples, tiling.stride));
    let DenseLayout { weight, bias, inputs, outputs } = comptime!(layer.dense);
    let (input_block, neuron_block) = comptime!((block_len(inputs), block_len(outputs)));
    let columns = comptime!(outputs / neuron_block);
    let mut item = UNIT_POS as usize;
    while item < comptime!(inputs / input_block * columns) {
        // The first input and the first neuron; other neurons are a number of columns apart.
        let (first, column) = (item / columns * input_block, item % columns);
        let (inputs_at, derivatives_at) = (
            (first + comptime!(layer.input_row)) * stride,
            (column + comptime!(layer.neuron_row)) * stride,
        );
        let mut sums = Array::<f32>::new(comptime!(input_block * neuron_block));
        #[unroll]
        for i in 0..comptime!(input_block * neuron_block) {
            sums[i] = 0.0f32;
        }
        let samples = comptime!(SAMPLES_AT_ONCE.min(tile_samples));
        let mut derivatives = Array::<f32>::new(comptime!(neuron_block * samples));
        let mut s = 0usize;
        while s < tile_samples {
            #[unroll]
            for n in 0..neuron_block {
                #[unroll]
                for c in 0..samples {
                    derivatives[comptime!(n * samples + c)] =
                        activations[derivatives_at + s + comptime!(n * columns * stride + c)];
                }
            }
            #[unroll]
            for i in 0..input_block {
                #[unroll]
                for c in 0..samples {
                    let value =
                        round_to::<I>(activations[inputs_at + s + comptime!(i * stride + c)]);
                    #[unroll]
                    for n in 0..neuron_block {
                        sums[comptime!(i * neuron_block + n)] +=
                            value * derivatives[comptime!(n * samples + c)];
                    }
                }
            }
            s += samples;
        }
        let at = row + weight + first * outputs + column;
        if is_first {
            #[unroll]
            for i in 0..input_block {
                #[unroll]
                for n in 0..neuron_block {
                    partials[at + comptime!(i * outputs + n * columns)] =
                        0.0f32 + sums[comptime!(i * neuron_block + n)];
                }
            }
        } else {
            #[unroll]
            for i in 0..input_block {
                #[unroll]
                for n in 0..neuron_block {
                    partials[at + comptime!(i * outputs + n * columns)] +=
                        sums[comptime!(i * neuron_block + n)];
                }
            }
        }
        item += comptime!(tiling.num_units);
    }
    let mut neuron = UNIT_POS as usize;
    while neuron < outputs {
        let mut sum = select(is_first, 0.0f32, partials[row + bias + neuron]);
        #[unroll]
        for s in 0..tile_samples {
            sum += activations[(neuron + comptime!(layer.neuron_row)) * stride + comptime!(s)];
        }
        partials[row + bias + neuron] = sum;
        neuron += comptime!(tiling.num_units);
    }
}
