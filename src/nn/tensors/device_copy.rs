//! The copy of a decoder's weights on its device, kept in sync with the host's: each is transferred when the other
//! needs it.

use super::texts::{DeviceAdapters, DeviceDecoder};
use crate::nn::arch::{Adapters, DecoderShape};
use crate::nn::parameters::to_vec;
use crate::nn::{DecoderParams, Precision};
use burn::tensor::Device;
use std::sync::{Arc, OnceLock};

/// The device of a decoder over tokens, if it is not on the CPU, and the copy of its weights there.
#[derive(Clone, Debug, Default)]
pub struct DeviceCopy {
    /// The device, and the precision of its products.
    device: Option<(Device, Precision)>,
    /// The weights without adapters, uploaded when first needed.
    weights: Arc<OnceLock<DeviceDecoder>>,
    /// The adapters, uploaded when first needed.
    adapters: Arc<OnceLock<DeviceAdapters>>,
    /// The trainable parameters, if the device has changed them after the host; downloaded when first needed.
    newer: Option<NewerParameters>,
}

/// Trainable parameters that a device has changed, downloaded when first needed.
#[derive(Clone, Debug)]
enum NewerParameters {
    Weights(OnceLock<DecoderParams>),
    Adapters(OnceLock<Adapters>),
}

impl DeviceCopy {
    /// A copy on `device`, not uploaded yet.
    pub(crate) fn new(device: Option<Device>, precision: Precision) -> Self {
        let device = device.map(|device| (device, precision));
        Self { device, ..Self::default() }
    }

    /// Drops the uploaded adapters, which are learnt, because the host's change.
    pub(crate) fn invalidate_adapters(&mut self) {
        (self.newer, self.adapters) = (None, Arc::default());
    }

    /// Drops the uploaded weights, which are learnt, because the host's change.
    pub(crate) fn invalidate_weights(&mut self) {
        (self.newer, self.weights) = (None, Arc::default());
    }

    /// Bytes that [`DeviceCopy::get`] has yet to upload.
    pub(crate) fn missing_bytes(&self, params: usize, adapters: Option<&Adapters>) -> usize {
        let missing = |is_there: bool, count: usize| if is_there { 0 } else { count };
        let adapters = adapters.map_or(0, |adapters| adapters.params().len());
        let count = missing(self.weights.get().is_some(), params)
            + missing(self.adapters.get().is_some(), adapters);
        if self.device.is_some() { count * size_of::<f32>() } else { 0 }
    }

    /// The decoder on the device; `None` on the CPU. Parameters and adapters are uploaded from the host if the device
    /// does not have them yet.
    pub(crate) fn get(
        &self,
        shape: &DecoderShape,
        params: &DecoderParams,
        adapters: Option<&Adapters>,
    ) -> Option<DeviceDecoder> {
        let (device, precision) = self.device.as_ref()?;
        let new = || DeviceDecoder::new(shape, params.values(), device, *precision);
        let adapters = adapters.map(|adapters| {
            self.adapters.get_or_init(|| DeviceAdapters::new(adapters, device)).clone()
        });
        Some(self.weights.get_or_init(new).clone().with_adapters(adapters))
    }

    /// Changes a decoder from [`DeviceCopy::get`], and makes the result the current weights.
    pub(crate) fn change(
        &mut self,
        present: DeviceDecoder,
        change: impl FnOnce(DeviceDecoder) -> DeviceDecoder,
    ) {
        // No second owner, so that tensors change in their own memory.
        if present.adapters.is_some() {
            self.invalidate_adapters();
        } else {
            self.invalidate_weights();
        }
        let mut changed = change(present);
        match changed.adapters.take() {
            Some(adapters) => {
                self.adapters = Arc::new(OnceLock::from(adapters));
                self.newer = Some(NewerParameters::Adapters(OnceLock::new()));
            }
            None => {
                self.weights = Arc::new(OnceLock::from(changed));
                self.newer = Some(NewerParameters::Weights(OnceLock::new()));
            }
        }
    }

    /// The current weights in host memory; `host` are the last ones that the host had.
    pub(crate) fn params<'a>(&'a self, host: &'a DecoderParams) -> &'a DecoderParams {
        match (&self.newer, self.weights.get()) {
            (Some(NewerParameters::Weights(newer)), Some(decoder)) => {
                newer.get_or_init(|| decoder.weights.download(to_vec).into())
            }
            _ => host,
        }
    }

    /// The current adapters in host memory; `host` are the last ones that the host had.
    pub(crate) fn adapters<'a>(&'a self, host: &'a Adapters) -> &'a Adapters {
        match (&self.newer, self.adapters.get()) {
            (Some(NewerParameters::Adapters(newer)), Some(adapters)) => {
                newer.get_or_init(|| host.clone().with_params(adapters.arenas.download(to_vec)))
            }
            _ => host,
        }
    }

    /// Whether the device has changed the trainable parameters after the host.
    pub(crate) fn is_newer(&self) -> bool {
        self.newer.is_some()
    }
}
