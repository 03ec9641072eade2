//! The multi-layer perceptron inside kernels.

use super::Mlp;
use crate::math::Activation;
use crate::math::activation::activate;
use crate::model::flatten;
use crate::nn::buffers::max_plane_units;
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

/// The widths of a perceptron, a compile-time value of kernels, and the offsets of its parameters in the vector of
/// [`flatten`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MlpShape {
    /// Features of an observation.
    pub num_features: usize,
    /// Neurons of the first hidden layer.
    pub first_width: usize,
    /// Neurons of the second hidden layer; 0 without one.
    pub second_width: usize,
    /// Actions.
    pub num_actions: usize,
    /// The activation of the hidden layers.
    pub activation: Activation,
    /// Neurons of the first hidden layer that [`mlp_logits`] computes side by side.
    pub neurons_per_block: usize,
}

/// The place of a hidden layer in the parameter vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DenseLayout {
    /// Offset of the weights `[inputs, outputs]`.
    pub weight: usize,
    /// Offset of the biases.
    pub bias: usize,
    /// Width of the layer before.
    pub inputs: usize,
    /// Width of the layer.
    pub outputs: usize,
}

/// A perceptron for kernels: its widths, and its parameters in one vector.
#[derive(Clone, Debug)]
pub struct FlatMlp {
    pub(crate) shape: MlpShape,
    pub(crate) params: Tensor<1>,
}

impl FlatMlp {
    /// The parameters of a perceptron in one buffer on its device; `None` unless it has one or two
    /// hidden layers.
    pub fn from_mlp(mlp: &Mlp) -> Option<Self> {
        let shape = MlpShape::from_mlp(mlp)?;
        Some(Self { shape, params: flatten(mlp).without_autodiff() })
    }
}

impl MlpShape {
    /// The shape of a perceptron; `None` unless it has one or two hidden layers.
    pub fn from_mlp(mlp: &Mlp) -> Option<Self> {
        let (num_features, first_width, second_width, num_actions) = match mlp.widths()[..] {
            [features, first, actions] => (features, first, 0, actions),
            [features, first, second, actions] => (features, first, second, actions),
            _ => return None,
        };
        let wide = max_plane_units(&mlp.layers()[0].weight.device()) >= MIN_WIDE_PLANE;
        let neurons_per_block = if wide { neuron_block(first_width) } else { 1 };
        let activation = mlp.activation();
        Some(Self {
            num_features,
            first_width,
            second_width,
            num_actions,
            activation,
            neurons_per_block,
        })
    }

    /// The hidden layers; without a second one, its number of outputs is 0.
    pub fn hidden_layers(&self) -> (DenseLayout, DenseLayout) {
        let Self { num_features, first_width, second_width, .. } = *self;
        let (weight, bias) = (self.second_weight(), self.second_bias());
        (
            DenseLayout {
                weight: 0,
                bias: self.first_bias(),
                inputs: num_features,
                outputs: first_width,
            },
            DenseLayout { weight, bias, inputs: first_width, outputs: second_width },
        )
    }

    /// Iterations of loops in a call of [`mlp_logits`].
    pub fn loop_iterations(&self) -> usize {
        self.first_width / self.neurons_per_block
            + self.second_width / neuron_block(self.second_width) * (1 + self.first_width)
    }

    /// The offset of the first layer's biases; its weights `[features, first]` start at 0.
    pub fn first_bias(&self) -> usize {
        self.num_features * self.first_width
    }

    /// The offset of the second layer's weights `[first, second]`.
    pub fn second_weight(&self) -> usize {
        self.first_bias() + self.first_width
    }

    /// The offset of the second layer's biases.
    pub fn second_bias(&self) -> usize {
        self.second_weight() + self.first_width * self.second_width
    }

    /// Inputs of the last layer.
    pub fn last_inputs(&self) -> usize {
        if self.second_width == 0 { self.first_width } else { self.second_width }
    }

    /// The offset of the last layer's weights `[last_inputs, actions]`.
    pub fn last_weight(&self) -> usize {
        if self.second_width == 0 {
            self.second_weight()
        } else {
            self.second_bias() + self.second_width
        }
    }

    /// The offset of the last layer's biases.
    pub fn last_bias(&self) -> usize {
        self.last_weight() + self.last_inputs() * self.num_actions
    }

    /// The number of parameters.
    pub fn num_params(&self) -> usize {
        self.last_bias() + self.num_actions
    }

    /// FLOP of a forward pass: a multiplication and an addition per weight.
    pub fn forward_flops(&self) -> f64 {
        2.0 * self.num_params() as f64
    }
}

/// Minimum units of a plane for which neurons are computed side by side. Drivers that run on a processor have planes of
/// its vectors, 4 to 8 units; there the sums of one neuron are fastest.
const MIN_WIDE_PLANE: usize = 16;

/// Number of neurons of a layer that are computed side by side.
pub(crate) fn neuron_block(neurons: usize) -> usize {
    if neurons.is_multiple_of(4) { 4 } else { 1 }
}

/// Rounds an input to `I`.
#[cube]
pub(crate) fn round_to<I: Float>(x: f32) -> f32 {
    f32::cast_from(I::cast_from(x))
}

/// Loads a weight and rounds it to `I`.
#[cube]
pub(crate) fn load_rounded<W: Float, I: Float>(weights: &[W], at: usize) -> f32 {
    f32::cast_from(I::cast_from(weights[at]))
}

/// Largest layer whose activations a unit keeps in registers; those of larger ones are in local memory.
const MAX_REGISTER_NEURONS: usize = 128;
/// Largest first layer whose products with the second are unrolled completely on CUDA: there the compiler then overlaps
/// sums of several neurons, which makes 64 neurons twice as fast on an H100.
const MAX_UNROLLED_NEURONS: usize = 64;

/// Computes the activations of the neurons `j..j + block` of the first hidden layer.
#[cube]
fn compute_first_neurons<W: Float, I: Float>(
    weights: &[W],
    x: &Array<f32>,
    j: usize,
    #[comptime] block: usize,
    #[comptime] shape: MlpShape,
) -> Array<f32> {
    let mut sums = Array::<f32>::new(block);
    #[unroll]
    for c in 0..block {
        sums[c] = load_rounded::<W, I>(weights, comptime!(shape.first_bias() + c) + j);
    }
    #[unroll]
    for i in 0..comptime!(shape.num_features) {
        #[unroll]
        for c in 0..block {
            sums[c] +=
                x[i] * load_rounded::<W, I>(weights, comptime!(i * shape.first_width + c) + j);
        }
    }
    #[unroll]
    for c in 0..block {
        sums[c] = round_to::<I>(activate(sums[c], comptime!(shape.activation)));
    }
    sums
}

/// Sets the logits to the biases of the last layer.
#[cube]
pub(crate) fn set_logits_to_biases<W: Float, I: Float>(
    weights: &[W],
    logits: &mut Array<f32>,
    #[comptime] shape: MlpShape,
) {
    #[unroll]
    for a in 0..comptime!(shape.num_actions) {
        logits[a] = load_rounded::<W, I>(weights, comptime!(shape.last_bias() + a));
    }
}

/// Adds the contribution of the neurons `j..j + block` of the last hidden layer, with the values `h`, to the logits.
#[cube]
pub(crate) fn add_to_logits<W: Float, I: Float>(
    weights: &[W],
    logits: &mut Array<f32>,
    h: &Array<f32>,
    j: usize,
    #[comptime] block: usize,
    #[comptime] shape: MlpShape,
) {
    let row = comptime!(shape.last_weight()) + j * comptime!(shape.num_actions);
    #[unroll]
    for c in 0..block {
        #[unroll]
        for a in 0..comptime!(shape.num_actions) {
            let w = load_rounded::<W, I>(weights, row + comptime!(c * shape.num_actions + a));
            logits[a] += h[c] * w;
        }
    }
}

/// Adds the contribution of neuron `j` of the first hidden layer, with the value `h`, to the neurons `k..k + block` of
/// the second.
#[cube]
fn add_to_second_layer<W: Float, I: Float>(
    weights: &[W],
    sums: &mut Array<f32>,
    h: f32,
    j: usize,
    k: usize,
    #[comptime] block: usize,
    #[comptime] shape: MlpShape,
) {
    let row = comptime!(shape.second_weight()) + j * comptime!(shape.second_width) + k;
    #[unroll]
    for c in 0..block {
        sums[c] += h * load_rounded::<W, I>(weights, row + c);
    }
}

/// Computes the neurons `k..k + block` of the second hidden layer from the activations `front` of the first, and adds
/// their contribution to the logits.
#[cube]
fn add_second_neurons<W: Float, I: Float>(
    weights: &[W],
    front: &Array<f32>,
    logits: &mut Array<f32>,
    k: usize,
    #[comptime] block: usize,
    #[comptime] shape: MlpShape,
) {
    let mut sums = Array::<f32>::new(block);
    #[unroll]
    for c in 0..block {
        sums[c] = load_rounded::<W, I>(weights, comptime!(shape.second_bias() + c) + k);
    }
    if comptime!(shape.first_width <= MAX_REGISTER_NEURONS) {
        for j in 0..comptime!(shape.first_width) {
            add_to_second_layer::<W, I>(weights, &mut sums, front[j], j, k, block, shape);
        }
    } else {
        let mut j = 0usize;
        while j < comptime!(shape.first_width) {
            add_to_second_layer::<W, I>(weights, &mut sums, front[j], j, k, block, shape);
            j += 1;
        }
    }
    #[unroll]
    for c in 0..block {
        sums[c] = round_to::<I>(activate(sums[c], comptime!(shape.activation)));
    }
    add_to_logits::<W, I>(weights, logits, &sums, k, block, shape);
}

/// The forward pass of one game in one unit: `logits`, `[actions]`, from the features `x`, `[features]`. Features,
/// weights and activations are rounded to `I`; sums are f32.
///
/// `weights` is the parameter vector, in global or workgroup memory. Neurons are computed four at a time if their
/// number is a multiple of four (in the first layer only on a GPU), so that weights are read four at a time. With one
/// hidden layer no activation is stored; with two, the activations of the first layer are.
///
/// Loops that must not be unrolled are `while` loops: CubeCL asks LLVM to unroll each `for` loop over an array of a
/// unit completely, nested ones too, and compiling two layers of 256 neurons took minutes.
#[cube]
pub(crate) fn mlp_logits<W: Float, I: Float>(
    weights: &[W],
    x: &Array<f32>,
    logits: &mut Array<f32>,
    #[comptime] shape: MlpShape,
) {
    set_logits_to_biases::<W, I>(weights, logits, shape);
    let first = comptime!(shape.first_width);
    let block = comptime!(shape.neurons_per_block);
    if comptime!(shape.second_width == 0) {
        let mut j = 0usize;
        while j < first {
            let h = compute_first_neurons::<W, I>(weights, x, j, block, shape);
            add_to_logits::<W, I>(weights, logits, &h, j, block, shape);
            j += block;
        }
    } else {
        let mut front = Array::<f32>::new(first);
        if comptime!(first <= MAX_REGISTER_NEURONS) {
            for b in 0..comptime!(first / block) {
                let h = compute_first_neurons::<W, I>(weights, x, b * block, block, shape);
                #[unroll]
                for c in 0..block {
                    front[b * block + c] = h[c];
                }
            }
        } else {
            let mut j = 0usize;
            while j < first {
                let h = compute_first_neurons::<W, I>(weights, x, j, block, shape);
                #[unroll]
                for c in 0..block {
                    front[j + c] = h[c];
                }
                j += block;
            }
        }
        let block = comptime!(neuron_block(shape.second_width));
        if comptime!(first <= MAX_UNROLLED_NEURONS) {
            for b in 0..comptime!(shape.second_width / block) {
                add_second_neurons::<W, I>(weights, &front, logits, b * block, block, shape);
            }
        } else {
            let mut k = 0usize;
            while k < comptime!(shape.second_width) {
                add_second_neurons::<W, I>(weights, &front, logits, k, block, shape);
                k += block;
            }
        }
    }
}
