//! The decoder as a built-in network.

use super::{Decoder, DecoderConfig, NativeDecoder};
use crate::math::Activation;
use crate::model::{
    BuiltIn, KindSettings, ModelKind, Parameter, PolicyConfig, SequenceModelConstructor,
};
use crate::nn::DecoderShape;
use crate::nn::cpu::{DecoderSequenceModel, PooledSequenceModel};

impl PolicyConfig {
    /// A transformer of these sizes.
    pub fn decoder(sizes: DecoderConfig) -> Self {
        let kind_settings = KindSettings { decoder: sizes };
        Self { kind_settings, ..Self::new(ModelKind::Decoder, &[64, 64], Activation::Relu) }
    }
}

impl BuiltIn for Decoder {
    const NAME: &'static str = "decoder";

    type Shape = DecoderShape;

    type Native = NativeDecoder;

    fn shape_from(num_features: usize, num_actions: usize, config: &PolicyConfig) -> DecoderShape {
        DecoderShape::new(num_features, num_actions, config)
    }

    fn to_shape(&self) -> DecoderShape {
        self.shape().clone()
    }

    fn parameters(shape: &DecoderShape) -> Vec<Parameter> {
        shape.parameters()
    }

    fn new_native(shape: DecoderShape, params: &[f32]) -> NativeDecoder {
        NativeDecoder::from_params(shape, params)
    }

    fn sequence_model_constructor(&self) -> Option<SequenceModelConstructor<'_>> {
        Some(Box::new(|params, arithmetic, retention| {
            let model = DecoderSequenceModel::new(self.shape(), params, arithmetic, retention);
            Box::new(PooledSequenceModel::new(model))
        }))
    }

    fn describe_sizes(config: &PolicyConfig) -> String {
        config.kind_settings.decoder.describe_sizes()
    }
}
