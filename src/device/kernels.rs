//! Properties of a device that decide which kernels it runs.

use super::buffers;
use crate::settings::Precision;
use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// Whether Grove's CubeCL kernels can run on a device.
pub fn has_kernels(device: &Device) -> bool {
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Cube(_))
}

/// Whether kernels on a device support a precision.
pub fn has_precision(device: &Device, precision: Precision) -> bool {
    let device = device.clone().without_autodiff();
    has_kernels(&device)
        && buffers::probe(&device).client.properties().supports_type(buffers::element(precision))
}

/// Utilisation of a GPU by its driver's counter, 0 to 1: `None` for the CPU, `Some(None)` for a driver that
/// does not report it.
pub(super) fn utilization(device: &Device) -> Option<Option<f64>> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => {
            let usage = device.utilization().ok();
            Some(usage.map(|usage| f64::from(usage.busy_percent) / 100.0))
        }
        _ => None,
    }
}
