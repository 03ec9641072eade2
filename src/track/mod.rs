//! Trackers: copies of a run's records in the formats that other tools read.
//!
//! A tracker writes one entry per iteration after those that it has, so that a resumed run continues its files
//! without doubled steps. It never stops a run: the first failure becomes a warning, and the tracker is dropped.

mod csv;
mod scalars;
mod tensorboard;

pub use scalars::{Scalar, list_scalars};

use crate::metrics::IterationRecord;
use crate::settings::TrackingConfig;
use csv::CsvTracker;
use std::io;
use std::path::Path;
use tensorboard::TensorBoardTracker;
use toml::Table;

/// Folder of TensorBoard's event files inside a run.
pub const TENSORBOARD: &str = "tensorboard";
/// File of records as comma-separated values inside a run.
pub const CSV: &str = "metrics.csv";

/// A file that receives the record of every iteration.
trait Tracker: std::fmt::Debug + Send {
    /// Appends the record of an iteration.
    fn write(&mut self, record: &IterationRecord) -> io::Result<()>;

    /// Whether the format takes animations.
    fn takes_animations(&self) -> bool {
        false
    }

    /// Appends an animation of the best policy after `_env_steps` steps, if the format takes animations.
    fn write_animation(&mut self, _env_steps: u64, _animation: &Animation) -> io::Result<()> {
        Ok(())
    }
}

/// A policy at play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Animation {
    /// The bytes of a GIF file.
    pub gif: Vec<u8>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

/// The trackers of a run.
#[derive(Debug, Default)]
pub struct Trackers {
    trackers: Vec<(&'static str, Box<dyn Tracker>)>,
    /// Warnings not yet returned.
    warnings: Vec<String>,
}

impl Trackers {
    /// Opens the trackers enabled in `settings`, a run's complete settings, in the run's `folder`. Entries after
    /// the last of `records` are dropped, and those that a file lacks are added.
    pub fn open(folder: &Path, settings: &Table, records: &[IterationRecord]) -> Self {
        let section = settings.get("tracking").cloned();
        let config: TrackingConfig =
            section.and_then(|section| section.try_into().ok()).unwrap_or_default();
        let last_iteration = records.last().map_or(0, |record| record.iteration);
        let mut trackers = Self::default();
        if config.tensorboard {
            let tracker = TensorBoardTracker::open(&folder.join(TENSORBOARD), settings, records);
            trackers.add("TensorBoard", tracker, records);
        }
        if config.csv {
            let tracker = CsvTracker::open(&folder.join(CSV), last_iteration);
            trackers.add("CSV", tracker, records);
        }
        trackers
    }

    /// Adds a tracker, opened with the iteration of its last record, and appends the records that it lacks.
    fn add(
        &mut self,
        name: &'static str,
        opened: io::Result<(impl Tracker + 'static, u32)>,
        records: &[IterationRecord],
    ) {
        let updated = opened.and_then(|(mut tracker, last_iteration)| {
            let mut missing = records.iter().filter(|record| record.iteration > last_iteration);
            missing.try_for_each(|record| tracker.write(record))?;
            Ok(tracker)
        });
        match updated {
            Ok(tracker) => self.trackers.push((name, Box::new(tracker))),
            Err(error) => self.warnings.push(failure_warning(name, &error)),
        }
    }

    /// Appends the record of an iteration. A tracker that fails is dropped. Returns the warnings since the last call.
    pub fn write(&mut self, record: &IterationRecord) -> Vec<String> {
        self.for_each_tracker(|tracker| tracker.write(record))
    }

    /// Whether a tracker takes animations.
    pub fn takes_animations(&self) -> bool {
        self.trackers.iter().any(|(_, tracker)| tracker.takes_animations())
    }

    /// Appends an animation of the best policy after `env_steps` steps of the run. A tracker that fails is dropped.
    /// Returns the warnings since the last call.
    pub fn write_animation(&mut self, env_steps: u64, animation: &Animation) -> Vec<String> {
        self.for_each_tracker(|tracker| tracker.write_animation(env_steps, animation))
    }

    fn for_each_tracker(
        &mut self,
        work: impl Fn(&mut dyn Tracker) -> io::Result<()>,
    ) -> Vec<String> {
        let warnings = &mut self.warnings;
        self.trackers.retain_mut(|(name, tracker)| match work(&mut **tracker) {
            Ok(()) => true,
            Err(error) => {
                warnings.push(failure_warning(name, &error));
                false
            }
        });
        std::mem::take(&mut self.warnings)
    }
}

fn failure_warning(name: &str, error: &io::Error) -> String {
    format!("{name} tracking stopped: {error}. The run continues, and metrics.jsonl stays complete")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    fn settings(text: &str) -> Table {
        text.parse().unwrap()
    }

    fn record(iteration: u32) -> IterationRecord {
        let score = iteration.is_multiple_of(2).then_some(0.1 * f64::from(iteration));
        IterationRecord {
            iteration,
            score,
            mean_length: score.map(|score| 90.0 + score),
            env_steps: u64::from(iteration) << 33,
            ..IterationRecord::default()
        }
    }

    const BOTH: &str = "seed = 1\n[tracking]\ntensorboard = true\ncsv = true";

    #[test]
    fn a_resumed_run_continues_its_files_without_doubled_steps() {
        let folder = TempDir::new().unwrap();
        let records: Vec<_> = (1..=9).map(record).collect();
        let mut trackers = Trackers::open(folder.path(), &settings(BOTH), &[]);
        assert!(records[..7].iter().all(|record| trackers.write(record).is_empty()));
        // The process ended in the middle of a record, and its last checkpoint is of iteration 5.
        let events =
            fs::read_dir(folder.path().join(TENSORBOARD)).unwrap().next().unwrap().unwrap();
        let length = events.metadata().unwrap().len();
        fs::File::options().write(true).open(events.path()).unwrap().set_len(length - 3).unwrap();
        let mut trackers = Trackers::open(folder.path(), &settings(BOTH), &records[..5]);
        assert!(records[5..].iter().all(|record| trackers.write(record).is_empty()));

        let csv = fs::read_to_string(folder.path().join(CSV)).unwrap();
        let rows: Vec<&str> = csv.lines().collect();
        assert_eq!(rows.len(), 10, "{csv}");
        let header = "iteration,env_steps,charts/episodic_return,charts/episodic_length,";
        assert!(rows[0].starts_with(header), "{csv}");
        assert!(
            rows[2].starts_with("2,17179869184,0.2,90.2,")
                && rows[3].starts_with("3,25769803776,,,")
        );
        tensorboard::tests::assert_has_records(&fs::read(events.path()).unwrap(), &records);
    }

    #[test]
    fn rows_that_are_no_text_are_written_anew() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join(CSV);
        let records: Vec<_> = (1..=4).map(record).collect();
        Trackers::open(folder.path(), &settings(BOTH), &records);
        let whole = fs::read(&path).unwrap();
        let lines = whole.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(lines, 5, "tracking that is turned on later has the whole run");
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] |= 0x80;
        fs::write(&path, &damaged).unwrap();
        let trackers = Trackers::open(folder.path(), &settings(BOTH), &records);
        assert!(trackers.warnings.is_empty());
        assert!(fs::read(&path).unwrap() == whole);
    }

    #[test]
    fn an_animation_stays_and_doubles_nothing_when_the_run_continues() {
        let folder = TempDir::new().unwrap();
        let records: Vec<_> = (1..=3).map(record).collect();
        let mut trackers = Trackers::open(folder.path(), &settings(BOTH), &[]);
        assert!(records[..2].iter().all(|record| trackers.write(record).is_empty()));
        let path = folder.path().join(TENSORBOARD).join("events.out.tfevents.0.grove");
        let length = || fs::metadata(&path).unwrap().len();
        let before = length();
        assert!(trackers.takes_animations());
        let animation = Animation { gif: b"GIF89a".to_vec(), width: 3, height: 2 };
        trackers.write_animation(records[1].env_steps, &animation);
        let whole = length();
        assert!(whole > before + 6);
        let mut trackers = Trackers::open(folder.path(), &settings(BOTH), &records[..2]);
        assert_eq!(length(), whole);
        assert!(trackers.write(&records[2]).is_empty() && length() > whole);
        // An earlier checkpoint is before it.
        Trackers::open(folder.path(), &settings(BOTH), &records[..1]);
        assert!(length() < before);
    }

    #[cfg(unix)]
    #[test]
    fn links_in_the_places_of_files_are_not_followed() {
        use std::os::unix::fs::symlink;
        let folder = TempDir::new().unwrap();
        let precious = folder.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let run = folder.path().join("run");
        fs::create_dir_all(run.join(TENSORBOARD)).unwrap();
        symlink(&precious, run.join(".metrics.csv.tmp")).unwrap();
        symlink(&precious, run.join("metrics.csv.tmp")).unwrap();
        symlink(&precious, run.join(CSV)).unwrap();
        symlink(&precious, run.join(TENSORBOARD).join("events.out.tfevents.0.grove")).unwrap();
        let trackers = Trackers::open(&run, &settings(BOTH), &[record(1)]);
        assert_eq!(trackers.warnings.len(), 1, "that of TensorBoard");
        assert_eq!(fs::read_to_string(run.join(CSV)).unwrap().lines().count(), 2);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }

    #[test]
    fn a_failing_tracker_warns_once_and_is_dropped() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join(TENSORBOARD), "not a folder").unwrap();
        let mut trackers = Trackers::open(folder.path(), &settings(BOTH), &[]);
        let warnings = [1, 2].map(|iteration| trackers.write(&record(iteration))).concat();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("TensorBoard tracking stopped: "), "{warnings:?}");
        assert_eq!(fs::read_to_string(folder.path().join(CSV)).unwrap().lines().count(), 3);
    }
}
