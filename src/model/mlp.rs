//! The multi-layer perceptron.

use super::Policy;
use super::saved::mlp_widths;
use crate::config::{Activation, PolicyConfig};
use crate::rng::{draw, uniform};
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, TensorData, activation};

/// One or two hidden layers from features to action logits.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
    #[module(skip)]
    activation: Activation,
}

impl Mlp {
    /// A network with fresh weights on `device`, the same for the same `key`.
    ///
    /// Weights are orthogonal (Saxe et al. 2014) with gain sqrt(2) in the hidden layers and 0.01 in
    /// the last, so that the first policy is close to uniform (Andrychowicz et al. 2021, "What
    /// matters in on-policy reinforcement learning"). Biases are 0.
    pub fn new(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self {
        let sizes = mlp_widths(num_features, num_actions, config);
        let last = sizes.len() - 2;
        let layers = sizes
            .windows(2)
            .enumerate()
            .map(|(i, size)| {
                let (inputs, outputs) = (size[0], size[1]);
                let gain = if i == last { 0.01 } else { std::f64::consts::SQRT_2 };
                let weight = orthogonal(inputs, outputs, gain, draw(key, i as u32));
                Linear {
                    weight: Param::from_data(TensorData::new(weight, [inputs, outputs]), device),
                    bias: Some(Param::from_data(
                        TensorData::new(vec![0.0f32; outputs], [outputs]),
                        device,
                    )),
                }
            })
            .collect();
        Self { layers, activation: config.activation }
    }

    /// The layers, from input to output.
    pub fn layers(&self) -> &[Linear] {
        &self.layers
    }

    /// What follows each hidden layer.
    pub fn activation(&self) -> Activation {
        self.activation
    }
}

impl Policy for Mlp {
    fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
        let last = self.layers.len() - 1;
        let mut x = obs;
        for layer in &self.layers[..last] {
            x = layer.forward(x);
            x = match self.activation {
                Activation::Relu => activation::relu(x),
                Activation::Tanh => tanh(x),
                Activation::Silu => activation::silu(x),
                Activation::Gelu => {
                    // sqrt(2 / pi)
                    let inner = (x.clone().powi_scalar(3) * 0.044_715 + x.clone()) * 0.797_884_6;
                    x * 0.5 * (tanh(inner) + 1.0)
                }
            };
        }
        self.layers[last].forward(x)
    }
}

/// The hyperbolic tangent. Some graphics drivers give NaN for large arguments, where it is +-1 to f32
/// rounding anyway.
fn tanh(x: Tensor<2>) -> Tensor<2> {
    activation::tanh(x.clamp(-15.0, 15.0))
}

/// A `[inputs, outputs]` matrix, row-major, whose rows or columns (the fewer) are orthogonal with
/// norm `gain`: normal draws made orthogonal by the modified Gram-Schmidt process.
fn orthogonal(inputs: usize, outputs: usize, gain: f64, key: u32) -> Vec<f32> {
    let (count, len) = (inputs.min(outputs), inputs.max(outputs));
    let mut counter = 0;
    let mut normal = || {
        // Box-Muller; 1 - u keeps the logarithm finite.
        let u1 = 1.0 - f64::from(uniform(draw(key, counter)));
        let u2 = f64::from(uniform(draw(key, counter + 1)));
        counter += 2;
        (-2.0 * u1.ln()).sqrt() * (std::f64::consts::TAU * u2).cos()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut v: Vec<f64> = (0..len).map(|_| normal()).collect();
        // Twice is enough for orthogonality to working precision (Kahan; Parlett 1980).
        for _ in 0..2 {
            for u in &vectors {
                let projection = dot(&v, u);
                v.iter_mut().zip(u).for_each(|(x, y)| *x -= projection * y);
            }
        }
        let norm = dot(&v, &v).sqrt();
        if norm > 1e-6 {
            vectors.push(v.into_iter().map(|x| x / norm).collect());
        }
    }
    (0..inputs * outputs)
        .map(|i| {
            let (row, column) = (i / outputs, i % outputs);
            let x = if inputs <= outputs { vectors[row][column] } else { vectors[column][row] };
            (gain * x) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_orthogonal_for_every_shape() {
        for (inputs, outputs) in [(5, 64), (64, 3), (17, 17), (1, 4), (128, 64)] {
            let gain = 1.7;
            let w = orthogonal(inputs, outputs, gain, 42);
            let at = |i: usize, j: usize| f64::from(w[i * outputs + j]);
            let small = inputs.min(outputs);
            for a in 0..small {
                for b in 0..small {
                    let dot: f64 = if inputs <= outputs {
                        (0..outputs).map(|j| at(a, j) * at(b, j)).sum()
                    } else {
                        (0..inputs).map(|i| at(i, a) * at(i, b)).sum()
                    };
                    let expected = if a == b { gain * gain } else { 0.0 };
                    assert!((dot - expected).abs() < 1e-5, "{inputs}x{outputs} {a} {b}: {dot}");
                }
            }
        }
    }
}
