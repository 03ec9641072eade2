//! The run directory: settings, records, checkpoints and best policy.

use super::RunError;
use super::file_names::{
    BEST, CHECKPOINTS, COMPLETIONS, CONFIG, DATASET, LOCK, METADATA, METRICS, MODEL, MODEL_CARD,
    RUNS,
};
use crate::checkpoint::{self, Checkpoint, CheckpointError, Store};
use crate::disk::{self, input};
use crate::metrics::IterationRecord;
use crate::track::{CSV, TENSORBOARD};
use crate::trainer::{Counters, is_finite, read_policy_file};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Files of a run that no output may replace.
const PROTECTED_FILES: [&str; 7] = [CONFIG, METADATA, METRICS, COMPLETIONS, DATASET, LOCK, CSV];

/// A run directory.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

/// A checkpoint found in a run, with warnings about damaged ones that were skipped.
#[derive(Debug)]
pub struct FoundCheckpoint {
    pub checkpoint: Checkpoint,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// The checkpoint of a run's best policy, as far as it can be loaded.
#[derive(Debug, Default)]
pub struct BestCheckpoint {
    /// The checkpoint; `None` if it is missing or damaged.
    pub checkpoint: Option<Checkpoint>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl RunFolder {
    /// Creates the directory of a new run: `path`, or the next free one for `name` in `runs`.
    ///
    /// # Errors
    /// If it holds a run with a checkpoint or other files, or cannot be created.
    pub fn create(path: Option<PathBuf>, name: &str) -> Result<Self, RunError> {
        if let Some(path) = path {
            // An empty path exists nowhere, but could be created in the current folder.
            if path.exists() || path.as_os_str().is_empty() {
                return Self::reuse_unsaved(path);
            }
            disk::create_folders(&path).map_err(RunError::file("create", &path))?;
            return Ok(Self { path });
        }
        let runs = Path::new(RUNS);
        disk::create_folders(runs).map_err(RunError::file("create", runs))?;
        for n in 1.. {
            let path = runs.join(format!("{name}-{n}"));
            match disk::create_folder(&path) {
                Ok(()) => {
                    disk::sync_folder(runs).map_err(RunError::file("sync", runs))?;
                    return Ok(Self { path });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(RunError::file("create", &path)(e)),
            }
        }
        unreachable!("there is always a next number")
    }

    /// Accepts a directory that is empty, or whose run ended before its first checkpoint, for a new run.
    fn reuse_unsaved(path: PathBuf) -> Result<Self, RunError> {
        if !path.is_dir() {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(RunError::file("create", &path)(error));
        }
        let folder = Self::open_without_links(path)?;
        let is_empty = fs::read_dir(&folder.path).is_ok_and(|mut all| all.next().is_none());
        let (is_run, has_any_checkpoint) =
            (folder.path.join(LOCK).is_file(), folder.has_any_checkpoint());
        if is_empty || is_run && !has_any_checkpoint {
            Ok(folder)
        } else if has_any_checkpoint || folder.config_path().is_file() {
            Err(RunError::Exists(folder.path))
        } else {
            Err(RunError::Occupied(folder.path))
        }
    }

    /// Whether a run has saved a checkpoint, even a damaged one, or the folder is itself one.
    pub(super) fn has_any_checkpoint(&self) -> bool {
        let has_none = || self.store().iterations().is_ok_and(|all| all.is_empty());
        let has_checkpoints = self.path.join(CHECKPOINTS).exists() && !has_none();
        has_checkpoints || self.best_path().exists() || self.is_checkpoint()
    }

    /// Whether the folder is a checkpoint, which has settings, too.
    fn is_checkpoint(&self) -> bool {
        self.config_path().is_file() && self.path.join(checkpoint::MANIFEST).is_file()
    }

    /// Opens the run that a path names: a run directory, or, if `path` is neither a run nor a model, the newest run of
    /// that name in `runs`.
    ///
    /// # Errors
    /// If there is no such folder, or it holds no run.
    pub fn find(path: &Path) -> Result<Self, RunError> {
        let has = |name: &str| path.join(name).is_file();
        // A model's folder may have folders called `best` or `checkpoints` of its own.
        let is_model = (has("config.json") || has("adapter_config.json")) && !has(CONFIG);
        match Self::open(path.to_path_buf()) {
            Ok(_) if is_model => Err(RunError::NotARun(path.to_path_buf())),
            Err(error @ (RunError::Missing(_) | RunError::NotARun(_))) if !is_model => {
                path.to_str().and_then(newest_path).map_or(Err(error), Self::open)
            }
            found => found,
        }
    }

    /// Opens the newest run of the given name in `runs`, or, without a name, the one written to last.
    ///
    /// # Errors
    /// If there is no such folder, or it holds no run.
    pub fn newest(name: Option<&str>) -> Result<Self, RunError> {
        let (path, wanted) = match name {
            Some(name) => {
                (newest_path(name), format!("run of {name} in {RUNS}, and no folder {name}"))
            }
            None => (paths_by_last_write().into_iter().next(), format!("run in {RUNS}")),
        };
        Self::open(path.ok_or(RunError::NoRunYet(wanted))?)
    }

    fn open(path: PathBuf) -> Result<Self, RunError> {
        let folder = Self::open_without_links(path)?;
        if folder.is_checkpoint() {
            return Err(RunError::IsCheckpoint(folder.path));
        }
        for path in [CONFIG, BEST, CHECKPOINTS].map(|name| folder.path.join(name)) {
            if path.try_exists().map_err(RunError::file("read", &path))? {
                return Ok(folder);
            }
        }
        Err(RunError::NotARun(folder.path))
    }

    /// Lists the run directories in `runs`, the one written to last first.
    pub fn list_by_last_write() -> impl Iterator<Item = Self> {
        paths_by_last_write().into_iter().filter_map(|path| Self::open_without_links(path).ok())
    }

    /// Opens an existing directory that contains no symbolic links, through which files elsewhere could be replaced or
    /// removed.
    fn open_without_links(path: PathBuf) -> Result<Self, RunError> {
        if !path.is_dir() {
            return Err(RunError::Missing(path));
        }
        let mut folders =
            [CHECKPOINTS, BEST, MODEL, TENSORBOARD].iter().map(|name| path.join(name));
        match folders.find(|folder| folder.is_symlink()) {
            Some(link) => Err(RunError::Link(link)),
            None => Ok(Self { path }),
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the devices that trained the run last, one for each rank; none if they are unknown.
    pub fn devices(&self) -> Vec<String> {
        let metadata = self.read_metadata().unwrap_or_default();
        let names = match metadata["ranks"].as_array() {
            Some(ranks) => ranks.iter().map(|rank| &rank["device"]).collect(),
            None => vec![&metadata["device"]["name"]],
        };
        names.into_iter().filter_map(|name| Some(name.as_str()?.to_string())).collect()
    }

    /// Name of the other program's environment in which the run trains; `None` for built-in and user-defined games.
    pub fn environment(&self) -> Option<String> {
        Some(self.read_metadata()?.get("environment")?.as_str()?.to_string())
    }

    /// Number of iterations that the epochs of the run's data take; `None` without them, and for runs of earlier
    /// versions.
    pub fn iterations_for_epochs(&self) -> Option<u32> {
        self.read_metadata()?.get("iterations_of_epochs")?.as_u64()?.try_into().ok()
    }

    /// The dataset that a policy is fitted to, found by a path to its run, or to its checkpoint or file in one;
    /// `None` if it is unknown.
    pub fn find_dataset(policy: &Path) -> Option<serde_json::Value> {
        let run = Self::find(policy).map(|run| run.path);
        let path = run.or_else(|_| policy.canonicalize()).ok()?;
        // A file in a checkpoint is three levels below the run.
        let mut folders = path.ancestors().take(4).filter(|folder| folder.join(LOCK).is_file());
        let text = input::read_description(&folders.next()?.join(DATASET)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The version of Grove that trained the run last, if it differs from this one.
    pub fn other_version(&self) -> Option<String> {
        let version = self.read_metadata()?.get("grove")?.as_str()?.to_string();
        (version != env!("CARGO_PKG_VERSION")).then_some(version)
    }

    fn read_metadata(&self) -> Option<serde_json::Value> {
        let text = input::read_description(&self.path.join(METADATA)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Path of the settings.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// The settings in the run's folder; `None` if they cannot be read.
    pub(super) fn read_settings(&self) -> Option<toml::Table> {
        input::read_description(&self.config_path()).ok()?.parse().ok()
    }

    /// Path of the best policy's checkpoint.
    pub fn best_path(&self) -> PathBuf {
        self.path.join(BEST)
    }

    /// Path of the exported language model, which may not exist.
    pub fn model_path(&self) -> PathBuf {
        self.path.join(MODEL)
    }

    /// Whether the run trains a language model.
    pub fn has_language_model(&self) -> bool {
        self.model_path().is_dir() || self.path.join(COMPLETIONS).is_file()
    }

    /// Whether the final evaluation is known to be done: that of a language model leaves a model card, and that of a
    /// game leaves no file, and counts as done.
    pub fn has_final_evaluation(&self) -> bool {
        !self.model_path().is_dir() || self.path.join(MODEL_CARD).is_file()
    }

    /// Whether the folder `model` has the run's best model: at the end of the run, and before its first checkpoint. In
    /// between it may have that of the last checkpoint.
    pub fn exports_best_model(&self) -> bool {
        self.model_path().is_dir() && (self.has_final_evaluation() || !self.has_any_checkpoint())
    }

    /// The warning that the folder `model` may not have the best model, if the run has not ended.
    pub fn unfinished_model_warning(&self) -> Option<String> {
        let path = self.path.display();
        let warn = || {
            format!(
                "the run in {path} has not ended, so that its model may be that of its last checkpoint instead of the best"
            )
        };
        (!self.exports_best_model()).then(warn)
    }

    /// Checks that an output to this path would not replace a file of a run.
    ///
    /// # Errors
    /// If it would be one of the files of a run, or among the files of its checkpoints.
    pub fn check_output(path: &Path) -> Result<(), RunError> {
        let output = path.canonicalize().or_else(|error| {
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(error);
            };
            Ok(Path::new(".").join(folder).canonicalize()?.join(name))
        });
        // Without such a folder, nothing can be written.
        let Ok(output) = output else { return Ok(()) };
        let is_one_of = |path: &Path, names: &[&str]| {
            let name = path.file_name().and_then(|name| name.to_str());
            let is_in_run = path.parent().is_some_and(|folder| folder.join(LOCK).is_file());
            is_in_run && name.is_some_and(|name| names.contains(&name))
        };
        let mut folders = output.ancestors().skip(1);
        if is_one_of(&output, &PROTECTED_FILES)
            || folders.any(|folder| is_one_of(folder, &[CHECKPOINTS, BEST]))
        {
            Err(RunError::ReplacesRunFile(path.to_path_buf()))
        } else {
            Ok(())
        }
    }

    /// Reads the records so far; damaged ones are skipped.
    ///
    /// # Errors
    /// If there is a file of them that cannot be read.
    pub fn read_records(&self) -> Result<Vec<IterationRecord>, RunError> {
        self.read_and_count_records().map(|(records, _)| records)
    }

    /// Reads the records so far, and counts the damaged ones. The last one does not count: it may be half written.
    ///
    /// # Errors
    /// If there is a file of them that cannot be read.
    pub fn read_and_count_records(&self) -> Result<(Vec<IterationRecord>, usize), RunError> {
        let path = self.path.join(METRICS);
        let file =
            input::allow_missing(input::open(&path)).map_err(RunError::file("read", &path))?;
        let lines = file.into_iter().flat_map(input::lines).map_while(Result::ok);
        let (mut records, mut num_damaged, mut is_damaged) = (Vec::new(), 0, false);
        for line in lines {
            num_damaged += usize::from(is_damaged);
            let record = serde_json::from_slice(&line);
            is_damaged = record.is_err();
            records.extend(record);
        }
        Ok((records, num_damaged))
    }

    pub(super) fn store(&self) -> Store {
        Store::new(self.path.join(CHECKPOINTS))
    }

    /// Loads the newest checkpoint from which the run can resume, or that of the best policy, which is as complete, if
    /// it is later or there is no other. Newer ones that are damaged, or contain numbers that are not finite, become
    /// warnings.
    ///
    /// # Errors
    /// If there is no checkpoint, or none can be read but one may be intact.
    pub fn load_latest(&self) -> Result<FoundCheckpoint, RunError> {
        let check_finite = |checkpoint: &Checkpoint| {
            let error = || "its values are not finite".to_string();
            is_finite(checkpoint).then_some(()).ok_or_else(error)
        };
        let latest = match self.store().load_latest_usable(check_finite) {
            Ok(latest) => latest,
            Err(error) => {
                let error = match error {
                    CheckpointError::NotFound(_) | CheckpointError::NoneSaved(_) => None,
                    // Falling back to the best policy would lose the records after it.
                    error if error.may_be_intact() => return Err(error.into()),
                    error => Some(error),
                };
                let Some(checkpoint) = checkpoint::load(&self.best_path()).ok().filter(is_finite)
                else {
                    let unsaved = || RunError::Unsaved(self.path.clone());
                    return Err(error.map_or_else(unsaved, RunError::from));
                };
                let fallback = "no usable checkpoint; using the best policy instead".to_string();
                let reason = error.map(|error| error.to_string());
                let warnings = reason.into_iter().chain([fallback]).collect();
                return Ok(FoundCheckpoint { checkpoint, warnings });
            }
        };
        let mut warnings: Vec<String> =
            latest.skipped_checkpoints.iter().map(|(_, error)| error.to_string()).collect();
        let (checkpoint, path) = match self.load_later_best(latest.checkpoint.iteration) {
            Some(best) => (best, self.best_path()),
            None => (latest.checkpoint, latest.path),
        };
        if !warnings.is_empty() {
            warnings.push(format!("using {} instead", path.display()));
        }
        Ok(FoundCheckpoint { checkpoint, warnings })
    }

    /// Loads the checkpoint of the best policy if it is of a later iteration.
    fn load_later_best(&self, iteration: u64) -> Option<Checkpoint> {
        let path = self.best_path();
        let is_later = checkpoint::read_iteration(&path).ok()? > iteration;
        checkpoint::load(&path).ok().filter(|best| is_later && is_finite(best))
    }

    /// Loads the checkpoint of the best policy.
    ///
    /// # Errors
    /// If it may be intact, but cannot be read.
    pub fn load_best(&self) -> Result<BestCheckpoint, RunError> {
        match checkpoint::load(&self.best_path()) {
            Ok(best) => Ok(BestCheckpoint { checkpoint: Some(best), warnings: Vec::new() }),
            Err(CheckpointError::NotFound(_)) => Ok(BestCheckpoint::default()),
            Err(error) if error.may_be_intact() => Err(error.into()),
            Err(error) => {
                let fallback = "using the newest checkpoint instead of the best".to_string();
                Ok(BestCheckpoint { checkpoint: None, warnings: vec![error.to_string(), fallback] })
            }
        }
    }

    /// Whether there is a checkpoint of an iteration, even a damaged one. There is none if the process was killed after
    /// saving the best policy and before saving the checkpoint.
    pub fn has_checkpoint(&self, iteration: u32) -> bool {
        self.store().path(iteration.into()).exists()
    }

    /// Iteration from which the run would resume, for messages; damaged checkpoints count.
    pub(super) fn saved_iteration(&self) -> Option<u64> {
        let newest = || self.store().iterations().ok()?.last().copied();
        newest().max(checkpoint::read_iteration(&self.best_path()).ok())
    }

    /// Writes a file atomically.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), RunError> {
        let path = self.path.join(name);
        disk::replace(&path, text.as_bytes()).map_err(RunError::file("write", &path))
    }
}

impl FoundCheckpoint {
    /// Loads the policy that a path names: a policy file, a checkpoint folder, or a run, whose best policy is
    /// taken, or, if that is missing or damaged, whose newest checkpoint.
    ///
    /// # Errors
    /// If there is no policy, or if the best one may be intact, but cannot be read.
    pub fn find(path: &Path) -> Result<Self, RunError> {
        let intact = |checkpoint| Self { checkpoint, warnings: Vec::new() };
        if path.is_file() {
            let bytes =
                input::read(path, input::MAX_DATA_BYTES).map_err(RunError::file("read", path))?;
            let policy = read_policy_file(bytes);
            let not_a_policy = |cause| RunError::NotAPolicy { path: path.to_path_buf(), cause };
            return Ok(intact(policy.map_err(not_a_policy)?));
        }
        if path.join(checkpoint::MANIFEST).exists() {
            return Ok(intact(checkpoint::load(path)?));
        }
        let run = RunFolder::find(path)?;
        let BestCheckpoint { checkpoint, mut warnings } = run.load_best()?;
        if let Some(checkpoint) = checkpoint {
            return Ok(intact(checkpoint));
        }
        let latest = run.load_latest()?;
        let had_best = |counters: Counters| counters.best().is_some();
        if warnings.is_empty() && Counters::read(&latest.checkpoint).is_ok_and(had_best) {
            warnings.push(missing_best_warning(&run.best_path()));
        }
        warnings.extend(latest.warnings);
        Ok(Self { warnings, ..latest })
    }
}

/// The warning about a best policy that is missing.
pub(super) fn missing_best_warning(best: &Path) -> String {
    format!("{} is missing; using the newest checkpoint instead of the best", best.display())
}

/// Path of the newest run of this name in `runs`.
fn newest_path(name: &str) -> Option<PathBuf> {
    let index = |run: &Path| {
        let folder_name = run.file_name()?.to_str()?;
        folder_name.strip_prefix(name)?.strip_prefix('-')?.parse::<u64>().ok()
    };
    run_paths().filter_map(|run| Some((index(&run)?, run))).max().map(|(_, run)| run)
}

/// Paths in `runs`.
fn run_paths() -> impl Iterator<Item = PathBuf> {
    fs::read_dir(RUNS).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Paths of the runs in `runs`, the one written to last first.
fn paths_by_last_write() -> Vec<PathBuf> {
    let last_write = |run: &Path| {
        let time = |name| run.join(name).metadata().and_then(|data| data.modified()).ok();
        Some(time(CONFIG)?.max(time(METRICS)?))
    };
    let mut runs: Vec<_> = run_paths().filter_map(|run| Some((last_write(&run)?, run))).collect();
    runs.sort();
    runs.into_iter().rev().map(|(_, run)| run).collect()
}
