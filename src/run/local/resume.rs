//! Resumption of a run from the files in its directory.

use super::file_names::{CONFIG, METRICS};
use super::lock::RunLock;
use super::{Run, RunError, RunFiles, pluralize};
use crate::checkpoint;
use crate::disk::input;
use crate::metrics::parse_iteration;
use crate::trainer::replace_settings;
use crate::trainer::text::read_settings;
use toml::Table;

/// The open files of a run that continues from a checkpoint.
#[derive(Debug)]
pub struct ResumedRun {
    pub files: RunFiles,
    /// Warnings for the user: what of the iterations so far is missing.
    pub warnings: Vec<String>,
}

impl RunFiles {
    /// Opens the files of a run that continues from a checkpoint of its folder, and takes its records. The `lock` was
    /// taken before that checkpoint was read, and is kept for as long as the run is trained. The settings may differ
    /// from those in the checkpoint, which is then saved with them, so that they hold from now on.
    ///
    /// # Errors
    /// If they cannot be read or written.
    ///
    /// ```no_run
    /// # use burn::tensor::Device;
    /// use grove::env::Catch;
    /// use grove::run::{GameRun, Run, RunFiles, RunFolder};
    /// use grove::trainer::{GameTrainer, config_to_toml, read_config};
    ///
    /// let lock = RunFolder::find("runs/catch-1".as_ref())?.lock()?;
    /// let checkpoint = lock.folder().load_latest()?.checkpoint;
    /// let (game, config) = read_config::<Catch>(&checkpoint)?;
    /// let trainer = GameTrainer::new(game, &config, &Device::flex()).with_checkpoint(&checkpoint)?;
    /// let mut run = GameRun::new(trainer, 1, Vec::new());
    /// let mut files = RunFiles::resume(&lock, &mut run, &config_to_toml(&game, &config))?.files;
    /// run.events(Some(&mut files)).try_for_each(|event| event.map(drop))?;
    /// # Ok::<(), grove::run::RunError>(())
    /// ```
    pub fn resume(
        lock: &RunLock,
        run: &mut dyn Run,
        settings: &str,
    ) -> Result<ResumedRun, RunError> {
        let (folder, iteration) = (lock.folder().clone(), run.trainer().iterations_done());
        let (mut files, records) =
            Self::open(folder, settings, iteration, run.language_model().is_some())?;
        let edited = files.save_start(iteration, settings, run.trainer().schedule().keep)?;
        files.folder().write(CONFIG, settings)?;
        records.iter().for_each(|record| run.observe_record(record));
        let lost_records = files.lost_records_warnings(records.len(), iteration)?;
        let missing_best = files.recover_best(run)?;
        let warnings = lost_records.into_iter().chain(missing_best).chain(edited).collect();
        Ok(ResumedRun { files, warnings })
    }

    /// Saves a checkpoint at the iteration from which the run continues, in two cases: the settings have changed, or
    /// there is only the best policy's, because the process was killed before it saved its own. Returns a warning if
    /// the settings in the run's folder are not those with which it continues.
    fn save_start(
        &mut self,
        iteration: u32,
        settings: &str,
        keep: usize,
    ) -> Result<Option<String>, RunError> {
        let wanted = settings.parse::<Table>().ok();
        // Written after the checkpoint, so those that are equal to it are in the checkpoint, too.
        let may_differ = self.folder().read_settings() != wanted;
        let is_saved = self.folder().has_checkpoint(iteration);
        if is_saved && !may_differ {
            return Ok(None);
        }
        let best = || checkpoint::load(&self.folder().best_path()).ok();
        let saved = checkpoint::load(&self.folder().store().path(iteration.into())).ok();
        let start = saved.or_else(best).filter(|start| start.iteration == u64::from(iteration));
        let Some(mut start) = start else { return Ok(None) };
        let differs = may_differ && read_settings(&start).ok() != wanted;
        if differs {
            replace_settings(&mut start, settings);
        }
        if differs || !is_saved {
            self.save_checkpoint(&start, keep)?;
        }
        Ok((may_differ && !differs).then(|| {
            format!(
                "{} differs from the settings of the checkpoint, with which the run continues; `grove train --resume --set` \
                 changes them",
                self.folder().config_path().display()
            )
        }))
    }

    /// Saves the best policy again from the checkpoint of its iteration if it is missing or damaged. Returns a warning
    /// if that is missing or damaged, too.
    fn recover_best(&self, run: &dyn Run) -> Result<Option<String>, RunError> {
        let (Some(best), Ok(saved)) = (run.trainer().best(), self.folder().load_best()) else {
            return Ok(None);
        };
        if saved.checkpoint.is_some() {
            return Ok(None);
        }
        let iteration = best.iterations_done;
        if let Ok(checkpoint) = checkpoint::load(&self.folder().store().path(iteration.into())) {
            return self.save_best(&checkpoint).map(|()| None);
        }
        let path = self.folder().best_path();
        Ok(Some(format!(
            "{} is missing or damaged, and iteration {iteration} has no other checkpoint; a later policy is saved there only if it is \
             better",
            path.display()
        )))
    }

    /// Returns warnings if records up to `iteration` are lost, or are not among the `num_readable` ones.
    pub(super) fn lost_records_warnings(
        &self,
        num_readable: usize,
        iteration: u32,
    ) -> Result<Vec<String>, RunError> {
        if num_readable >= iteration as usize {
            return Ok(Vec::new());
        }
        let path = self.folder().path().join(METRICS);
        let file = input::open(&path).map_err(RunError::file("read", &path))?;
        let lines = input::lines(file).map_while(Result::ok);
        let recorded: Vec<u32> = lines.filter_map(|line| parse_iteration(&line)).collect();
        let (path, last) = (path.display(), recorded.last().copied().unwrap_or(0));
        let missing = (iteration as usize).saturating_sub(recorded.len());
        let unreadable = recorded.len().saturating_sub(num_readable);
        let mut warnings = Vec::new();
        if last < iteration {
            warnings.push(format!(
                "{path} ends at iteration {last}, so that the records up to {iteration} are lost"
            ));
        } else if missing > 0 {
            warnings.push(format!(
                "{path} has no records of {missing} of the {iteration} iterations so far, which are lost"
            ));
        }
        if unreadable > 0 {
            warnings.push(format!(
                "{path} has {} of another version of Grove, which this one cannot read: they stay in the file, but tables, \
                 curves, metrics.csv and TensorBoard leave them out",
                pluralize(unreadable, "record")
            ));
        }
        Ok(warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::local::RunFolder;
    use crate::run::local::events::tests::{create_files, new_run};
    use std::fs;

    #[test]
    fn a_damaged_best_policy_is_recovered_on_resume() {
        let mut run = new_run(2);
        let (_root, _, mut files, lock) = create_files(&run);
        let _ = run.events(Some(&mut files)).last();
        let folder = files.folder().clone();
        drop((files, lock));
        let sums = folder.best_path().join("SHA256SUMS");
        let whole = fs::read(&sums).unwrap();
        let mut warnings = || {
            fs::remove_file(&sums).unwrap();
            let lock = folder.lock().unwrap();
            RunFiles::resume(&lock, &mut run, "").unwrap().warnings
        };
        assert_eq!(warnings(), [""; 0]);
        assert_eq!(fs::read(&sums).unwrap(), whole);
        fs::remove_dir_all(folder.store().path(2)).unwrap();
        let all = warnings();
        assert!(all[0].contains("best is missing or damaged, and iteration 2 has no"), "{all:?}");
    }

    #[test]
    fn missing_records_give_a_warning_on_resume() {
        let mut run = new_run(4);
        let (_root, path, mut files, lock) = create_files(&run);
        let _ = run.events(Some(&mut files)).last();
        drop((files, lock));
        let metrics = path.join(METRICS);
        let whole = fs::read_to_string(&metrics).unwrap();
        let mut warning = || {
            let lock = RunFolder::find(&path).unwrap().lock().unwrap();
            RunFiles::resume(&lock, &mut run, "").unwrap().warnings.pop()
        };
        assert_eq!(warning(), None);
        let torn: Vec<&str> = whole
            .lines()
            .enumerate()
            .map(|(i, line)| if i == 1 { &line[..9] } else { line })
            .collect();
        fs::write(&metrics, torn.join("\n") + "\n").unwrap();
        let text = warning().unwrap();
        assert!(text.contains("no records of 1 of the 4 iterations so far"), "{text}");
        assert_eq!(fs::read_to_string(&metrics).unwrap().lines().count(), 3);
        fs::write(&metrics, whole.lines().next().unwrap().to_string() + "\n").unwrap();
        let text = warning().unwrap();
        assert!(text.contains("ends at iteration 1,"), "{text}");
        // Of another version: numbered, but with other fields.
        let older = |line: &str| line.replace("zero_variance_fraction", "zero_variance_groups");
        fs::write(&metrics, whole.lines().map(|line| older(line) + "\n").collect::<String>())
            .unwrap();
        let text = warning().unwrap();
        assert!(
            text.contains("has 4 records of another version of Grove") && !text.contains("lost"),
            "{text}"
        );
        assert_eq!(fs::read_to_string(&metrics).unwrap().lines().count(), 4);
    }
}
