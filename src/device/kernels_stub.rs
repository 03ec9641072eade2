//! The same properties in a build without kernels, which has no device for them.

use crate::settings::Precision;
use burn::tensor::Device;

/// Whether Grove's CubeCL kernels can run on a device: never, since this build has none.
pub fn has_kernels(_device: &Device) -> bool {
    false
}

/// Whether kernels on a device support a precision: never, since this build has none.
pub fn has_precision(_device: &Device, _precision: Precision) -> bool {
    false
}

/// Maximum size of a buffer of a device that kernels address, bytes: always `None`, since this build starts none.
pub fn max_addressable_bytes(_device: &Device) -> Option<u64> {
    None
}

/// The workgroup memory of a cube on a device, bytes: always `None`, since this build starts none.
pub(super) fn workgroup_memory_bytes(_device: &Device) -> Option<usize> {
    None
}

/// Reads the utilization of a GPU: always `None`, since this build has none.
pub(super) fn read_gpu_utilization(_device: &Device) -> Option<f64> {
    None
}

/// A started device's name by its driver, and its memory: always `None`, since this build starts none.
pub(super) fn driver_identity(_device: &Device) -> Option<(String, Option<u64>)> {
    None
}
