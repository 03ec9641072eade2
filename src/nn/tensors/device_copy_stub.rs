//! The stand-in for `device_copy` in a build without the general engine: every decoder over tokens is on the CPU.

use crate::nn::DecoderParams;
use crate::nn::arch::Adapters;

/// Placeholder for a device's copy in builds without devices.
#[derive(Clone, Debug, Default)]
pub struct DeviceCopy {}

impl DeviceCopy {
    /// No-op: there is no uploaded copy.
    pub(crate) fn invalidate_adapters(&mut self) {}

    /// No-op: there is no uploaded copy.
    pub(crate) fn invalidate_weights(&mut self) {}

    /// The host's weights.
    pub(crate) fn params<'a>(&'a self, host: &'a DecoderParams) -> &'a DecoderParams {
        host
    }

    /// The host's adapters.
    pub(crate) fn adapters<'a>(&'a self, host: &'a Adapters) -> &'a Adapters {
        host
    }

    /// False: no device changes parameters.
    pub(crate) fn is_newer(&self) -> bool {
        false
    }
}
