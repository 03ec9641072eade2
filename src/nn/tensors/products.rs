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

    /// Whether a product is one of Grove's kernels: all those in single precision on devices that run kernels, and others
    /// if they are too narrow for matrix units.
    fn is_ours<const D: usize>(self, a: &Tensor<D>, b: &Tensor<D>) -> bool {
        let device = a.device();
        if !single::runs_kernels(&device) {
            return false;
        }
        let single = self.half.is_none() && !(self.may_round && single::has_tf32(&device));
        single || (single::is_narrow(a, b) && (self.half.is_none() || !has_autodiff(a, b)))
    }

    /// The product `a b`.
    pub fn of<const D: usize>(self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        let ours = self.is_ours(&a, &b);
        match self.half {
            None if ours => single::product(a, b),
            None => a.matmul(b),
            Some(_) if ours => single::linear(a, b, None, self.half),
            Some(half) => single(a.cast(half).matmul(b.cast(half))),
        }
    }

    /// The linear layer `x w + b`.
    pub fn linear<const D: usize>(self, linear: &Linear, x: Tensor<D>) -> Tensor<D> {
        if self.half.is_none() && !single::runs_kernels(&x.device()) {
            return linear.forward(x);
        }
        let weight = linear.weight.val().unsqueeze();
        let bias = linear.bias.as_ref().map(|bias| bias.val());
        if !has_autodiff(&x, &weight) && self.is_ours(&x, &weight) {
            return single::linear(x, weight, bias, self.half);
        }
        let y = self.of(x, weight);
        match bias {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        }
    }
}

/// Whether an operand is on a device with autodiff; data may be on the same device without.
fn has_autodiff<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> bool {
    a.device().is_autodiff() || b.device().is_autodiff()
}

/// Casts to single precision.
pub(crate) fn single<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.cast(FloatDType::F32)
}
