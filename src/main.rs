//! The program `grove`: train, evaluate, list devices.

mod cli;

use clap::Parser;
use std::process::ExitCode;

/// Rollouts take and give back tens of megabytes an iteration; this allocator keeps them mapped.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
