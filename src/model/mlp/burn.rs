//! The multi-layer perceptron.

use crate::math::Activation;
use crate::model::{Memoryless, PolicyConfig};
use crate::nn::orthogonal::orthogonal_linear;
use crate::nn::tensors::activation::activate;
use crate::nn::tensors::products::ProductPrecision;
use crate::rng::draw;
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

/// The gain of hidden layers' initial weights.
pub(in crate::model) const HIDDEN_GAIN: f64 = std::f64::consts::SQRT_2;
/// The gain of the head's initial weights: small, so that the first policy is close to uniform.
pub(in crate::model) const HEAD_GAIN: f64 = 0.01;

/// Hidden layers from features to action logits.
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
        let widths = config.widths(num_features, num_actions);
        let last = widths.len() - 2;
        let layers = widths
            .windows(2)
            .enumerate()
            .map(|(i, pair)| {
                let gain = if i == last { HEAD_GAIN } else { HIDDEN_GAIN };
                orthogonal_linear(pair[0], pair[1], gain, draw(key, i as u32), device)
            })
            .collect();
        Self { layers, activation: config.activation }
    }

    /// The layers, from input to output.
    pub fn layers(&self) -> &[Linear] {
        &self.layers
    }

    /// Features, neurons of the hidden layers and actions.
    pub fn widths(&self) -> Vec<usize> {
        let outputs = self.layers.iter().map(|layer| layer.weight.dims()[1]);
        std::iter::once(self.layers[0].weight.dims()[0]).chain(outputs).collect()
    }

    /// The activation of the hidden layers.
    pub fn activation(&self) -> Activation {
        self.activation
    }
}

impl Memoryless for Mlp {
    fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
        let (last, layers) = self.layers.split_last().expect("a layer");
        ProductPrecision::default().apply_linear(last, forward_hidden(layers, self.activation, obs))
    }
}

/// Forward pass through a stack of layers, with an activation after each.
pub(in crate::model) fn forward_hidden(
    layers: &[Linear],
    activation: Activation,
    obs: Tensor<2>,
) -> Tensor<2> {
    let apply = |x, layer| activate(ProductPrecision::default().apply_linear(layer, x), activation);
    layers.iter().fold(obs, apply)
}
