//! A hidden neuron in a kernel: one unit computes it for a tile of samples and accumulates its
//! gradient.

use crate::math::activation::{activate, slope};
use crate::model::kernels::{MlpShape, rounded};
use crate::settings::Activation;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Maximum number of weight gradients that a unit keeps in registers; larger rows use local memory.
const REGISTERS: usize = 16;

/// Zeroes the first `len` values.
#[cube]
pub(super) fn clear(values: &mut Array<f32>, #[comptime] len: usize, #[comptime] unrolled: bool) {
    #[unroll(unrolled)]
    for i in 0..len {
        values[i] = 0.0f32;
    }
}

/// Computes `sums[s] += w * values[at + s]` over a tile.
#[cube]
pub(super) fn multiply_add<V: Float>(
    sums: &mut Array<f32>,
    values: &[V],
    at: usize,
    w: f32,
    #[comptime] tile: usize,
) {
    #[unroll]
    for s in 0..tile {
        sums[s] += w * f32::cast_from(values[at + s]);
    }
}

/// Dot product of `values[at..]` and `factors` over a tile.
#[cube]
fn dot<V: Float>(values: &[V], at: usize, factors: &Array<f32>, #[comptime] tile: usize) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for s in 0..tile {
        sum += f32::cast_from(values[at + s]) * factors[s];
    }
    sum
}

/// Location of a hidden layer in the parameter vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Dense {
    /// Offset of the weights `[inputs, outputs]`.
    pub weight: usize,
    /// Offset of the biases.
    pub bias: usize,
    pub inputs: usize,
    pub outputs: usize,
}

/// Hidden layers of a perceptron; without a second layer, its number of outputs is 0.
pub(super) fn layers(shape: &MlpShape) -> (Dense, Dense) {
    let MlpShape { features, first, second, .. } = *shape;
    (
        Dense { weight: 0, bias: shape.first_bias(), inputs: features, outputs: first },
        Dense {
            weight: shape.second_weight(),
            bias: shape.second_bias(),
            inputs: first,
            outputs: second,
        },
    )
}

/// A hidden neuron owned by one unit.
#[derive(CubeType)]
pub(super) struct Neuron {
    /// Pre-activation of each sample of the tile.
    entered: Array<f32>,
    /// Accumulated gradient of the weights, `[inputs]`.
    weights: Array<f32>,
    /// Accumulated gradient of the bias.
    bias: Array<f32>,
}

#[cube]
impl Neuron {
    /// Creates a neuron with zero gradient.
    pub fn new(#[comptime] layer: Dense, #[comptime] tile: usize) -> Neuron {
        let inputs = comptime!(layer.inputs.max(1));
        let mut entered = Array::<f32>::new(tile);
        let mut weights = Array::<f32>::new(inputs);
        let mut bias = Array::<f32>::new(1usize);
        clear(&mut entered, tile, true);
        clear(&mut weights, inputs, comptime!(inputs <= REGISTERS));
        clear(&mut bias, 1usize, true);
        Neuron { entered, weights, bias }
    }

    /// Computes the pre-activations from `inputs`, `[layer.inputs][tile]`.
    pub fn forward<I: Float>(
        &mut self,
        params: &[f32],
        inputs: &[I],
        unit: usize,
        #[comptime] layer: Dense,
        #[comptime] tile: usize,
    ) {
        let bias = rounded::<f32, I>(params, comptime!(layer.bias) + unit);
        #[unroll]
        for s in 0..tile {
            self.entered[s] = bias;
        }
        for i in 0..layer.inputs {
            let w = rounded::<f32, I>(params, comptime!(layer.weight) + i * layer.outputs + unit);
            multiply_add::<I>(&mut self.entered, inputs, i * tile, w, tile);
        }
    }

    /// Writes the activations to `hidden[at..at + tile]`.
    pub fn activate<I: Float>(
        &self,
        hidden: &mut [I],
        at: usize,
        #[comptime] activation: Activation,
        #[comptime] tile: usize,
    ) {
        #[unroll]
        for s in 0..tile {
            hidden[at + s] = I::cast_from(activate(self.entered[s], activation));
        }
    }

    /// Converts derivatives by the activations to derivatives by the pre-activations.
    pub fn backward(
        &self,
        slopes: &mut Array<f32>,
        #[comptime] activation: Activation,
        #[comptime] tile: usize,
    ) {
        #[unroll]
        for s in 0..tile {
            slopes[s] *= slope(self.entered[s], activation);
        }
    }

    /// Accumulates the gradient of a tile from its `inputs` and the derivatives by the
    /// pre-activations.
    pub fn learn<I: Float>(
        &mut self,
        inputs: &[I],
        slopes: &Array<f32>,
        #[comptime] layer: Dense,
        #[comptime] tile: usize,
    ) {
        #[unroll]
        for s in 0..tile {
            self.bias[0] += slopes[s];
        }
        #[unroll(layer.inputs <= REGISTERS)]
        for i in 0..layer.inputs {
            self.weights[i] += dot::<I>(inputs, i * tile, slopes, tile);
        }
    }

    /// Writes the gradient to the cube's row, which starts at `row`.
    pub fn store(&self, partials: &mut [f32], row: usize, unit: usize, #[comptime] layer: Dense) {
        #[unroll(layer.inputs <= REGISTERS)]
        for i in 0..layer.inputs {
            let at = comptime!(layer.weight) + i * layer.outputs + unit;
            partials[row + at] = self.weights[i];
        }
        partials[row + comptime!(layer.bias) + unit] = self.bias[0];
    }
}
