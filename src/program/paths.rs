//! Paths as settings and shells write them.

use anyhow::{Context, Result};
use std::path::Path;

/// A path as a string for settings.
///
/// # Errors
/// If it is not UTF-8.
pub fn utf8_path(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| {
        format!(
            "the path {} is not UTF-8, as the settings of a run must be: rename it",
            path.display()
        )
    })?;
    Ok(text.to_string())
}

/// Canonical path of an existing file or folder, as a string for settings.
pub fn canonical_path(path: &Path) -> Result<String> {
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
