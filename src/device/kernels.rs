//! Properties of a device that decide which kernels it runs.

use super::buffers;
pub use crate::nn::buffers::has_kernels;
use crate::nn::buffers::read_properties;
use crate::settings::Precision;
use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// FLOP per launch: 20 ms on a device of 1 TFLOP per second. A display that shares the device stays smooth, and no
/// driver takes the launch for one that hangs (Windows resets a device after 2 s). On a large GPU it is a millisecond,
/// still far above the cost of a launch.
const LAUNCH_FLOPS: f64 = 2e10;

/// Number of items per launch, at least 1, if each takes `flops` FLOP. `launch_size` is the setting of this name.
pub(crate) fn items_per_launch(flops: f64, launch_size: f64) -> usize {
    ((LAUNCH_FLOPS * launch_size / flops) as usize).max(1)
}

/// Whether kernels on a device support a precision.
pub fn has_precision(device: &Device, precision: Precision) -> bool {
    let element_type = buffers::element_type(precision);
    read_properties(device, |properties| properties.supports_type(element_type)).unwrap_or(false)
}

/// Maximum size of a buffer that an index of a kernel reaches, bytes, even where a device has larger ones: these
/// indices are 32 bits wide, and Vulkan binds no more to a kernel with such indices.
const ADDRESSABLE_BYTES: u64 = u32::MAX as u64;

/// Maximum size of a buffer of a device that kernels address, bytes; `None` for the CPU, which has no such limit.
/// Recordings are cut into smaller parts.
pub fn max_addressable_bytes(device: &Device) -> Option<u64> {
    buffers::largest_allocation_bytes(device).map(|largest| largest.min(ADDRESSABLE_BYTES))
}

/// The workgroup memory of a cube on a device, bytes; `None` for the CPU, which runs no cubes.
pub(super) fn workgroup_memory_bytes(device: &Device) -> Option<usize> {
    read_properties(device, |properties| properties.hardware.max_shared_memory_size)
}

/// A started device's name by its driver and the size of its memory, bytes; `None` for the CPU.
pub(super) fn driver_identity(device: &Device) -> Option<(String, Option<u64>)> {
    read_properties(device, |properties| {
        (properties.identity.name.clone(), properties.memory.max_memory())
    })
}

/// Reads the utilization of a GPU, 0 to 1, from its driver's counter; `None` if the driver does not report it.
pub(super) fn read_gpu_utilization(device: &Device) -> Option<f64> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => {
            Some(f64::from(device.utilization().ok()?.busy_percent) / 100.0)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_one_item_or_a_budget_of_them() {
        for flops in [1.0, 2.6e3, 1.4e5, 9e9] {
            let items = items_per_launch(flops, 1.0) as f64;
            assert!(items * flops <= LAUNCH_FLOPS && (items + 1.0) * flops > LAUNCH_FLOPS);
            let fewer = items_per_launch(flops, 0.25) as f64;
            assert!(fewer <= (items / 4.0).max(1.0), "{fewer} of {items}");
        }
        assert_eq!(items_per_launch(1e12, 1.0), 1);
    }
}
