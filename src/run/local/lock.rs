//! The lock of a run, which one process at a time holds to train it.

use super::file_names::LOCK;
use super::{RunError, RunFolder};
use crate::disk;
use std::fs::{File, TryLockError};
use std::time::Duration;

/// Time to wait for a process that only tests the lock ([`RunFolder::is_locked`]).
const LOCK_TEST_TIMEOUT: Duration = Duration::from_millis(50);

/// Exclusive right to train a run, among all processes; released when dropped.
#[derive(Debug)]
pub struct RunLock {
    /// Warning for the user if the file system does not support locks.
    pub warning: Option<String>,
    folder: RunFolder,
    file: File,
}

impl RunLock {
    /// The run directory.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // A process that is just being started may hold a copy of the handle, which would keep the lock after closing
        // the file.
        let _ = self.file.unlock();
    }
}

impl RunFolder {
    /// Whether a process is training the run, as far as the file system supports locks.
    pub fn is_locked(&self) -> bool {
        let Ok(file) = disk::open_no_follow(&self.path().join(LOCK)) else { return false };
        let locked = file.try_lock_shared();
        // Closing the file would not be enough; see `RunLock`.
        let _ = file.unlock();
        matches!(locked, Err(TryLockError::WouldBlock))
    }

    /// Identity of the file that a process locks to train the run; `None` without one.
    pub(super) fn lock_id(&self) -> Option<(u64, u64)> {
        disk::file_id(&self.path().join(LOCK)).ok()
    }

    /// Locks the run until the result is dropped.
    ///
    /// # Errors
    /// If it is locked, by this or another process.
    pub fn lock(&self) -> Result<RunLock, RunError> {
        let path = self.path().join(LOCK);
        let file = disk::open_append(&path).map_err(RunError::file("write", &path))?;
        // A process that only tests the lock holds it for an instant.
        let locked = file.try_lock().or_else(|error| match error {
            TryLockError::WouldBlock => {
                std::thread::sleep(LOCK_TEST_TIMEOUT);
                file.try_lock()
            }
            error => Err(error),
        });
        let warning = match locked {
            Ok(()) => None,
            Err(TryLockError::WouldBlock) => {
                return Err(RunError::Locked(self.path().to_path_buf()));
            }
            Err(TryLockError::Error(error)) => Some(format!(
                "{} cannot be locked ({error}); make sure that no other process trains this run",
                path.display()
            )),
        };
        Ok(RunLock { warning, folder: self.clone(), file })
    }

    /// Locks a directory that [`create`](Self::create) found free, for a new run. Another run may have begun, or even
    /// ended, in it since.
    ///
    /// # Errors
    /// If one has saved a checkpoint, and those of [`lock`](Self::lock).
    pub(super) fn claim(&self) -> Result<RunLock, RunError> {
        let lock = self.lock()?;
        if self.has_any_checkpoint() {
            return Err(RunError::Exists(self.path().to_path_buf()));
        }
        Ok(lock)
    }
}
