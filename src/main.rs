//! The program `grove`: the library's own games from the command line.

use std::process::ExitCode;

/// Rollouts take and give back tens of megabytes an iteration; this allocator keeps them mapped.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    grove::program().run()
}
