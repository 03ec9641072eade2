//! The multi-layer perceptron inside kernels, and tensors as the buffers of kernels.

use super::Mlp;
use crate::config::Activation;
use burn::backend::{Cube, DType, Shape};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// The widths of a perceptron, which kernels take as a compile-time value, and with them where each
/// parameter lies in the vector of [`super::flatten`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MlpShape {
    /// Features of an observation.
    pub features: usize,
    /// Units of the first hidden layer.
    pub first: usize,
    /// Units of the second hidden layer; 0 where there is none.
    pub second: usize,
    /// Actions.
    pub actions: usize,
    /// What follows each hidden layer.
    pub activation: Activation,
}

impl MlpShape {
    /// That of a perceptron with one or two hidden layers.
    pub fn of(mlp: &Mlp) -> Option<Self> {
        let sizes: Vec<[usize; 2]> = mlp.layers().iter().map(|l| l.weight.dims()).collect();
        let (first, second) = match sizes.as_slice() {
            [_, _] => (sizes[0][1], 0),
            [_, _, _] => (sizes[0][1], sizes[1][1]),
            _ => return None,
        };
        let (features, actions) = (sizes[0][0], sizes[sizes.len() - 1][1]);
        Some(Self { features, first, second, actions, activation: mlp.activation() })
    }

    /// Where the first layer's biases start; its weights `[features, first]` start at 0.
    pub fn first_bias(&self) -> usize {
        self.features * self.first
    }

    /// Where the second layer's weights `[first, second]` start.
    pub fn second_weight(&self) -> usize {
        self.first_bias() + self.first
    }

    /// Where the second layer's biases start.
    pub fn second_bias(&self) -> usize {
        self.second_weight() + self.first * self.second
    }

    /// Inputs of the last layer.
    pub fn last_inputs(&self) -> usize {
        if self.second == 0 { self.first } else { self.second }
    }

    /// Where the last layer's weights `[last_inputs, actions]` start.
    pub fn last_weight(&self) -> usize {
        if self.second == 0 { self.second_weight() } else { self.second_bias() + self.second }
    }

    /// Where the last layer's biases start.
    pub fn last_bias(&self) -> usize {
        self.last_weight() + self.last_inputs() * self.actions
    }

    /// The number of parameters.
    pub fn num_params(&self) -> usize {
        self.last_bias() + self.actions
    }
}

/// The hyperbolic tangent; the bounds, where it is 1 to f32 rounding, keep infinities out, which
/// WGSL leaves undefined.
#[cube]
fn tanh(x: f32) -> f32 {
    let bounded = select(x > 15.0f32, 15.0f32, select(x < -15.0f32, -15.0f32, x));
    1.0f32 - 2.0f32 / ((2.0f32 * bounded).exp() + 1.0f32)
}

/// `1 / (1 + e^-x)`.
#[cube]
fn sigmoid(x: f32) -> f32 {
    let bounded = select(x < -80.0f32, -80.0f32, x);
    1.0f32 / (1.0f32 + (-bounded).exp())
}

/// The argument of the hyperbolic tangent in GELU: `sqrt(2 / pi) (x + 0.044715 x^3)`.
#[cube]
fn gelu_inner(x: f32) -> f32 {
    0.797_884_6f32 * (x + 0.044_715f32 * x * x * x)
}

/// The activation of `x`.
#[cube]
pub(crate) fn activate(x: f32, #[comptime] activation: Activation) -> f32 {
    if comptime!(activation == Activation::Relu) {
        select(x > 0.0f32, x, 0.0f32)
    } else if comptime!(activation == Activation::Tanh) {
        tanh(x)
    } else if comptime!(activation == Activation::Silu) {
        x * sigmoid(x)
    } else {
        0.5f32 * x * (1.0f32 + tanh(gelu_inner(x)))
    }
}

/// The derivative of [`activate`] at `x`.
#[cube]
pub(crate) fn slope(x: f32, #[comptime] activation: Activation) -> f32 {
    if comptime!(activation == Activation::Relu) {
        select(x > 0.0f32, 1.0f32, 0.0f32)
    } else if comptime!(activation == Activation::Tanh) {
        let y = tanh(x);
        1.0f32 - y * y
    } else if comptime!(activation == Activation::Silu) {
        let s = sigmoid(x);
        s * (1.0f32 + x * (1.0f32 - s))
    } else {
        let y = tanh(gelu_inner(x));
        let inner_slope = 0.797_884_6f32 * (1.0f32 + 0.134_145f32 * x * x);
        0.5f32 * (1.0f32 + y) + 0.5f32 * x * (1.0f32 - y * y) * inner_slope
    }
}

/// Unit `j` of the first hidden layer.
#[cube]
fn first_unit(weights: &[f32], x: &Array<f32>, j: usize, #[comptime] shape: MlpShape) -> f32 {
    let mut sum = weights[comptime!(shape.first_bias()) + j];
    #[unroll]
    for i in 0..comptime!(shape.features) {
        sum += x[i] * weights[comptime!(i * shape.first) + j];
    }
    activate(sum, comptime!(shape.activation))
}

/// Adds what unit `j` of the last hidden layer, whose value is `h`, gives to the logits.
#[cube]
fn add_to_logits(
    weights: &[f32],
    logits: &mut Array<f32>,
    h: f32,
    j: usize,
    #[comptime] shape: MlpShape,
) {
    let row = comptime!(shape.last_weight()) + j * comptime!(shape.actions);
    #[unroll]
    for a in 0..comptime!(shape.actions) {
        logits[a] += h * weights[row + a];
    }
}

/// One unit's forward pass: `logits`, `[actions]`, of the features `x`, `[features]`.
///
/// `weights` is the parameter vector, in global or workgroup memory. With one hidden layer no
/// activation is stored: each unit's goes straight into the logits. With two, the first layer's
/// are kept in a local array, and the second's are computed four at a time where they divide so.
#[cube]
pub(crate) fn mlp_logits(
    weights: &[f32],
    x: &Array<f32>,
    logits: &mut Array<f32>,
    #[comptime] shape: MlpShape,
) {
    #[unroll]
    for a in 0..comptime!(shape.actions) {
        logits[a] = weights[comptime!(shape.last_bias() + a)];
    }
    if comptime!(shape.second == 0) {
        for j in 0..comptime!(shape.first) {
            let h = first_unit(weights, x, j, shape);
            add_to_logits(weights, logits, h, j, shape);
        }
    } else {
        let mut front = Array::<f32>::new(comptime!(shape.first));
        for j in 0..comptime!(shape.first) {
            front[j] = first_unit(weights, x, j, shape);
        }
        let block = comptime!(if shape.second.is_multiple_of(4) { 4usize } else { 1usize });
        let mut sums = Array::<f32>::new(block);
        for b in 0..comptime!(shape.second / block) {
            let k = b * block;
            #[unroll]
            for c in 0..block {
                sums[c] = weights[comptime!(shape.second_bias() + c) + k];
            }
            for j in 0..comptime!(shape.first) {
                let h = front[j];
                let row = comptime!(shape.second_weight()) + j * comptime!(shape.second) + k;
                #[unroll]
                for c in 0..block {
                    sums[c] += h * weights[row + c];
                }
            }
            #[unroll]
            for c in 0..block {
                let h = activate(sums[c], comptime!(shape.activation));
                add_to_logits(weights, logits, h, k + c, shape);
            }
        }
    }
}

/// The CubeCL tensor behind a Burn tensor, contiguous.
pub(crate) fn cube_tensor<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    contiguous(tensor.try_into_primitive::<Cube>())
}

/// The CubeCL tensor behind a Burn tensor of integers, contiguous.
pub(crate) fn cube_ints<const D: usize>(tensor: Tensor<D, Int>) -> CubeTensor {
    contiguous(tensor.try_into_primitive::<Cube>())
}

fn contiguous<E: std::fmt::Debug>(tensor: Result<CubeTensor, E>) -> CubeTensor {
    let tensor = tensor.unwrap_or_else(|e| panic!("the tensor is not on a CubeCL device: {e:?}"));
    burn_cubecl::kernel::into_contiguous(tensor)
}

/// A new buffer for `shape`, with nothing in it, where `like` is.
pub(crate) fn room(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    let shape = Shape::from(shape.to_vec());
    let handle = like.client.empty(shape.num_elements() * size_of::<u32>());
    CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), shape, handle, dtype)
}

/// The whole of a contiguous tensor's buffer, for a kernel.
pub(crate) fn argument(tensor: &CubeTensor) -> BufferArg {
    let len = tensor.meta.num_elements();
    // SAFETY: what `cube_tensor` and `CubeTensor::new_contiguous` give is contiguous and holds
    // `len` elements of 4 bytes.
    unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), len) }
}
