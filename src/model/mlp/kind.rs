//! The multi-layer perceptron as a built-in network.

use super::learn::MlpSequenceModel;
use super::{Mlp, NativeMlp};
use crate::math::Activation;
use crate::model::{BuiltIn, ModelKind, Parameter, PolicyConfig, SequenceModelConstructor};
use crate::nn::rows::PooledSequenceModel;

impl PolicyConfig {
    /// A multi-layer perceptron with these hidden layers.
    pub fn mlp(hidden: &[usize], activation: Activation) -> Self {
        Self::new(ModelKind::Mlp, hidden, activation)
    }
}

impl BuiltIn for Mlp {
    const NAME: &'static str = "mlp";

    type Native = NativeMlp;

    fn parameters(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
    ) -> Vec<Parameter> {
        let widths = config.widths(num_features, num_actions);
        let layers = widths.windows(2).enumerate();
        let layer = |(i, pair): (usize, &[usize])| {
            Parameter::linear(&format!("layers.{i}"), pair[0], pair[1])
        };
        layers.flat_map(layer).collect()
    }

    fn new_native(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        params: &[f32],
    ) -> NativeMlp {
        let widths = config.widths(num_features, num_actions);
        NativeMlp::from_params(&widths, config.activation, params)
    }

    fn to_native(&self, params: &[f32]) -> NativeMlp {
        NativeMlp::from_params(&self.widths(), self.activation(), params)
    }

    fn sequence_model_constructor(&self) -> Option<SequenceModelConstructor<'_>> {
        Some(Box::new(|params, arithmetic, _| {
            let (widths, activation) = (self.widths(), self.activation());
            let model = MlpSequenceModel::new(&widths, activation, params, arithmetic);
            Box::new(PooledSequenceModel::new(model))
        }))
    }
}
