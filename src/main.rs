//! The program `grove`, with the built-in games.

use std::process::ExitCode;

/// Rollouts allocate and free tens of megabytes per iteration; this allocator keeps the pages mapped.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // SAFETY: no thread has been started yet.
    unsafe { grove::program::set_runtime_dir() };
    grove::program().run()
}
