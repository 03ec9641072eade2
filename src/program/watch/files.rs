//! Access to a run's files that does not follow symbolic links out of the run directory.

use crate::disk::input;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Maximum size of a file that is read whole, bytes.
const MAX_FILE: u64 = 1 << 20;

/// The canonical directory of a run.
pub struct RunFiles {
    root: PathBuf,
}

impl RunFiles {
    /// Opens a run directory.
    pub fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self { root: fs::canonicalize(directory)? })
    }

    /// The run's name, which is the directory's.
    pub fn name(&self) -> String {
        self.root.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into())
    }

    /// The path of the entry `name` of the run, if it exists and contains no symbolic link.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let path = self.root.join(name);
        (fs::canonicalize(&path).ok()? == path).then_some(path)
    }

    /// Opens a regular file.
    pub fn open(&self, name: &str) -> Option<File> {
        input::open(&self.path(name)?).ok()
    }

    /// Reads a regular file of at most [`MAX_FILE`] bytes.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        input::read(&self.path(name)?, MAX_FILE).ok()
    }
}

/// Reads up to `length` bytes of a file from offset `start`.
pub fn block(mut file: &File, start: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length);
    file.seek(SeekFrom::Start(start))?;
    file.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn symbolic_links_are_not_followed() {
        let folder = tempfile::TempDir::new().unwrap();
        let folder = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir_all(folder.join("run/best")).unwrap();
        fs::write(folder.join("secret"), "secret").unwrap();
        fs::write(folder.join("run/own"), "own").unwrap();
        fs::write(folder.join("run/best/own"), "own").unwrap();
        symlink("../secret", folder.join("run/link")).unwrap();
        symlink("own", folder.join("run/near")).unwrap();
        symlink("best", folder.join("run/folder")).unwrap();
        symlink("run", folder.join("way")).unwrap();
        fs::write(folder.join("run/large"), vec![0; MAX_FILE as usize + 1]).unwrap();
        for root in ["run", "way"] {
            let files = RunFiles::new(&folder.join(root)).unwrap();
            assert_eq!(files.name(), "run");
            for name in ["own", "best/own"] {
                assert_eq!(files.read(name).as_deref(), Some(&b"own"[..]), "{name}");
            }
            for name in ["link", "near", "folder/own", "best", "missing", "large", "../secret"] {
                assert_eq!(files.read(name), None, "{name}");
            }
        }
        assert!(RunFiles::new(&folder.join("missing")).is_err());
    }
}
