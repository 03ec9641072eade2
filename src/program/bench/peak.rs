//! The most that a device can do, as Burn measures it: arithmetic and memory traffic.

use crate::device::DeviceInfo;
use burn::cubecl::ir::{ElemType, FloatKind};
use burn::tensor::{Device, MemoryAccess, ThroughputKey, ThroughputMode};
use serde::Serialize;

/// A device's measured peaks; `None` where it has no measure of one.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Peak {
    /// Floating-point operations a second, 32-bit multiply-adds without tensor cores: the fastest of
    /// several launch shapes, of operands in registers.
    pub flops_per_second: Option<f64>,
    /// Bytes a second read and written, of a copy within the device's memory.
    pub bytes_per_second: Option<f64>,
}

/// Measures a device; `None` where it has no kernels of ours. Takes seconds, and up to 2 GiB of the
/// device's memory. A graphics adapter that the CPU plays is asked for its arithmetic alone: its memory
/// is the CPU's, and Burn's probe wants more than it gives in one piece.
pub(super) fn measure(device: &Device, info: &DeviceInfo) -> Option<Peak> {
    let compute = ThroughputMode::ComputeDirect { dtype: ElemType::Float(FloatKind::F32) };
    let mut modes = vec![compute];
    if !info.software {
        modes.push(ThroughputMode::memory(MemoryAccess::Copy));
    }
    let keys: Vec<_> = modes.into_iter().map(|mode| ThroughputKey { mode }).collect();
    let stats = device.performance_stats(&keys);
    let compute = stats.first()?;
    let memory = stats.get(1);
    Some(Peak {
        flops_per_second: compute.value.ok().map(|value| value.ops_per_s()),
        bytes_per_second: memory.and_then(|m| Some(m.value.ok()?.bytes_per_s(&m.key))),
    })
}
