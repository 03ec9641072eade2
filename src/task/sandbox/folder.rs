//! Temporary folders of sandboxes.

use crate::disk::input::allow_missing;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io};

/// Prefix of the folders' names.
const NAME_PREFIX: &str = "grove-sandbox-";

/// A temporary folder that every user may enter, removed when dropped. Creating the first one in a process
/// also removes folders that killed processes have left behind.
pub struct SandboxFolder {
    path: PathBuf,
    /// Marks the folder as in use.
    _lock: File,
}

impl SandboxFolder {
    /// Creates a folder.
    ///
    /// # Errors
    /// If the folder for temporary files cannot be used.
    pub fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let parent = resolve_temporary_folder(env::temp_dir())?;
        let failed = |error| folder_error(&parent, error);
        for _ in 0..1000 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            if count == 0 {
                remove_stale_folders(&parent);
            }
            let path = parent.join(format!("{NAME_PREFIX}{}-{count}", std::process::id()));
            match fs::DirBuilder::new().mode(0o755).create(&path) {
                Ok(()) => {
                    let Some(lock) = lock_folder(&path).map_err(failed)? else { continue };
                    let mode = fs::Permissions::from_mode(0o755);
                    fs::set_permissions(&path, mode).map_err(failed)?;
                    return Ok(Self { path, _lock: lock });
                }
                // Left by another process with the same id.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Err(failed(io::Error::other("no free name")))
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a subfolder that only its owner may enter.
    ///
    /// # Errors
    /// The system's.
    pub fn create_subfolder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&path)?;
        Ok(path)
    }
}

/// Resolves the real path of the folder for temporary files; that of an empty `TMPDIR` is `/tmp`.
fn resolve_temporary_folder(folder: PathBuf) -> io::Result<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { "/tmp".into() } else { folder };
    fs::canonicalize(&folder).map_err(|error| folder_error(&folder, error))
}

/// The error of a folder for temporary files that cannot be used.
fn folder_error(folder: &Path, error: io::Error) -> io::Error {
    let folder = folder.display();
    io::Error::new(error.kind(), format!("the temporary folder {folder} (TMPDIR): {error}"))
}

/// Removes folders that are not in use, as far as permitted.
fn remove_stale_folders(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(NAME_PREFIX)
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        // Opening anything else may wait, as a pipe does for a writer.
        if is_ours
            && let Ok(folder) = File::open(&path)
            && folder.try_lock().is_ok()
        {
            // Locked until it is removed, so that nobody takes it for their own.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Locks a new folder; `None` if another process has removed it meanwhile, or is about to. Without support for locks,
/// nothing is removed.
fn lock_folder(path: &Path) -> io::Result<Option<File>> {
    let Some(lock) = allow_missing(File::open(path))? else { return Ok(None) };
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        return Ok(None);
    }
    let Some(found) = allow_missing(fs::metadata(path))? else { return Ok(None) };
    Ok((found.ino() == lock.metadata()?.ino()).then_some(lock))
}

impl Drop for SandboxFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    #[test]
    fn a_temporary_folder_that_is_missing_is_named() {
        let error = resolve_temporary_folder("/no/such".into()).unwrap_err().to_string();
        assert!(error.starts_with("the temporary folder /no/such (TMPDIR): No such"), "{error}");
        let fallback = resolve_temporary_folder(PathBuf::new()).unwrap();
        assert_eq!(fallback, fs::canonicalize("/tmp").unwrap());
    }

    #[test]
    fn folders_of_killed_processes_are_removed_and_no_others() {
        let parent = tempfile::TempDir::new().unwrap();
        let path = |name: &str| parent.path().join(name);
        for name in ["grove-sandbox-1-0", "grove-sandbox-2-0", "other"] {
            fs::create_dir_all(path(name).join("inside")).unwrap();
        }
        // A pipe without a writer: opening it to read would block.
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let used = File::open(path("grove-sandbox-2-0")).unwrap();
        used.try_lock().unwrap();
        remove_stale_folders(parent.path());
        let left =
            ["grove-sandbox-1-0", "grove-sandbox-2-0", "other"].map(|name| path(name).exists());
        assert_eq!(left, [false, true, true]);
        let (folder, other) = (SandboxFolder::new().unwrap(), SandboxFolder::new().unwrap());
        remove_stale_folders(folder.path().parent().unwrap());
        assert!(folder.path().exists() && other.path().exists());
    }

    #[test]
    fn folders_created_while_stale_ones_are_removed_stay() {
        let parent = fs::canonicalize(env::temp_dir()).unwrap();
        let is_done = AtomicBool::new(false);
        let sweeps = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    remove_stale_folders(&parent);
                    sweeps.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut numbers =
                (0..).take_while(|made| *made < 500 || sweeps.load(Ordering::Relaxed) < 10);
            let made =
                numbers.try_for_each(|_| SandboxFolder::new()?.create_subfolder("try").map(drop));
            is_done.store(true, Ordering::Relaxed);
            made.unwrap();
        });
    }
}
