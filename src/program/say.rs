//! Words for people and results for programs, where a closed pipe or a lost terminal costs nothing.
//!
//! `eprintln!` and `println!` panic where nobody reads any more, in the middle of a run, too.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Says something on stderr. Where that does not arrive, nobody is there to be told.
macro_rules! say {
    ($($word:tt)*) => {
        $crate::program::say::stderr(format_args!($($word)*))
    };
}
pub(super) use say;

/// Whether this process leaves it to another to speak.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Says and tells nothing from now on.
#[cfg(feature = "mpi")]
pub fn be_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Speaks again.
#[cfg(feature = "mpi")]
pub fn speak() {
    SILENT.store(false, Ordering::Relaxed);
}

/// A line on stderr.
pub fn stderr(line: Arguments<'_>) {
    if !SILENT.load(Ordering::Relaxed) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// A line of the result on stdout.
///
/// # Errors
/// If it cannot be written; not if whoever read it has closed the pipe, who then has enough.
pub fn tell(line: impl std::fmt::Display) -> Result<()> {
    if SILENT.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot print the result"),
    }
}

/// The result as one JSON object on stdout.
///
/// # Errors
/// If stdout cannot be written; a closed pipe is no error.
pub fn tell_json(result: &impl Serialize) -> Result<()> {
    tell(serde_json::to_string(result)?)
}
