//! Tests that need the program's internals: injected faults, failing devices, and mutated files.

mod device_failures;
mod fault_injection;
#[cfg(unix)]
mod fuzz;
