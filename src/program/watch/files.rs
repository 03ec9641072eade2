//! Access to a run's files that does not follow symbolic links out of the run directory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum size of a file that is read whole, bytes.
const MAX_FILE: u64 = 1 << 20;

/// The canonical directory of a run.
pub struct RunFiles {
    root: PathBuf,
}

impl RunFiles {
    /// Opens a run directory.
    ///
    /// # Errors
    /// If there is no such directory.
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
        let path = self.path(name)?;
        // Checked before opening, because opening a named pipe would block.
        fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        File::open(path).ok()
    }

    /// Reads a regular file of at most [`MAX_FILE`] bytes.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.take(MAX_FILE + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= MAX_FILE).then_some(bytes)
    }
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
