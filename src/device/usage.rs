//! Memory usage and utilisation of a device.

use super::container;
use super::kernels::utilization;
use crate::metrics::Memory;
use burn::tensor::Device;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use web_time::Instant;

/// Minimum interval of a load measurement, seconds; the clock has a resolution of 0.01 s.
const INTERVAL: f64 = 0.25;
/// Clock ticks per second in which Linux reports a process's CPU time (`USER_HZ`).
const TICKS: f64 = 100.0;

/// The highest memory in use that was sampled so far, bytes.
static PEAK: AtomicU64 = AtomicU64::new(0);
static LOAD: Mutex<LoadSample> = Mutex::new(LoadSample { at: None, load: None });

/// The last load measurement, with its time and the process's CPU seconds at that time.
#[derive(Clone, Copy)]
struct LoadSample {
    at: Option<(Instant, f64)>,
    load: Option<f64>,
}

/// The memory held by a device's allocator; on the CPU, by the process.
pub fn memory<'a>(device: impl Into<Option<&'a Device>>) -> Memory {
    if let Some(usage) = device.into().and_then(Device::memory_pool_usage) {
        let before = PEAK.fetch_max(usage.bytes_in_use, Ordering::Relaxed);
        let (in_use, reserved) = (Some(usage.bytes_in_use), Some(usage.bytes_reserved));
        return Memory { in_use, reserved, peak: Some(before.max(usage.bytes_in_use)) };
    }
    let highest = proc_bytes("/proc/self/status", "VmHWM:");
    Memory { in_use: proc_bytes("/proc/self/status", "VmRSS:"), reserved: highest, peak: highest }
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
pub fn data_budget() -> Option<u64> {
    let left = container::memory().map(|(_, left)| left);
    proc_bytes("/proc/meminfo", "MemAvailable:")
        .into_iter()
        .chain(left)
        .min()
        .map(|bytes| bytes / 2)
}

/// The memory of the machine, or of the container if that has less, bytes.
pub fn total_memory() -> Option<u64> {
    let limit = container::memory().map(|(limit, _)| limit);
    proc_bytes("/proc/meminfo", "MemTotal:").into_iter().chain(limit).min()
}

/// Recent utilisation of a device, 0 to 1: the driver's counter for a GPU, this process's share of all
/// cores for the CPU. `None` if the platform does not report it.
pub fn load<'a>(device: impl Into<Option<&'a Device>>) -> Option<f64> {
    let mut sample = LOAD.lock().unwrap_or_else(PoisonError::into_inner);
    let LoadSample { at, load } = *sample;
    let now = Instant::now();
    let before = match at {
        Some((before, _)) if now.duration_since(before).as_secs_f64() < INTERVAL => return load,
        before => before,
    };
    let (time, load) = match device.into().and_then(utilization) {
        Some(load) => (0.0, load),
        None => {
            let time = cpu_seconds();
            let share = |time: f64, (before, then): (Instant, f64)| {
                let cores = rayon::current_num_threads() as f64;
                let share = (time - then) / now.duration_since(before).as_secs_f64() / cores;
                share.clamp(0.0, 1.0)
            };
            (time.unwrap_or(0.0), time.zip(before).map(|(time, before)| share(time, before)))
        }
    };
    *sample = LoadSample { at: Some((now, time)), load };
    load
}

/// CPU time of all threads of this process, seconds; `None` on systems other than Linux.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name, in parentheses, may contain spaces.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

/// Reads a line such as `MemTotal: 16384 kB` from a file of `/proc` and converts it to bytes; `None` on
/// systems other than Linux.
pub(super) fn proc_bytes(path: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(all(test, target_os = "linux", feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn load_is_the_share_of_the_cores_that_this_process_used() {
        let device = Device::flex();
        load(&device);
        let mut x = 0u64;
        let mut load = load(&device);
        // Work until the system's clock has counted a tick.
        while load.is_none_or(|load| load == 0.0) {
            (0..1_000_000)
                .for_each(|_| x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(7)));
            load = super::load(&device);
        }
        assert!(load.is_some_and(|load| load <= 1.0), "{load:?}");
        assert!(data_budget().unwrap() > 0);
    }
}
