//! A neuron of a hidden layer in a kernel: one unit computes it for a tile of samples and learns it.

use crate::config::Activation;
use crate::math::activation::{activate, slope};
use crate::model::kernels::{MlpShape, rounded};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Gradients of the first layer's weights that a unit keeps in registers; of more, in local memory.
const REGISTERS: usize = 16;

/// Sets the first `len` of some numbers to 0.
#[cube]
pub(super) fn clear(values: &mut Array<f32>, #[comptime] len: usize, #[comptime] unrolled: bool) {
    #[unroll(unrolled)]
    for i in 0..len {
        values[i] = 0.0f32;
    }
}

/// `sums[s] += w * values[at + s]` over a tile.
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

/// The sum of `values[at + s] * factors[s]` over a tile.
#[cube]
fn dot<V: Float>(values: &[V], at: usize, factors: &Array<f32>, #[comptime] tile: usize) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for s in 0..tile {
        sum += f32::cast_from(values[at + s]) * factors[s];
    }
    sum
}

/// A hidden layer among the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Dense {
    /// Where its weights `[inputs, outputs]` start.
    pub weight: usize,
    /// Where its biases start.
    pub bias: usize,
    pub inputs: usize,
    pub outputs: usize,
}

/// The hidden layers of a perceptron; the second has no outputs where there is none.
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

/// What one unit of a hidden layer has to do with.
#[derive(CubeType)]
pub(super) struct Neuron {
    /// What enters its activation, for each sample of the tile.
    entered: Array<f32>,
    /// The gradient of its weights so far, `[inputs]`.
    weights: Array<f32>,
    /// The gradient of its bias so far.
    bias: Array<f32>,
}

#[cube]
impl Neuron {
    /// A neuron with no gradient yet.
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

    /// Computes what enters its activation, from `inputs`, `[layer.inputs][tile]`.
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

    /// Writes its activations to `hidden[at..at + tile]`.
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

    /// Turns the loss's derivatives by its activations into those by what entered them.
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

    /// Adds the gradient of a tile, from its `inputs` and the loss's derivatives by what entered its
    /// activations.
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

    /// Writes its gradient to the row of a cube, which starts at `row`.
    pub fn store(&self, partials: &mut [f32], row: usize, unit: usize, #[comptime] layer: Dense) {
        #[unroll(layer.inputs <= REGISTERS)]
        for i in 0..layer.inputs {
            let at = comptime!(layer.weight) + i * layer.outputs + unit;
            partials[row + at] = self.weights[i];
        }
        partials[row + comptime!(layer.bias) + unit] = self.bias[0];
    }
}
