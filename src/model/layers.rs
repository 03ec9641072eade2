//! Linear layers in learning on the CPU, a packed row for each step of a game: forward and backward, in f32 or bf16.

use crate::math::Activation;
use crate::math::activation::activate_with_derivatives;
use crate::nn::ops::linear::{self, Arithmetic, PackedWeight};
use crate::nn::ops::matmul::View;
use crate::nn::ops::{Parallelism, WriteMode, bias};
use std::ops::Range;

const SEQUENTIAL: Parallelism = Parallelism::Sequential;

/// A linear layer among the parameters of a network, packed for products in both directions.
#[derive(Clone, Debug)]
pub(super) struct PackedLinear {
    pub inputs: usize,
    pub outputs: usize,
    weight: Range<usize>,
    bias: Range<usize>,
    arithmetic: Arithmetic,
    forward: PackedWeight,
    transpose: PackedWeight,
}

impl PackedLinear {
    /// The layer whose parameters, weights `[inputs, outputs]` and then biases, begin at `offset`, which advances past
    /// them. [`PackedLinear::repack`] gives it its weight.
    pub fn take(offset: &mut usize, inputs: usize, outputs: usize, arithmetic: Arithmetic) -> Self {
        let weight = *offset..*offset + inputs * outputs;
        let bias = weight.end..weight.end + outputs;
        *offset = bias.end;
        let [forward, transpose] = [(); 2].map(|()| PackedWeight::empty(arithmetic));
        Self { inputs, outputs, weight, bias, arithmetic, forward, transpose }
    }

    /// Repacks the weight.
    pub fn repack(&mut self, params: &[f32]) {
        let sizes @ [inputs, outputs] = [self.inputs, self.outputs];
        let weight = View::rows(&params[self.weight.clone()], outputs);
        self.forward.repack(SEQUENTIAL, weight, sizes);
        self.transpose.repack(SEQUENTIAL, weight.transpose(), [outputs, inputs]);
    }

    /// Computes `y = x w + b`.
    pub fn forward(&self, params: &[f32], x: &[f32], y: &mut [f32]) {
        linear::forward(SEQUENTIAL, x, &self.forward, y, WriteMode::Overwrite);
        bias::forward(&params[self.bias.clone()], y);
    }

    /// Computes `dx = dy w^T`, or adds it.
    pub fn compute_input_grad(&self, dy: &[f32], dx: &mut [f32], mode: WriteMode) {
        linear::forward(SEQUENTIAL, dy, &self.transpose, dx, mode);
    }

    /// Adds the gradients of weight and bias to those of all parameters.
    pub fn add_param_grads(&self, x: &[f32], dy: &[f32], gradient: &mut [f32]) {
        let weight = &mut gradient[self.weight.clone()];
        linear::weight_grads(self.arithmetic, SEQUENTIAL, x, self.inputs, [(dy, weight)]);
        bias::backward(dy, &mut gradient[self.bias.clone()]);
    }
}

/// Hidden layers: linear ones, with an activation after each.
#[derive(Clone, Debug)]
pub(super) struct HiddenLayers {
    layers: Vec<PackedLinear>,
    activation: Activation,
}

/// Activations of hidden layers for some rows, and buffers of the backward pass.
#[derive(Debug, Default)]
pub(super) struct HiddenTape {
    /// Activations of each layer, and the derivatives of the activation function: `[rows, outputs]` each.
    layers: Vec<[Vec<f32>; 2]>,
    /// Gradients of two successive layers.
    gradients: [Vec<f32>; 2],
}

impl HiddenTape {
    /// The results of the last of `layers`, or the inputs `x` if there are no layers.
    fn last_results<'a>(layers: &'a [[Vec<f32>; 2]], x: &'a [f32]) -> &'a [f32] {
        layers.last().map_or(x, |[values, _]| values)
    }

    /// The results of all layers for the inputs `x`: `[rows, outputs]`.
    pub fn results<'a>(&'a self, x: &'a [f32]) -> &'a [f32] {
        Self::last_results(&self.layers, x)
    }
}

impl HiddenLayers {
    /// Layers of these widths, inputs included, whose parameters begin at `offset`, which advances past them.
    pub fn take(
        offset: &mut usize,
        widths: &[usize],
        activation: Activation,
        arithmetic: Arithmetic,
    ) -> Self {
        let layer = |pair: &[usize]| PackedLinear::take(offset, pair[0], pair[1], arithmetic);
        Self { layers: widths.windows(2).map(layer).collect(), activation }
    }

    /// The first layer, if there is one.
    pub fn first(&self) -> Option<&PackedLinear> {
        self.layers.first()
    }

    /// Repacks the weights.
    pub fn repack(&mut self, params: &[f32]) {
        self.layers.iter_mut().for_each(|layer| layer.repack(params));
    }

    /// Computes all layers for the inputs `x`: `[rows, inputs]`.
    pub fn forward(&self, params: &[f32], x: &[f32], tape: &mut HiddenTape) {
        tape.layers.resize_with(self.layers.len(), Default::default);
        for (index, layer) in self.layers.iter().enumerate() {
            let (below, above) = tape.layers.split_at_mut(index);
            let [values, derivatives] = &mut above[0];
            values.resize(x.len() / self.layers[0].inputs * layer.outputs, 0.0);
            derivatives.resize(values.len(), 0.0);
            layer.forward(params, HiddenTape::last_results(below, x), values);
            activate_with_derivatives(self.activation, values, derivatives);
        }
    }

    /// Adds the gradients of the parameters to `gradient`, from the gradient `dy` of the results of the layer `next`,
    /// which takes those of the hidden layers. `x` is the input of the last forward pass.
    pub fn backward(
        &self,
        x: &[f32],
        next: &PackedLinear,
        dy: &[f32],
        tape: &mut HiddenTape,
        gradient: &mut [f32],
    ) {
        let HiddenTape { layers, gradients: [above, current] } = tape;
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let (below, rest) = layers.split_at(index);
            let [_, derivatives] = &rest[0];
            current.resize(derivatives.len(), 0.0);
            match self.layers.get(index + 1) {
                Some(next) => next.compute_input_grad(above, current, WriteMode::Overwrite),
                None => next.compute_input_grad(dy, current, WriteMode::Overwrite),
            }
            current.iter_mut().zip(derivatives).for_each(|(d, derivative)| *d *= derivative);
            layer.add_param_grads(HiddenTape::last_results(below, x), current, gradient);
            std::mem::swap(above, current);
        }
    }
}
