//! Loading one checkpoint, with everything in it verified.

use crate::checkpoint::manifest::{
    FORMAT, MANIFEST, Manifest, SUMS, Unusable, read_manifest, sums_line,
};
use crate::checkpoint::{Checkpoint, CheckpointError, Section, set_aside};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How often the files are opened anew when that fails. A save that replaces the checkpoint between
/// two opens makes it fail once; real damage fails every time, and soon, as no section is read yet.
const ATTEMPTS: u32 = 50;

/// Reads the checkpoint in the directory `path`, and verifies every byte of it.
///
/// Where a crash interrupted the replacement of `path`, this reads the former checkpoint. A
/// checkpoint that is replaced while it is read is read whole, either the old or the new one.
///
/// # Errors
/// What is wrong, where, and what to do; see [`CheckpointError`].
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let mut opened = open(path);
    for _ in 1..ATTEMPTS {
        if opened.is_ok() {
            break;
        }
        opened = open(path);
    }
    opened?.read()
}

/// A checkpoint whose manifest is verified, and whose sections are open: they stay readable even
/// when another checkpoint takes its place.
struct Opened {
    path: PathBuf,
    manifest: Manifest,
    /// The sections' files, in the manifest's order.
    files: Vec<File>,
    /// What is left of `SHA256SUMS` after the manifest's line.
    sums: Vec<u8>,
}

fn open(path: &Path) -> Result<Opened, CheckpointError> {
    match (open_exactly(path), set_aside(path)) {
        (Err(CheckpointError::NotFound { .. }), Some(old)) if old.is_dir() => open_exactly(&old),
        (opened, _) => opened,
    }
}

fn open_exactly(path: &Path) -> Result<Opened, CheckpointError> {
    require_files(path)?;
    let all_sums = read_file(path, SUMS)?;
    let text = read_file(path, MANIFEST)?;
    let sums = after_line(path, &all_sums, MANIFEST, &text)?.to_vec();
    let manifest = read_manifest(&text).map_err(|unusable| match unusable {
        Unusable::Newer(found) => {
            CheckpointError::NewerFormat { path: path.to_owned(), found, supported: FORMAT }
        }
        Unusable::Bad(reason) => CheckpointError::BadManifest { path: path.to_owned(), reason },
    })?;

    let mut files = Vec::new();
    for entry in &manifest.sections {
        let file = open_file(path, &entry.name)?;
        let metadata = file.metadata();
        let found = metadata.map_err(CheckpointError::io("read", &path.join(&entry.name)))?.len();
        require_size(path, &entry.name, entry.size, found)?;
        files.push(file);
    }
    if read_file(path, SUMS)? != all_sums {
        let reason = "changed while it was read";
        return Err(CheckpointError::BadSums { path: path.to_owned(), reason });
    }
    Ok(Opened { path: path.to_owned(), manifest, files, sums })
}

impl Opened {
    fn read(self) -> Result<Checkpoint, CheckpointError> {
        let Self { path, manifest, files, sums } = self;
        let mut sums = &sums[..];
        let mut sections = Vec::new();
        for (entry, mut file) in manifest.sections.into_iter().zip(files) {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)
                .map_err(CheckpointError::io("read", &path.join(&entry.name)))?;
            require_size(&path, &entry.name, entry.size, bytes.len() as u64)?;
            sums = after_line(&path, sums, &entry.name, &bytes)?;
            sections.push(Section { name: entry.name, version: entry.version, bytes });
        }
        if !sums.is_empty() {
            return Err(CheckpointError::BadSums { path, reason: "lists more than manifest.json" });
        }
        Ok(Checkpoint { iteration: manifest.iteration, sections })
    }
}

/// Checks that `path` is a directory with something in it.
fn require_files(path: &Path) -> Result<(), CheckpointError> {
    let refused = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => CheckpointError::NotFound { path: path.to_owned() },
        _ => CheckpointError::io("read", path)(source),
    };
    if !fs::metadata(path).map_err(refused)?.is_dir() {
        return Err(CheckpointError::NotADirectory { path: path.to_owned() });
    }
    match fs::read_dir(path).map_err(refused)?.next() {
        None => Err(CheckpointError::Empty { path: path.to_owned() }),
        Some(_) => Ok(()),
    }
}

fn open_file(path: &Path, name: &str) -> Result<File, CheckpointError> {
    let file = path.join(name);
    File::open(&file).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            CheckpointError::MissingFile { path: path.to_owned(), file: name.to_owned() }
        }
        _ => CheckpointError::io("read", &file)(source),
    })
}

fn read_file(path: &Path, name: &str) -> Result<Vec<u8>, CheckpointError> {
    let mut bytes = Vec::new();
    let read = open_file(path, name)?.read_to_end(&mut bytes);
    read.map_err(CheckpointError::io("read", &path.join(name)))?;
    Ok(bytes)
}

fn require_size(path: &Path, name: &str, expected: u64, found: u64) -> Result<(), CheckpointError> {
    if found == expected {
        return Ok(());
    }
    Err(CheckpointError::WrongSize {
        path: path.to_owned(),
        file: name.to_owned(),
        expected,
        found,
    })
}

/// What follows in `sums` after the line of the file `name` with these bytes.
fn after_line<'a>(
    path: &Path,
    sums: &'a [u8],
    name: &str,
    bytes: &[u8],
) -> Result<&'a [u8], CheckpointError> {
    sums.strip_prefix(sums_line(name, bytes).as_bytes()).ok_or_else(|| {
        CheckpointError::WrongChecksum { path: path.to_owned(), file: name.to_owned() }
    })
}
