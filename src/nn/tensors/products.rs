//! Products of tensors in single precision, in TF32 or in half precision.

use super::single;
use crate::nn::Precision;
use burn::nn::Linear;
use burn::tensor::{FloatDType, Tensor};

/// The precision of the operands of products. Results are in single precision, as are sums, norms and the weights of
/// attention.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Products {
    /// The type of the operands, if it is not f32.
    pub half: Option<FloatDType>,
    /// Whether operands in f32 may be rounded to TF32.
    may_round: bool,
}

impl Products {
    pub fn new(precision: Precision) -> Self {
        let half = match precision {
            Precision::F32 | Precision::Tf32 => None,
            Precision::F16 => Some(FloatDType::F16),
            Precision::Bf16 => Some(FloatDType::BF16),
        };
        Self { half, may_round: precision == Precision::Tf32 }
    }

    /// Whether the device's own products of these operands `x` round as they should.
    fn are_the_devices<const D: usize>(self, x: &Tensor<D>) -> bool {
        self.may_round || !single::has_tf32(&x.device())
    }

    /// The product `a b`.
    pub fn of<const D: usize>(self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        match self.half {
            None if self.are_the_devices(&a) => a.matmul(b),
            None => single::product(a, b),
            Some(half) => single(a.cast(half).matmul(b.cast(half))),
        }
    }

    /// The linear layer `x w + b`.
    pub fn linear<const D: usize>(self, linear: &Linear, x: Tensor<D>) -> Tensor<D> {
        if self.half.is_none() && self.are_the_devices(&x) {
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
