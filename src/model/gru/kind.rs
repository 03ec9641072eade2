//! The gated recurrent network as a built-in network.

use super::learn::GruSequenceModel;
use super::{Gru, NativeGru};
use crate::math::Activation;
use crate::model::{BuiltIn, ModelKind, Parameter, PolicyConfig, SequenceModelConstructor};
use crate::nn::rows::PooledSequenceModel;

impl PolicyConfig {
    /// A gated recurrent network with these hidden layers, the last one recurrent.
    pub fn gru(hidden: &[usize], activation: Activation) -> Self {
        Self::new(ModelKind::Gru, hidden, activation)
    }
}

impl BuiltIn for Gru {
    const NAME: &'static str = "gru";

    type Native = NativeGru;

    fn parameters(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
    ) -> Vec<Parameter> {
        let widths = config.widths(num_features, num_actions);
        let num_encoder_layers = widths.len() - 3;
        let [inputs, size] = [widths[num_encoder_layers], widths[num_encoder_layers + 1]];
        let layers = widths.windows(2).take(num_encoder_layers).enumerate();
        let encoder = layers
            .flat_map(|(i, pair)| Parameter::linear(&format!("encoder.{i}"), pair[0], pair[1]));
        let rest = [
            Parameter::linear("input_gates", inputs, 3 * size),
            Parameter::linear("memory_gates", size, 3 * size),
            Parameter::linear("head", size, num_actions),
        ];
        encoder.chain(rest.into_iter().flatten()).collect()
    }

    fn new_native(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        params: &[f32],
    ) -> NativeGru {
        let widths = config.widths(num_features, num_actions);
        NativeGru::from_params(&widths, config.activation, params)
    }

    fn to_native(&self, params: &[f32]) -> NativeGru {
        NativeGru::from_params(&self.widths(), self.activation(), params)
    }

    fn sequence_model_constructor(&self) -> Option<SequenceModelConstructor<'_>> {
        Some(Box::new(|params, arithmetic, _| {
            let (widths, activation) = (self.widths(), self.activation());
            let model = GruSequenceModel::new(&widths, activation, params, arithmetic);
            Box::new(PooledSequenceModel::new(model))
        }))
    }
}
