//! Loading one checkpoint and verifying all of its checksums.

use super::manifest::{
    CHECKSUMS, MANIFEST, Manifest, SectionEntry, format_checksum_line, parse_manifest,
};
use super::{Checkpoint, CheckpointError, Section};
use crate::disk::{input, replacement_paths};
use std::fs::{self, File, ReadDir};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Number of attempts to open the files. Opening fails once if a save replaces the checkpoint between two
/// opens; real damage fails every time, and cheaply, since no section has been read yet.
const OPEN_ATTEMPTS: u32 = 50;

/// Reads the checkpoint in the directory `path` and verifies its checksums.
///
/// If a crash interrupted the replacement of `path`, this returns the previous checkpoint. If the
/// checkpoint is replaced during the read, the result is either the old or the new one, never a mix.
///
/// # Errors
/// If the checkpoint is missing, damaged, newer than this version or unreadable; see
/// [`CheckpointError`].
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    load_with(path, &input::open, u64::MAX)
}

/// Reads the iteration of a checkpoint without its sections.
///
/// # Errors
/// The errors of [`load`], except for damage within a section.
pub fn read_iteration(path: &Path) -> Result<u64, CheckpointError> {
    Ok(open_stable(path, &input::open)?.manifest.iteration)
}

/// Function that opens the regular file at a path to read it.
type Opener<'a> = &'a dyn Fn(&Path) -> io::Result<File>;

/// Reads a checkpoint as [`load`] does, but from the files that `opener` opens, which may refuse some, and only if its
/// sections have at most `max_bytes` bytes together.
pub fn load_with(
    path: &Path,
    opener: Opener,
    max_bytes: u64,
) -> Result<Checkpoint, CheckpointError> {
    open_stable(path, opener)?.read(max_bytes)
}

/// A checkpoint with a verified manifest and open section files, which stay readable even if the
/// directory is replaced.
struct OpenCheckpoint {
    path: PathBuf,
    manifest: Manifest,
    /// The section files, in manifest order.
    files: Vec<File>,
    /// `SHA256SUMS` after the manifest's line.
    checksums: Vec<u8>,
}

/// Opens a checkpoint, several times if it is being replaced meanwhile.
fn open_stable(path: &Path, opener: Opener) -> Result<OpenCheckpoint, CheckpointError> {
    let opened = (1..OPEN_ATTEMPTS).find_map(|_| open(path, opener).ok());
    opened.map_or_else(|| open(path, opener), Ok)
}

fn open(path: &Path, opener: Opener) -> Result<OpenCheckpoint, CheckpointError> {
    match (open_exactly(path, opener), replacement_paths(path)) {
        (Err(CheckpointError::NotFound(_)), Some(paths)) if paths.old.is_dir() => {
            open_exactly(&paths.old, opener)
        }
        (opened, _) => opened,
    }
}

/// Opens the folder at exactly this path, and checks everything but the content of its sections: checksums, manifest
/// and sizes. The files stay open, so that the sections come from the same checkpoint even if it is replaced meanwhile.
fn open_exactly(path: &Path, opener: Opener) -> Result<OpenCheckpoint, CheckpointError> {
    if read_entries(path)?.next().is_none() {
        return Err(CheckpointError::damaged(path, "it is empty"));
    }
    let read = |name: &str| {
        let file = opener(&path.join(name));
        file.and_then(|file| input::read_file(file, input::MAX_DESCRIPTION_BYTES))
            .map_err(read_error(path, name))
    };
    let all_checksums = read(CHECKSUMS)?;
    let text = read(MANIFEST)?;
    let checksums = strip_checksum_line(path, &all_checksums, MANIFEST, &text)?.to_vec();
    let manifest = parse_manifest(path, &text)?;

    let mut files = Vec::new();
    for entry in &manifest.sections {
        let file = opener(&path.join(&entry.name));
        let file = file.and_then(|file| Ok((file.metadata()?.len(), file)));
        let (found, file) = file.map_err(read_error(path, &entry.name))?;
        require_size(path, entry, found)?;
        files.push(file);
    }
    if read(CHECKSUMS)? != all_checksums {
        let reason = format!("{CHECKSUMS} changed while it was read");
        return Err(CheckpointError::damaged(path, reason));
    }
    Ok(OpenCheckpoint { path: path.to_owned(), manifest, files, checksums })
}

impl OpenCheckpoint {
    fn read(self, max_bytes: u64) -> Result<Checkpoint, CheckpointError> {
        let Self { path, manifest, files, checksums } = self;
        let bytes =
            manifest.sections.iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.size));
        if bytes > max_bytes {
            let message = format!("its sections have {bytes} bytes; the limit is {max_bytes}");
            return Err(CheckpointError::io("read", &path)(io::Error::other(message)));
        }
        let mut checksums = &checksums[..];
        let mut sections = Vec::new();
        for (entry, file) in manifest.sections.into_iter().zip(files) {
            let mut bytes = Vec::new();
            // A file that has grown since it was opened has another size, however large it is.
            file.take(entry.size.saturating_add(1))
                .read_to_end(&mut bytes)
                .map_err(read_error(&path, &entry.name))?;
            require_size(&path, &entry, bytes.len() as u64)?;
            checksums = strip_checksum_line(&path, checksums, &entry.name, &bytes)?;
            sections.push(Section { name: entry.name, version: entry.version, bytes });
        }
        if !checksums.is_empty() {
            let reason = format!("{CHECKSUMS} lists more than {MANIFEST}");
            return Err(CheckpointError::damaged(&path, reason));
        }
        Ok(Checkpoint { iteration: manifest.iteration, sections })
    }
}

/// The entries of a directory.
pub(super) fn read_entries(path: &Path) -> Result<ReadDir, CheckpointError> {
    fs::read_dir(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::NotFound(path.to_owned()),
        _ if path.exists() && !path.is_dir() => CheckpointError::NotADirectory(path.to_owned()),
        _ => CheckpointError::io("read", path)(source),
    })
}

/// The error for a file that cannot be read.
fn read_error(path: &Path, name: &str) -> impl FnOnce(io::Error) -> CheckpointError {
    let (path, file) = (path.to_owned(), name.to_owned());
    move |source| match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::damaged(&path, format!("{file} is missing")),
        _ => CheckpointError::io("read", &path.join(file))(source),
    }
}

fn require_size(path: &Path, entry: &SectionEntry, found: u64) -> Result<(), CheckpointError> {
    let SectionEntry { name, size, .. } = entry;
    let reason = || format!("{name} has {found} bytes instead of {size}");
    (found == *size).then_some(()).ok_or_else(|| CheckpointError::damaged(path, reason()))
}

/// Checks that `checksums` starts with the line for this file, and returns the rest.
fn strip_checksum_line<'a>(
    path: &Path,
    checksums: &'a [u8],
    name: &str,
    bytes: &[u8],
) -> Result<&'a [u8], CheckpointError> {
    checksums.strip_prefix(format_checksum_line(name, bytes).as_bytes()).ok_or_else(|| {
        let reason = format!("{name} does not have the checksum given in {CHECKSUMS}");
        CheckpointError::damaged(path, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::save;

    #[test]
    fn sections_beyond_a_limit_are_not_read() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("best");
        let sections =
            ["a", "b"].map(|name| Section { name: name.into(), version: 1, bytes: vec![0; 64] });
        let checkpoint = Checkpoint { iteration: 3, sections: sections.to_vec() };
        save(&checkpoint, &path).unwrap();
        let load = |max_bytes| load_with(&path, &input::open, max_bytes);
        assert_eq!(load(128).unwrap(), checkpoint);
        let error = load(127).unwrap_err().to_string();
        assert!(error.contains("its sections have 128 bytes; the limit is 127"), "{error}");
    }
}
