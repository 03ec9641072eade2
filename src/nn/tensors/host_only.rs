//! The stand-in for `texts` in a build without the general engine: every decoder over tokens is on the CPU.

/// No device.
#[derive(Clone, Debug, Default)]
pub struct DeviceCopy;

impl DeviceCopy {
    /// Does nothing.
    pub(crate) fn invalidate(&mut self) {}
}
