//! The multi-layer perceptron as a built-in network.

use super::learn::MlpSequenceModel;
use super::{Mlp, NativeMlp};
use crate::math::Activation;
use crate::model::policy::HiddenShape;
use crate::model::{BuiltIn, ModelKind, Parameter, PolicyConfig, SequenceModelConstructor};
use crate::nn::cpu::PooledSequenceModel;

impl PolicyConfig {
    /// A multi-layer perceptron with these hidden layers.
    pub fn mlp(hidden: &[usize], activation: Activation) -> Self {
        Self::new(ModelKind::Mlp, hidden, activation)
    }
}

impl BuiltIn for Mlp {
    const NAME: &'static str = "mlp";

    type Shape = HiddenShape;

    type Native = NativeMlp;

    fn shape_from(num_features: usize, num_actions: usize, config: &PolicyConfig) -> HiddenShape {
        (config.widths(num_features, num_actions), config.activation)
    }

    fn to_shape(&self) -> HiddenShape {
        (self.widths(), self.activation())
    }

    fn parameters((widths, _): &HiddenShape) -> Vec<Parameter> {
        let layers = widths.windows(2).enumerate();
        let layer = |(i, pair): (usize, &[usize])| {
            Parameter::linear(&format!("layers.{i}"), pair[0], pair[1])
        };
        layers.flat_map(layer).collect()
    }

    fn new_native((widths, activation): HiddenShape, params: &[f32]) -> NativeMlp {
        NativeMlp::from_params(&widths, activation, params)
    }

    fn sequence_model_constructor(&self) -> Option<SequenceModelConstructor<'_>> {
        Some(Box::new(|params, arithmetic, _| {
            let (widths, activation) = self.to_shape();
            let model = MlpSequenceModel::new(&widths, activation, params, arithmetic);
            Box::new(PooledSequenceModel::new(model))
        }))
    }
}
