//! Peak arithmetic and memory bandwidth of a device, as measured by Burn.

use crate::device::DeviceInfo;
use burn::tensor::Device;
use serde::Serialize;

/// A device's measured peaks; `None` if a measurement is not available.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct DevicePeak {
    /// Floating-point operations per second: 32-bit multiply-adds on registers, without tensor cores; the
    /// fastest of several launch shapes.
    pub flops_per_second: Option<f64>,
    /// Bytes per second, read and written, of a copy within device memory.
    pub bytes_per_second: Option<f64>,
}

/// Measures a device; `None` if it cannot run kernels. Takes several seconds and up to 2 GiB of device
/// memory. The bandwidth of software renderers is not measured, since Burn's probe needs larger buffers than
/// they offer.
#[cfg(feature = "kernels")]
pub(super) fn measure(device: &Device, info: &DeviceInfo) -> Option<DevicePeak> {
    use burn::cubecl::ir::{ElemType, FloatKind};
    use burn::tensor::{MemoryAccess, ThroughputKey, ThroughputMode};
    let compute = ThroughputMode::ComputeDirect { dtype: ElemType::Float(FloatKind::F32) };
    let mut modes = vec![compute];
    if !info.is_software {
        modes.push(ThroughputMode::memory(MemoryAccess::Copy));
    }
    let keys: Vec<_> = modes.into_iter().map(|mode| ThroughputKey { mode }).collect();
    let stats = device.performance_stats(&keys);
    let compute = stats.first()?;
    let memory = stats.get(1);
    Some(DevicePeak {
        flops_per_second: compute.value.ok().map(|value| value.ops_per_s()),
        bytes_per_second: memory.and_then(|m| Some(m.value.ok()?.bytes_per_s(&m.key))),
    })
}

/// Returns `None`: this build has no kernels.
#[cfg(not(feature = "kernels"))]
pub(super) fn measure(_: &Device, _: &DeviceInfo) -> Option<DevicePeak> {
    None
}
