//! The gated recurrent network as a built-in network.

use super::learn::GruSequenceModel;
use super::{Gru, NativeGru};
use crate::math::Activation;
use crate::model::policy::HiddenShape;
use crate::model::{BuiltIn, ModelKind, Parameter, PolicyConfig, SequenceModelConstructor};
use crate::nn::cpu::PooledSequenceModel;

impl PolicyConfig {
    /// A gated recurrent network with these hidden layers, the last one recurrent.
    pub fn gru(hidden: &[usize], activation: Activation) -> Self {
        Self::new(ModelKind::Gru, hidden, activation)
    }
}

impl BuiltIn for Gru {
    const NAME: &'static str = "gru";

    type Shape = HiddenShape;

    type Native = NativeGru;

    fn shape_from(num_features: usize, num_actions: usize, config: &PolicyConfig) -> HiddenShape {
        (config.widths(num_features, num_actions), config.activation)
    }

    fn to_shape(&self) -> HiddenShape {
        (self.widths(), self.activation())
    }

    fn parameters((widths, _): &HiddenShape) -> Vec<Parameter> {
        let [.., inputs, size, actions] = widths[..] else {
            panic!("widths: of a hidden layer or more")
        };
        let layers = widths[..widths.len() - 2].windows(2).enumerate();
        let encoder = layers
            .flat_map(|(i, pair)| Parameter::linear(&format!("encoder.{i}"), pair[0], pair[1]));
        let rest = [
            Parameter::linear("input_gates", inputs, 3 * size),
            Parameter::linear("memory_gates", size, 3 * size),
            Parameter::linear("head", size, actions),
        ];
        encoder.chain(rest.into_iter().flatten()).collect()
    }

    fn new_native((widths, activation): HiddenShape, params: &[f32]) -> NativeGru {
        NativeGru::from_params(&widths, activation, params)
    }

    fn sequence_model_constructor(&self) -> Option<SequenceModelConstructor<'_>> {
        Some(Box::new(|params, arithmetic, _| {
            let (widths, activation) = self.to_shape();
            let model = GruSequenceModel::new(&widths, activation, params, arithmetic);
            Box::new(PooledSequenceModel::new(model))
        }))
    }
}
