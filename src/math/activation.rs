//! Activation functions and their derivatives.

use super::{at_least, sigmoid, tanh};
use crate::schema::names;
use burn::cubecl;
use burn::cubecl::prelude::*;
use multiversion::multiversion;

names! {
    /// An activation function.
    pub enum Activation {
        /// `max(x, 0)`.
        Relu = "relu",
        /// The hyperbolic tangent.
        Tanh = "tanh",
        /// `x * sigmoid(x)` (Elfwing et al. 2018).
        Silu = "silu",
        /// `x * Phi(x)` in its tanh form (Hendrycks & Gimpel 2016).
        Gelu = "gelu",
    }
}

impl Activation {
    /// Whether the derivative is a function of the value, so that a backward pass need not keep the input.
    pub fn has_derivative_from_value(self) -> bool {
        match self {
            Self::Relu | Self::Tanh => true,
            Self::Silu | Self::Gelu => false,
        }
    }
}

/// Value and derivative of an activation function at a point.
#[derive(CubeType, Clone, Copy, Debug, PartialEq)]
pub struct ActivationValue {
    /// Function value.
    pub value: f32,
    /// Derivative at the input.
    pub derivative: f32,
}

/// Evaluates `$body` with the activation as a constant, so that the compiler specializes its loops.
macro_rules! for_activation {
    (@ $activation:expr, $known:ident => $body:expr; $($Kind:ident)+) => {
        match $activation {
            $(Activation::$Kind => {
                const $known: Activation = Activation::$Kind;
                $body
            })+
        }
    };
    ($activation:expr, $known:ident => $body:expr) => {
        for_activation!(@ $activation, $known => $body; Relu Tanh Silu Gelu)
    };
}
pub(crate) use for_activation;

#[cube]
#[inline(always)]
fn relu(x: f32) -> ActivationValue {
    ActivationValue { value: at_least(0.0f32, x), derivative: select(x > 0.0f32, 1.0f32, 0.0f32) }
}

#[cube]
#[inline(always)]
fn tanh_with_derivative(x: f32) -> ActivationValue {
    let y = tanh(x);
    ActivationValue { value: y, derivative: 1.0f32 - y * y }
}

/// With `s = sigmoid(x)`: `(x s)' = s + x s (1 - s)`.
#[cube]
#[inline(always)]
fn silu(x: f32) -> ActivationValue {
    let s = sigmoid(x);
    ActivationValue { value: x * s, derivative: s + x * s * (1.0f32 - s) }
}

/// With `t = tanh(u(x))`, `u(x) = sqrt(2 / pi) (x + 0.044715 x^3)`:
/// `(x (1 + t) / 2)' = (1 + t) / 2 + x (1 - t^2) u'(x) / 2`.
#[cube]
#[inline(always)]
fn gelu(x: f32) -> ActivationValue {
    let square = x * x;
    let t = tanh(0.797_884_6f32 * (x + 0.044_715f32 * square * x));
    let u_derivative = 0.797_884_6f32 * (1.0f32 + 0.134_145f32 * square);
    ActivationValue {
        value: x * (0.5f32 * (1.0f32 + t)),
        derivative: 0.5f32 * (1.0f32 + t) + 0.5f32 * x * (1.0f32 - t * t) * u_derivative,
    }
}

/// Evaluates an activation function and its derivative at `x`.
#[cube]
#[inline(always)]
pub fn value_and_derivative(x: f32, #[comptime] activation: Activation) -> ActivationValue {
    match comptime!(activation) {
        Activation::Relu => relu(x),
        Activation::Tanh => tanh_with_derivative(x),
        Activation::Silu => silu(x),
        Activation::Gelu => gelu(x),
    }
}

/// Evaluates an activation function at `x`.
#[cube]
#[inline(always)]
pub fn activate(x: f32, #[comptime] activation: Activation) -> f32 {
    value_and_derivative(x, activation).value
}

/// Evaluates the derivative of [`activate()`] from its value `y`, for activations with
/// [`Activation::has_derivative_from_value`].
#[cube]
#[inline(always)]
pub fn derivative_from_value(y: f32, #[comptime] activation: Activation) -> f32 {
    match comptime!(activation) {
        Activation::Relu => select(y > 0.0f32, 1.0f32, 0.0f32),
        Activation::Tanh => 1.0f32 - y * y,
        Activation::Silu | Activation::Gelu => {
            unreachable!("the value does not determine the derivative")
        }
    }
}

/// Applies the activation to `values` in place and stores its derivatives in `derivatives`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub(crate) fn activate_with_derivatives(
    activation: Activation,
    values: &mut [f32],
    derivatives: &mut [f32],
) {
    for_activation!(activation, KNOWN => {
        for (x, derivative) in values.iter_mut().zip(derivatives) {
            let at = value_and_derivative(*x, KNOWN);
            (*x, *derivative) = (at.value, at.derivative);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    fn exact(x: f64, activation: Activation) -> f64 {
        match activation {
            Activation::Relu => x.max(0.0),
            Activation::Tanh => x.tanh(),
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }

    #[test]
    fn values_and_derivatives_are_those_of_double_precision() {
        for &activation in Activation::ALL {
            for i in -1000..1000 {
                let x = i as f32 * 0.013 + 0.001;
                let at = f64::from(x);
                let got = value_and_derivative(x, activation);
                let h = 1e-5;
                let rise = (exact(at + h, activation) - exact(at - h, activation)) / (2.0 * h);
                let off = (f64::from(got.value) - exact(at, activation)).abs();
                assert!(off < 1e-6 * (1.0 + at.abs()), "{activation:?}({x})");
                assert!((f64::from(got.derivative) - rise).abs() < 3e-6, "{activation:?}'({x})");
                if activation.has_derivative_from_value() {
                    let from_value = derivative_from_value(got.value, activation);
                    assert_eq!(from_value, got.derivative, "{activation:?}'({x})");
                }
            }
            let from_value = catch_unwind(|| derivative_from_value(0.5, activation));
            assert_eq!(from_value.is_ok(), activation.has_derivative_from_value());
        }
    }
}
