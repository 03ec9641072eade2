//! The folder of a sweep, which belongs to one sweep, in one process at a time, and the folders of its runs.

use super::check;
use crate::disk::{self, input};
use crate::program::args::SweepArgs;
use crate::program::recorded_run::{RecordedRun, RunStatus};
use crate::run::RunFolder;
use anyhow::{Context, Result, bail};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// Copy of the sweep's file in its folder.
const SWEEP_COPY: &str = "sweep.toml";
/// File that the process of a sweep locks.
const LOCK_FILE: &str = "sweep.lock";

/// Folder of the sweep: that of the command line, otherwise the sweep's file without its extension.
pub fn output_folder(args: &SweepArgs) -> Result<PathBuf> {
    match &args.out {
        Some(folder) if *folder == args.file => {
            bail!("--out is the sweep's file; give a folder")
        }
        Some(folder) => Ok(folder.clone()),
        None if args.file.extension().is_none() => bail!(
            "the file has no extension, so the sweep's folder cannot have its name; use --out DIR"
        ),
        None => Ok(args.file.with_extension("")),
    }
}

/// Locks a sweep's folder until the result is dropped, as far as the file system supports locks, and writes the text of
/// the sweep's file to it, or checks that the folder belongs to the same file.
///
/// # Errors
/// If it belongs to another sweep, another process runs the sweep, or the folder cannot be written.
pub fn claim(folder: &Path, text: &str) -> Result<File> {
    let cannot_write = |path: &Path| format!("cannot write {}", path.display());
    disk::create_folders(folder).with_context(|| cannot_write(folder))?;
    let path = folder.join(LOCK_FILE);
    if !path.exists() {
        // A refused sweep leaves nothing in another's folder.
        is_claimed(folder, text)?;
    }
    let lock = disk::open_append(&path).with_context(|| cannot_write(&path))?;
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        bail!(
            "another process runs the sweep in {}; wait for it, or stop it, then repeat the command",
            folder.display()
        );
    }
    if !is_claimed(folder, text)? {
        let path = folder.join(SWEEP_COPY);
        disk::replace(&path, text.as_bytes()).with_context(|| cannot_write(&path))?;
    }
    Ok(lock)
}

/// Whether a folder belongs to the sweep with this text already.
///
/// # Errors
/// If it belongs to another sweep, or its copy of the text cannot be read.
fn is_claimed(folder: &Path, text: &str) -> Result<bool> {
    let path = folder.join(SWEEP_COPY);
    let before = input::allow_missing(input::read_description(&path));
    match before.with_context(|| format!("cannot read {}", path.display()))? {
        Some(before) if before != text => bail!(
            "{} holds another sweep{}; remove it, or choose another --out",
            folder.display(),
            check::describe_difference(&before, text).unwrap_or_default()
        ),
        before => Ok(before.is_some()),
    }
}

/// Whether a folder holds a run that was interrupted after a checkpoint.
///
/// # Errors
/// If another process is training it, for instance one that outlived the sweep that started it.
pub fn is_resumable(folder: &Path) -> Result<bool> {
    let Ok(run) = RunFolder::find(folder) else { return Ok(false) };
    if run.is_locked() {
        bail!(
            "another process trains the run in {}; wait for it, or stop it, then repeat the command",
            folder.display()
        );
    }
    let is_interrupted =
        || RecordedRun::read(folder).is_ok_and(|run| run.status() == RunStatus::Interrupted);
    Ok(run.load_latest().is_ok() && is_interrupted())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn a_run_locked_by_another_process_is_left_alone() {
        let temp_dir = TempDir::new().unwrap();
        let folder = temp_dir.path().join("trial-0-seed-1");
        assert!(!is_resumable(&folder).unwrap());
        fs::create_dir(&folder).unwrap();
        assert!(!is_resumable(&folder).unwrap());
        fs::write(folder.join("config.toml"), "env = 'catch'").unwrap();
        let run = RunFolder::find(&folder).unwrap();
        let lock = run.lock().unwrap();
        let error = is_resumable(&folder).unwrap_err().to_string();
        assert!(error.starts_with("another process trains the run in "), "{error}");
        drop(lock);
        assert!(!is_resumable(&folder).unwrap());
    }
}
