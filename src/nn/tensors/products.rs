//! Products of a decoder's tensors, in single or half precision.

use crate::nn::Precision;
use burn::nn::Linear;
use burn::tensor::{FloatDType, Tensor};

/// The precision of the operands of products. Results are in single precision, as are sums, norms and the weights of
/// attention.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Products {
    /// The type of the operands, if it is not f32.
    pub half: Option<FloatDType>,
}

impl Products {
    pub fn new(precision: Precision) -> Self {
        let half = match precision {
            Precision::F32 => None,
            Precision::F16 => Some(FloatDType::F16),
            Precision::Bf16 => Some(FloatDType::BF16),
        };
        Self { half }
    }

    /// The product `a b`.
    pub fn of<const D: usize>(self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        match self.half {
            None => a.matmul(b),
            Some(half) => single(a.cast(half).matmul(b.cast(half))),
        }
    }

    /// The linear layer `x w + b`.
    pub fn linear(self, linear: &Linear, x: Tensor<3>) -> Tensor<3> {
        if self.half.is_none() {
            return linear.forward(x);
        }
        let y = self.of(x, linear.weight.val().unsqueeze());
        match &linear.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    }
}

/// Casts to single precision.
pub(crate) fn single<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.cast(FloatDType::F32)
}
