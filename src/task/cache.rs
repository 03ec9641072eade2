//! The folder in which Grove keeps files for later runs of this user.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder `grove` in the user's cache directory, created if it is missing. `None` without such a directory, or
/// if another user owns it or may write to it, and could plant files there.
pub fn folder() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let folder = absolute("XDG_CACHE_HOME").or_else(home)?.join("grove");
    create_private(&folder).then_some(folder)
}

/// Creates a folder if it is missing, and returns whether it belongs to this user alone.
#[cfg(unix)]
fn create_private(folder: &Path) -> bool {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    // SAFETY: has no preconditions.
    let user = unsafe { libc::geteuid() };
    let is_ours =
        |data: fs::Metadata| data.is_dir() && data.uid() == user && data.mode() & 0o022 == 0;
    made.is_ok() && fs::symlink_metadata(folder).is_ok_and(is_ours)
}

#[cfg(not(unix))]
fn create_private(folder: &Path) -> bool {
    fs::create_dir_all(folder).is_ok()
}
