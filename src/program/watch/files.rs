//! Access to a run's files that follows no symbolic link, even if others can write in the run directory.

use crate::checkpoint::{self, Checkpoint};
use crate::disk::input;
#[cfg(unix)]
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
#[cfg(unix)]
use std::os::fd::{AsRawFd, FromRawFd};
#[cfg(unix)]
use std::os::unix::{ffi::OsStrExt, fs::OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of a file that is read whole, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The canonical directory of a run.
pub struct WatchedFiles {
    /// The path of the directory. Opening an entry by it may follow a link.
    pub root: PathBuf,
}

impl WatchedFiles {
    /// Opens a run directory.
    pub fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self { root: fs::canonicalize(directory)? })
    }

    /// The run's name, which is the directory's.
    pub fn name(&self) -> String {
        self.root.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into())
    }

    /// Opens a regular file.
    pub fn open(&self, name: &str) -> Option<File> {
        open_below(&self.root, &self.root.join(name)).ok()
    }

    /// Reads a regular file of at most [`MAX_FILE_BYTES`] bytes.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        input::read_file(self.open(name)?, MAX_FILE_BYTES).ok()
    }

    /// Loads a checkpoint of at most [`input::MAX_DATA_BYTES`] bytes.
    pub fn load_checkpoint(&self, name: &str) -> Option<Checkpoint> {
        let opener = |path: &Path| open_below(&self.root, path);
        checkpoint::load_with(&self.root.join(name), &opener, input::MAX_DATA_BYTES).ok()
    }
}

/// Opens a regular file below the folder `root`, if neither it, the root nor a folder between them is a symbolic link.
/// Each is opened from the one before, so that none can be replaced by a link after it was looked at.
#[cfg(unix)]
fn open_below(root: &Path, path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let mut file = File::options().read(true).custom_flags(flags).open(root)?;
    for name in path.strip_prefix(root).map_err(io::Error::other)? {
        file = open_entry(&file, name)?;
    }
    input::ensure_regular(file)
}

/// Opens an entry of an open folder, unless it is a symbolic link or leads out of the folder.
#[cfg(unix)]
fn open_entry(folder: &File, name: &OsStr) -> io::Result<File> {
    if name == ".." {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let name = CString::new(name.as_bytes())?;
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: `name` ends in a zero byte, and the folder is open.
    let file = unsafe { libc::openat(folder.as_raw_fd(), name.as_ptr(), flags) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the file was just opened, and has no other owner.
    Ok(unsafe { File::from_raw_fd(file) })
}

/// Opens a regular file below the folder `root`, if its path contains no symbolic link.
#[cfg(not(unix))]
fn open_below(_root: &Path, path: &Path) -> io::Result<File> {
    if fs::canonicalize(path)? == path {
        input::open(path)
    } else {
        Err(io::Error::other("its path contains a symbolic link"))
    }
}

/// Reads up to `length` bytes of a file from offset `start`.
pub fn read_block(mut file: &File, start: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length);
    file.seek(SeekFrom::Start(start))?;
    file.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::checkpoint::Section;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

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
        fs::write(folder.join("run/large"), vec![0; MAX_FILE_BYTES as usize + 1]).unwrap();
        for root in ["run", "way"] {
            let files = WatchedFiles::new(&folder.join(root)).unwrap();
            assert_eq!(files.name(), "run");
            for name in ["own", "best/own"] {
                assert_eq!(files.read(name).as_deref(), Some(&b"own"[..]), "{name}");
            }
            for name in ["link", "near", "folder/own", "best", "missing", "large", "../secret"] {
                assert_eq!(files.read(name), None, "{name}");
            }
        }
        assert!(WatchedFiles::new(&folder.join("missing")).is_err());
    }

    #[test]
    fn a_file_replaced_by_a_link_is_not_followed() {
        let folder = tempfile::TempDir::new().unwrap();
        let run = folder.path().join("run");
        fs::create_dir(&run).unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        fs::write(run.join("file"), "own").unwrap();
        let files = WatchedFiles::new(&run).unwrap();
        let is_over = AtomicBool::new(false);
        let swap = || {
            while !is_over.load(Ordering::Relaxed) {
                fs::write(run.join("new"), "own").unwrap();
                fs::rename(run.join("new"), run.join("file")).unwrap();
                symlink("../secret", run.join("new")).unwrap();
                fs::rename(run.join("new"), run.join("file")).unwrap();
            }
        };
        let other = thread::scope(|scope| {
            let swapping = scope.spawn(swap);
            let (mut num_own, mut num_refused) = (0, 0);
            // Until the file and the link have been met many times.
            let other = loop {
                match files.read("file") {
                    _ if num_own >= 1000 && num_refused >= 1000 || swapping.is_finished() => {
                        break None;
                    }
                    Some(bytes) if bytes == b"own" => num_own += 1,
                    Some(bytes) => break Some(bytes),
                    None => num_refused += 1,
                }
            };
            is_over.store(true, Ordering::Relaxed);
            other
        });
        assert_eq!(other, None);
    }

    #[test]
    fn a_checkpoint_has_no_links() {
        let folder = tempfile::TempDir::new().unwrap();
        let (run, other) = (folder.path().join("run"), folder.path().join("other"));
        let section = Section { name: "weights".into(), version: 1, bytes: b"w".to_vec() };
        let checkpoint = Checkpoint { iteration: 3, sections: vec![section] };
        let files = |run: &Path| WatchedFiles::new(run).unwrap();
        fs::create_dir(&run).unwrap();
        checkpoint::save(&checkpoint, &run.join("best")).unwrap();
        assert_eq!(files(&run).load_checkpoint("best"), Some(checkpoint));
        fs::rename(run.join("best"), &other).unwrap();
        symlink("../other", run.join("best")).unwrap();
        assert_eq!(files(&run).load_checkpoint("best"), None);
        fs::remove_file(run.join("best")).unwrap();
        fs::rename(&other, run.join("best")).unwrap();
        fs::rename(run.join("best/weights"), folder.path().join("weights")).unwrap();
        symlink("../../weights", run.join("best/weights")).unwrap();
        assert_eq!(files(&run).load_checkpoint("best"), None);
    }
}
