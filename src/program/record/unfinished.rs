//! An output file that replaces its target only when it is complete.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file that is written as `.NAME.tmp` beside its target. It is renamed to its target by
/// [`finish`](Unfinished::finish), and removed if it is dropped before; what a killed process leaves is replaced by the
/// next one.
pub struct Unfinished {
    target: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
}

impl Unfinished {
    /// Creates the temporary file, and checks that an existing target may be replaced.
    pub fn create(target: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", target.display());
        if target.is_dir() {
            bail!("cannot write {}: it is a directory", target.display());
        }
        if target.exists() {
            OpenOptions::new().write(true).open(target).with_context(cannot)?;
        }
        // A link stays, and what it names is replaced.
        let target = &target.canonicalize().unwrap_or_else(|_| target.to_path_buf());
        let name = target.file_name().with_context(cannot)?.to_string_lossy();
        let temporary = target.with_file_name(format!(".{name}.tmp"));
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(cannot)?,
            _ => {}
        }
        let file = File::create_new(&temporary).with_context(cannot)?;
        Ok(Self { target: target.to_path_buf(), temporary, file: BufWriter::new(file) })
    }

    /// The temporary path, for another process to write to.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Moves the file to its target and returns its size in bytes.
    pub fn finish(mut self) -> Result<u64> {
        let mut put = || {
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            let bytes = self.file.get_ref().metadata()?.len();
            std::fs::rename(&self.temporary, &self.target)?;
            Ok::<_, io::Error>(bytes)
        };
        put().with_context(|| format!("cannot write {}", self.target.display()))
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
        // Fails without consequences if the file was finished.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_a_killed_process_leaves_is_replaced() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("game.gif");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let begun = Unfinished::create(&path).unwrap().path().to_path_buf();
        assert_eq!(names(), 0);
        fs::write(begun, "a part that is longer").unwrap();
        let mut file = Unfinished::create(&path).unwrap();
        file.write_all(b"whole").unwrap();
        assert_eq!(file.finish().unwrap(), 5);
        assert_eq!((fs::read_to_string(&path).unwrap(), names()), ("whole".to_string(), 1));
    }
}
