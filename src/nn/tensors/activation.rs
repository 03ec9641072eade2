//! Activation functions of tensors.

use crate::math::Activation;
use burn::tensor::{Tensor, activation};

/// Applies an activation function to each element.
pub(crate) fn activate<const D: usize>(x: Tensor<D>, function: Activation) -> Tensor<D> {
    match function {
        Activation::Relu => activation::relu(x),
        Activation::Tanh => tanh(x),
        Activation::Silu => activation::silu(x),
        Activation::Gelu => {
            // sqrt(2 / pi)
            let inner = (x.clone() + x.clone() * x.clone() * x.clone() * 0.044_715) * 0.797_884_6;
            x * 0.5 * (tanh(inner) + 1.0)
        }
    }
}

/// The hyperbolic tangent. Arguments are clamped, since some graphics drivers give NaN for large ones; in f32 the
/// result is +-1 there anyway.
pub(crate) fn tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    activation::tanh(x.clamp(-15.0, 15.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn large_numbers_have_finite_activations() {
        let x = Tensor::<1>::from_floats([-1e4, -20.0, 0.0, 20.0, 1e4], &Device::flex());
        for function in Activation::ALL {
            let y = activate(x.clone(), *function).into_data();
            assert!(y.iter::<f32>().all(f32::is_finite), "{function:?}");
        }
    }
}
