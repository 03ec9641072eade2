//! Products of tensors in single precision, in TF32 or in half precision.

use super::kernel_products;
use crate::nn::Precision;
use burn::backend::DType;
use burn::nn::Linear;
use burn::tensor::{FloatDType, Tensor};

/// The precision of the operands of products. Results are in single precision, as are sums, norms and the weights of
/// attention; but Burn's kernels, which multiply in half precision where a device has no matrix units of 16 x 16 x 16,
/// round the results of products with many tiles to it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProductPrecision {
    /// The type of the operands, if it is not f32.
    pub operand_dtype: Option<FloatDType>,
    /// Whether operands in f32 may be rounded to TF32.
    allows_tf32: bool,
}

impl ProductPrecision {
    pub fn new(precision: Precision) -> Self {
        let operand_dtype = match precision {
            Precision::F32 | Precision::Tf32 => None,
            Precision::F16 => Some(FloatDType::F16),
            Precision::Bf16 => Some(FloatDType::BF16),
        };
        Self { operand_dtype, allows_tf32: precision == Precision::Tf32 }
    }

    /// The type of the operands, and of keys and values.
    pub fn dtype(self) -> DType {
        self.operand_dtype.map_or(DType::F32, DType::from)
    }

    /// Whether Grove's kernels compute a product: in single precision on every device that runs kernels; in half
    /// precision if no autodiff is needed and the product is too narrow for Burn's kernels or runs on matrix units.
    fn uses_kernel<const D: usize>(self, a: &Tensor<D>, b: &Tensor<D>) -> bool {
        kernel_products::uses_kernel(a, b, self.operand_dtype, self.allows_tf32)
            && !(self.operand_dtype.is_some() && has_autodiff(a, b))
    }

    /// The product `a b`.
    pub fn matmul<const D: usize>(self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        let uses_kernel = self.uses_kernel(&a, &b);
        match self.operand_dtype {
            None if uses_kernel => kernel_products::matmul(a, b),
            None => a.matmul(b),
            Some(_) if uses_kernel => {
                let [product] = kernel_products::matmul_all(a, [b], None, self.operand_dtype, None);
                product
            }
            Some(dtype) => to_f32(a.cast(dtype).matmul(b.cast(dtype))),
        }
    }

    /// The products of one matrix with several, at most three: in one launch if Grove's kernels compute them without
    /// autodiff. If one launch makes all of them, it takes `into` and writes the products there, each at the next
    /// multiple of the alignment of buffers.
    pub fn matmul_all<const D: usize, const N: usize>(
        self,
        a: Tensor<D>,
        matrices: [Tensor<D>; N],
        into: &mut Option<Tensor<1>>,
    ) -> [Tensor<D>; N] {
        if matrices.iter().all(|matrix| self.can_share_launch(&a, matrix)) {
            return kernel_products::matmul_all(a, matrices, None, self.operand_dtype, into.take());
        }
        matrices.map(|matrix| self.matmul(a.clone(), matrix))
    }

    /// Applies a linear layer: `x w + b`.
    pub fn apply_linear<const D: usize>(self, linear: &Linear, x: Tensor<D>) -> Tensor<D> {
        let [y] = self.apply_linears([linear], x);
        y
    }

    /// Applies at most three linear layers to one input: in one launch of Grove's products where no autodiff is needed.
    pub fn apply_linears<const D: usize, const N: usize>(
        self,
        linears: [&Linear; N],
        x: Tensor<D>,
    ) -> [Tensor<D>; N] {
        if self.operand_dtype.is_none() && !kernel_products::has_kernels(&x.device()) {
            return linears.map(|linear| linear.forward(x.clone()));
        }
        let weights = linears.map(|linear| linear.weight.val().unsqueeze());
        let biases = linears.map(|linear| linear.bias.as_ref().map(|bias| bias.val()));
        let all_have_bias = biases.iter().all(Option::is_some);
        if all_have_bias && weights.iter().all(|weight| self.can_share_launch(&x, weight)) {
            let biases = biases.map(|bias| bias.expect("all have one"));
            return kernel_products::matmul_all(x, weights, Some(biases), self.operand_dtype, None);
        }
        let mut biases = biases.into_iter();
        self.matmul_all(x, weights, &mut None).map(|y| match biases.next().flatten() {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        })
    }

    /// Whether a product with a weight can be made in one launch with its bias, and with others.
    fn can_share_launch<const D: usize>(self, x: &Tensor<D>, weight: &Tensor<D>) -> bool {
        !has_autodiff(x, weight) && self.uses_kernel(x, weight)
    }

    /// Whether gradients leave the range of the operands unless they are scaled.
    pub(super) fn needs_scale(self) -> bool {
        matches!(self.operand_dtype, Some(FloatDType::F16))
    }

    /// Casts a tensor that only products read.
    pub(crate) fn cast_operand<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self.operand_dtype {
            None => x,
            Some(dtype) => x.cast(dtype),
        }
    }
}

/// Whether an operand is on a device with autodiff; data may be on the same device without.
fn has_autodiff<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> bool {
    a.device().is_autodiff() || b.device().is_autodiff()
}

/// Casts to single precision.
pub(crate) fn to_f32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.cast(FloatDType::F32)
}

/// The power of two that scales a gradient's `largest` element to about 1/16, within the range of f32; 1 if it is 0 or
/// not finite.
pub(super) fn gradient_scale(largest: f32) -> f32 {
    if largest == 0.0 || !largest.is_finite() {
        return 1.0;
    }
    (1.0 / (16.0 * largest)).log2().floor().clamp(-126.0, 126.0).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_scaled_by_finite_powers_of_two() {
        for (largest, scale) in [(0.0, 1.0), (f32::NAN, 1.0), (1.0, 0.0625), (3e-5, 2048.0)] {
            assert_eq!(gradient_scale(largest), scale, "{largest}");
        }
        for largest in [f32::MIN_POSITIVE, 1e-41, f32::from_bits(1), f32::MAX] {
            let scale = gradient_scale(largest);
            assert!(scale > 0.0 && scale.is_finite(), "{largest}: {scale}");
        }
    }
}
