//! The folder of a sweep, which belongs to one sweep, in one process at a time, and the folders of its runs.

use super::check;
use crate::disk::{self, input};
use crate::program::args::SweepArgs;
use crate::program::output::eprint_line;
use crate::program::recorded_run::{RecordedRun, RunStatus};
use crate::run::RunFolder;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// Copy of the sweep's file in its folder.
const SWEEP_COPY: &str = "sweep.toml";
/// File that the process of a sweep locks.
const LOCK_FILE: &str = "sweep.lock";
/// File that the runs of a sweep lock together.
const RUNS_LOCK_FILE: &str = "runs.lock";

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

/// Locks the runs of a sweep, for this process and for those that it starts, until all of them have ended. Waits for
/// runs of a process that was killed: they stop by themselves, and until then write to their folders.
///
/// # Errors
/// If the folder cannot be written.
pub fn lock_runs(folder: &Path) -> Result<File> {
    let path = folder.join(RUNS_LOCK_FILE);
    let lock =
        disk::open_append(&path).with_context(|| format!("cannot write {}", path.display()))?;
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        eprint_line!("Waiting for the sweep's last runs to stop.");
        lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    // Unless they inherit the file, the lock ends with this process.
    #[cfg(unix)]
    // SAFETY: the file is open, and of its flags only that of closing it in started programs changes.
    unsafe {
        use std::os::fd::AsRawFd;
        libc::fcntl(lock.as_raw_fd(), libc::F_SETFD, 0);
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
            "{} holds another sweep{}; remove that folder, or choose another --out",
            folder.display(),
            check::describe_difference(&before, text).unwrap_or_default()
        ),
        Some(_) => Ok(true),
        None if holds_other_files(folder)? => bail!(
            "{} is not empty and holds no sweep, for {SWEEP_COPY} is missing; choose another --out",
            folder.display()
        ),
        None => Ok(false),
    }
}

/// Whether a folder holds files other than those of a sweep that was killed as it claimed it.
fn holds_other_files(folder: &Path) -> Result<bool> {
    let entries = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let is_other = |name: &OsStr| name != LOCK_FILE && !name.as_encoded_bytes().starts_with(b".");
    Ok(entries.flatten().any(|entry| is_other(&entry.file_name())))
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
    use std::process::{Command, Stdio};
    use tempfile::TempDir;

    #[test]
    fn a_folder_with_files_of_others_is_left_alone() {
        let temp_dir = TempDir::new().unwrap();
        let folder = temp_dir.path().join("sweep");
        drop(claim(&folder, "trials = 2").unwrap());
        drop(claim(&folder, "trials = 2").unwrap());
        fs::create_dir(folder.join("trial-0-seed-1")).unwrap();
        fs::remove_file(folder.join(SWEEP_COPY)).unwrap();
        let error = claim(&folder, "trials = 2").unwrap_err().to_string();
        assert!(error.contains("is not empty and holds no sweep"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn the_runs_of_a_sweep_are_locked_until_the_last_process_has_ended() {
        let temp_dir = TempDir::new().unwrap();
        let lock = lock_runs(temp_dir.path()).unwrap();
        let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        drop(lock);
        let path = temp_dir.path().join(RUNS_LOCK_FILE);
        let is_locked =
            || matches!(File::open(&path).unwrap().try_lock(), Err(TryLockError::WouldBlock));
        assert!(is_locked());
        drop(process.stdin.take());
        process.wait().unwrap();
        assert!(!is_locked());
    }

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
