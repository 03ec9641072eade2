//! Decoders over tokens whose texts go through a device.

use super::TokenDecoder;
use crate::nn::Precision;
use crate::nn::tensors::texts::{DeviceCopy, DeviceDecoder};
use burn::tensor::Device;

impl TokenDecoder {
    /// The same decoder, but generating and learning on a device, with products in this precision; on the CPU if there
    /// is none, in single precision.
    pub fn with_device(self, device: Option<Device>, precision: Precision) -> Self {
        Self { device: DeviceCopy::new(device, precision), ..self }
    }

    /// The decoder in the tensors of its device, if it has one ([`TokenDecoder::with_device`]), uploaded again after the
    /// weights have changed.
    pub fn on_device(&self) -> Option<DeviceDecoder> {
        let decoder = self.device.get(self.shape(), self.params())?;
        Some(decoder.with_adapters(self.adapters()))
    }
}
