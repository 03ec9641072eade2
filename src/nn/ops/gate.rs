//! The gate of a feed-forward block (Shazeer 2020): `activation(gate) * up`, element by element.

use crate::math::Activation;
use crate::math::activation::{activate, for_activation, value_and_derivative};
use crate::nn::ops::{Parallelism, for_rows};
use multiversion::multiversion;

/// Fills `inner` with `activation(gate) * up`.
pub fn forward(
    activation: Activation,
    parallelism: Parallelism,
    [gate, up]: [&[f32]; 2],
    inner: &mut [f32],
) {
    let rows = inner.len();
    for_rows(parallelism, rows, [gate, up], [inner], &|[gate, up], [inner]| {
        apply_gate(activation, gate, up, inner);
    });
}

/// Replaces `d`, the gradient of the result, by the gradient of `gate`, and fills the gradient of `up`.
pub fn backward(
    activation: Activation,
    parallelism: Parallelism,
    [gate, up]: [&[f32]; 2],
    [d, d_up]: [&mut [f32]; 2],
) {
    let rows = d.len();
    for_rows(parallelism, rows, [gate, up], [d, d_up], &|[gate, up], [d, d_up]| {
        apply_gate_backward(activation, gate, up, d, d_up);
    });
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn apply_gate(activation: Activation, gate: &[f32], up: &[f32], inner: &mut [f32]) {
    for_activation!(activation, KNOWN => {
        for ((inner, gate), up) in inner.iter_mut().zip(gate).zip(up) {
            *inner = activate(*gate, KNOWN) * up;
        }
    });
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn apply_gate_backward(
    activation: Activation,
    gate: &[f32],
    up: &[f32],
    d: &mut [f32],
    d_up: &mut [f32],
) {
    for_activation!(activation, KNOWN => {
        for (((gate, up), d), d_up) in gate.iter().zip(up).zip(d).zip(d_up) {
            let activated = value_and_derivative(*gate, KNOWN);
            *d_up = *d * activated.value;
            *d *= up * activated.derivative;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted_sum};

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(5);
        for activation in [Activation::Silu, Activation::Gelu] {
            for count in [1, 7, 33] {
                let gate: Vec<f32> = draws.next_numbers(count).iter().map(|x| 3.0 * x).collect();
                let (up, dy) = (draws.next_numbers(count), draws.next_numbers(count));
                let loss = |gate: &[f32], up: &[f32]| {
                    let mut inner = vec![0.0; count];
                    forward(activation, Parallelism::Parallel, [gate, up], &mut inner);
                    weighted_sum(&inner, &dy)
                };
                let (mut d_gate, mut d_up) = (dy.clone(), vec![0.0; count]);
                let grads = [&mut d_gate[..], &mut d_up[..]];
                backward(activation, Parallelism::Parallel, [&gate, &up], grads);
                assert_gradient("gate", &gate, &d_gate, |gate| loss(gate, &up));
                assert_gradient("up", &up, &d_up, |up| loss(&gate, up));
            }
        }
    }
}
