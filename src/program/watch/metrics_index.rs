//! An index of the growing metrics file: the position of each record.

use super::files::{WatchedFiles, read_block};
use super::page::hash_content;
use crate::metrics;
use crate::run::METRICS;
use std::fs::File;
use std::io;

/// Maximum bytes read at once. Longer lines are ignored.
const MAX_READ_BYTES: usize = 1 << 16;

/// The index of a metrics file, up to its last complete line.
#[derive(Default)]
pub struct MetricsIndex {
    /// Generation of the file, counted up when the file is replaced, shortened or removed.
    pub generation: u64,
    /// Identifier of the run in the ids of events: a hash of its first record, unique by its durations.
    run_id: String,
    file: Option<File>,
    records: Vec<RecordPosition>,
    /// Offset of the end of the last complete line.
    pub end: u64,
    /// The last complete line, malformed or not, by which the file is recognized.
    last_line: Vec<u8>,
    /// Offset of the last complete line.
    last_line_start: u64,
}

/// The position of a record in the file, bytes.
#[derive(Clone, Copy)]
struct RecordPosition {
    iteration: u32,
    length: u32,
    start: u64,
}

impl MetricsIndex {
    /// Iteration of the newest record.
    pub fn iteration(&self) -> Option<u32> {
        self.records.last().map(|record| record.iteration)
    }

    /// Index of the record after the one with the event id `id`, if that one is in this file.
    pub fn index_after(&self, id: &str) -> Option<usize> {
        let (run_id, iteration) = id.split_once('-')?;
        let iteration = iteration.parse::<u32>().ok().filter(|_| run_id == self.run_id)?;
        let found = self.records.binary_search_by_key(&iteration, |record| record.iteration);
        found.ok().map(|index| index + 1)
    }

    /// Appends records from `index` on to `text`, as events, up to the size of a block. Returns the index
    /// of the next record.
    pub fn append_records(&self, index: usize, text: &mut Vec<u8>) -> io::Result<usize> {
        let mut next = index;
        let Some(first) = self.records.get(index) else { return Ok(next) };
        let is_in_block = |record: &&RecordPosition| {
            record.start + u64::from(record.length) <= first.start + MAX_READ_BYTES as u64
        };
        let block = self.read_range(first.start, self.end)?;
        for record in self.records[index..].iter().take_while(is_in_block) {
            let start = (record.start - first.start) as usize;
            let json = &block[start..start + record.length as usize];
            text.extend(
                format!("id: {}-{}\nevent: record\ndata: ", self.run_id, record.iteration).bytes(),
            );
            text.extend(json);
            text.extend(b"\n\n");
            next += 1;
        }
        Ok(next)
    }

    /// Reads the bytes `start..end` of the file, at most a block.
    pub fn read_range(&self, start: u64, end: u64) -> io::Result<Vec<u8>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let length = end.saturating_sub(start).min(MAX_READ_BYTES as u64) as usize;
        let bytes = read_block(file, start, length)?;
        if bytes.len() == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads the file's new lines, or all lines of a file that has replaced it. A file that cannot be read counts as
    /// missing. Returns whether anything has changed.
    pub fn poll(&mut self, files: &WatchedFiles) -> bool {
        let file = files.open(METRICS);
        let is_same = match &file {
            Some(file) => read_block(file, self.last_line_start, self.last_line.len())
                .is_ok_and(|line| line == self.last_line),
            None => self.end == 0,
        };
        if !is_same {
            *self = Self { generation: self.generation + 1, ..Self::default() };
        }
        let known = self.records.len();
        if let Some(file) = file {
            self.read_lines(&file);
            self.file = Some(file);
        }
        !is_same || self.records.len() > known
    }

    /// Reads up to the last complete line.
    fn read_lines(&mut self, file: &File) {
        while let Ok(block) = read_block(file, self.end, MAX_READ_BYTES) {
            let whole = match block.iter().rposition(|&byte| byte == b'\n') {
                Some(last) => last + 1,
                // Longer than any record: ignored.
                None if block.len() == MAX_READ_BYTES => MAX_READ_BYTES,
                None => break,
            };
            for line in block[..whole].split_inclusive(|&byte| byte == b'\n') {
                let start = self.end;
                self.end += line.len() as u64;
                // A carriage return would end the event early.
                let iteration = metrics::parse_iteration(line).filter(|_| !line.contains(&b'\r'));
                if let Some(iteration) = iteration {
                    let json = &line[..line.len() - 1];
                    if self.records.is_empty() {
                        self.run_id = hash_content(json);
                    }
                    self.records.push(RecordPosition {
                        iteration,
                        length: json.len() as u32,
                        start,
                    });
                }
                (self.last_line, self.last_line_start) = (line.to_vec(), start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    fn line(iteration: u32, score: f64) -> String {
        format!("{{\"iteration\":{iteration},\"score\":{score}}}\n")
    }

    fn events(index: &MetricsIndex, mut next: usize) -> String {
        let mut text = Vec::new();
        loop {
            match index.append_records(next, &mut text).unwrap() {
                end if end == next => return String::from_utf8(text).unwrap(),
                end => next = end,
            }
        }
    }

    #[test]
    fn an_index_follows_its_file() {
        let folder = TempDir::new().unwrap();
        let files = WatchedFiles::new(folder.path()).unwrap();
        let path = folder.path().join(METRICS);
        let mut index = MetricsIndex::default();
        let poll = |index: &mut MetricsIndex| index.poll(&files);
        assert!(!poll(&mut index), "there is no file yet");

        let torn = format!("{}{}{{\"iter", line(1, 0.5), line(2, 1.0));
        fs::write(&path, &torn).unwrap();
        assert!(poll(&mut index));
        assert!(!poll(&mut index), "nothing new");
        assert_eq!((index.iteration(), index.generation), (Some(2), 0));
        let both = events(&index, 0);
        assert_eq!(both.matches("event: record\ndata: {\"iteration\"").count(), 2);
        let id = both.lines().next().unwrap().strip_prefix("id: ").unwrap();
        assert_eq!(index.index_after(id), Some(1));
        assert_eq!(events(&index, 1), both[both.rfind("id: ").unwrap()..]);
        for strange in ["", "1", "x-1", &id.replace("-1", "-3"), &format!("{id}x")] {
            assert_eq!(index.index_after(strange), None, "{strange}");
        }
        let bytes = index.read_range(0, index.end).unwrap();
        assert_eq!(bytes, torn.as_bytes()[..index.end as usize]);

        // The torn line is complete; malformed records and those that would break an event are skipped.
        let rest =
            ["ation\":3}\n", "{\"iteration\":4,\r\"score\":1}\n", "nonsense\n", &line(5, 2.0)];
        fs::write(&path, torn + &rest.concat()).unwrap();
        assert!(poll(&mut index));
        assert_eq!((index.iteration(), index.generation), (Some(5), 0));
        assert_eq!(events(&index, 2).matches("id: ").count(), 2);
        assert_eq!(index.index_after(id), Some(1));

        let state =
            |index: &MetricsIndex| (index.iteration(), index.generation, index.index_after(id));
        // A resumed run drops records; another run replaces it; the file is deleted.
        fs::write(&path, line(1, 0.5)).unwrap();
        assert!(poll(&mut index));
        assert_eq!(state(&index), (Some(1), 1, Some(1)));
        fs::write(&path, line(1, 0.25)).unwrap();
        assert!(poll(&mut index));
        assert_eq!(state(&index), (Some(1), 2, None));
        fs::remove_file(&path).unwrap();
        assert!(poll(&mut index));
        assert_eq!((index.iteration(), index.generation, index.end), (None, 3, 0));
        assert!(!poll(&mut index));
    }

    #[test]
    fn long_files_are_read_in_blocks_and_endless_lines_skipped() {
        let folder = TempDir::new().unwrap();
        let files = WatchedFiles::new(folder.path()).unwrap();
        let long: String = (1..=5000).map(|i| line(i, f64::from(i))).collect();
        let text = format!("{long}{}\n{}", "x".repeat(3 * MAX_READ_BYTES), line(5001, 0.0));
        fs::write(folder.path().join(METRICS), text).unwrap();
        let mut index = MetricsIndex::default();
        assert!(index.poll(&files));
        assert_eq!(index.iteration(), Some(5001));
        assert!(index.last_line.len() <= MAX_READ_BYTES);
        let mut text = Vec::new();
        let next = index.append_records(0, &mut text).unwrap();
        let bytes = text.len();
        assert!(next < 5000 && bytes < 3 * MAX_READ_BYTES, "{next} records in {bytes} bytes");
        let all = events(&index, 0);
        assert_eq!(all.matches("event: record").count(), 5001);
        assert!(all.contains("-5000\n") && all.contains("-5001\n"));
    }
}
