//! A hidden neuron in a kernel: one unit computes it for a tile of samples and accumulates its
//! gradient.

use crate::math::activation::{activate, slope};
use crate::model::kernels::{Dense, rounded};
use crate::settings::Activation;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Maximum number of weight gradients that a unit keeps in registers on any device.
const REGISTERS: usize = 16;
/// Maximum number of weight gradients that a unit keeps in registers on CUDA, where CubeCL asks LLVM to unroll each
/// `for` loop over an array of a unit. For larger rows, which are in local memory, the loops are `while` loops: unrolled,
/// they would take minutes to compile.
const UNROLLED: usize = 64;

/// Inputs or outputs of a layer per iteration of a loop.
pub(super) fn several(count: usize) -> usize {
    if count.is_multiple_of(4) { 4 } else { 1 }
}

/// Zeroes the first `len` values.
#[cube]
pub(super) fn clear(values: &mut Array<f32>, #[comptime] len: usize) {
    if comptime!(len <= UNROLLED) {
        #[unroll(len <= REGISTERS)]
        for i in 0..len {
            values[i] = 0.0f32;
        }
    } else {
        let mut i = 0usize;
        while i < len {
            values[i] = 0.0f32;
            i += 1;
        }
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
        clear(&mut entered, tile);
        clear(&mut weights, inputs);
        clear(&mut bias, 1usize);
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
        let step = comptime!(several(layer.inputs));
        let mut i = 0usize;
        while i < layer.inputs {
            let first = comptime!(layer.weight) + i * layer.outputs + unit;
            #[unroll]
            for c in 0..step {
                let w = rounded::<f32, I>(params, first + comptime!(c * layer.outputs));
                multiply_add::<I>(&mut self.entered, inputs, (i + c) * tile, w, tile);
            }
            i += step;
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
        if comptime!(layer.inputs <= UNROLLED) {
            #[unroll(layer.inputs <= REGISTERS)]
            for i in 0..layer.inputs {
                self.weights[i] += dot::<I>(inputs, i * tile, slopes, tile);
            }
        } else {
            let mut i = 0usize;
            while i < layer.inputs {
                self.weights[i] += dot::<I>(inputs, i * tile, slopes, tile);
                i += 1;
            }
        }
    }

    /// Reads the gradient from the cube's row, to which [`Neuron::store`] has written it.
    pub fn load(&mut self, partials: &[f32], row: usize, unit: usize, #[comptime] layer: Dense) {
        let first = row + comptime!(layer.weight) + unit;
        if comptime!(layer.inputs <= UNROLLED) {
            #[unroll(layer.inputs <= REGISTERS)]
            for i in 0..layer.inputs {
                self.weights[i] = partials[first + i * layer.outputs];
            }
        } else {
            let mut i = 0usize;
            while i < layer.inputs {
                self.weights[i] = partials[first + i * layer.outputs];
                i += 1;
            }
        }
        self.bias[0] = partials[row + comptime!(layer.bias) + unit];
    }

    /// Writes the gradient to the cube's row, which starts at `row`.
    pub fn store(&self, partials: &mut [f32], row: usize, unit: usize, #[comptime] layer: Dense) {
        let first = row + comptime!(layer.weight) + unit;
        if comptime!(layer.inputs <= UNROLLED) {
            #[unroll(layer.inputs <= REGISTERS)]
            for i in 0..layer.inputs {
                partials[first + i * layer.outputs] = self.weights[i];
            }
        } else {
            let mut i = 0usize;
            while i < layer.inputs {
                partials[first + i * layer.outputs] = self.weights[i];
                i += 1;
            }
        }
        partials[row + comptime!(layer.bias) + unit] = self.bias[0];
    }
}
