//! Measurements of this process and of the machine that it runs on, on macOS, Windows and other systems without Linux's
//! `/proc`, by the crate `sysinfo`.

use sysinfo::{Process, ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};

/// Memory of this process that is in use now, bytes.
pub fn memory_in_use_bytes() -> Option<u64> {
    read_process(Process::memory)
}

/// Returns `None`, since these systems do not report it.
pub fn peak_memory_bytes() -> Option<u64> {
    None
}

/// Memory of the machine that programs can still take, bytes.
pub fn available_memory_bytes() -> Option<u64> {
    read_memory(System::available_memory)
}

/// Memory of the machine, bytes.
pub fn machine_memory_bytes() -> Option<u64> {
    read_memory(System::total_memory)
}

/// CPU time of all threads of this process, seconds.
pub fn cpu_seconds() -> Option<f64> {
    read_process(|process| process.accumulated_cpu_time() as f64 / 1000.0)
}

fn read_process<T>(read: impl FnOnce(&Process) -> T) -> Option<T> {
    let process = get_current_pid().ok()?;
    let measurements = ProcessRefreshKind::nothing().with_memory().with_cpu();
    let mut system = System::new();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[process]), false, measurements);
    system.process(process).map(read)
}

fn read_memory(read: impl FnOnce(&System) -> u64) -> Option<u64> {
    let mut system = System::new();
    system.refresh_memory();
    // A system that is not supported reports 0.
    Some(read(&system)).filter(|bytes| *bytes > 0)
}
