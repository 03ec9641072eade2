//! The decoder as a model: its shape by settings, initial weights, and steps with a memory.

use crate::model::{Model, PolicyConfig, Precision};
use crate::nn::tensors::Decoder;
use crate::nn::{DecoderInput, DecoderShape};
use burn::tensor::{Device, Int, Tensor};

impl DecoderShape {
    /// The shape of a decoder with these settings.
    pub fn new(num_features: usize, num_actions: usize, config: &PolicyConfig) -> Self {
        let input = DecoderInput::Observations { num_features };
        let base = Self { input, num_outputs: num_actions, ..Self::default() };
        config.kind_settings.decoder.to_shape(base)
    }
}

impl Decoder {
    /// A decoder with fresh weights on `device`, the same for the same `key`.
    pub fn new(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self {
        Self::from_shape(DecoderShape::new(num_features, num_actions, config), key, device)
    }

    /// A decoder of this shape with fresh weights ([`DecoderShape::orthogonal_weights`]).
    pub fn from_shape(shape: DecoderShape, key: u32, device: &Device) -> Self {
        let params = shape.orthogonal_weights(key);
        Self::from_params(shape, &params, device)
    }
}

impl Model for Decoder {
    /// `[batch, memory_size]`, as [`DecoderShape::memory_size`] describes it.
    type Memory = Tensor<2>;

    fn initial_memory(&self, batch: usize, device: &Device) -> Tensor<2> {
        Tensor::zeros([batch, self.shape().memory_size()], device)
    }

    fn step(&self, obs: Tensor<2>, memory: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let ([batch, features], device) = (obs.dims(), obs.device());
        let (context, kv) = (self.shape().context, self.shape().kv_size());
        let starts = Tensor::zeros([batch, 1], &device);
        let (logits, caches) = self.forward(obs.reshape([batch, 1, features]), starts, &memory);
        let count = memory.clone().narrow(1, 0, 1);
        let row = count.clone().int().remainder_scalar(context as i32).expand([batch, context]);
        let rows = Tensor::<1, Int>::arange(0..context as i64, &device);
        let here = row.equal(rows.reshape([1, context]).expand([batch, context])).float();
        let here = here.reshape([batch, context, 1]);
        let elsewhere = -here.clone() + 1.0;
        let mut parts = vec![count + 1.0];
        for (i, new) in caches.into_iter().enumerate() {
            for (new, old) in new.into_iter().zip(self.cached_keys_values(&memory, i)) {
                let old = old.reshape([batch, context, kv]) * elsewhere.clone();
                let rows = old + new.reshape([batch, 1, kv]) * here.clone();
                parts.push(rows.reshape([batch, context * kv]));
            }
        }
        (logits.squeeze_dim::<2>(1), Tensor::cat(parts, 1))
    }

    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Tensor<2>) -> Tensor<3> {
        let (logits, _) = self.forward(obs.swap_dims(0, 1), starts.transpose(), &memory);
        logits.swap_dims(0, 1)
    }

    fn with_precision(&self, precision: Precision) -> Option<Self> {
        Some(self.in_precision(precision))
    }
}
