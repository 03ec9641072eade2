//! Decoders over tokens that run on a device.

use super::TokenDecoder;
use crate::nn::tensors::device_copy::DeviceCopy;
use crate::nn::tensors::texts::DeviceDecoder;
use crate::nn::{DecoderParams, Precision};
use burn::tensor::{Device, Tensor};

impl TokenDecoder {
    /// Moves generation and learning to `device`, with products in `precision`; without a device back to the CPU, in
    /// f32.
    pub fn with_device(mut self, device: Option<Device>, precision: Precision) -> Self {
        self.sync_from_device();
        Self { device: DeviceCopy::new(device, precision), ..self }
    }

    /// The decoder in the tensors of its device, if it has one ([`TokenDecoder::with_device`]), uploaded again after
    /// the host has changed the weights.
    pub fn on_device(&self) -> Option<DeviceDecoder> {
        let weights = &self.weights;
        self.device.get(&weights.shape, &weights.params, weights.adapters.as_ref())
    }

    /// Bytes of weights that the next [`TokenDecoder::on_device`] uploads.
    pub fn bytes_to_upload(&self) -> usize {
        self.device.missing_bytes(self.weights.shape.num_params(), self.weights.adapters.as_ref())
    }

    /// Replaces each arena of the trainable parameters on the device, `[len]`, with the result of `change` for its
    /// index and the arena. The host frees its copy and downloads the result when needed ([`TokenDecoder::trainable`]).
    ///
    /// # Panics
    /// If the decoder is on the CPU.
    pub fn change_on_device(&mut self, change: impl FnMut(usize, Tensor<1>) -> Tensor<1>) {
        let present = self.on_device().expect("a decoder on a device");
        self.device.change(present, |present| present.map_trainable(change));
        if self.weights.adapters.is_none() {
            self.weights.params = DecoderParams::default();
            self.weights.drop_packed();
        }
    }
}
