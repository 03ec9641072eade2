//! Replacement of a folder that survives a crash: at any moment the old folder or the new one is complete on the disk,
//! though for a moment between two renames neither has the name `NAME`. After a crash, [`recover_replacement`] puts the
//! old one back.
//!
//! The new folder is written beside the old one as `.NAME.tmp`; then the old one is moved aside as `.NAME.old`, and the
//! new one is renamed to `NAME`.

use super::{rename, sha256, sync_folder};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A step of a replacement that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}")]
pub struct FolderError {
    /// The step, as a verb.
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

fn folder_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |source| FolderError { action, path: path.to_owned(), source }
}

/// Hidden paths beside a folder that a replacement uses.
pub struct ReplacementPaths {
    /// The new folder while it is written.
    pub new: PathBuf,
    /// The old folder once it is moved aside.
    pub old: PathBuf,
}

impl ReplacementPaths {
    /// The paths that exist.
    pub fn into_existing(self) -> impl Iterator<Item = PathBuf> {
        [self.new, self.old].into_iter().filter(|folder| folder.exists())
    }
}

/// The longest name of a file on common file systems, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// The hidden path `.NAME` and a suffix beside a path, or that of a digest where it would be too long; `None` if `path`
/// has no file name.
pub(super) fn hidden_path(path: &Path, suffix: &str) -> Option<PathBuf> {
    let target = path.file_name()?;
    let mut name = OsString::from(".");
    if target.len() + 1 + suffix.len() <= MAX_NAME_BYTES {
        name.push(target);
    } else {
        name.push(sha256(target.as_encoded_bytes()));
    }
    name.push(suffix);
    Some(path.with_file_name(name))
}

/// The paths that the replacement of a folder uses; `None` if `path` has no file name.
pub fn replacement_paths(path: &Path) -> Option<ReplacementPaths> {
    Some(ReplacementPaths { new: hidden_path(path, ".tmp")?, old: hidden_path(path, ".old")? })
}

/// Replaces the folder `path`: `fill` writes and syncs the new folder at the path that it is given; `remove` removes
/// a folder.
///
/// # Errors
/// If the new folder cannot be written. The old one is then in its place, at the latest after [`recover_replacement`].
pub fn replace_folder<E: From<FolderError>>(
    path: &Path,
    remove: impl Fn(&Path) -> io::Result<()>,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let unnamed = || folder_error("replace", path)(io::ErrorKind::InvalidInput.into());
    let ReplacementPaths { new, old } = replacement_paths(path).ok_or_else(unnamed)?;
    recover_replacement(path, &remove)?;
    let swapped = fill(&new).and_then(|()| {
        if path.exists() {
            rename(path, &old).map_err(folder_error("replace", path))?;
        }
        Ok(rename(&new, path).map_err(folder_error("create", path))?)
    });
    if swapped.is_err() {
        // A part of the new folder would keep a full disk full. If this fails, the next replacement tries again.
        let _ = recover_replacement(path, &remove);
    }
    swapped?;
    let parent = path.parent().unwrap_or(path);
    sync_folder(parent).map_err(folder_error("sync", parent))?;
    if old.exists() {
        // The new folder is durable, and the next replacement removes an old one that is still there.
        let _ = remove(&old);
    }
    Ok(())
}

/// Recovers from a replacement that a crash interrupted: restores the old folder if the new one is not in its place,
/// and removes all leftovers.
///
/// # Errors
/// If leftovers cannot be moved or removed.
pub fn recover_replacement(
    path: &Path,
    remove: impl Fn(&Path) -> io::Result<()>,
) -> Result<(), FolderError> {
    let Some(paths) = replacement_paths(path) else { return Ok(()) };
    if paths.old.exists() && !path.exists() {
        rename(&paths.old, path).map_err(folder_error("restore", path))?;
    }
    let mut leftovers = paths.into_existing();
    leftovers.try_for_each(|folder| remove(&folder).map_err(folder_error("remove", &folder)))
}
