//! The metrics of a run as they grow: where in the file each record is.

use super::files::RunFiles;
use serde::Deserialize;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Seek, SeekFrom};

/// The file of a run's metrics.
pub const METRICS: &str = "metrics.jsonl";
/// The most bytes that are read at once; longer lines are no records.
const BLOCK: usize = 1 << 16;

/// What of a file of metrics can be read, to its last whole line.
#[derive(Default)]
pub struct Log {
    /// Counts the files: another run may take a run's place.
    pub epoch: u64,
    /// A name of the run, from its first record, which holds times and is like no other.
    run: String,
    file: Option<File>,
    lines: Vec<Line>,
    end: u64,
}

#[derive(Clone, Copy)]
struct Line {
    iteration: u32,
    length: u32,
    start: u64,
}

/// What there is to know of a line; the rest goes to the reader as it is.
#[derive(Deserialize)]
struct Numbered {
    iteration: u32,
}

impl Log {
    /// The iteration of the newest record.
    pub fn iteration(&self) -> Option<u32> {
        self.lines.last().map(|line| line.iteration)
    }

    /// The end of the last whole line.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The index of the record after the one that was sent with this id, if that one is of this log.
    pub fn after(&self, id: &str) -> Option<usize> {
        let (run, iteration) = id.split_once('-')?;
        let iteration = iteration.parse::<u32>().ok().filter(|_| run == self.run)?;
        let found = self.lines.binary_search_by_key(&iteration, |line| line.iteration);
        found.ok().map(|index| index + 1)
    }

    /// Appends as many records as fit in a block to `text`, as events, from the one at `index`, and
    /// gives the index after them.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn events(&self, index: usize, text: &mut Vec<u8>) -> io::Result<usize> {
        let mut next = index;
        let Some(first) = self.lines.get(index) else { return Ok(next) };
        let inside =
            |line: &&Line| line.start + u64::from(line.length) <= first.start + BLOCK as u64;
        let block = self.bytes(first.start, self.end)?;
        for line in self.lines[index..].iter().take_while(inside) {
            let start = (line.start - first.start) as usize;
            let record = &block[start..start + line.length as usize];
            text.extend(
                format!("id: {}-{}\nevent: record\ndata: ", self.run, line.iteration).bytes(),
            );
            text.extend(record);
            text.extend(b"\n\n");
            next += 1;
        }
        Ok(next)
    }

    /// The bytes of the file from `start` on, up to `end` and at most a block.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn bytes(&self, start: u64, end: u64) -> io::Result<Vec<u8>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let length = end.saturating_sub(start).min(BLOCK as u64) as usize;
        let bytes = block(file, start, length)?;
        match bytes.len() == length {
            true => Ok(bytes),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn append(&mut self, news: News) {
        let News { file, first, lines, end } = news;
        if let (true, Some(first)) = (self.lines.is_empty(), first) {
            let mut hasher = DefaultHasher::new();
            hasher.write(&first);
            self.run = format!("{:016x}", hasher.finish());
        }
        self.file = Some(file);
        self.lines.extend(lines);
        self.end = end;
    }
}

/// Where the last look at a file of metrics ended.
#[derive(Default)]
pub struct Tail {
    /// The last whole line and where it is: what must still be there if the file is the same.
    last: Vec<u8>,
    last_start: u64,
    end: u64,
}

/// What a look has found.
pub enum Found {
    /// Nothing new.
    Same,
    /// More lines of the same file.
    More(News),
    /// Another file, perhaps none.
    Other(Option<News>),
}

/// New lines of a file.
pub struct News {
    file: File,
    first: Option<Vec<u8>>,
    lines: Vec<Line>,
    end: u64,
}

impl Tail {
    /// Looks at the file again. One that cannot be read counts as missing.
    pub fn look(&mut self, files: &RunFiles) -> Found {
        let Some(file) = files.open(METRICS) else {
            return match std::mem::take(self).end {
                0 => Found::Same,
                _ => Found::Other(None),
            };
        };
        let still = block(&file, self.last_start, self.last.len());
        if still.is_ok_and(|still| still == self.last) {
            let news = self.read(file);
            return match news.lines.is_empty() {
                true => Found::Same,
                false => Found::More(news),
            };
        }
        *self = Self::default();
        Found::Other(Some(self.read(file)))
    }

    /// Reads on to the last whole line.
    fn read(&mut self, file: File) -> News {
        let (mut lines, mut first) = (Vec::new(), None);
        while let Ok(block) = block(&file, self.end, BLOCK) {
            let whole = match block.iter().rposition(|&byte| byte == b'\n') {
                Some(last) => last + 1,
                // No record is that long: it is left out.
                None if block.len() == BLOCK => BLOCK,
                None => break,
            };
            for line in block[..whole].split_inclusive(|&byte| byte == b'\n') {
                let start = self.end;
                self.end += line.len() as u64;
                let json = line.strip_suffix(b"\n").unwrap_or(line);
                let record = serde_json::from_slice::<Numbered>(json);
                // A line break within an event would be the end of it.
                if let (Ok(Numbered { iteration }), false) = (record, json.contains(&b'\r')) {
                    first.get_or_insert_with(|| json.to_vec());
                    lines.push(Line { iteration, length: json.len() as u32, start });
                }
                (self.last, self.last_start) = (line.to_vec(), start);
            }
        }
        News { file, first, lines, end: self.end }
    }
}

impl Found {
    /// Brings a log up to date; says whether there was anything to do.
    pub fn apply(self, log: &mut Log) -> bool {
        match self {
            Self::Same => return false,
            Self::More(news) => log.append(news),
            Self::Other(news) => {
                *log = Log { epoch: log.epoch + 1, ..Log::default() };
                news.into_iter().for_each(|news| log.append(news));
            }
        }
        true
    }
}

/// Bytes of a file from `start` on, fewer than `length` where it ends before.
fn block(mut file: &File, start: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length);
    file.seek(SeekFrom::Start(start))?;
    file.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    fn line(iteration: u32, score: f64) -> String {
        format!("{{\"iteration\":{iteration},\"score\":{score}}}\n")
    }

    fn events(log: &Log, mut index: usize) -> String {
        let mut text = Vec::new();
        loop {
            match log.events(index, &mut text).unwrap() {
                next if next == index => return String::from_utf8(text).unwrap(),
                next => index = next,
            }
        }
    }

    #[test]
    fn a_log_follows_its_file_line_by_line() {
        let folder = TempDir::new().unwrap();
        let files = RunFiles::new(folder.path()).unwrap();
        let path = folder.path().join(METRICS);
        let (mut tail, mut log) = (Tail::default(), Log::default());
        let mut look = |log: &mut Log| tail.look(&files).apply(log);
        assert!(!look(&mut log), "there is no file yet");

        let torn = format!("{}{}{{\"iter", line(1, 0.5), line(2, 1.0));
        fs::write(&path, &torn).unwrap();
        assert!(look(&mut log));
        assert!(!look(&mut log), "nothing new");
        assert_eq!((log.iteration(), log.epoch), (Some(2), 0));
        let both = events(&log, 0);
        assert_eq!(both.matches("event: record\ndata: {\"iteration\"").count(), 2);
        let id = both.lines().next().unwrap().strip_prefix("id: ").unwrap();
        assert_eq!(log.after(id), Some(1));
        assert_eq!(events(&log, 1), both[both.rfind("id: ").unwrap()..]);
        for strange in ["", "1", "x-1", &id.replace("-1", "-3"), &format!("{id}x")] {
            assert_eq!(log.after(strange), None, "{strange}");
        }
        assert_eq!(log.bytes(0, log.end()).unwrap(), torn.as_bytes()[..log.end() as usize]);

        // The torn line is done, what is no record is left out, and so is what breaks an event.
        let rest =
            ["ation\":3}\n", "{\"iteration\":4,\r\"score\":1}\n", "nonsense\n", &line(5, 2.0)];
        fs::write(&path, torn + &rest.concat()).unwrap();
        assert!(look(&mut log));
        assert_eq!((log.iteration(), log.epoch), (Some(5), 0));
        assert_eq!(events(&log, 2).matches("id: ").count(), 2);
        assert_eq!(log.after(id), Some(1));

        // A resumed run may go back behind what was seen; another run takes its place; none does.
        fs::write(&path, line(1, 0.5)).unwrap();
        assert!(look(&mut log));
        assert_eq!((log.iteration(), log.epoch, log.after(id)), (Some(1), 1, Some(1)));
        fs::write(&path, line(1, 0.25)).unwrap();
        assert!(look(&mut log));
        assert_eq!((log.iteration(), log.epoch, log.after(id)), (Some(1), 2, None));
        fs::remove_file(&path).unwrap();
        assert!(look(&mut log));
        assert_eq!((log.iteration(), log.epoch, log.end()), (None, 3, 0));
        assert!(!look(&mut log));
    }

    #[test]
    fn a_long_log_comes_in_blocks_and_a_line_without_end_takes_no_memory() {
        let folder = TempDir::new().unwrap();
        let files = RunFiles::new(folder.path()).unwrap();
        let long: String = (1..=5000).map(|i| line(i, f64::from(i))).collect();
        let text = format!("{long}{}\n{}", "x".repeat(3 * BLOCK), line(5001, 0.0));
        fs::write(folder.path().join(METRICS), text).unwrap();
        let (mut tail, mut log) = (Tail::default(), Log::default());
        assert!(tail.look(&files).apply(&mut log));
        assert_eq!(log.iteration(), Some(5001));
        assert!(tail.last.len() <= BLOCK);
        let mut text = Vec::new();
        let next = log.events(0, &mut text).unwrap();
        assert!(next < 5000 && text.len() < 3 * BLOCK, "{next} records in {} bytes", text.len());
        let all = events(&log, 0);
        assert_eq!(all.matches("event: record").count(), 5001);
        assert!(all.contains("-5000\n") && all.contains("-5001\n"));
    }
}
