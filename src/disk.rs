//! Changes to the files of a run.
//!
//! A link in the place of a file is refused: a run that comes from another user could use one to overwrite a file
//! elsewhere. A crash may undo a change until the file, or for names its folder, is synced.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Options that refuse a link in the place of the file.
#[cfg(unix)]
fn no_links() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NOFOLLOW);
    options
}

#[cfg(not(unix))]
fn no_links() -> OpenOptions {
    OpenOptions::new()
}

/// Creates a file with this content, and waits until it is on the disk.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Opens a file to append to it, and creates it if it is missing.
pub fn open(path: &Path) -> io::Result<File> {
    no_links().create(true).append(true).open(path)
}

/// Opens a file to read it.
pub fn read(path: &Path) -> io::Result<File> {
    no_links().read(true).open(path)
}

/// Shortens a file, and waits until that is on the disk.
pub fn cut(path: &Path, length: u64) -> io::Result<()> {
    let file = no_links().write(true).open(path)?;
    file.set_len(length)?;
    file.sync_all()
}

/// Replaces a file, so that it has the old content or the new one at any time; `beside` is the name of the new one
/// until then.
#[cfg(all(feature = "general", not(target_family = "wasm")))]
pub fn replace(path: &Path, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    match std::fs::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => create(beside, bytes)?,
    }
    std::fs::rename(beside, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Waits until the names in a folder are on the disk, where the system can do that.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match File::open(path)?.sync_all() {
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced,
    }
}
