//! The completions of a language run, read in blocks, since the file grows to gigabytes.

use super::files::{self, WatchedFiles};
use crate::run::COMPLETIONS;
use std::fs::File;
use std::io;

/// Maximum size of a block of several iterations, bytes.
const MAX_BLOCK_BYTES: u64 = 1 << 18;
/// Maximum size of a block of one iteration, bytes.
const MAX_ITERATION_BYTES: u64 = 1 << 24;
/// Bytes read at a time to find the start or the end of a line.
const SCAN_BYTES: u64 = 1 << 13;
/// Prefix of each line, followed by its iteration.
const LINE_PREFIX: &[u8] = br#"{"iteration":"#;

/// The open file, with one completion per line, ordered by iteration.
pub struct Completions(File);

impl Completions {
    /// Opens the file, if it exists.
    pub fn open(files: &WatchedFiles) -> Option<Self> {
        files.open(COMPLETIONS).map(Self)
    }

    /// Reads whole iterations: from the start of `iteration` (or of the next one with completions), or the last ones
    /// of the file if it is `None`. Several iterations have at most [`MAX_BLOCK_BYTES`] bytes together. Of a
    /// single larger one, only the lines within [`MAX_ITERATION_BYTES`] bytes are read.
    pub fn read_block(&self, iteration: Option<u64>) -> io::Result<Vec<u8>> {
        // The last line may be incomplete.
        let end = self.find_line_start_before(self.0.metadata()?.len())?;
        let start = match iteration {
            Some(iteration) => self.find_iteration_start(iteration, end)?,
            None => self.find_newest_block_start(end)?,
        };
        let block_end = self.find_block_end(start, end)?;
        let mut bytes =
            self.read(start, block_end.saturating_sub(start).min(MAX_ITERATION_BYTES))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        bytes.truncate(whole);
        Ok(bytes)
    }

    /// Finds the start of the last block of a file whose last line ends at `end`.
    fn find_newest_block_start(&self, end: u64) -> io::Result<u64> {
        if end <= MAX_BLOCK_BYTES {
            return Ok(0);
        }
        let (first, next) = self.find_iteration_range(end - MAX_BLOCK_BYTES, end)?;
        Ok(if next < end { next } else { first })
    }

    /// Finds the end of a block that starts at `start`.
    fn find_block_end(&self, start: u64, end: u64) -> io::Result<u64> {
        if end <= start + MAX_BLOCK_BYTES {
            return Ok(end);
        }
        let (first, next) = self.find_iteration_range(start + MAX_BLOCK_BYTES, end)?;
        Ok(if first > start { first } else { next })
    }

    /// Finds the start and the end of the iteration of the line around the offset `at`. A line without an iteration is
    /// one by itself.
    fn find_iteration_range(&self, at: u64, end: u64) -> io::Result<(u64, u64)> {
        let line = self.find_line_start_before(at)?;
        match self.read_iteration(line)? {
            Some(iteration) => Ok((
                self.find_iteration_start(iteration, end)?,
                self.find_iteration_start(iteration.saturating_add(1), end)?,
            )),
            None => Ok((line, self.find_line_start_from(line + 1)?)),
        }
    }

    /// Finds the offset of the first line of `iteration` or a later one by binary search.
    fn find_iteration_start(&self, iteration: u64, end: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, end);
        while low < high {
            let middle = low + (high - low) / 2;
            let start = self.find_line_start_from(middle)?;
            match self.read_iteration(start)? {
                Some(found) if start < end && found < iteration => low = middle + 1,
                _ => high = middle,
            }
        }
        self.find_line_start_from(low)
    }

    /// Finds the offset of the first line that starts at or after `at`; the end of the file if there is none.
    fn find_line_start_from(&self, at: u64) -> io::Result<u64> {
        if at == 0 {
            return Ok(0);
        }
        let mut from = at - 1;
        loop {
            let block = self.read(from, SCAN_BYTES)?;
            if let Some(end) = block.iter().position(|byte| *byte == b'\n') {
                return Ok(from + end as u64 + 1);
            }
            from += block.len() as u64;
            if (block.len() as u64) < SCAN_BYTES {
                return Ok(from);
            }
            check_line_length(from - at)?;
        }
    }

    /// Finds the offset of the last line that starts at or before `end`.
    fn find_line_start_before(&self, end: u64) -> io::Result<u64> {
        let mut at = end;
        while at > 0 {
            check_line_length(end - at)?;
            let from = at.saturating_sub(SCAN_BYTES);
            let block = self.read(from, at - from)?;
            if let Some(end) = block.iter().rposition(|byte| *byte == b'\n') {
                return Ok(from + end as u64 + 1);
            }
            at = from;
        }
        Ok(0)
    }

    /// Reads the iteration of the line at offset `start`.
    fn read_iteration(&self, start: u64) -> io::Result<Option<u64>> {
        let line = self.read(start, LINE_PREFIX.len() as u64 + 20)?;
        let digits = line.strip_prefix(LINE_PREFIX).unwrap_or_default().iter();
        let digits = digits.take_while(|byte| byte.is_ascii_digit()).map(|byte| char::from(*byte));
        Ok(digits.collect::<String>().parse().ok())
    }

    fn read(&self, start: u64, length: u64) -> io::Result<Vec<u8>> {
        files::read_block(&self.0, start, length as usize)
    }
}

/// Refuses a line of more bytes than an iteration may have: no run writes one, and the search for its end would not
/// end.
fn check_line_length(bytes: u64) -> io::Result<()> {
    if bytes > MAX_ITERATION_BYTES {
        return Err(io::Error::other("a line is longer than any completion"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    fn line(iteration: u64, text: &str) -> String {
        format!("{{\"iteration\":{iteration},\"completion\":\"{text}\"}}\n")
    }

    fn block(text: &str, iteration: Option<u64>) -> String {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join(COMPLETIONS), text).unwrap();
        let completions = Completions::open(&WatchedFiles::new(folder.path()).unwrap()).unwrap();
        String::from_utf8(completions.read_block(iteration).unwrap()).unwrap()
    }

    #[test]
    fn iterations_are_found_and_incomplete_lines_left_out() {
        let lines: Vec<String> = [3, 3, 4, 7, 7, 7]
            .iter()
            .enumerate()
            .map(|(i, n)| line(*n, &"x".repeat(i * 7)))
            .collect();
        let text = lines.concat();
        let torn = format!("{text}{{\"iteration\":8,\"comp");
        // The number of an iteration may be incomplete, too.
        let torn_number = format!("{text}{{\"iteration\":1");
        for (iteration, first) in [(0, 0), (3, 0), (4, 2), (5, 3), (7, 3), (8, 6), (99, 6)] {
            for text in [&text, &torn, &torn_number] {
                assert_eq!(block(text, Some(iteration)), lines[first..].concat(), "{iteration}");
            }
        }
        assert_eq!(block(&torn, None), text);
        assert_eq!(block("", None), "");
        assert_eq!(block("", Some(1)), "");
    }

    #[test]
    fn blocks_are_read_anywhere_in_a_large_file() {
        let lines: Vec<String> =
            (1..=2000).flat_map(|n| [line(n, &"a".repeat(n as usize)), line(n, "b")]).collect();
        let text = lines.concat();
        assert!(text.len() as u64 > 6 * MAX_BLOCK_BYTES);
        for iteration in [1, 2, 777, 1500, 2000] {
            let found = block(&text, Some(iteration));
            assert!(lines[2 * iteration as usize - 2..].concat().starts_with(&found));
            assert!(found.len() as u64 <= MAX_BLOCK_BYTES && found.ends_with('\n'), "{iteration}");
        }
        let last = block(&text, None);
        assert!(last.len() as u64 <= MAX_BLOCK_BYTES && text.ends_with(&last));
        assert!(last.starts_with(str::from_utf8(LINE_PREFIX).unwrap()));
    }

    #[test]
    fn a_line_longer_than_a_block_is_read_whole() {
        let (short, long) = (line(2, "a"), line(3, &"x".repeat(3 * MAX_BLOCK_BYTES as usize)));
        let text = format!("{short}{long}");
        assert_eq!(block(&text, Some(2)), short);
        assert_eq!(block(&text, Some(3)), long);
        assert_eq!(block(&text, None), long);
        assert_eq!(block(&text, Some(4)), "");
    }

    #[test]
    fn iterations_are_whole() {
        // Each has two blocks, or less than half of one.
        for length in [MAX_BLOCK_BYTES / 2, MAX_BLOCK_BYTES / 10] {
            let of = |n: u64| line(n, &"x".repeat(length as usize)).repeat(4);
            let all: Vec<String> = (0..6).map(of).collect();
            let text = all.concat();
            let together = if length == MAX_BLOCK_BYTES / 2 { 1 } else { 2 };
            for n in 0..6 {
                let expected = all[n..].iter().take(together).map(String::as_str);
                assert_eq!(block(&text, Some(n as u64)), expected.collect::<String>(), "{n}");
            }
            let torn = format!("{text}{{\"iteration\":6,\"comp");
            assert_eq!(block(&torn, None), all[6 - together..].concat());
        }
    }

    #[test]
    fn an_iteration_beyond_the_limit_ends_with_a_whole_line() {
        let long = line(1, &"x".repeat(MAX_ITERATION_BYTES as usize / 3));
        assert_eq!(block(&long.repeat(4), Some(1)), long.repeat(2));
        assert_eq!(block(&long.repeat(4), None), long.repeat(2));
    }
}
