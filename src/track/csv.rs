//! Records as comma-separated values, one row per iteration.

use super::{Tracker, list_scalars};
use crate::disk::{self, AppendFile, csv, input};
use crate::metrics::IterationRecord;
use std::borrow::Cow;
use std::io;
use std::path::Path;

/// First columns; those of the scalars follow.
const FIRST_COLUMNS: [&str; 2] = ["iteration", "env_steps"];

/// An open file of rows.
#[derive(Debug)]
pub(super) struct CsvTracker {
    file: AppendFile,
    /// Scalars that have a column.
    columns: Vec<String>,
}

impl CsvTracker {
    /// Opens or creates a file, and drops the rows after iteration `last_iteration`. Also returns the iteration of the
    /// last row; 0 without one.
    pub fn open(path: &Path, last_iteration: u32) -> io::Result<(Self, u32)> {
        let bytes =
            input::allow_missing(input::read(path, input::MAX_DATA_BYTES))?.unwrap_or_default();
        // A damaged file is written anew.
        let text = String::from_utf8(bytes).unwrap_or_default();
        let (header, lines) = text.split_at(header_len(&text));
        // An incomplete last line has no line break.
        let lines = lines.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let iteration = |row: &str| row.split(',').next()?.parse::<u32>().ok();
        let is_kept =
            |row: &&str| iteration(row).is_some_and(|iteration| iteration <= last_iteration);
        let rows: Vec<&str> = lines.take_while(is_kept).collect();
        let last_iteration = rows.last().and_then(|row| iteration(row)).unwrap_or(0);
        // The folder may contain the file of another run with other scalars.
        let header = if rows.is_empty() { "" } else { header };
        let cells = csv::rows(header.as_bytes()).next().and_then(|(_, cells)| cells.ok());
        let columns = cells.into_iter().flatten().skip(FIRST_COLUMNS.len()).collect();
        disk::replace(path, [header, &rows.concat()].concat().as_bytes())?;
        Ok((Self { file: AppendFile::open(path)?, columns }, last_iteration))
    }

    /// Adds columns, which are empty in existing rows.
    fn add_columns(&mut self, names: Vec<String>) -> io::Result<()> {
        self.columns.extend(names);
        let columns = FIRST_COLUMNS.iter().copied().chain(self.columns.iter().map(String::as_str));
        let header = columns.map(quote).collect::<Vec<_>>().join(",") + "\n";
        let text = input::read_text(&self.file.path, input::MAX_DATA_BYTES)?;
        let rows = &text[header_len(&text)..];
        let commas = FIRST_COLUMNS.len() + self.columns.len() - 1;
        let padded = rows.lines().map(|row| {
            let missing = commas.saturating_sub(row.matches(',').count());
            format!("{row}{}\n", ",".repeat(missing))
        });
        let text = header + &padded.collect::<String>();
        self.file.replace_with(|file| disk::write(file, text.as_bytes()))
    }
}

impl Tracker for CsvTracker {
    fn write(&mut self, record: &IterationRecord) -> io::Result<()> {
        let scalars = list_scalars(record);
        let is_new = |name: &String| !self.columns.contains(name);
        let new_names: Vec<String> =
            scalars.iter().map(|(name, _)| name.clone()).filter(is_new).collect();
        if !new_names.is_empty() {
            self.add_columns(new_names)?;
        }
        let cell = |column: &String| {
            let value =
                scalars.iter().find(|(name, _)| name == column).and_then(|(_, value)| *value);
            value.map_or(String::new(), |value| value.to_string())
        };
        let first = [record.iteration.to_string(), record.env_steps.to_string()];
        let cells = first.into_iter().chain(self.columns.iter().map(cell));
        let row = cells.collect::<Vec<_>>().join(",") + "\n";
        self.file.append(row.as_bytes())
    }
}

/// The bytes of the first row, whose cells in quotes may have line breaks; 0 if it is incomplete.
fn header_len(text: &str) -> usize {
    let mut is_quoted = false;
    let end = text.bytes().position(|byte| {
        is_quoted ^= byte == b'"';
        byte == b'\n' && !is_quoted
    });
    end.map_or(0, |end| end + 1)
}

/// Puts a cell in quotes where its text would end it. The name of a reward may be any text.
fn quote(cell: &str) -> Cow<'_, str> {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\"")).into()
    } else {
        cell.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LanguageRecord;
    use std::fs;
    use tempfile::TempDir;

    /// The record of an iteration with the means of some parts of the reward.
    fn record(iteration: u32, parts: &[(&str, f64)]) -> IterationRecord {
        let rewards = parts.iter().map(|(part, mean)| (part.to_string(), *mean)).collect();
        let text = LanguageRecord { rewards, ..LanguageRecord::default() };
        IterationRecord { iteration, text: Some(text), ..IterationRecord::default() }
    }

    #[test]
    fn names_of_any_characters_are_columns() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("metrics.csv");
        let parts = [("a, \"b\"", 0.5), ("c\nd", 0.25)];
        for iteration in 1..=2 {
            let (mut tracker, _) = CsvTracker::open(&path, iteration - 1).unwrap();
            tracker.write(&record(iteration, &parts)).unwrap();
        }
        let rows: Vec<_> = csv::rows(&fs::read(&path).unwrap()[..]).collect();
        let rows: Vec<Vec<String>> = rows.into_iter().map(|(_, cells)| cells.unwrap()).collect();
        assert_eq!(rows.len(), 3);
        for (part, mean) in parts {
            let of_part = |cell: &String| *cell == format!("rewards/{part}");
            let column = rows[0].iter().position(of_part).unwrap();
            assert!(rows[1..].iter().all(|cells| cells[column] == mean.to_string()), "{rows:?}");
            assert_eq!(rows[0].iter().filter(|cell| of_part(cell)).count(), 1);
        }
    }

    #[test]
    fn scalars_that_appear_later_get_columns_of_their_own() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("metrics.csv");
        let (mut tracker, _) = CsvTracker::open(&path, 0).unwrap();
        tracker.write(&record(1, &[])).unwrap();
        tracker.write(&record(2, &[("exact", 0.5)])).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert!(lines.iter().all(|cells| cells.len() == lines[0].len()), "{text}");
        let last: Vec<_> = lines.iter().map(|cells| *cells.last().unwrap()).collect();
        assert_eq!(last, ["rewards/exact", "", "0.5"]);
        // A file that was closed is continued as it is.
        drop(tracker);
        let (mut tracker, _) = CsvTracker::open(&path, 2).unwrap();
        tracker.write(&record(3, &[("exact", 0.75)])).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() == 4 && text.ends_with(",0.75\n"), "{text}");
    }

    #[test]
    fn an_edited_or_incomplete_file_is_continued() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("metrics.csv");
        let record = |iteration| IterationRecord { iteration, ..IterationRecord::default() };
        fs::write(&path, format!("a\n1{}\n3,7\n9,8\n", ",".repeat(60))).unwrap();
        let (mut tracker, last_iteration) = CsvTracker::open(&path, 4).unwrap();
        assert_eq!(last_iteration, 3);
        tracker.write(&record(4)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let first = text.lines().map(|line| line.split(',').next().unwrap());
        assert_eq!(first.collect::<Vec<_>>(), ["iteration", "1", "3", "4"]);
    }
}
