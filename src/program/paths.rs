//! Paths as settings and shells write them.

use anyhow::{Context, Result, bail};
use std::path::Path;

/// A path as a string for settings.
///
/// # Errors
/// If it is not UTF-8.
pub fn utf8_path(path: &Path) -> Result<String> {
    path.to_str().map(str::to_string).with_context(|| {
        let path = path.display();
        format!("the path {path} is not UTF-8, as the settings of a run must be: rename it")
    })
}

/// Canonical path of an existing file or folder, as a string for settings.
///
/// # Errors
/// If there is none, or it is a pipe or a device, which cannot be read twice; or if its path is not UTF-8.
pub fn canonical_path(path: &Path) -> Result<String> {
    if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        bail!(
            "{} is a pipe or a device, which cannot be read again as a run does: write its content to a file first",
            path.display()
        );
    }
    utf8_path(&path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?)
}

/// Quotes a path for a shell, if needed.
pub fn quote_path(path: &Path) -> String {
    let Some(text) = path.to_str() else { return quote_bytes(path.as_os_str().as_encoded_bytes()) };
    if text.starts_with('-') {
        // Prevents it from being taken for an option.
        quote_word(&format!("./{text}"))
    } else {
        quote_word(text)
    }
}

/// Quotes bytes for a shell with escapes, as bash and zsh know them.
fn quote_bytes(bytes: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    let start = if bytes.starts_with(b"-") { "./" } else { "" };
    format!("$'{start}{}'", bytes.iter().map(escape).collect::<String>())
}

/// Arguments of `grove train` that resume the run in a folder, for a shell. A path that is not UTF-8 must be
/// the value of an option.
pub fn resume_arguments(folder: &Path) -> String {
    let option = if folder.to_str().is_some() { "" } else { " --run-dir" };
    format!("--resume{option} {}", quote_path(folder))
}

/// Quotes a word for a shell, if needed.
pub fn quote_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(is_plain) && !text.is_empty() {
        text.to_string()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_no_file_to_read_again() {
        use std::os::fd::AsRawFd;
        let (reader, _writer) = std::io::pipe().unwrap();
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        for path in [path.as_str(), "/dev/null"] {
            let error = canonical_path(Path::new(path)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{path} is a pipe or a device")), "{error}");
        }
        assert!(
            canonical_path(Path::new("none")).unwrap_err().to_string().contains("cannot find none")
        );
    }

    #[cfg(unix)]
    #[test]
    fn the_command_that_resumes_a_run_names_any_folder() {
        use std::os::unix::ffi::OsStrExt;
        let arguments = |bytes| resume_arguments(Path::new(std::ffi::OsStr::from_bytes(bytes)));
        assert_eq!(arguments(b"a run"), "--resume 'a run'");
        assert_eq!(arguments(b"it's\n\xff"), r"--resume --run-dir $'it\'s\x0a\xff'");
        assert_eq!(arguments(b"-\xff"), r"--resume --run-dir $'./-\xff'");
    }

    #[test]
    fn paths_are_quoted_where_a_shell_would_take_them_apart() {
        for (path, expected) in [
            ("runs/fruit-1", "runs/fruit-1"),
            ("my runs/a", "'my runs/a'"),
            ("it's", r"'it'\''s'"),
            ("$x", "'$x'"),
            ("-dash", "./-dash"),
        ] {
            assert_eq!(quote_path(Path::new(path)), expected);
        }
    }
}
