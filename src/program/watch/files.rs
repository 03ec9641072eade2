//! The files of a run, and nothing that a link in its directory leads to.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The most bytes of a small file.
const SMALL: u64 = 1 << 20;

/// The directory of a run, with links in the way to it followed.
pub struct RunFiles {
    root: PathBuf,
}

impl RunFiles {
    /// # Errors
    /// If there is no such directory.
    pub fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self { root: fs::canonicalize(directory)? })
    }

    /// The run's name: that of its directory.
    pub fn name(&self) -> String {
        self.root.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into())
    }

    /// The path of what is called `name` in the run, if it is there and no link is on the way.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let path = self.root.join(name);
        (fs::canonicalize(&path).ok()? == path).then_some(path)
    }

    /// Opens a regular file.
    pub fn open(&self, name: &str) -> Option<File> {
        let path = self.path(name)?;
        // Before it is opened, too: opening a named pipe waits for a writer.
        fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        File::open(path).ok()
    }

    /// Reads a small regular file.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.take(SMALL + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= SMALL).then_some(bytes)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_what_lies_in_the_run_itself_is_read() {
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
        fs::write(folder.join("run/large"), vec![0; SMALL as usize + 1]).unwrap();
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
