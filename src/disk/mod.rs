//! Durable changes of files. Each passes a fault point, at which tests can make it fail.
//!
//! Symbolic links in place of files are rejected: a run that comes from another user could use one to overwrite a file
//! elsewhere. A crash may undo a change until the file (for a name, its folder) has been synced.

use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

#[cfg(not(target_family = "wasm"))]
pub mod csv;
#[cfg(test)]
pub mod faults;
mod folder;
pub mod input;

pub use folder::{
    FolderError, ReplacementPaths, recover_replacement, replace_folder, replacement_paths,
};

/// Maximum number of links in a row, as on Linux.
const MAX_LINKS: u32 = 40;

/// SHA-256 of some bytes, hexadecimal.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    format_hexadecimal(&Sha256::digest(bytes))
}

fn format_hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a file has an extension such as `csv`, in capitals or not.
#[cfg(not(target_family = "wasm"))]
pub fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// Open options that reject a symbolic link and do not wait for the other end of a pipe.
fn no_follow_options() -> OpenOptions {
    let options = &mut OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.clone()
}

/// Creates a folder whose parent exists.
pub fn create_folder(path: &Path) -> io::Result<()> {
    pass_fault_point()?;
    fs::create_dir(path)
}

/// Creates a folder and its missing parents, and syncs their names.
pub fn create_folders(path: &Path) -> io::Result<()> {
    let all = path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
    let missing: Vec<&Path> = all.take_while(|folder| !folder.exists()).collect();
    pass_fault_point()?;
    fs::create_dir_all(path)?;
    missing.into_iter().rev().filter_map(Path::parent).try_for_each(sync_folder)
}

/// Creates a file with this content, and syncs it.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    pass_fault_point()?;
    let mut file = File::create_new(path)?;
    write(&mut file, bytes)?;
    sync(&file)
}

/// Opens a file for appending, and creates it if it is missing.
pub fn open_append(path: &Path) -> io::Result<File> {
    pass_fault_point()?;
    input::open_with(no_follow_options().create(true).append(true), path)
}

/// Opens a file for reading; unlike [`input::open`], rejects a symbolic link.
pub fn open_no_follow(path: &Path) -> io::Result<File> {
    input::open_with(no_follow_options().read(true), path)
}

/// Writes to a file.
pub fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    if faults::is_first_failure_due() {
        file.write_all(&bytes[..bytes.len() / 2])?;
    }
    pass_fault_point()?;
    file.write_all(bytes)
}

/// Waits until a file is on the disk.
pub fn sync(file: &File) -> io::Result<()> {
    pass_fault_point()?;
    #[cfg(test)]
    if faults::are_injected() {
        return Ok(());
    }
    file.sync_all()
}

/// Truncates a file to `length` bytes, and syncs it.
pub fn truncate(path: &Path, length: u64) -> io::Result<()> {
    pass_fault_point()?;
    let file = input::open_with(no_follow_options().write(true), path)?;
    file.set_len(length)?;
    sync(&file)
}

/// Replaces a file atomically: at any time it has either the old content or the new one.
#[cfg(on_disk)]
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, |file| write(file, bytes))
}

/// Replaces a file atomically by what `fill` writes.
pub fn replace_with(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut new = PendingFile::create(path)?;
    fill(&mut new.file)?;
    new.finish()
}

/// Writes an output that a user requested, like [`PendingFile::create_output`]; a device or pipe is written to
/// directly.
pub fn write_output(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if path.metadata().is_ok_and(|old| !old.is_file()) {
        return fill(&mut OpenOptions::new().write(true).open(path)?);
    }
    let mut new = PendingFile::create_output(path)?;
    fill(&mut new.file)?;
    new.finish()
}

/// A file that grows at its end. It is closed while it is replaced, since not every file system replaces an open file.
#[derive(Debug)]
pub struct AppendFile {
    pub path: PathBuf,
    /// `None` if it could not be opened again after a replacement; the next write tries it again.
    file: Option<File>,
}

impl AppendFile {
    /// Opens a file, and creates it if it is missing.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_path_buf(), file: Some(open_append(path)?) })
    }

    /// Whether the file is still at its path: another program may have removed it, or replaced it by its own.
    pub fn is_in_place(&self) -> bool {
        self.file.as_ref().is_none_or(|file| is_at(file, &self.path))
    }

    /// Appends some bytes.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.file {
            Some(file) => write(file, bytes),
            closed => write(closed.insert(open_append(&self.path)?), bytes),
        }
    }

    /// Waits until all bytes are on the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), sync)
    }

    /// Replaces the file atomically by what `fill` writes.
    pub fn replace_with(
        &mut self,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        self.file = None;
        let replaced = replace_with(&self.path, fill);
        self.file = open_append(&self.path).ok();
        replaced
    }
}

/// A new file, named `.NAME.tmp` until it is complete and replaces its target, so that a full disk leaves the old one
/// unchanged. Dropping it before removes it; the remains of a killed process are replaced by the next one.
#[derive(Debug)]
pub struct PendingFile {
    /// The file, to be written.
    pub file: File,
    /// Temporary path, for another process to write to.
    pub path: PathBuf,
    target: PathBuf,
    is_finished: bool,
}

impl PendingFile {
    /// Path of the file until it replaces `target`; `None` if `target` has no file name.
    pub fn path_for(target: &Path) -> Option<PathBuf> {
        folder::hidden_path(target, ".tmp")
    }

    fn create(target: &Path) -> io::Result<Self> {
        let path = Self::path_for(target).ok_or(ErrorKind::InvalidInput)?;
        match remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => pass_fault_point()?,
        }
        let file = File::create_new(&path)?;
        Ok(Self { file, path, target: target.to_path_buf(), is_finished: false })
    }

    /// Creates the file for an output that a user requested, where links lead. An existing file must be writable, and
    /// its permissions are kept.
    pub fn create_output(target: &Path) -> io::Result<Self> {
        if !target.exists() {
            let target = &follow_links(target);
            let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
            return match target.parent().filter(is_missing) {
                Some(folder) => Err(io::Error::new(
                    ErrorKind::NotFound,
                    format!("the folder {} does not exist", folder.display()),
                )),
                None => Self::create(target),
            };
        }
        if target.is_dir() {
            return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory"));
        }
        let old = OpenOptions::new().write(true).open(target)?;
        let new = Self::create(&target.canonicalize()?)?;
        new.file.set_permissions(old.metadata()?.permissions())?;
        Ok(new)
    }

    /// Whether the file is still at its path: another process that writes to the same target replaces it by its own.
    fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    /// Moves the file to its target.
    pub fn finish(mut self) -> io::Result<()> {
        sync(&self.file)?;
        if !self.is_in_place() {
            return Err(io::Error::other("another process writes it at the same time"));
        }
        rename(&self.path, &self.target)?;
        self.is_finished = true;
        self.target.parent().map_or(Ok(()), sync_folder)
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.is_finished && self.is_in_place() {
            // A part of the new file would keep a full disk full.
            let _ = remove_file(&self.path);
        }
    }
}

/// Follows links in place of a file that may not exist.
fn follow_links(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let Ok(next) = fs::read_link(&path) else { break };
        path = path.with_file_name(next);
    }
    path
}

/// Whether an open file is the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    file.metadata().is_ok_and(|ours| file_id(path).is_ok_and(|id| id == id_of(&ours)))
}

/// Identifies the file at a path, as long as it exists; all files are alike where the system tells no numbers.
pub fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|data| id_of(&data))
}

fn id_of(data: &fs::Metadata) -> (u64, u64) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (data.dev(), data.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = data;
        (0, 0)
    }
}

/// Renames a file or a folder.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    pass_fault_point()?;
    fs::rename(from, to)
}

/// Removes a file, or a link itself.
pub fn remove_file(path: &Path) -> io::Result<()> {
    pass_fault_point()?;
    fs::remove_file(path)
}

/// Removes an empty folder.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    pass_fault_point()?;
    fs::remove_dir(path)
}

/// Removes a folder with all that is in it, or a link itself.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    pass_fault_point()?;
    fs::remove_dir_all(path)
}

/// Syncs the names in a folder, where the system supports that and the user may open the folder.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    use ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(path).and_then(|folder| sync(&folder)) {
        Err(e) if matches!(e.kind(), InvalidInput | PermissionDenied | Unsupported) => Ok(()),
        synced => synced,
    }
}

/// Counts a change, and fails if a test injects a fault here.
pub fn pass_fault_point() -> io::Result<()> {
    #[cfg(test)]
    faults::pass_fault_point()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_long_as_the_file_system_allows_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        for length in [250, 251, 255] {
            let path = folder.path().join("a".repeat(length));
            replace(&path, b"new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
    }

    #[test]
    fn the_names_of_new_folders_are_synced() {
        let folder = tempfile::TempDir::new().unwrap();
        let changes = |path: &str| {
            let path = folder.path().join(path);
            let (created, changes) =
                faults::with_fault(faults::Fault::Nothing, || create_folders(&path));
            created.unwrap();
            changes
        };
        let synced: usize = if cfg!(unix) { 3 } else { 0 };
        assert_eq!([changes("a/b/c"), changes("a/b/c")], [1 + synced, 1]);
    }

    #[test]
    fn a_file_grows_after_a_replacement_whether_it_failed_or_not() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("rows.csv");
        let mut file = AppendFile::open(&path).unwrap();
        file.append(b"one ").unwrap();
        file.replace_with(|_| Err(ErrorKind::StorageFull.into())).unwrap_err();
        file.append(b"two ").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one two ");
        file.replace_with(|new| write(new, b"zero ")).unwrap();
        file.append(b"one ").unwrap();
        file.sync().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"zero one ");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_output_that_fails_leaves_the_old_one_and_nothing_beside_it() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("policy.onnx");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let half = |file: &mut File| -> io::Result<()> {
            file.write_all(b"a part")?;
            Err(io::Error::other("the disk is full"))
        };
        assert!(write_output(&path, half).is_err());
        assert_eq!(names(), 0);
        write_output(&path, |file| file.write_all(b"old")).unwrap();
        assert!(write_output(&path, half).is_err());
        assert_eq!((fs::read_to_string(&path).unwrap(), names()), ("old".to_string(), 1));
        // The leftover of a killed process is replaced.
        fs::write(folder.path().join(".policy.onnx.tmp"), "a part that is longer").unwrap();
        write_output(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), names()), ("new".to_string(), 1));
        assert!(write_output(folder.path(), half).is_err(), "a folder");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn outputs_whose_names_are_not_utf_8_are_apart() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::TempDir::new().unwrap();
        let name = |name: &[u8]| folder.path().join(std::ffi::OsStr::from_bytes(name));
        let paths = [name(b"a\xfe"), name(b"a\xff")];
        let files = paths.each_ref().map(|path| PendingFile::create(path).unwrap());
        files.into_iter().for_each(|file| file.finish().unwrap());
        assert!(paths.iter().all(|path| path.is_file()));
    }

    #[test]
    fn an_extension_is_the_same_in_capitals() {
        let found =
            ["x.csv", "X.CSV", "csv", "x.csv.gz"].map(|it| has_extension(it.as_ref(), "csv"));
        assert_eq!(found, [true, true, false, false]);
    }

    #[cfg(unix)]
    #[test]
    fn an_output_that_two_processes_write_is_that_of_one() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("policy.onnx");
        let [mut first, mut second] = [(); 2].map(|()| PendingFile::create(&path).unwrap());
        first.file.write_all(b"the first").unwrap();
        second.file.write_all(b"the sec").unwrap();
        assert!(first.finish().is_err() && !path.exists(), "the second is not complete");
        second.file.write_all(b"ond").unwrap();
        second.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "the second");
    }

    #[cfg(unix)]
    #[test]
    fn an_output_goes_through_links_and_into_devices_and_keeps_permissions() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::TempDir::new().unwrap();
        let [path, link] = ["own", "link"].map(|name| folder.path().join(name));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        // The first link leads by way of another, and relatively.
        let through = folder.path().join("through");
        symlink("through", &link).unwrap();
        symlink(&path, &through).unwrap();
        write_output(&link, |file| file.write_all(b"new")).unwrap();
        assert!(link.is_symlink() && through.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        fs::remove_file(&path).unwrap();
        write_output(&link, |file| file.write_all(b"newer")).unwrap();
        assert!(link.is_symlink() && through.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        write_output(Path::new("/dev/null"), |file| file.write_all(b"new")).unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
