//! Folders that are gone when nobody needs them any more.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io};

/// A folder among the system's temporary ones, which everybody may enter; it is removed when dropped.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A new folder.
    pub fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..1000 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("grove-ocaml-{}-{count}", std::process::id());
            let path = fs::canonicalize(env::temp_dir())?.join(name);
            match fs::DirBuilder::new().mode(0o755).create(&path) {
                Ok(()) => {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
                    return Ok(Self { path });
                }
                // Left by a process of our number that was killed.
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

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
