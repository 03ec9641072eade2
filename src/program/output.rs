//! Output: messages on stderr, results on stdout.
//!
//! Unlike `eprintln!` and `println!`, these functions do not panic if a pipe or terminal is closed, which must
//! not end a run.

use crate::disk;
use anyhow::{Context, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a message on stderr. Errors are ignored.
macro_rules! eprint_line {
    ($($word:tt)*) => {
        $crate::program::output::print_stderr(format_args!($($word)*))
    };
}
pub(super) use eprint_line;

/// Whether output is suppressed, because another MPI process prints it.
static MUTED: AtomicBool = AtomicBool::new(false);

/// Suppresses all output, or enables it again.
pub fn set_muted(is_muted: bool) {
    MUTED.store(is_muted, Ordering::Relaxed);
}

/// Whether output is suppressed.
pub fn is_muted() -> bool {
    MUTED.load(Ordering::Relaxed)
}

pub fn print_stderr(line: Arguments<'_>) {
    if !is_muted() {
        let _ = writeln!(std::io::stderr(), "{}", escape_control_chars(&line.to_string()));
    }
}

/// Escapes the control characters of a text, also those of the direction of writing, except for line breaks and tabs:
/// messages quote files and paths of other people, which must not control the terminal.
pub fn escape_control_chars(text: &str) -> String {
    escape_with(text, |c| c.escape_default().to_string())
}

/// Replaces each control character of a text by what `escape` makes of it.
fn escape_with(text: &str, escape: impl Fn(char) -> String) -> String {
    let mut escaped_text = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) {
            escaped_text += &escape(c);
        } else {
            escaped_text.push(c);
        }
    }
    escaped_text
}

/// Whether a character controls a terminal or the direction of writing; line breaks and tabs do not count.
fn is_control(c: char) -> bool {
    let is_direction = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_direction || c.is_control() && !['\n', '\t'].contains(&c)
}

/// Escapes the control characters of a text for stdout if that is a terminal.
pub fn escape_for_terminal(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { escape_control_chars(text).into() } else { text.into() }
}

/// Prints a line of the result on stdout. A closed pipe or terminal is not an error.
pub fn print_result(line: impl std::fmt::Display) -> Result<()> {
    if is_muted() {
        return Ok(());
    }
    let line = line.to_string();
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{}", escape_for_terminal(&line)).and_then(|()| stdout.flush()) {
        Err(error) if is_closed(&error) => Ok(()),
        written => written.context("cannot print the result"),
    }
}

/// Whether stdout is a pipe or a terminal whose other end is closed.
fn is_closed(error: &std::io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::EIO) {
        return true;
    }
    error.kind() == ErrorKind::BrokenPipe
}

/// Prints the result as one line of JSON on stdout.
pub fn print_json(result: &impl Serialize) -> Result<()> {
    print_result(escape_json(&serde_json::to_string(result)?))
}

/// Writes a file that the user requested.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    disk::write_output(path, |file| disk::write(file, bytes))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes characters that could control a terminal in the escapes of JSON, which are valid in any of its strings.
fn escape_json(json: &str) -> String {
    escape_with(json, |c| format!("\\u{:04x}", u32::from(c)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::CheckpointError;
    use crate::data::DatasetError;
    use crate::disk::FolderError;
    use crate::env::HostEnvError;
    use crate::metrics::RecordsError;
    use crate::model::policy_file::PolicyFileError;
    use crate::plot::ChartError;
    use crate::run::RunError;
    use crate::settings::ConfigError;
    use crate::text::LanguageError;
    use crate::trainer::{SnapshotError, TrainError};
    use std::io;
    use std::path::PathBuf;

    #[test]
    fn messages_do_not_control_the_terminal() {
        let text = "no \u{1b}[31m red\r\u{9b}2J\n\tone é line";
        assert_eq!(escape_control_chars(text), "no \\u{1b}[31m red\\r\\u{9b}2J\n\tone é line");
    }

    #[test]
    fn json_without_control_characters_is_still_json() {
        let name = "a\u{7f}\u{202e}\u{9b}é";
        let json = escape_json(&serde_json::to_string(name).unwrap());
        assert_eq!(json, "\"a\\u007f\\u202e\\u009bé\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }

    #[test]
    fn an_error_names_each_cause_once() {
        let (action, path, cause) =
            ("write", || PathBuf::from("x"), || io::Error::other("the disk is full"));
        let reason = || PolicyFileError::Unreadable("the disk is full".to_string());
        let settings = || ConfigError::OutOfRange("the disk is full".to_string());
        let errors: [anyhow::Error; 11] = [
            FolderError { action, path: path(), source: cause() }.into(),
            RecordsError { action, path: path(), cause: cause() }.into(),
            ChartError::File(path(), cause()).into(),
            CheckpointError::Io { action, path: path(), cause: cause() }.into(),
            DatasetError::Io { action, path: path(), cause: cause() }.into(),
            LanguageError::File { action, path: path(), cause: cause() }.into(),
            RunError::File { action, path: path(), cause: cause() }.into(),
            RunError::NotAPolicy { path: path(), cause: reason() }.into(),
            SnapshotError::Params { section: "weights".to_string(), cause: reason() }.into(),
            SnapshotError::from(settings()).into(),
            TrainError::from(HostEnvError(anyhow::Error::new(cause()).context("step 3").into()))
                .into(),
        ];
        for error in errors {
            let text = format!("{error:#}");
            assert_eq!(text.matches("the disk is full").count(), 1, "{text}");
        }
    }
}
