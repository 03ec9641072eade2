//! Records as JSON lines, one an iteration, in a file that survives interruptions.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// A file of metrics that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the metrics file {path} cannot be {action}: {source}")]
pub struct MetricsError {
    path: PathBuf,
    action: &'static str,
    source: std::io::Error,
}

/// What every record has: the number of its iteration, from 1.
#[derive(Deserialize)]
struct Numbered {
    iteration: u32,
}

/// An open file of metrics.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Starts a file.
    ///
    /// # Errors
    /// If it exists already or cannot be written.
    pub fn create(path: &Path) -> Result<Self, MetricsError> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file = file.map_err(|source| error(path, "created", source))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Goes on with a file after `iteration`: what it says of later ones is dropped, since those
    /// iterations are about to be done again, and so is what is no record, as a torn last line.
    ///
    /// # Errors
    /// If it cannot be read or written.
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
        // Beside it and renamed, so that a full disk leaves the old file whole.
        let beside = path.with_extension("jsonl.tmp");
        std::fs::write(&beside, kept)
            .and_then(|()| std::fs::rename(&beside, path))
            .map_err(|source| error(path, "written", source))?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(|source| error(path, "written", source))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// If it cannot be written, for instance because the disk is full.
    pub fn write(&mut self, record: &impl Serialize) -> Result<(), MetricsError> {
        let mut line = serde_json::to_vec(record).expect("records are plain numbers");
        line.push(b'\n');
        self.file.write_all(&line).map_err(|source| error(&self.path, "written", source))
    }
}

fn error(path: &Path, action: &'static str, source: std::io::Error) -> MetricsError {
    MetricsError { path: path.to_path_buf(), action, source }
}
