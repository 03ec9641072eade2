//! The gate of a feed-forward block (Shazeer 2020): `activation(gate) * up`, number by number.

use crate::math::{sigmoid, tanh};
use crate::nn::ops::{Parallelism, by_rows};
use multiversion::multiversion;

/// The activation of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`: SwiGLU.
    #[default]
    Silu,
    /// The tanh approximation of GELU (Hendrycks & Gimpel 2016): GeGLU.
    GeluTanh,
}

/// `sqrt(2 / pi)`.
const ROOT: f32 = 0.797_884_6;
/// The coefficient of the cube in GELU's approximation.
const CUBE: f32 = 0.044_715;

/// Fills `inner` with `activation(gate) * up`.
pub fn forward(
    activation: Activation,
    parallelism: Parallelism,
    [gate, up]: [&[f32]; 2],
    inner: &mut [f32],
) {
    by_rows(
        parallelism,
        inner.len(),
        [gate, up],
        [inner],
        &|[gate, up], [inner]| match activation {
            Activation::Silu => swiglu(gate, up, inner),
            Activation::GeluTanh => geglu(gate, up, inner),
        },
    );
}

/// Turns `d`, the gradient of the result, into that of `gate`, and fills that of `up`.
pub fn backward(
    activation: Activation,
    parallelism: Parallelism,
    [gate, up]: [&[f32]; 2],
    [d, d_up]: [&mut [f32]; 2],
) {
    by_rows(
        parallelism,
        d.len(),
        [gate, up],
        [d, d_up],
        &|[gate, up], [d, d_up]| match activation {
            Activation::Silu => swiglu_backward(gate, up, d, d_up),
            Activation::GeluTanh => geglu_backward(gate, up, d, d_up),
        },
    );
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn swiglu(gate: &[f32], up: &[f32], inner: &mut [f32]) {
    for ((inner, gate), up) in inner.iter_mut().zip(gate).zip(up) {
        *inner = gate * sigmoid(*gate) * up;
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn swiglu_backward(gate: &[f32], up: &[f32], d: &mut [f32], d_up: &mut [f32]) {
    for (((gate, up), d), d_up) in gate.iter().zip(up).zip(d).zip(d_up) {
        let open = sigmoid(*gate);
        *d_up = *d * gate * open;
        *d *= up * open * (1.0 + gate * (1.0 - open));
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn geglu(gate: &[f32], up: &[f32], inner: &mut [f32]) {
    for ((inner, gate), up) in inner.iter_mut().zip(gate).zip(up) {
        let t = tanh(ROOT * (gate + CUBE * gate * gate * gate));
        *inner = 0.5 * gate * (1.0 + t) * up;
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn geglu_backward(gate: &[f32], up: &[f32], d: &mut [f32], d_up: &mut [f32]) {
    for (((gate, up), d), d_up) in gate.iter().zip(up).zip(d).zip(d_up) {
        let t = tanh(ROOT * (gate + CUBE * gate * gate * gate));
        *d_up = *d * 0.5 * gate * (1.0 + t);
        let slope = ROOT * (1.0 + 3.0 * CUBE * gate * gate);
        *d *= up * (0.5 * (1.0 + t) + 0.5 * gate * (1.0 - t * t) * slope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted};

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(5);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for count in [1, 7, 33] {
                let gate: Vec<f32> = draws.numbers(count).iter().map(|x| 3.0 * x).collect();
                let (up, dy) = (draws.numbers(count), draws.numbers(count));
                let loss = |gate: &[f32], up: &[f32]| {
                    let mut inner = vec![0.0; count];
                    forward(activation, Parallelism::Parallel, [gate, up], &mut inner);
                    weighted(&inner, &dy)
                };
                let (mut d_gate, mut d_up) = (dy.clone(), vec![0.0; count]);
                let to = [&mut d_gate[..], &mut d_up[..]];
                backward(activation, Parallelism::Parallel, [&gate, &up], to);
                assert_gradient("gate", &gate, &d_gate, |gate| loss(gate, &up));
                assert_gradient("up", &up, &d_up, |up| loss(&gate, up));
            }
        }
    }

    #[test]
    fn geglu_is_the_published_approximation() {
        // torch.nn.functional.gelu(x, approximate="tanh")
        for (x, want) in
            [(-3.0f32, -0.003_637_39), (-0.5, -0.154_286), (1.0, 0.841_192), (4.0, 3.999_93)]
        {
            let mut y = [0.0];
            forward(Activation::GeluTanh, Parallelism::Sequential, [&[x], &[1.0]], &mut y);
            assert!((y[0] - want).abs() < 2e-6, "{x}: {} instead of {want}", y[0]);
        }
    }
}
