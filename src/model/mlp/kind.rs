//! The multi-layer perceptron as a built-in network.

use super::learn::MlpSequenceModel;
use super::{Mlp, NativeMlp};
use crate::math::Activation;
use crate::model::{BuiltIn, ModelKind, NewSequenceModel, Parameter, PolicyConfig};
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
        let layer = |(i, size): (usize, &[usize])| {
            Parameter::linear(&format!("layers.{i}"), size[0], size[1])
        };
        layers.flat_map(layer).collect()
    }

    fn native(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        params: &[f32],
    ) -> NativeMlp {
        let widths = config.widths(num_features, num_actions);
        NativeMlp::from_params(&widths, config.activation, params)
    }

    fn native_with(&self, params: &[f32]) -> NativeMlp {
        NativeMlp::from_params(&self.widths(), self.activation(), params)
    }

    fn new_sequence_model(&self) -> Option<NewSequenceModel<'_>> {
        Some(Box::new(|params, arithmetic, _| {
            let (widths, activation) = (self.widths(), self.activation());
            let model = MlpSequenceModel::new(&widths, activation, params, arithmetic);
            Box::new(PooledSequenceModel::new(model))
        }))
    }
}
