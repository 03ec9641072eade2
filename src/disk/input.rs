//! Readers of untrusted files: regular files only, since a pipe or a device may never end, and no more bytes than a
//! limit.

use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Maximum size of settings, a manifest or another description, bytes.
pub const MAX_DESCRIPTION_BYTES: u64 = 64 << 20;
/// Maximum size of data that are read into memory as a whole, bytes.
#[cfg(not(target_family = "wasm"))]
pub const MAX_DATA_BYTES: u64 = 2 << 30;
/// Maximum length of a line, bytes.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Opens a regular file to read it; a symbolic link is followed.
///
/// # Errors
/// If it cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    open_with(options.read(true), path)
}

/// Turns the error of opening or reading a file that does not exist into `None`.
pub fn allow_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Opens a file with some options, if it is a regular one.
pub(super) fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    ensure_regular(options.open(path)?)
}

/// Returns an open file, if it is a regular one.
///
/// # Errors
/// If it is not.
pub fn ensure_regular(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        Ok(file)
    } else if kind.is_dir() {
        Err(io::Error::other("it is a directory"))
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// Checks that a file has at most `max_bytes`, and returns its length.
fn check_length(file: &File, max_bytes: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if length > max_bytes {
        let message = format!("it has {length} bytes; the limit is {} MiB", max_bytes >> 20);
        return Err(io::Error::other(message));
    }
    Ok(length)
}

/// Reads a file of at most `max_bytes` whole.
///
/// # Errors
/// If it is not a regular file, is longer, or cannot be read.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read_file(open(path)?, max_bytes)
}

/// Reads an open file of at most `max_bytes` whole.
///
/// # Errors
/// If it is longer, or cannot be read.
pub fn read_file(file: File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let length = check_length(&file, max_bytes)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize)?;
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file of at most `max_bytes` whole, as text.
///
/// # Errors
/// The errors of [`read`], and one for text that is not UTF-8.
#[cfg(not(target_family = "wasm"))]
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let bytes = read(path, max_bytes)?;
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// Reads a file of settings or another description.
///
/// # Errors
/// The errors of [`read_text`].
#[cfg(not(target_family = "wasm"))]
pub fn read_description(path: &Path) -> io::Result<String> {
    read_text(path, MAX_DESCRIPTION_BYTES)
}

/// The SHA-256 of a file of at most `max_bytes`, in hexadecimal digits.
///
/// # Errors
/// The errors of [`read`].
pub fn sha256(path: &Path, max_bytes: u64) -> io::Result<String> {
    let file = open(path)?;
    check_length(&file, max_bytes)?;
    let mut bytes = BufReader::with_capacity(1 << 20, file.take(max_bytes));
    let mut hash = Sha256::new();
    loop {
        let part = bytes.fill_buf()?;
        if part.is_empty() {
            return Ok(super::format_hexadecimal(&hash.finalize()));
        }
        hash.update(part);
        let length = part.len();
        bytes.consume(length);
    }
}

/// Iterates over the lines of a file, line breaks included. A line of more than 64 MiB is an error.
pub fn lines(file: impl Read) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    let (mut file, mut line_number) = (BufReader::new(file), 0);
    std::iter::from_fn(move || {
        line_number += 1;
        let mut line = Vec::new();
        match (&mut file).take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => return Some(Err(error)),
        }
        if line.len() as u64 == MAX_LINE_BYTES && !line.ends_with(b"\n") {
            let message = format!("line {line_number} has more than {} MiB", MAX_LINE_BYTES >> 20);
            return Some(Err(io::Error::other(message)));
        }
        Some(Ok(line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn lines_have_their_ends_and_the_last_needs_none() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "a\n\nb\r\nc").unwrap();
        let found: Vec<_> = lines(open(&path).unwrap()).map(Result::unwrap).collect();
        assert_eq!(found, [&b"a\n"[..], b"\n", b"b\r\n", b"c"]);
    }

    #[test]
    fn huge_files_and_lines_are_rejected_before_they_are_read() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "a\n").unwrap();
        File::options().append(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read(&path, MAX_DATA_BYTES).unwrap_err().to_string();
        assert_eq!(error, "it has 1099511627776 bytes; the limit is 2048 MiB");
        assert_eq!(sha256(&path, MAX_DATA_BYTES).unwrap_err().to_string(), error);
        let mut lines = lines(open(&path).unwrap());
        assert_eq!(lines.next().unwrap().unwrap(), b"a\n");
        let error = lines.next().unwrap().unwrap_err().to_string();
        assert_eq!(error, "line 2 has more than 64 MiB");
    }

    #[test]
    #[cfg(unix)]
    fn non_regular_files_are_rejected_at_once() {
        let folder = TempDir::new().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, expected) in [
            (pipe.as_path(), "it is not a regular file"),
            (Path::new("/dev/zero"), "it is not a regular file"),
            (folder.path(), "it is a directory"),
        ] {
            assert_eq!(read(path, MAX_DATA_BYTES).unwrap_err().to_string(), expected);
        }
    }
}
