//! TensorBoard's event files: TFRecords of `Event` messages.
//!
//! A record is its length, a checksum of that, the message, and a checksum of it
//! (<https://www.tensorflow.org/tutorials/load_data/tfrecord>). The messages are those of
//! `tensorboard/compat/proto/event.proto` and `summary.proto`. The file begins with its version and the settings of
//! the run as a text; an event per iteration follows, whose step is the environment steps so far, as in CleanRL.

use super::{Tracker, scalars};
use crate::disk::{self, input};
use crate::metrics::IterationRecord;
use crate::protobuf::Message;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use toml::{Table, Value};

/// Events before that of the first iteration: the version and the settings.
const HEADER: usize = 2;
/// The file's name: TensorBoard looks for `tfevents` in it.
const FILE: &str = "events.out.tfevents.0.grove";
/// Size in bytes of a record without its message: the length, and two checksums.
const FRAME: usize = 8 + 4 + 4;

/// An event file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event file is damaged at byte {at}")]
pub struct EventError {
    /// The first byte of the damaged record.
    pub at: usize,
}

/// The step of an iteration and its scalars, by their names.
pub type Step = (i64, Vec<(String, f32)>);

/// An open event file.
#[derive(Debug)]
pub struct Events {
    file: File,
    iterations: u32,
}

impl Events {
    /// Opens or creates the event file in a folder. Events after those of the first `done` iterations are cut off,
    /// and so is a torn last one.
    ///
    /// # Errors
    /// If the folder or the file cannot be read or written.
    pub fn open(folder: &Path, settings: &Table, done: u32) -> io::Result<Self> {
        disk::create_folders(folder)?;
        let path = folder.join(FILE);
        let bytes = match input::read(&path, input::DATA) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let (records, _) = records(&bytes);
        let kept = records.iter().take(HEADER + done as usize);
        let length = kept.clone().next_back().map_or(0, |record| record.end + 4);
        let count = kept.count();
        let file = disk::open(&path)?;
        if count >= HEADER {
            file.set_len(length as u64)?;
            return Ok(Self { file, iterations: (count - HEADER) as u32 });
        }
        file.set_len(0)?;
        let mut events = Self { file, iterations: 0 };
        events.append(event(0).bytes(3, "brain.Event:2"))?;
        events.append(event(0).message(5, hyper_parameters(settings)))?;
        Ok(events)
    }

    /// The step and the scalars of each iteration in the bytes of an event file.
    ///
    /// # Errors
    /// [`EventError`] if a checksum is wrong or the last record is not complete.
    pub fn read(bytes: &[u8]) -> Result<Vec<Step>, EventError> {
        let (records, end) = records(bytes);
        if end != bytes.len() {
            return Err(EventError { at: end });
        }
        let messages = records.into_iter().skip(HEADER).map(|record| &bytes[record]);
        Ok(messages.map(step_and_scalars).collect())
    }

    /// Appends an event by a single write, so that readers rarely see a part of it.
    fn append(&mut self, event: Message) -> io::Result<()> {
        let message = event.into_bytes();
        let length = (message.len() as u64).to_le_bytes();
        let checksums = [masked_crc(&length), masked_crc(&message)].map(u32::to_le_bytes);
        let record = [&length[..], &checksums[0], &message, &checksums[1]].concat();
        disk::write(&mut self.file, &record)
    }
}

impl Tracker for Events {
    fn iterations(&self) -> u32 {
        self.iterations
    }

    fn write(&mut self, record: &IterationRecord) -> io::Result<()> {
        let values = scalars(record).into_iter().filter_map(|(name, value)| Some((name, value?)));
        let values =
            values.map(|(name, value)| Message::default().bytes(1, name).float(2, value as f32));
        let summary = Message::default().messages(1, values);
        self.append(event(record.env_steps as i64).message(5, summary))?;
        self.iterations = record.iteration;
        Ok(())
    }
}

/// An event of this moment.
fn event(step: i64) -> Message {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Message::default().double(1, now.as_secs_f64()).int(2, step)
}

/// The settings as a table in Markdown, under the name that CleanRL uses.
fn hyper_parameters(settings: &Table) -> Message {
    let mut text = "|param|value|\n|-|-|".to_string();
    let mut row = |key: &str, value: &Value| text += &format!("\n|{key}|{value}|");
    for (key, value) in settings {
        match value {
            Value::Table(section) => {
                section.iter().for_each(|(leaf, value)| row(&format!("{key}.{leaf}"), value));
            }
            value => row(key, value),
        }
    }
    const DT_STRING: i64 = 7;
    let plugin = Message::default().bytes(1, "text");
    let metadata = Message::default().message(1, plugin);
    let shape = Message::default().message(2, Message::default().int(1, 1));
    let tensor = Message::default().int(1, DT_STRING).message(2, shape).bytes(8, text);
    let value = Message::default().bytes(1, "hyperparameters/text_summary");
    Message::default().message(1, value.message(9, metadata).message(8, tensor))
}

/// The places of the messages in the intact records at the beginning of a file, and the end of the last one.
fn records(bytes: &[u8]) -> (Vec<std::ops::Range<usize>>, usize) {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(range) = record(bytes, at) {
        at = range.end + 4;
        found.push(range);
    }
    (found, at)
}

/// The place of the message in the record that begins at a byte, if that is intact.
fn record(bytes: &[u8], at: usize) -> Option<std::ops::Range<usize>> {
    let rest = &bytes[at..];
    let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let length = rest.get(..8)?;
    let size = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    if word(8)? != masked_crc(length) || rest.len().checked_sub(FRAME)? < size {
        return None;
    }
    let is_intact = word(12 + size)? == masked_crc(&rest[12..12 + size]);
    is_intact.then_some(at + 12..at + 12 + size)
}

/// The fields of a message: the number, and the value of a varint or the bytes of any other.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    let mut next = move || {
        let tag = varint(&mut bytes)?;
        let length = match tag & 7 {
            0 => return Some((tag >> 3, varint(&mut bytes)?, &bytes[..0])),
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (value, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some((tag >> 3, 0, value))
    };
    std::iter::from_fn(&mut next).collect()
}

fn step_and_scalars(message: &[u8]) -> Step {
    let event = fields(message);
    let step = event.iter().find(|(field, ..)| *field == 2).map_or(0, |(_, step, _)| *step as i64);
    let summaries = event.iter().filter(|(field, ..)| *field == 5);
    let values = summaries.flat_map(|(_, _, summary)| fields(summary));
    let scalar = |(_, _, value): (u64, u64, &[u8])| {
        let value = fields(value);
        let part = |number: u64| value.iter().find(|(field, ..)| *field == number);
        let (_, _, name) = part(1)?;
        let (_, _, number) = part(2)?;
        let number = f32::from_le_bytes((*number).try_into().ok()?);
        Some((String::from_utf8_lossy(name).into_owned(), number))
    };
    (step, values.filter_map(scalar).collect())
}

/// CRC-32C (Castagnoli, reflected), as TFRecords mask it: rotated by 15 bits plus a constant.
fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = !bytes
        .iter()
        .fold(!0, |crc, byte| TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8));
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The remainder of each byte.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The check value of CRC-32C in Philip Koopman's and the IETF's lists (RFC 3720, appendix B.4), masked.
    #[test]
    fn the_checksum_is_that_of_the_standard() {
        let unmasked = masked_crc(b"123456789").wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(unmasked, 0xe306_9283);
        let unmasked = masked_crc(&[0; 32]).wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(unmasked, 0x8a91_36aa);
    }

    #[test]
    fn a_damaged_file_is_refused_with_the_place() {
        let folder = tempfile::TempDir::new().unwrap();
        let mut events = Events::open(folder.path(), &Table::new(), 0).unwrap();
        events.write(&IterationRecord { iteration: 1, ..IterationRecord::default() }).unwrap();
        let mut bytes = fs::read(folder.path().join(FILE)).unwrap();
        assert_eq!(Events::read(&bytes).unwrap().len(), 1);
        let at = records(&bytes).0[HEADER].start - 12;
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(Events::read(&bytes), Err(EventError { at }));
        for length in 0..bytes.len() {
            let _ = Events::read(&bytes[..length]);
        }
    }
}
