//! Saving one checkpoint atomically.

use super::manifest::{
    CHECKSUMS, MANIFEST, find_bad_name, format_checksum_line, serialize_manifest,
};
use super::{Checkpoint, CheckpointError};
use crate::disk::{self, ReplacementPaths, replacement_paths};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Saves a checkpoint as the directory `path`, replacing a checkpoint that exists there.
///
/// The replacement is atomic: at any time, and after a crash at any point, [`load`](super::load)
/// returns either the complete old or the complete new checkpoint. The data have been fsynced when
/// this returns. Missing parent directories are created. On Windows a checkpoint cannot be replaced
/// while it is being read.
///
/// # Errors
/// If the path or a section name is invalid, the path holds something else, or writing fails; see
/// [`CheckpointError`]. A checkpoint that was at `path` is kept.
pub fn save(checkpoint: &Checkpoint, path: &Path) -> Result<(), CheckpointError> {
    let unnamed = || CheckpointError::Unnamed(path.to_owned());
    replacement_paths(path).ok_or_else(unnamed)?;
    let sections = &checkpoint.sections;
    let names = sections.iter().map(|section| section.name.as_str());
    if let Some((name, reason)) = find_bad_name(names) {
        let (path, name) = (path.to_owned(), name.to_owned());
        return Err(CheckpointError::BadSectionName { path, name, reason });
    }
    require_replaceable(path)?;
    require_only_leftovers(path)?;
    let saved =
        disk::replace_folder(path, remove_manifest_last, |tmp| write_files(checkpoint, tmp));
    saved.map_err(|error| match error {
        CheckpointError::Io { cause, .. }
            if matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
        {
            let needed_bytes = sections.iter().map(|s| s.bytes.len() as u64).sum();
            CheckpointError::DiskFull { path: path.to_owned(), needed_bytes }
        }
        error => error,
    })
}

/// Cleans up after a crashed save to `path`: removes leftovers and completes an interrupted
/// replacement.
pub(super) fn recover_replacement(path: &Path) -> Result<(), CheckpointError> {
    require_only_leftovers(path)?;
    Ok(disk::recover_replacement(path, remove_manifest_last)?)
}

/// Checks that the folders beside `path`, if any, are leftovers of saves.
fn require_only_leftovers(path: &Path) -> Result<(), CheckpointError> {
    let mut leftovers =
        replacement_paths(path).into_iter().flat_map(ReplacementPaths::into_existing);
    leftovers.try_for_each(|folder| require_replaceable(&folder))
}

/// Removes a checkpoint's directory, the manifest last, so that a directory left by a crash is still
/// recognized as a checkpoint. File servers and notebooks may have put folders of their own there.
fn remove_manifest_last(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            disk::remove_tree(&entry.path())?;
        } else if entry.file_name() != MANIFEST {
            disk::remove_file(&entry.path())?;
        }
    }
    match disk::remove_file(&directory.join(MANIFEST)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => disk::remove_folder(directory),
    }
}

/// Removes the checkpoint at `path`. After a crash it is either intact or gone.
pub(super) fn remove(path: &Path) -> Result<(), CheckpointError> {
    require_no_link(path)?;
    let unnamed = || CheckpointError::Unnamed(path.to_owned());
    let tmp = replacement_paths(path).ok_or_else(unnamed)?.new;
    disk::rename(path, &tmp).map_err(CheckpointError::io("remove", path))?;
    remove_manifest_last(&tmp).map_err(CheckpointError::io("remove", &tmp))
}

/// Checks that `path` may be replaced: it must be missing, an empty directory or a checkpoint (intact
/// or damaged).
fn require_replaceable(path: &Path) -> Result<(), CheckpointError> {
    require_no_link(path)?;
    let is_replaceable = match fs::read_dir(path) {
        Ok(mut entries) => {
            let known = [MANIFEST, CHECKSUMS].map(|name| path.join(name).exists());
            entries.next().is_none() || known.contains(&true)
        }
        Err(_) if path.is_file() => false,
        Err(e) if e.kind() == ErrorKind::NotFound => true,
        Err(e) => return Err(CheckpointError::io("read", path)(e)),
    };
    let refused = || CheckpointError::NotACheckpoint(path.to_owned());
    is_replaceable.then_some(()).ok_or_else(refused)
}

/// Refuses a symbolic link: the files of the directory that it points to would be lost.
pub(super) fn require_no_link(path: &Path) -> Result<(), CheckpointError> {
    if path.is_symlink() { Err(CheckpointError::Link(path.to_owned())) } else { Ok(()) }
}

/// Writes the checkpoint's files to the new directory `tmp` and fsyncs them. Its own entry is synced after it has been
/// renamed.
fn write_files(checkpoint: &Checkpoint, tmp: &Path) -> Result<(), CheckpointError> {
    let parent = tmp.parent().unwrap_or(tmp);
    disk::create_folders(parent).map_err(CheckpointError::io("create", parent))?;
    disk::create_folder(tmp).map_err(CheckpointError::io("create", tmp))?;
    let manifest = serialize_manifest(checkpoint);
    let mut checksums = format_checksum_line(MANIFEST, manifest.as_bytes());
    let put = |name: &str, bytes: &[u8]| {
        let file = tmp.join(name);
        disk::create(&file, bytes).map_err(CheckpointError::io("write", &file))
    };
    put(MANIFEST, manifest.as_bytes())?;
    for section in &checkpoint.sections {
        put(&section.name, &section.bytes)?;
        checksums += &format_checksum_line(&section.name, &section.bytes);
    }
    put(CHECKSUMS, checksums.as_bytes())?;
    disk::sync_folder(tmp).map_err(CheckpointError::io("sync", tmp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Section, load};
    use crate::disk::faults::{Fault, with_fault};
    use tempfile::TempDir;

    fn checkpoint(iteration: u64) -> Checkpoint {
        let section = |name: &str, size| Section {
            name: name.into(),
            version: 1,
            bytes: vec![iteration as u8; size],
        };
        Checkpoint { iteration, sections: vec![section("weights", 1000), section("log", 10)] }
    }

    fn names_in(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn folders_of_others_in_a_checkpoint_go_with_it() {
        let root = TempDir::new().unwrap();
        let path = root.path().join("best");
        save(&checkpoint(1), &path).unwrap();
        fs::create_dir_all(path.join("@eaDir/thumbnails")).unwrap();
        save(&checkpoint(2), &path).unwrap();
        assert_eq!(load(&path).unwrap(), checkpoint(2));
        fs::create_dir(path.join(".ipynb_checkpoints")).unwrap();
        remove(&path).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_fault_at_any_change_leaves_a_whole_checkpoint_and_the_next_save_clears_the_rest() {
        let root = TempDir::new().unwrap();
        let save = |iteration: u64, path: &Path, fault: Fault| {
            with_fault(fault, || save(&checkpoint(iteration), path))
        };
        let whole = root.path().join("whole/best");
        save(1, &whole, Fault::Nothing).0.unwrap();
        let (_, changes) = save(2, &whole, Fault::Nothing);
        assert!(changes > 15, "{changes}");
        for fault in (0..changes).flat_map(|at| [Fault::Once(at), Fault::Stop(at)]) {
            let run = root.path().join(format!("{fault:?}"));
            let path = run.join("best");
            save(1, &path, Fault::Nothing).0.unwrap();
            let saved = save(2, &path, fault).0;
            let found = load(&path).unwrap().iteration;
            match saved {
                Ok(()) => assert_eq!(found, 2, "{fault:?}"),
                Err(error) => {
                    let words = ": the disk is full; free at least 1010 bytes there, or save to";
                    assert!(error.to_string().contains(words), "{fault:?}: {error}");
                }
            }
            if found == 1 && matches!(fault, Fault::Once(_)) {
                assert_eq!(names_in(&run), ["best"], "{fault:?}");
            }
            // Another fault, while what is left over is removed or the next files are written.
            let _ = save(3, &path, Fault::Once(8));
            load(&path).unwrap();
            save(3, &path, Fault::Nothing).0.unwrap();
            assert_eq!(names_in(&run), ["best"], "{fault:?}");
            assert_eq!(load(&path).unwrap(), checkpoint(3));
        }
    }

    #[test]
    fn foreign_directories_are_left_untouched() {
        for choose in [|paths: ReplacementPaths| paths.new, |paths: ReplacementPaths| paths.old] {
            let run = TempDir::new().unwrap();
            let path = run.path().join("best");
            let theirs = choose(replacement_paths(&path).unwrap());
            fs::create_dir(&theirs).unwrap();
            fs::write(theirs.join("thesis.txt"), "the only copy").unwrap();
            for there in [false, true] {
                if there {
                    fs::create_dir(&path).unwrap();
                }
                let error = save(&checkpoint(1), &path).unwrap_err();
                assert!(
                    matches!(&error, CheckpointError::NotACheckpoint(path) if *path == theirs),
                    "{error}"
                );
                assert_eq!(fs::read(theirs.join("thesis.txt")).unwrap(), b"the only copy");
            }
        }
    }
}
