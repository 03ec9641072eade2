//! Output: messages on stderr, results on stdout.
//!
//! Unlike `eprintln!` and `println!`, these functions do not panic if a pipe or terminal is closed, which must
//! not end a run.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a message on stderr. Errors are ignored.
macro_rules! say {
    ($($word:tt)*) => {
        $crate::program::say::stderr(format_args!($($word)*))
    };
}
pub(super) use say;

/// An error with its causes, each once: the message of some errors says their cause.
pub fn sentence(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match &*said {
        "" => cause,
        _ if said.contains(&cause) => said,
        _ => said + ": " + &cause,
    })
}

/// Whether output is suppressed, because another MPI process prints it.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Suppresses all output from now on.
pub fn be_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Enables output again.
pub fn speak() {
    SILENT.store(false, Ordering::Relaxed);
}

/// Whether output is suppressed.
pub fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Prints a line on stderr.
pub fn stderr(line: Arguments<'_>) {
    if !is_silent() {
        let _ = writeln!(std::io::stderr(), "{}", visible(&line.to_string()));
    }
}

/// A text with its control characters escaped, except for line breaks and tabs: messages quote files and paths of other
/// people, which must not control the terminal.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && !['\n', '\t'].contains(&c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Prints a line of the result on stdout. A closed pipe is not an error.
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

/// Prints the result as one line of JSON on stdout.
pub fn tell_json(result: &impl Serialize) -> Result<()> {
    tell(serde_json::to_string(result)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn messages_do_not_control_the_terminal() {
        let text = "no \u{1b}[31m red\r\u{9b}2J\n\tone é line";
        assert_eq!(visible(text), "no \\u{1b}[31m red\\r\\u{9b}2J\n\tone é line");
    }

    #[test]
    fn an_error_names_each_cause_once() {
        let full = || io::Error::other("the disk is full");
        let outer = anyhow::Error::new(full()).context("cannot write x: the disk is full");
        assert_eq!(sentence(&outer), "cannot write x: the disk is full");
        let outer =
            anyhow::Error::new(full()).context("cannot write x: the disk is full; free some");
        assert_eq!(sentence(&outer), "cannot write x: the disk is full; free some");
        let outer = anyhow::Error::new(full()).context("cannot write x").context("cannot save");
        assert_eq!(sentence(&outer), "cannot save: cannot write x: the disk is full");
    }
}
