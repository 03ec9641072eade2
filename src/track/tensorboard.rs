//! TensorBoard's event files: TFRecords of `Event` messages.
//!
//! A record is the message's length, a checksum of the length, the message, and a checksum of the message
//! (<https://www.tensorflow.org/tutorials/load_data/tfrecord>). The messages are those of
//! `tensorboard/compat/proto/event.proto` and `summary.proto`, and `plugins/hparams/plugin_data.proto` of the same
//! package. The file begins with its version and the settings of the run, as a string and for the tab of
//! hyper-parameters; one event per iteration follows, whose step is the number of environment steps so far, as in
//! CleanRL.

use super::{Animation, Tracker, list_scalars};
use crate::disk::{self, input};
use crate::metrics::IterationRecord;
use crate::protobuf::Message;
use crate::settings::overlay;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use toml::{Table, Value};

/// Events before that of the first iteration: the version and the settings.
const HEADER_EVENTS: usize = 2;
/// The file's name: TensorBoard looks for `tfevents` in it.
const FILE_NAME: &str = "events.out.tfevents.0.grove";
/// Size in bytes of a record without its message: the length, and two checksums.
const FRAME_BYTES: usize = 8 + 4 + 4;

/// An open event file.
#[derive(Debug)]
pub(super) struct TensorBoardTracker {
    file: File,
}

impl TensorBoardTracker {
    /// Opens or creates the event file in a folder. Events after the last of the run's `records` are cut off, and so is
    /// a torn last one; without records a new file begins. Also returns the iteration of the last event; 0 without one.
    ///
    /// # Errors
    /// If the folder or the file cannot be read or written.
    pub fn open(
        folder: &Path,
        settings: &Table,
        records: &[IterationRecord],
    ) -> io::Result<(Self, u32)> {
        disk::create_folders(folder)?;
        let path = folder.join(FILE_NAME);
        let bytes =
            input::allow_missing(input::read(&path, input::MAX_DATA_BYTES))?.unwrap_or_default();
        let steps_done = records.last().map_or(0, |record| record.env_steps);
        // The end and the step of each event. Their number tells no iteration, since records may be missing.
        let events = find_messages(&bytes).into_iter();
        let events = events.map_while(|event| Some((event.end + 4, parse_step(&bytes[event])?)));
        let kept: Vec<(usize, u64)> = events.take_while(|(_, step)| *step <= steps_done).collect();
        let file = disk::open_append(&path)?;
        if let Some((end, step)) =
            kept.last().filter(|_| kept.len() >= HEADER_EVENTS && steps_done > 0)
        {
            disk::truncate(&path, *end as u64)?;
            let last = records.iter().rfind(|record| record.env_steps <= *step);
            return Ok((Self { file }, last.map_or(0, |record| record.iteration)));
        }
        disk::truncate(&path, 0)?;
        let mut tracker = Self { file };
        tracker.append(new_event(0).bytes(3, "brain.Event:2"))?;
        let values = [encode_settings_text(settings), encode_hyper_parameters(settings)];
        tracker.append(new_event(0).message(5, Message::default().messages(1, values)))?;
        Ok((tracker, 0))
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

impl Tracker for TensorBoardTracker {
    fn write(&mut self, record: &IterationRecord) -> io::Result<()> {
        self.append(new_event(record.env_steps as i64).message(5, encode_record(record)))
    }

    fn takes_animations(&self) -> bool {
        true
    }

    fn write_animation(&mut self, env_steps: u64, animation: &Animation) -> io::Result<()> {
        self.append(new_event(env_steps as i64).message(5, encode_animation(animation)))
    }
}

/// Creates an event with the current time.
fn new_event(step: i64) -> Message {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Message::default().double(1, now.as_secs_f64()).int(2, step)
}

/// Encodes the scalars of a record as a `Summary` message.
fn encode_record(record: &IterationRecord) -> Message {
    let values = list_scalars(record).into_iter().filter_map(|(name, value)| Some((name, value?)));
    let value = |(name, value)| Message::default().bytes(1, name).float(2, value as f32);
    Message::default().messages(1, values.map(value))
}

/// Encodes an animation as a `Summary` message.
fn encode_animation(Animation { gif, width, height }: &Animation) -> Message {
    const RGB: i64 = 3;
    let size = Message::default().int(1, i64::from(*height)).int(2, i64::from(*width));
    let image = size.int(3, RGB).bytes(4, gif);
    let value = Message::default().bytes(1, "animation/best_policy").message(4, image);
    Message::default().message(1, value)
}

/// Encodes the settings as a table in Markdown, under the name that CleanRL uses: a value of a `Summary`.
fn encode_settings_text(settings: &Table) -> Message {
    let mut text = "|param|value|\n|-|-|".to_string();
    overlay::flatten(settings).for_each(|(path, value)| text += &format!("\n|{path}|{value}|"));
    const DT_STRING: i64 = 7;
    let shape = Message::default().message(2, Message::default().int(1, 1));
    let tensor = Message::default().int(1, DT_STRING).message(2, shape).bytes(8, text);
    let value = Message::default().bytes(1, "hyperparameters/text_summary");
    value.message(9, encode_metadata("text", "")).message(8, tensor)
}

/// Encodes the settings for the tab of hyper-parameters, which compares the runs of a folder: a value of a `Summary`.
fn encode_hyper_parameters(settings: &Table) -> Message {
    let entry = |(path, value): (String, &Value)| {
        let value = match value {
            Value::Boolean(is_on) => Message::default().int(4, i64::from(*is_on)),
            Value::Integer(number) => Message::default().double(2, *number as f64),
            Value::Float(number) if number.is_finite() => Message::default().double(2, *number),
            Value::String(text) => Message::default().bytes(3, text),
            other => Message::default().bytes(3, other.to_string()),
        };
        Message::default().bytes(1, path).message(2, value)
    };
    let session = Message::default().messages(1, overlay::flatten(settings).map(entry));
    let data = Message::default().message(3, session).into_bytes();
    let value = Message::default().bytes(1, "_hparams_/session_start_info");
    value.message(9, encode_metadata("hparams", data))
}

/// Encodes the metadata of a value for a plugin of TensorBoard.
fn encode_metadata(plugin: &str, content: impl AsRef<[u8]>) -> Message {
    let plugin = Message::default().bytes(1, plugin).bytes(2, content);
    Message::default().message(1, plugin)
}

/// Parses the step of an event: the number after its time, each with a tag of one byte.
fn parse_step(event: &[u8]) -> Option<u64> {
    let varint = event.get(1 + 8 + 1..)?;
    let last = varint.iter().position(|byte| byte & 0x80 == 0)?;
    Some(varint[..=last].iter().rev().fold(0u64, |step, byte| (step << 7) | u64::from(byte & 0x7f)))
}

/// Finds the byte ranges of the messages in a file's records, up to the first damaged one.
fn find_messages(bytes: &[u8]) -> Vec<Range<usize>> {
    let next = |last: &Range<usize>| find_message(bytes, last.end + 4);
    std::iter::successors(find_message(bytes, 0), next).collect()
}

/// Finds the byte range of the message in the record at offset `at`; `None` if the record is damaged.
fn find_message(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = &bytes[at..];
    let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let length = rest.get(..8)?;
    let size = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    if word(8)? != masked_crc(length) || rest.len().checked_sub(FRAME_BYTES)? < size {
        return None;
    }
    let is_intact = word(12 + size)? == masked_crc(&rest[12..12 + size]);
    is_intact.then_some(at + 12..at + 12 + size)
}

/// CRC-32C (Castagnoli, reflected), as TFRecords mask it: rotated by 15 bits plus a constant.
fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = !bytes
        .iter()
        .fold(!0, |crc, byte| CRC_TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8));
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The CRC-32C remainder of each byte.
const CRC_TABLE: [u32; 256] = {
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
pub(super) mod tests {
    use super::*;
    use std::fs;

    /// Asserts that a file has the events of these records and no others.
    pub fn assert_has_records(bytes: &[u8], expected: &[IterationRecord]) {
        let found = find_messages(bytes);
        assert_eq!(found.last().map(|last| last.end + 4), Some(bytes.len()));
        assert_eq!(found.len(), HEADER_EVENTS + expected.len());
        for (range, record) in found[HEADER_EVENTS..].iter().zip(expected) {
            let rest = Message::default().int(2, record.env_steps as i64);
            let rest = rest.message(5, encode_record(record)).into_bytes();
            // The time comes first.
            assert_eq!(bytes[range.clone()][1 + 8..], rest);
        }
    }

    /// The check value of CRC-32C in Philip Koopman's and the IETF's lists (RFC 3720, appendix B.4), masked.
    #[test]
    fn the_checksum_is_crc32c() {
        let unmasked = masked_crc(b"123456789").wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(unmasked, 0xe306_9283);
        let unmasked = masked_crc(&[0; 32]).wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(unmasked, 0x8a91_36aa);
    }

    #[test]
    fn a_run_with_missing_records_is_continued_without_repeated_steps() {
        let folder = tempfile::TempDir::new().unwrap();
        let record = |iteration: u32| {
            let env_steps = 300 * u64::from(iteration);
            IterationRecord { iteration, env_steps, ..IterationRecord::default() }
        };
        let records = [1, 2, 4, 5, 6].map(record);
        let (mut tracker, _) = TensorBoardTracker::open(folder.path(), &Table::new(), &[]).unwrap();
        records.iter().for_each(|record| tracker.write(record).unwrap());
        for done in [3, 5, 4] {
            let (mut tracker, last_iteration) =
                TensorBoardTracker::open(folder.path(), &Table::new(), &records[..done]).unwrap();
            assert_eq!(last_iteration, records[done - 1].iteration);
            records[done..].iter().for_each(|record| tracker.write(record).unwrap());
            assert_has_records(&fs::read(folder.path().join(FILE_NAME)).unwrap(), &records);
        }
        // Another run in the folder of one that was not saved.
        TensorBoardTracker::open(folder.path(), &Table::new(), &[]).unwrap();
        assert_has_records(&fs::read(folder.path().join(FILE_NAME)).unwrap(), &[]);
    }

    #[test]
    fn records_after_a_damaged_one_are_left_out() {
        let folder = tempfile::TempDir::new().unwrap();
        let (mut tracker, _) = TensorBoardTracker::open(folder.path(), &Table::new(), &[]).unwrap();
        tracker.write(&IterationRecord { iteration: 1, ..IterationRecord::default() }).unwrap();
        let mut bytes = fs::read(folder.path().join(FILE_NAME)).unwrap();
        assert_eq!(find_messages(&bytes).len(), HEADER_EVENTS + 1);
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(find_messages(&bytes).len(), HEADER_EVENTS);
        for length in 0..bytes.len() {
            assert!(find_messages(&bytes[..length]).len() <= HEADER_EVENTS);
        }
    }
}
