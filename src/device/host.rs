//! Measurements of this process and of the machine that it runs on, from Linux's `/proc`; `None` without it, as in a
//! browser. Other systems have `host_sysinfo.rs`.

use std::fs;

/// Clock ticks per second in which Linux reports a process's CPU time (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Memory of this process that is in use now, bytes.
pub fn memory_in_use_bytes() -> Option<u64> {
    read_bytes("/proc/self/status", "VmRSS:")
}

/// The most memory that this process has used at any time, bytes.
pub fn peak_memory_bytes() -> Option<u64> {
    read_bytes("/proc/self/status", "VmHWM:")
}

/// Memory of the machine that programs can still take, bytes.
pub fn available_memory_bytes() -> Option<u64> {
    read_bytes("/proc/meminfo", "MemAvailable:")
}

/// Memory of the machine, bytes.
pub fn machine_memory_bytes() -> Option<u64> {
    read_bytes("/proc/meminfo", "MemTotal:")
}

/// CPU time of all threads of this process, seconds.
pub fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name, in parentheses, may contain spaces.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_SECOND)
}

/// Reads a line such as `MemTotal: 16384 kB` and converts it to bytes.
fn read_bytes(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
