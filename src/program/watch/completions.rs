//! The completions of a language run, read in blocks, since the file grows to gigabytes.

use super::files::{self, RunFiles};
use crate::run::COMPLETIONS;
use std::fs::File;
use std::io;

/// Maximum size of a block without long lines, bytes.
const BLOCK: u64 = 1 << 18;
/// Size up to which a block grows until it holds a whole line, bytes.
const LONGEST: u64 = 1 << 24;
/// Bytes read at a time to find the start of a line.
const SCAN: u64 = 1 << 13;
/// Prefix of each line, followed by its iteration.
const PREFIX: &[u8] = br#"{"iteration":"#;

/// The open file, with one completion per line, ordered by iteration.
pub struct Completions(File);

impl Completions {
    /// Opens the file, if it exists.
    pub fn open(files: &RunFiles) -> Option<Self> {
        files.open(COMPLETIONS).map(Self)
    }

    /// Reads whole lines, at most [`BLOCK`] bytes unless a line is longer: from the start of an iteration (or the
    /// next one with completions), or the last lines of the file if `iteration` is `None`.
    pub fn block(&self, iteration: Option<u64>) -> io::Result<Vec<u8>> {
        let end = self.0.metadata()?.len();
        let mut size = BLOCK;
        loop {
            let start = match iteration {
                Some(iteration) => self.first_of(iteration, end)?,
                None => self.line_from(end.saturating_sub(size))?,
            };
            let mut bytes = self.read(start, size)?;
            // The last line may be incomplete.
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            if whole > 0 || size >= end.min(LONGEST) {
                bytes.truncate(whole);
                return Ok(bytes);
            }
            size *= 2;
        }
    }

    /// Finds the offset of the first line of `iteration` or a later one by binary search.
    fn first_of(&self, iteration: u64, end: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, end);
        while low < high {
            let middle = low + (high - low) / 2;
            let start = self.line_from(middle)?;
            match self.iteration_at(start)? {
                Some(found) if found < iteration => low = middle + 1,
                _ => high = middle,
            }
        }
        self.line_from(low)
    }

    /// Finds the offset of the first line that starts at or after `at`; the end of the file if there is none.
    fn line_from(&self, at: u64) -> io::Result<u64> {
        if at == 0 {
            return Ok(0);
        }
        let mut from = at - 1;
        loop {
            let block = self.read(from, SCAN)?;
            if let Some(end) = block.iter().position(|byte| *byte == b'\n') {
                return Ok(from + end as u64 + 1);
            }
            from += block.len() as u64;
            if (block.len() as u64) < SCAN {
                return Ok(from);
            }
        }
    }

    /// The iteration of the line at offset `start`.
    fn iteration_at(&self, start: u64) -> io::Result<Option<u64>> {
        let line = self.read(start, PREFIX.len() as u64 + 20)?;
        let digits = line.strip_prefix(PREFIX).unwrap_or_default().iter();
        let digits = digits.take_while(|byte| byte.is_ascii_digit()).map(|byte| char::from(*byte));
        Ok(digits.collect::<String>().parse().ok())
    }

    fn read(&self, start: u64, length: u64) -> io::Result<Vec<u8>> {
        files::block(&self.0, start, length as usize)
    }
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
        let completions = Completions::open(&RunFiles::new(folder.path()).unwrap()).unwrap();
        String::from_utf8(completions.block(iteration).unwrap()).unwrap()
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
        for (iteration, first) in [(0, 0), (3, 0), (4, 2), (5, 3), (7, 3), (8, 6), (99, 6)] {
            assert_eq!(block(&text, Some(iteration)), lines[first..].concat(), "{iteration}");
            assert_eq!(block(&torn, Some(iteration)), lines[first..].concat(), "{iteration}");
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
        assert!(text.len() as u64 > 6 * BLOCK);
        for iteration in [1, 2, 777, 1500, 2000] {
            let found = block(&text, Some(iteration));
            assert!(lines[2 * iteration as usize - 2..].concat().starts_with(&found));
            assert!(found.len() as u64 <= BLOCK && found.ends_with('\n'), "{iteration}");
        }
        let last = block(&text, None);
        assert!(last.len() as u64 <= BLOCK && text.ends_with(&last));
        assert!(last.starts_with(str::from_utf8(PREFIX).unwrap()));
    }

    #[test]
    fn a_line_longer_than_a_block_is_read_whole() {
        let (short, long) = (line(2, "a"), line(3, &"x".repeat(3 * BLOCK as usize)));
        let text = format!("{short}{long}");
        assert_eq!(block(&text, Some(2)), short);
        assert_eq!(block(&text, Some(3)), long);
        assert_eq!(block(&text, None), text);
        assert_eq!(block(&text, Some(4)), "");
    }
}
