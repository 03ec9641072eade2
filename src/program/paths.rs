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
    let text = path.display().to_string();
    if text.starts_with('-') {
        // Prevents it from being taken for an option.
        quote_word(&format!("./{text}"))
    } else {
        quote_word(&text)
    }
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
