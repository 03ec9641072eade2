//! Memory usage and utilization of a device.

use super::cgroup_memory;
use super::host;
use super::kernels::{has_kernels, read_gpu_utilization};
use crate::metrics::Memory;
use burn::tensor::Device;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use web_time::Instant;

/// Minimum interval of measurements of utilization, seconds; the clock has a resolution of 0.01 s.
const UTILIZATION_INTERVAL_SECONDS: f64 = 0.25;

/// The latest measurements of each device in use; the device `None` is the CPU without a tensor library.
static USAGES: Mutex<Vec<(Option<Device>, Usage)>> = Mutex::new(Vec::new());

/// Measurements of a device.
#[derive(Clone, Copy, Default)]
struct Usage {
    /// The highest memory in use that was sampled so far, bytes.
    peak_bytes: u64,
    /// Time of the last measurement of utilization, and the process's CPU seconds at that time.
    last_measurement: Option<(Instant, f64)>,
    /// The last utilization measured.
    utilization: Option<f64>,
}

/// Calls `run` with the measurements of a device.
fn with_usage<T>(device: Option<&Device>, run: impl FnOnce(&mut Usage) -> T) -> T {
    let mut all = USAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = all.iter().position(|(other, _)| other.as_ref() == device);
    let index = found.unwrap_or_else(|| {
        all.push((device.cloned(), Usage::default()));
        all.len() - 1
    });
    run(&mut all[index].1)
}

/// Measures the memory held by a device's allocator; on the CPU, by the process.
pub fn measure_memory<'a>(device: impl Into<Option<&'a Device>>) -> Memory {
    let device = device.into();
    if let Some(usage) = device.and_then(Device::memory_pool_usage) {
        let (in_use, reserved) = (Some(usage.bytes_in_use), Some(usage.bytes_reserved));
        return Memory { in_use, reserved, peak: Some(update_peak(device, usage.bytes_in_use)) };
    }
    let in_use = host::memory_in_use_bytes();
    let peak = host::peak_memory_bytes().or_else(|| Some(update_peak(device, in_use?)));
    Memory { in_use, reserved: peak, peak }
}

/// Returns the maximum of the memory in use now and at earlier calls, bytes.
fn update_peak(device: Option<&Device>, in_use: u64) -> u64 {
    with_usage(device, |measured| {
        measured.peak_bytes = measured.peak_bytes.max(in_use);
        measured.peak_bytes
    })
}

/// Returns freed memory to the operating system immediately, if the program's allocator is in use.
/// Call it before a large allocation, so that freed memory is not held on top of it.
pub fn release_freed_memory() {
    #[cfg(feature = "program")]
    // SAFETY: may be called at any time.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}

/// The default memory budget for resident data, bytes: half of what is available on the machine and in the container.
/// `None` if the platform does not report it.
pub fn data_budget_bytes() -> Option<u64> {
    let available = cgroup_memory::read().map(|memory| memory.available_bytes);
    let bytes = host::available_memory_bytes().into_iter().chain(available).min()?;
    Some(bytes / 2)
}

/// The memory of the machine, or of the container if that has less, bytes.
pub fn total_memory_bytes() -> Option<u64> {
    let limit = cgroup_memory::read().map(|memory| memory.limit_bytes);
    host::machine_memory_bytes().into_iter().chain(limit).min()
}

/// Measures the recent utilization of a device, 0 to 1: the driver's counter for a GPU, this process's share of all
/// cores for the CPU. `None` if the platform does not report it.
pub fn measure_utilization<'a>(device: impl Into<Option<&'a Device>>) -> Option<f64> {
    let device = device.into();
    with_usage(device, |usage| {
        let now = Instant::now();
        let is_recent = |(before, _): (Instant, f64)| {
            now.duration_since(before).as_secs_f64() < UTILIZATION_INTERVAL_SECONDS
        };
        if usage.last_measurement.is_some_and(is_recent) {
            return usage.utilization;
        }
        let (time, utilization) = match device.filter(|device| has_kernels(device)) {
            Some(gpu) => (0.0, read_gpu_utilization(gpu)),
            None => {
                let time = host::cpu_seconds();
                let share = |time: f64, (before, then): (Instant, f64)| {
                    let cores = available_parallelism().map_or(1, usize::from) as f64;
                    let share = (time - then) / now.duration_since(before).as_secs_f64() / cores;
                    share.clamp(0.0, 1.0)
                };
                (
                    time.unwrap_or(0.0),
                    time.zip(usage.last_measurement).map(|(time, before)| share(time, before)),
                )
            }
        };
        (usage.last_measurement, usage.utilization) = (Some((now, time)), utilization);
        utilization
    })
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_the_share_of_the_cores_that_this_process_used() {
        let device = Device::flex();
        measure_utilization(&device);
        // Work until the system's clock has counted a tick, of which this is many times as much.
        let mut x = 0u64;
        let utilization = (0..20_000).find_map(|_| {
            (0..1_000_000)
                .for_each(|_| x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(7)));
            measure_utilization(&device).filter(|utilization| *utilization > 0.0)
        });
        assert!(utilization.is_some_and(|utilization| utilization <= 1.0), "{utilization:?}");
        assert!(data_budget_bytes().unwrap() > 0);
    }

    #[test]
    fn devices_are_measured_separately() {
        let device = Device::flex();
        let devices = [None, Some(&device)];
        for (device, bytes) in devices.into_iter().zip([7, 3]) {
            with_usage(device, |usage| usage.peak_bytes = usage.peak_bytes.max(bytes));
        }
        assert_eq!(devices.map(|device| with_usage(device, |usage| usage.peak_bytes)), [7, 3]);
    }
}
