//! Records in a file of JSON lines, one per iteration, that survives interruptions.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// The metrics file cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the metrics file {path} cannot be {action}: {source}")]
pub struct MetricsError {
    path: PathBuf,
    action: &'static str,
    source: std::io::Error,
}

/// The field that all records share: the iteration, from 1.
#[derive(Deserialize)]
struct Numbered {
    iteration: u32,
}

/// An open metrics file, to which records are appended.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Creates a file.
    ///
    /// # Errors
    /// If it already exists or cannot be created.
    pub fn create(path: &Path) -> Result<Self, MetricsError> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file = file.map_err(|source| error(path, "created", source))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Opens a file to append records after `iteration`. Records of later iterations are dropped,
    /// since these iterations will be repeated, and so are malformed lines, such as a torn last one.
    /// A missing file is created.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn resume(path: &Path, iteration: u32) -> Result<Self, MetricsError> {
        let mut kept = Vec::new();
        match File::open(path) {
            Ok(file) => {
                for line in BufReader::new(file).split(b'\n') {
                    let line = line.map_err(|source| error(path, "read", source))?;
                    let record = serde_json::from_slice::<Numbered>(&line);
                    if record.is_ok_and(|record| record.iteration <= iteration) {
                        kept.extend(line);
                        kept.push(b'\n');
                    }
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(error(path, "read", source)),
        }
        // Written to a temporary file and renamed, so that a full disk leaves the old file intact.
        let beside = path.with_extension("jsonl.tmp");
        std::fs::write(&beside, kept)
            .and_then(|()| std::fs::rename(&beside, path))
            .map_err(|source| error(path, "written", source))?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(|source| error(path, "written", source))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// If it cannot be written, for instance because the disk is full.
    pub fn write(&mut self, record: &impl Serialize) -> Result<(), MetricsError> {
        self.write_all(std::slice::from_ref(record))
    }

    /// Adds some records at once.
    ///
    /// # Errors
    /// As [`JsonLines::write`].
    pub fn write_all(&mut self, records: &[impl Serialize]) -> Result<(), MetricsError> {
        let mut lines = Vec::new();
        for record in records {
            serde_json::to_writer(&mut lines, record).expect("records are plain data");
            lines.push(b'\n');
        }
        self.file.write_all(&lines).map_err(|source| error(&self.path, "written", source))
    }

    /// Waits until all records are on the disk.
    ///
    /// # Errors
    /// If the system cannot write them.
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.file.sync_data().map_err(|source| error(&self.path, "written", source))
    }
}

fn error(path: &Path, action: &'static str, source: std::io::Error) -> MetricsError {
    MetricsError { path: path.to_path_buf(), action, source }
}
