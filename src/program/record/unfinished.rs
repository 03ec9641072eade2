//! A file that is not there before it is whole.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What is written to it lies beside its place under another name, until it is finished; else it is
/// removed.
pub struct Unfinished {
    place: PathBuf,
    beside: PathBuf,
    file: BufWriter<File>,
}

impl Unfinished {
    /// Makes the file beside `place`, and checks that what is at `place` may be replaced.
    pub fn create(place: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", place.display());
        if place.is_dir() {
            bail!("cannot write {}: it is a directory", place.display());
        }
        if place.exists() {
            OpenOptions::new().write(true).open(place).with_context(cannot)?;
        }
        let name = place.file_name().with_context(cannot)?.to_string_lossy();
        let beside = place.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let file = File::create_new(&beside).with_context(cannot)?;
        Ok(Self { place: place.to_path_buf(), beside, file: BufWriter::new(file) })
    }

    /// Where it is until it is finished, for another process to write it.
    pub fn path(&self) -> &Path {
        &self.beside
    }

    /// Puts the file in its place; gives its length in bytes.
    pub fn finish(mut self) -> Result<u64> {
        let mut put = || {
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            let bytes = self.file.get_ref().metadata()?.len();
            std::fs::rename(&self.beside, &self.place)?;
            Ok::<_, io::Error>(bytes)
        };
        put().with_context(|| format!("cannot write {}", self.place.display()))
    }
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for Unfinished {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // A finished file is no longer there, and a reader needs no word of one that is not.
        let _ = std::fs::remove_file(&self.beside);
    }
}
