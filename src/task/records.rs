//! The objects of a file of JSON lines; lists of objects are read too, and files that gzip has compressed.

use super::TaskError;
use super::numbers::find_string_end;
use crate::disk::input::{self, MAX_DATA_BYTES};
use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Objects as JSON, with the numbers of their lines.
type Records<E> = Box<dyn Iterator<Item = Result<(usize, Vec<u8>), E>>>;

/// The text of a compressed file, which may be far longer than the file: an error beyond [`MAX_DATA_BYTES`].
struct BoundedReader<R> {
    inner: R,
    bytes_left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let too_long =
            || io::Error::other(format!("more than {} MiB of text", MAX_DATA_BYTES >> 20));
        self.bytes_left = self.bytes_left.checked_sub(count as u64).ok_or_else(too_long)?;
        Ok(count)
    }
}

/// Opens a file of records. Blank lines are left out.
///
/// # Errors
/// [`TaskError::File`] if it cannot be read, or is in UTF-16.
pub fn open(path: &Path) -> Result<Records<TaskError>, TaskError> {
    let records = read(path).map_err(read_error(path))?;
    let has_text = |(_, json): &(usize, Vec<u8>)| !json.trim_ascii().is_empty();
    let records = records.filter(move |record| record.as_ref().map_or(true, has_text));
    let path = path.to_path_buf();
    Ok(Box::new(records.map(move |record| record.map_err(read_error(&path)))))
}

/// The error of a file that cannot be read.
pub fn read_error(path: &Path) -> impl Fn(io::Error) -> TaskError {
    move |error| TaskError::File { path: path.to_path_buf(), message: error.to_string() }
}

/// Reads the records of a file, one a line or the elements of a list; it may be gzipped and begin with a byte order
/// mark.
fn read(path: &Path) -> io::Result<Records<io::Error>> {
    let mut file: Box<dyn BufRead> = Box::new(BufReader::new(input::open(path)?));
    if file.fill_buf()?.starts_with(b"\x1f\x8b") {
        let inner = MultiGzDecoder::new(file);
        let text = BoundedReader { inner, bytes_left: MAX_DATA_BYTES };
        file = Box::new(BufReader::new(text));
    }
    let start = file.fill_buf()?;
    if matches!(start, [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [_, 0, ..] | [0, ..]) {
        let message = "it is in UTF-16, not UTF-8; `iconv -f UTF-16 -t UTF-8` converts it";
        return Err(io::Error::other(message));
    }
    let mark = "\u{feff}".as_bytes();
    if start.starts_with(mark) {
        file.consume(mark.len());
    }
    let is_list = file.fill_buf()?.trim_ascii_start().first() == Some(&b'[');
    if !is_list {
        let lines = input::lines(file).zip(1..);
        return Ok(Box::new(lines.map(|(line, number)| Ok((number, line?)))));
    }
    let mut list = Vec::new();
    if file.take(MAX_DATA_BYTES + 1).read_to_end(&mut list)? as u64 > MAX_DATA_BYTES {
        let limit = MAX_DATA_BYTES >> 20;
        let message = format!("a list of more than {limit} MiB; write a JSON object per line");
        return Err(io::Error::other(message));
    }
    let elements: Vec<_> =
        split_list(&list)?.into_iter().map(|(line, json)| Ok((line, json.to_vec()))).collect();
    Ok(Box::new(elements.into_iter()))
}

/// Checks that a file is the one with this SHA-256, if there is one.
///
/// # Errors
/// If it is another file, or cannot be read.
pub fn check_digest(path: &Path, digest: &str) -> Result<(), TaskError> {
    if digest.is_empty() {
        return Ok(());
    }
    let found = input::sha256(path, MAX_DATA_BYTES).map_err(read_error(path))?;
    if found == digest {
        Ok(())
    } else {
        Err(TaskError::Setting(format!(
            "{} is not the file that the run was given, by its SHA-256 ({found:.8}..., not {digest:.8}...)",
            path.display()
        )))
    }
}

/// Splits a list into its elements, with the numbers of their lines.
///
/// # Errors
/// If the list does not end, or something follows it.
fn split_list(list: &[u8]) -> io::Result<Vec<(usize, &[u8])>> {
    let count_breaks = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    let begin = list.iter().position(|byte| *byte == b'[').map_or(list.len(), |at| at + 1);
    let mut found = Vec::new();
    let mut depth = 0i64;
    let mut at = begin;
    let mut start = begin;
    let mut line = 1 + count_breaks(&list[..begin]);
    let mut add = |start: usize, end: usize| {
        let element = &list[start..end];
        let before = element.len() - element.trim_ascii_start().len();
        found.push((line + count_breaks(&element[..before]), element.trim_ascii()));
        line += count_breaks(element);
    };
    while let Some(byte) = list.get(at) {
        match byte {
            b'"' => {
                at = find_string_end(list, at);
                continue;
            }
            b'[' | b'{' => depth += 1,
            b']' if depth <= 0 => break,
            b']' | b'}' => depth -= 1,
            b',' if depth <= 0 => {
                add(start, at);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    add(start, at);
    let wrong = |at: usize, what: &str| {
        let line = 1 + count_breaks(&list[..at]);
        Err(io::Error::other(format!("line {line}: {what}")))
    };
    let Some(rest) = list.get(at + 1..) else {
        return wrong(list.trim_ascii_end().len(), "the list does not end; its `]` is missing");
    };
    match rest.trim_ascii_start() {
        [] => Ok(found),
        more => wrong(list.len() - more.len(), "something follows the list's `]`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_its_elements_with_their_lines() {
        let list = b"\n[{\"a\": \"],\\\"\"},\n\n  {\"b\": [1,\n2]} , 3\n]";
        let found = split_list(list).unwrap();
        let expected: [(usize, &[u8]); 3] =
            [(2, b"{\"a\": \"],\\\"\"}"), (4, b"{\"b\": [1,\n2]}"), (5, b"3")];
        assert_eq!(found, expected);
        assert_eq!(split_list(b"[]").unwrap(), [(1, &b""[..])]);
        assert_eq!(split_list(b"[}}]\n").unwrap(), [(1, &b"}}"[..])]);
    }

    #[test]
    fn unterminated_and_trailing_json_is_rejected() {
        for (list, said) in [
            ("[", "line 1: the list does not end"),
            ("[{\"a\": 1},\n{\"a\": \"]\n", "line 2: the list does not end"),
            ("[{\"a\": 1}, {\"a\": 2},\n", "line 1: the list does not end"),
            ("[{\"a\": 1}] x {", "line 1: something follows the list"),
            ("[{\"a\": 1},\n{\"a\": 2}]\n\n[{\"a\": 3}]", "line 4: something follows the list"),
        ] {
            let error = split_list(list.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(said), "{list}: {error}");
        }
    }
}
