//! Replacement of a folder in one step: at any moment the old one or the new one is there, whole.
//!
//! The new folder is written beside the old one as `.NAME.tmp`; then the old one is set aside as `.NAME.old`, and the new
//! one renamed into its place.

use super::{rename, sync_folder};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A step of a replacement that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}")]
pub struct FolderError {
    /// The step, as a verb.
    pub action: &'static str,
    /// The folder concerned.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |source| FolderError { action, path: path.to_owned(), source }
}

/// Hidden paths beside a folder: of its replacement while that is written, and of the old folder once it is moved aside.
/// `None` if `path` has no file name.
pub fn beside(path: &Path) -> Option<[PathBuf; 2]> {
    let name = path.file_name()?;
    let hidden = |suffix: &str| {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(suffix);
        path.with_file_name(hidden)
    };
    Some([".tmp", ".old"].map(hidden))
}

/// Replaces the folder `path` by the one that `fill` writes and syncs at the path it is given. `clear` removes a folder.
///
/// # Errors
/// If the new folder cannot be written; the old one is in its place then, at the latest after [`settle`].
pub fn replace_folder<E: From<FolderError>>(
    path: &Path,
    clear: impl Fn(&Path) -> io::Result<()>,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let unnamed = || failed("replace", path)(io::ErrorKind::InvalidInput.into());
    let [new, old] = beside(path).ok_or_else(unnamed)?;
    settle(path, &clear)?;
    let swapped = fill(&new).and_then(|()| {
        if path.exists() {
            rename(path, &old).map_err(failed("replace", path))?;
        }
        Ok(rename(&new, path).map_err(failed("create", path))?)
    });
    if swapped.is_err() {
        // A part of the new folder would keep a full disk full. If this fails, the next replacement tries again.
        let _ = settle(path, &clear);
    }
    swapped?;
    let parent = path.parent().unwrap_or(path);
    sync_folder(parent).map_err(failed("sync", parent))?;
    if old.exists() {
        // The new folder is durable, and the next replacement removes an old one that is still there.
        let _ = clear(&old);
    }
    Ok(())
}

/// Finishes a replacement that a crash interrupted: restores the old folder if no other is in its place, and removes what
/// else is left over.
///
/// # Errors
/// If leftovers cannot be moved or removed.
pub fn settle(path: &Path, clear: impl Fn(&Path) -> io::Result<()>) -> Result<(), FolderError> {
    let Some([new, old]) = beside(path) else { return Ok(()) };
    if old.exists() && !path.exists() {
        rename(&old, path).map_err(failed("restore", path))?;
    }
    let mut left = [new, old].into_iter().filter(|folder| folder.exists());
    left.try_for_each(|folder| clear(&folder).map_err(failed("remove", &folder)))
}
