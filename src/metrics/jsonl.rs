//! Records in a file of JSON lines, one per iteration, that survives interruptions.

use crate::disk::{self, AppendFile, input};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Records cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the records in {path} cannot be {action}: {cause}")]
pub struct RecordsError {
    pub path: PathBuf,
    /// Failed action: `read` or `written`.
    pub action: &'static str,
    pub cause: std::io::Error,
}

/// The field that all records share: the iteration, from 1.
#[derive(Deserialize)]
struct NumberedRecord {
    iteration: u32,
}

/// An open file of JSON lines, to which records are appended.
#[derive(Debug)]
pub struct JsonLines {
    file: AppendFile,
}

impl JsonLines {
    /// Opens a file to append records after iteration `last_iteration`. Records of later iterations are dropped, since
    /// the iterations will be repeated; so are malformed lines and an incomplete last line. A missing file is created.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn resume(path: &Path, last_iteration: u32) -> Result<Self, RecordsError> {
        if let Some(file) =
            input::allow_missing(disk::open_no_follow(path)).map_err(records_error(path, "read"))?
        {
            let (end, has_gaps) =
                find_end_of_iteration(file, last_iteration).map_err(records_error(path, "read"))?;
            let keeps = |line: &[u8]| {
                parse_iteration(line).is_some_and(|iteration| iteration <= last_iteration)
            };
            if has_gaps {
                disk::replace_with(path, |file| copy_lines(path, file, |_, line| keeps(line)))
            } else {
                disk::truncate(path, end)
            }
            .map_err(records_error(path, "written"))?;
        }
        Ok(Self { file: AppendFile::open(path).map_err(records_error(path, "written"))? })
    }

    /// Whether the file is still at its path: another program may have removed it, or replaced it by its own.
    pub fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }

    /// Appends a record.
    ///
    /// # Errors
    /// The errors of [`JsonLines::write_all`].
    pub fn write(&mut self, record: &impl Serialize) -> Result<(), RecordsError> {
        self.write_all(std::slice::from_ref(record))
    }

    /// Appends several records at once.
    ///
    /// # Errors
    /// If they cannot be written, for instance because the disk is full.
    pub fn write_all(&mut self, records: &[impl Serialize]) -> Result<(), RecordsError> {
        let mut lines = Vec::new();
        for record in records {
            serde_json::to_writer(&mut lines, record).expect("records are plain data");
            lines.push(b'\n');
        }
        self.file.append(&lines).map_err(records_error(&self.file.path, "written"))
    }

    /// Drops the oldest iterations, each as a whole, until the file has at most `bytes`; the newest iteration stays,
    /// unless `bytes` is 0. The rest depends on the records and `bytes` alone, so that a resumed run arrives at the
    /// same file.
    ///
    /// # Errors
    /// If the file cannot be read or written; it is unchanged then.
    pub fn keep_newest(&mut self, bytes: u64) -> Result<(), RecordsError> {
        let path = self.file.path.clone();
        let length = path.metadata().map_err(records_error(&path, "read"))?.len();
        if length <= bytes {
            return Ok(());
        }
        if bytes == 0 {
            return disk::truncate(&path, 0).map_err(records_error(&path, "written"));
        }
        let start =
            disk::open_no_follow(&path).and_then(|file| find_start_of_newest(file, length, bytes));
        let start = start.map_err(records_error(&path, "read"))?;
        let copied =
            self.file.replace_with(|file| copy_lines(&path, file, |offset, _| offset >= start));
        copied.map_err(records_error(&path, "written"))
    }

    /// Waits until all records are on the disk.
    ///
    /// # Errors
    /// If the system cannot write them.
    pub fn sync(&self) -> Result<(), RecordsError> {
        self.file.sync().map_err(records_error(&self.file.path, "written"))
    }
}

/// Finds the end, in bytes, of the last record up to `last_iteration`, and whether there are other lines before it.
fn find_end_of_iteration(file: File, last_iteration: u32) -> std::io::Result<(u64, bool)> {
    let (mut offset, mut end, mut is_gap, mut has_gaps) = (0, 0, false, false);
    for line in input::lines(file) {
        let line = line?;
        offset += line.len() as u64;
        match parse_iteration(&line) {
            Some(iteration) if iteration <= last_iteration => {
                has_gaps |= is_gap;
                end = offset;
            }
            _ => is_gap = true,
        }
    }
    Ok((end, has_gaps))
}

/// Parses the iteration of a line with its end, if it holds a record.
pub(crate) fn parse_iteration(line: &[u8]) -> Option<u32> {
    let record = serde_json::from_slice::<NumberedRecord>(line.strip_suffix(b"\n")?);
    Some(record.ok()?.iteration)
}

/// Finds the offset from which to keep the file so that at most `bytes` of its `length` bytes remain. It is the start
/// of an iteration; if even the newest one is larger, its start.
fn find_start_of_newest(file: File, length: u64, bytes: u64) -> std::io::Result<u64> {
    let (mut offset, mut start, mut last_iteration) = (0, 0, None);
    for line in input::lines(file) {
        let line = line?;
        let iteration = parse_iteration(&line);
        if iteration != last_iteration && length - start > bytes {
            start = offset;
        }
        last_iteration = iteration;
        offset += line.len() as u64;
    }
    Ok(start)
}

/// Copies those lines of a file that `keeps` accepts, called with the offset and the line.
fn copy_lines(
    from: &Path,
    to: &mut File,
    keeps: impl Fn(u64, &[u8]) -> bool,
) -> std::io::Result<()> {
    let (mut to, mut offset) = (BufWriter::new(to), 0);
    for line in input::lines(disk::open_no_follow(from)?) {
        let line = line?;
        if keeps(offset, &line) {
            to.write_all(&line)?;
        }
        offset += line.len() as u64;
    }
    to.flush()
}

fn records_error(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> RecordsError {
    move |cause| RecordsError { path: path.to_path_buf(), action, cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_resumed_file_keeps_all_whole_records_up_to_the_iteration() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.jsonl");
        let resume = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            JsonLines::resume(&path, 2)
                .unwrap()
                .write(&serde_json::json!({"iteration": 3}))
                .unwrap();
            String::from_utf8(fs::read(&path).unwrap()).unwrap()
        };
        let [one, two, three] = [1, 2, 3].map(|i| format!("{{\"iteration\":{i}}}\n"));
        let whole = format!("{one}{two}{three}");
        assert_eq!(resume(whole.as_bytes()), whole);
        // Torn in the middle of a character.
        let torn = [one.as_bytes(), two.as_bytes(), b"{\"iteration\":3,\"text\":\"\xc3"].concat();
        assert_eq!(resume(&torn), whole);
        let malformed = [one.as_bytes(), b"\xff\n", two.as_bytes(), three.as_bytes()].concat();
        assert_eq!(resume(&malformed), whole);
        assert_eq!(resume(format!("{one}{three}{two}").as_bytes()), whole, "in disorder");
        assert_eq!(resume(b""), three);
        // Without its end, a line may be torn.
        assert_eq!(resume(format!("{one}{}", two.trim_end()).as_bytes()), format!("{one}{three}"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_interrupted_run_keeps_the_same_newest_iterations() {
        let folder = tempfile::tempdir().unwrap();
        let record = |iteration: u32| serde_json::json!({"iteration": iteration, "text": "x".repeat(iteration as usize % 7)});
        let train = |lines: &mut JsonLines, from: u32, to: u32| {
            for iteration in from..=to {
                lines.write_all(&[record(iteration), record(iteration)]).unwrap();
                if iteration.is_multiple_of(5) {
                    lines.keep_newest(400).unwrap();
                }
            }
        };
        let [whole, torn] = ["whole", "torn"].map(|name| folder.path().join(name));
        train(&mut JsonLines::resume(&whole, 0).unwrap(), 1, 40);
        train(&mut JsonLines::resume(&torn, 0).unwrap(), 1, 33);
        train(&mut JsonLines::resume(&torn, 25).unwrap(), 26, 40);
        let [whole, torn] = [whole, torn].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(torn, whole);
        let first =
            parse_iteration(whole.split_inclusive('\n').next().unwrap().as_bytes()).unwrap();
        assert!(whole.len() <= 400 && whole.lines().count() as u32 == 2 * (41 - first));

        let path = folder.path().join("tight");
        train(&mut JsonLines::resume(&path, 0).unwrap(), 1, 4);
        JsonLines::resume(&path, 4).unwrap().keep_newest(1).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{0}\n{0}\n", record(4)));
        let mut none = JsonLines::resume(&path, 4).unwrap();
        none.keep_newest(0).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["records.jsonl", "precious"].map(|name| folder.path().join(name));
        fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(JsonLines::resume(&path, 2).is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    }
}
