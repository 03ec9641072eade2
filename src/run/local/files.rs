//! Open files of a run in training.

use super::file_names::{
    COMPLETIONS, CONFIG, DATASET, METADATA, METRICS, MODEL, MODEL_CARD, SPACES,
};
use super::folder::{BestCheckpoint, RunFolder, missing_best_warning};
use super::lock::RunLock;
use super::model_folder;
use super::{Run, RunError, RunMetadata};
use crate::checkpoint::{self, Checkpoint};
use crate::disk::{self, input};
use crate::metrics::{IterationRecord, JsonLines, RecordsError};
use crate::settings::CompletionsConfig;
use crate::text::LanguageModel;
use crate::track::{Animation, CSV, TENSORBOARD, Trackers};
use crate::trainer::text::CompletionRecord;
use serde_json::Value;
use std::iter;
use std::path::PathBuf;
use toml::Table;

/// One megabyte in bytes, the unit of `completions.keep`.
const MEGABYTE: u64 = 1_000_000;

/// The open files of a run in training; only its first rank has them.
#[derive(Debug)]
pub struct RunFiles {
    folder: RunFolder,
    /// The text of `config.toml`.
    settings: String,
    metrics: JsonLines,
    completions: Option<JsonLines>,
    /// Maximum size of `completions.jsonl` after a checkpoint, bytes.
    max_completion_bytes: u64,
    trackers: Trackers,
    /// Identity of the run's lock, which another run in the same place has not.
    lock_id: Option<(u64, u64)>,
}

impl RunFiles {
    /// Creates and locks the directory of a new run: `path`, or the next free one for `name` in `runs`. It holds the
    /// settings and, for a language model, the model before training. The lock must be kept for as long as the run is
    /// trained.
    ///
    /// # Errors
    /// If the directory exists, or cannot be created or written.
    pub fn create(
        path: Option<PathBuf>,
        name: &str,
        run: &dyn Run,
        settings: &str,
    ) -> Result<(Self, RunLock), RunError> {
        let (folder, lock) = loop {
            let folder = RunFolder::create(path.clone(), name)?;
            match folder.claim() {
                // Another process began a run in the free directory meanwhile; try the next one.
                Err(RunError::Locked(_) | RunError::Exists(_)) if path.is_none() => {}
                lock => break (folder, lock?),
            }
        };
        remove_leftovers(&folder)?;
        let model = run.language_model();
        folder.write(CONFIG, settings)?;
        let (files, _) = Self::open(folder, settings, 0, model.is_some())?;
        model.map_or(Ok(()), |model| files.save_model(&model))?;
        Ok((files, lock))
    }

    /// Opens the files of a run with these settings, and keeps the records up to `iteration`; later ones are dropped,
    /// since their iterations will be trained again.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub(super) fn open(
        folder: RunFolder,
        settings: &str,
        iteration: u32,
        has_language_model: bool,
    ) -> Result<(Self, Vec<IterationRecord>), RunError> {
        let (metrics, completions) = open_records(&folder, iteration, has_language_model)?;
        disk::recover_replacement(&folder.model_path(), disk::remove_tree)?;
        if has_language_model {
            // Describes a model other than the one that training will export.
            let card = folder.path().join(MODEL_CARD);
            let removed = input::allow_missing(disk::remove_file(&card));
            removed.map_err(RunError::file("remove", &card))?;
        }
        let records = folder.read_records()?;
        let table: Table = settings.parse().unwrap_or_default();
        let trackers = Trackers::open(folder.path(), &table, &records);
        let section = table.get("completions").cloned();
        let CompletionsConfig { keep } =
            section.and_then(|section| section.try_into().ok()).unwrap_or_default();
        let max_completion_bytes = u64::from(keep) * MEGABYTE;
        let (lock_id, settings) = (folder.lock_id(), settings.to_string());
        let files = Self {
            folder,
            settings,
            metrics,
            completions,
            max_completion_bytes,
            trackers,
            lock_id,
        };
        Ok((files, records))
    }

    /// The run directory.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Writes the description of device and engine (`run.json`).
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_metadata(&self, metadata: &RunMetadata) -> Result<(), RunError> {
        let text = serde_json::to_string_pretty(metadata).expect("metadata is plain data") + "\n";
        self.folder.write(METADATA, &text)
    }

    /// Writes the spaces of another program's environments (`spaces.json`), which are needed to load the policy.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_spaces(&self, spaces: &str) -> Result<(), RunError> {
        self.folder.write(SPACES, spaces)
    }

    /// Writes the description of the dataset that the run learns from (`dataset.json`).
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_dataset(&self, description: &Value) -> Result<(), RunError> {
        let text = serde_json::to_string_pretty(description).expect("JSON is text") + "\n";
        self.folder.write(DATASET, &text)
    }

    /// Appends the records of an iteration. Returns warnings about records that are lost, and trackers that have
    /// failed.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write_records(
        &mut self,
        record: &IterationRecord,
        completions: &[CompletionRecord],
    ) -> Result<Vec<String>, RunError> {
        let mut warnings = self.reopen_replaced_records(record.iteration - 1)?;
        if let Some(file) = self.completions.as_mut().filter(|_| self.max_completion_bytes > 0) {
            file.write_all(completions)?;
        }
        self.metrics.write(record)?;
        warnings.extend(self.trackers.write(record));
        Ok(warnings)
    }

    /// Opens the records up to `iteration` again if another program has removed or replaced a file of them, to which
    /// further ones would be lost. Returns warnings about it.
    fn reopen_replaced_records(&mut self, iteration: u32) -> Result<Vec<String>, RunError> {
        let mut files = iter::once(&self.metrics).chain(&self.completions);
        if files.all(JsonLines::is_in_place) {
            return Ok(Vec::new());
        }
        // In another folder they would be those of another run.
        self.fail_if_gone(Ok(()))?;
        (self.metrics, self.completions) =
            open_records(&self.folder, iteration, self.completions.is_some())?;
        let replaced = format!(
            "another program has removed or replaced the records in {} during training; the run continues them",
            self.folder.path().display()
        );
        let num_readable = self.folder.read_records()?.len();
        let lost = self.lost_records_warnings(num_readable, iteration)?;
        Ok(iter::once(replaced).chain(lost).collect())
    }

    /// Whether a tracker of the run takes animations.
    pub fn takes_animations(&self) -> bool {
        self.trackers.takes_animations()
    }

    /// Gives the trackers an animation of the best policy after `env_steps` steps of the run.
    /// Returns the warnings of trackers that have failed.
    pub fn write_animation(&mut self, env_steps: u64, animation: &Animation) -> Vec<String> {
        self.trackers.write_animation(env_steps, animation)
    }

    /// Waits until all records are on disk, and checks that the directory still exists in its place.
    fn sync(&self) -> Result<(), RunError> {
        self.fail_if_gone(Ok(()))?;
        self.metrics.sync()?;
        Ok(self.completions.as_ref().map_or(Ok(()), JsonLines::sync)?)
    }

    /// Returns the result of a write, or [`RunError::Gone`] if the directory is no longer in its place, by its lock or,
    /// if that was removed, its settings.
    fn fail_if_gone(&self, outcome: Result<(), RunError>) -> Result<(), RunError> {
        let is_here = match self.folder.lock_id() {
            None => self.folder.config_path().exists(),
            found => found == self.lock_id,
        };
        if is_here { outcome } else { Err(RunError::Gone(self.folder.path().to_path_buf())) }
    }

    /// Saves the checkpoint of the best policy so far, after syncing all records.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save_best(&self, snapshot: &Checkpoint) -> Result<(), RunError> {
        self.sync()?;
        let saved = checkpoint::save(snapshot, &self.folder.best_path());
        self.fail_if_gone(saved.map_err(RunError::from))
    }

    /// Loads the checkpoint of the best policy as [`RunFolder::load_best`] does; with a warning also if it is
    /// missing or not that of the run's best evaluation.
    ///
    /// # Errors
    /// If it may be intact, but cannot be read.
    pub fn load_best(&self, run: &dyn Run) -> Result<BestCheckpoint, RunError> {
        let mut best = self.folder.load_best()?;
        let expected = run.trainer().best().map(|best| u64::from(best.iterations_done));
        let found = best.checkpoint.as_ref().map(|checkpoint| checkpoint.iteration);
        if let (Some(expected), true) = (expected, best.warnings.is_empty()) {
            let path = self.folder.best_path();
            match found {
                None => best.warnings.push(missing_best_warning(&path)),
                Some(found) if found != expected => best.warnings.push(format!(
                    "{} has the policy of iteration {found}, not that of the run's best evaluation, in iteration \
                     {expected}",
                    path.display()
                )),
                Some(_) => {}
            }
        }
        Ok(best)
    }

    /// Saves a checkpoint after syncing all records; removes all but the newest `keep` checkpoints, and the oldest
    /// completions beyond their limit. Settings that are missing in the folder are written again.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save_checkpoint(&mut self, snapshot: &Checkpoint, keep: usize) -> Result<(), RunError> {
        let limit = self.max_completion_bytes;
        let kept = self.completions.as_mut().map_or(Ok(()), |records| records.keep_newest(limit));
        self.fail_if_gone(kept.map_err(RunError::from))?;
        self.sync()?;
        let store = self.folder.store();
        let saved = store.save(snapshot).and_then(|_| store.prune(keep));
        self.fail_if_gone(saved.map(drop).map_err(RunError::from))?;
        if !self.folder.config_path().exists() {
            self.folder.write(CONFIG, &self.settings)?;
        }
        Ok(())
    }

    /// Replaces the exported language model.
    ///
    /// # Errors
    /// If it cannot be written; the previous one then remains.
    pub fn save_model(&self, model: &LanguageModel) -> Result<(), RunError> {
        self.fail_if_gone(model_folder::replace(&self.folder.model_path(), |new| model.save(new)))
    }

    /// Writes the description of the exported language model, its model card.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_model_card(&self, text: &str) -> Result<(), RunError> {
        self.fail_if_gone(self.folder.write(MODEL_CARD, text))
    }
}

/// Opens the files of records up to `iteration`: metrics and, of a language model, completions.
fn open_records(
    folder: &RunFolder,
    iteration: u32,
    has_language_model: bool,
) -> Result<(JsonLines, Option<JsonLines>), RecordsError> {
    let open = |name| JsonLines::resume(&folder.path().join(name), iteration);
    Ok((open(METRICS)?, has_language_model.then(|| open(COMPLETIONS)).transpose()?))
}

/// Removes the files of a run that ended before its first checkpoint, for which a new run in the folder could be
/// taken.
fn remove_leftovers(folder: &RunFolder) -> Result<(), RunError> {
    let names = [MODEL, TENSORBOARD, COMPLETIONS, CSV, SPACES, DATASET];
    names.map(|name| folder.path().join(name)).iter().try_for_each(|path| {
        let remove = if path.is_dir() { disk::remove_tree } else { disk::remove_file };
        input::allow_missing(remove(path)).map(drop).map_err(RunError::file("remove", path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::local::Event;
    use crate::run::local::events::tests::{create_files, new_run};
    use crate::trainer::text::read_settings;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn a_run_does_not_begin_in_the_current_folder_by_an_empty_path() {
        let error = RunFiles::create(Some(PathBuf::new()), "run", &new_run(1), "").unwrap_err();
        assert!(error.to_string().starts_with("cannot create "), "{error}");
    }

    #[test]
    fn a_failed_change_reports_that_the_folder_was_moved() {
        let (root, path, files, _lock) = create_files(&new_run(1));
        let moved = root.path().join("moved");
        let failed = || Err(RunError::NotARun(path.clone()));
        assert!(matches!(files.fail_if_gone(failed()), Err(RunError::NotARun(_))));
        fs::rename(&path, &moved).unwrap();
        assert!(matches!(files.fail_if_gone(failed()), Err(RunError::Gone(gone)) if gone == path));
        assert!(
            matches!(files.write_model_card("card"), Err(RunError::Gone(gone)) if gone == path)
        );
    }

    #[test]
    fn a_folder_in_which_another_run_has_saved_meanwhile_is_left_to_it() {
        let root = TempDir::new().unwrap();
        let path = root.path().join("run");
        let folder = RunFolder::create(Some(path.clone()), "run").unwrap();
        let mut run = new_run(1);
        let (mut files, lock) = RunFiles::create(Some(path.clone()), "run", &run, "").unwrap();
        assert!(matches!(folder.claim(), Err(RunError::Locked(_))));
        let _ = run.events(Some(&mut files)).last();
        drop((files, lock));
        assert!(matches!(folder.claim(), Err(RunError::Exists(taken)) if taken == path));
    }

    #[cfg(unix)]
    #[test]
    fn records_and_settings_that_are_removed_during_training_are_written_again() {
        let mut run = new_run(4);
        let (_root, path, mut files, lock) = create_files(&run);
        let mut events = run.events(Some(&mut files));
        assert!(matches!(events.next(), Some(Ok(Event::Iteration(_)))));
        fs::remove_file(path.join(METRICS)).unwrap();
        fs::remove_file(path.join(CONFIG)).unwrap();
        let events: Vec<Event> = events.collect::<Result<_, _>>().unwrap();
        let warnings = events.iter().filter_map(|event| match event {
            Event::Warning(text) => Some(&text[..]),
            _ => None,
        });
        let [replaced, lost] = warnings.collect::<Vec<_>>()[..] else { panic!("{events:?}") };
        assert!(replaced.contains("removed or replaced the records in"), "{replaced}");
        assert!(lost.contains("the records up to 1 are lost"), "{lost}");
        let iterations = files.folder().read_records().unwrap();
        let iterations: Vec<u32> = iterations.iter().map(|record| record.iteration).collect();
        assert_eq!(iterations, [2, 3, 4]);
        assert!(path.join(CONFIG).is_file());
        fs::remove_file(path.join(CONFIG)).unwrap();
        drop((files, lock));
        // As for a copy without settings.
        let lock = RunFolder::find(&path).unwrap().lock().unwrap();
        RunFiles::resume(&lock, &mut run, "seed = 7").unwrap();
        assert_eq!(lock.folder().read_settings(), "seed = 7".parse().ok());
    }

    #[cfg(unix)]
    #[test]
    fn a_run_writes_no_more_where_another_was_begun_in_its_place() {
        let run = new_run(1);
        let (_root, path, mut files, _lock) = create_files(&run);
        fs::remove_dir_all(&path).unwrap();
        let (other, _other_lock) = RunFiles::create(Some(path.clone()), "run", &run, "").unwrap();
        let snapshot = run.snapshot().unwrap();
        let saved = files.save_best(&snapshot);
        assert!(matches!(saved, Err(RunError::Gone(gone)) if gone == path));
        let record = IterationRecord { iteration: 1, ..IterationRecord::default() };
        assert!(matches!(files.write_records(&record, &[]), Err(RunError::Gone(_))));
        assert!(other.folder().read_records().unwrap().is_empty());
        other.save_best(&snapshot).unwrap();
    }

    #[test]
    fn a_checkpoint_is_not_taken_for_a_run() {
        let run = new_run(1);
        let (_root, path, files, _lock) = create_files(&run);
        files.save_best(&run.snapshot().unwrap()).unwrap();
        let best = path.join("best");
        assert!(
            matches!(RunFolder::find(&best), Err(RunError::IsCheckpoint(found)) if found == best)
        );
        // Not even with the lock of an earlier version.
        fs::write(best.join("run.lock"), "").unwrap();
        let created = RunFiles::create(Some(best.clone()), "run", &run, "").unwrap_err();
        assert!(matches!(created, RunError::Exists(found) if found == best));
    }

    #[test]
    fn records_that_cannot_be_read_are_counted_but_for_the_last() {
        let (_root, path, files, _lock) = create_files(&new_run(1));
        fs::write(path.join(METRICS), "{}\n\0\0\n{\"iteration\": 1e999}\n{\"iter").unwrap();
        let (records, num_damaged) = files.folder().read_and_count_records().unwrap();
        assert_eq!((records.len(), num_damaged), (0, 3));
    }

    #[test]
    fn a_new_run_is_not_taken_for_one_that_ended_before_its_first_checkpoint() {
        let (_root, path, files, lock) = create_files(&new_run(1));
        drop((files, lock));
        fs::create_dir(path.join("model")).unwrap();
        for name in ["model/config.json", "completions.jsonl", "metrics.csv", "dataset.json"] {
            fs::write(path.join(name), "{}").unwrap();
        }
        assert!(RunFolder::find(&path).unwrap().has_language_model());
        let (files, _lock) = RunFiles::create(Some(path.clone()), "run", &new_run(1), "").unwrap();
        assert!(!files.folder().has_language_model());
        for name in ["model", "completions.jsonl", "metrics.csv", "dataset.json"] {
            assert!(!path.join(name).exists(), "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn checkpoints_that_may_be_intact_are_not_passed_over() {
        let mut run = new_run(1);
        let (_root, _, mut files, _lock) = create_files(&run);
        let _ = run.events(Some(&mut files)).last();
        let folder = files.folder();
        let sums = folder.store().path(1).join("SHA256SUMS");
        fs::remove_file(&sums).unwrap();
        let warnings = folder.load_latest().unwrap().warnings;
        assert!(warnings[1].ends_with("using the best policy instead"), "{warnings:?}");
        // The system cannot open the file.
        std::os::unix::fs::symlink(&sums, &sums).unwrap();
        let error = folder.load_latest().unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
        assert!(folder.load_best().unwrap().checkpoint.is_some());
        let sums = folder.best_path().join("SHA256SUMS");
        fs::remove_file(&sums).unwrap();
        let BestCheckpoint { checkpoint: best, warnings } = folder.load_best().unwrap();
        assert!(best.is_none() && warnings[0].contains("SHA256SUMS is missing"), "{warnings:?}");
        std::os::unix::fs::symlink(&sums, &sums).unwrap();
        let error = folder.load_best().unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
        fs::remove_dir_all(folder.best_path()).unwrap();
        let BestCheckpoint { checkpoint: best, warnings } = folder.load_best().unwrap();
        assert!(best.is_none() && warnings.is_empty());
    }

    #[test]
    fn a_run_continues_from_a_best_policy_that_is_later_and_keeps_changed_settings() {
        let mut run = new_run(2);
        let (_root, _, mut files, lock) = create_files(&run);
        let _ = run.events(Some(&mut files)).last();
        let folder = files.folder().clone();
        let BestCheckpoint { checkpoint: best, warnings } = files.load_best(&run).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let earlier = Checkpoint { iteration: 1, ..best.unwrap() };
        fs::remove_dir_all(folder.store().path(2)).unwrap();
        folder.store().save(&earlier).unwrap();
        let latest = || folder.load_latest().unwrap().checkpoint;
        assert_eq!(latest().iteration, 2);
        drop(lock);
        let lock = folder.lock().unwrap();
        let files = RunFiles::resume(&lock, &mut run, "").unwrap().files;
        assert!(folder.has_checkpoint(2), "the best policy, which was saved before it");
        let changed = "seed = 7";
        assert_ne!(read_settings(&latest()).unwrap(), changed.parse().unwrap());
        drop(RunFiles::resume(&lock, &mut run, changed).unwrap());
        // Without another iteration, they hold from now on.
        assert_eq!(read_settings(&latest()).unwrap(), changed.parse().unwrap());
        assert_eq!(folder.read_settings(), changed.parse().ok());
        fs::write(folder.config_path(), "seed = 8").unwrap();
        let warnings = RunFiles::resume(&lock, &mut run, changed).unwrap().warnings;
        assert!(
            warnings[0].contains("differs from the settings of the checkpoint"),
            "{warnings:?}"
        );
        fs::remove_dir_all(folder.store().path(2)).unwrap();
        checkpoint::save(&earlier, &folder.best_path()).unwrap();
        let BestCheckpoint { checkpoint: best, warnings } = files.load_best(&run).unwrap();
        assert!(best.is_some() && warnings[0].contains("iteration 1, not that of"), "{warnings:?}");
        fs::remove_dir_all(folder.best_path()).unwrap();
        assert_eq!(latest().iteration, 1);
        let BestCheckpoint { checkpoint: best, warnings } = files.load_best(&run).unwrap();
        assert!(best.is_none() && warnings[0].contains("best is missing"), "{warnings:?}");
    }
}
