//! Folders that are gone when nobody needs them any more.

use std::fs::{File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io};

/// How the names of such folders begin.
const NAME: &str = "grove-ocaml-";

/// A folder among the system's temporary ones, which everybody may enter; it is removed when dropped. Those that
/// processes have left which were killed are removed with the first that is made.
pub struct Folder {
    path: PathBuf,
    /// Locked as long as the folder is in use.
    _lock: File,
}

impl Folder {
    /// A new folder.
    pub fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let parent = fs::canonicalize(env::temp_dir())?;
        for _ in 0..1000 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            if count == 0 {
                sweep(&parent);
            }
            let path = parent.join(format!("{NAME}{}-{count}", std::process::id()));
            match fs::DirBuilder::new().mode(0o755).create(&path) {
                Ok(()) => {
                    let lock = File::open(&path)?;
                    // Where there are no locks, nothing is swept either; and what is swept just now is no place to be.
                    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
                        continue;
                    }
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
                    return Ok(Self { path, _lock: lock });
                }
                // Another process has our number, or has had it.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::other("no name for a folder is free"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder in it, for whoever it is given to.
    pub fn inner(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&path)?;
        Ok(path)
    }
}

/// Removes what is in nobody's use any more, as far as we may.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(NAME)
            && entry.file_type().is_ok_and(|of| of.is_dir());
        if is_ours && File::open(&path).is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_nothing_else() {
        let parent = tempfile::TempDir::new().unwrap();
        let path = |name: &str| parent.path().join(name);
        for name in ["grove-ocaml-1-0", "grove-ocaml-2-0", "other"] {
            fs::create_dir_all(path(name).join("inside")).unwrap();
        }
        let used = File::open(path("grove-ocaml-2-0")).unwrap();
        used.try_lock().unwrap();
        sweep(parent.path());
        let left = ["grove-ocaml-1-0", "grove-ocaml-2-0", "other"].map(|name| path(name).exists());
        assert_eq!(left, [false, true, true]);
        let (folder, other) = (Folder::new().unwrap(), Folder::new().unwrap());
        sweep(folder.path().parent().unwrap());
        assert!(folder.path().exists() && other.path().exists());
    }
}
