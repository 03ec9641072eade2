//! How much of a device is in use: its memory, and its time.

use crate::metrics::Memory;
use burn::tensor::Device;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use web_time::Instant;

/// Seconds over which a load is measured at least: clocks tick a hundred times a second.
const SPAN: f64 = 0.25;
/// Ticks of the clock by which Linux counts a process's time.
const TICKS: f64 = 100.0;

/// The highest that a device had in use so far, whenever that was asked.
static PEAK: AtomicU64 = AtomicU64::new(0);
static LOAD: Mutex<Measured> = Mutex::new(Measured { at: None, load: None });

/// A load, when it was measured, and the processor's time by then.
#[derive(Clone, Copy)]
struct Measured {
    at: Option<(Instant, f64)>,
    load: Option<f64>,
}

/// What a device's allocator holds; on the CPU, what the process does.
pub fn memory(device: &Device) -> Memory {
    if let Some(usage) = device.memory_pool_usage() {
        let before = PEAK.fetch_max(usage.bytes_in_use, Ordering::Relaxed);
        let (in_use, reserved) = (Some(usage.bytes_in_use), Some(usage.bytes_reserved));
        return Memory { in_use, reserved, peak: Some(before.max(usage.bytes_in_use)) };
    }
    let highest = kib_of("/proc/self/status", "VmHWM:");
    Memory { in_use: kib_of("/proc/self/status", "VmRSS:"), reserved: highest, peak: highest }
}

/// Gives memory that was freed back to the system at once, where the allocator is the program's: before much is taken
/// again, so that both are not held.
pub fn give_back() {
    #[cfg(feature = "program")]
    // SAFETY: the allocator may be told so at any time.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}

/// Bytes that data may take unless somebody says how many: half of what the machine has free. `None`
/// where nobody tells.
pub fn room() -> Option<u64> {
    kib_of("/proc/meminfo", "MemAvailable:").map(|bytes| bytes / 2)
}

/// The share of the time that a device has worked lately, 0 to 1: a GPU by its driver's counter, the CPU's
/// cores by what this process took of them. `None` where nobody tells.
pub fn load(device: &Device) -> Option<f64> {
    let mut measured = LOAD.lock().unwrap_or_else(PoisonError::into_inner);
    let Measured { at, load } = *measured;
    let now = Instant::now();
    let before = match at {
        Some((before, _)) if now.duration_since(before).as_secs_f64() < SPAN => return load,
        before => before,
    };
    let (time, load) = match on_device(device) {
        Some(load) => (0.0, load),
        None => {
            let time = processor_time();
            let share = |time: f64, (before, then): (Instant, f64)| {
                let cores = rayon::current_num_threads() as f64;
                let share = (time - then) / now.duration_since(before).as_secs_f64() / cores;
                share.clamp(0.0, 1.0)
            };
            (time.unwrap_or(0.0), time.zip(before).map(|(time, before)| share(time, before)))
        }
    };
    *measured = Measured { at: Some((now, time)), load };
    load
}

/// What a device's driver says, where it is asked at all: `Some(None)` is a device that does not tell.
#[cfg(feature = "kernels")]
fn on_device(device: &Device) -> Option<Option<f64>> {
    use burn::backend::DispatchDevice;
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => {
            let told = device.utilization().ok();
            Some(told.map(|told| f64::from(told.busy_percent) / 100.0))
        }
        _ => None,
    }
}

#[cfg(not(feature = "kernels"))]
fn on_device(_device: &Device) -> Option<Option<f64>> {
    None
}

/// Seconds that all threads of this process have worked, where Linux tells.
fn processor_time() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may have blanks in it.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

/// A line such as `MemTotal: 16384 kB` of a file in which Linux tells about memory, in bytes; `None`
/// on other systems.
pub(super) fn kib_of(path: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(all(test, target_os = "linux", feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_at_work_is_a_share_of_the_cores() {
        let device = Device::flex();
        load(&device);
        let mut x = 0u64;
        let mut load = load(&device);
        // The system counts in ticks of its own, so the work goes on until it has counted one.
        while load.is_none_or(|load| load == 0.0) {
            (0..1_000_000)
                .for_each(|_| x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(7)));
            load = super::load(&device);
        }
        assert!(load.is_some_and(|load| load <= 1.0), "{load:?}");
        assert!(room().unwrap() > 0);
    }
}
