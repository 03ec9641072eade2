//! The directory of a run: its settings, metrics, checkpoints and best policy.

use super::say::say;
use crate::checkpoint::{self, Checkpoint, Store};
use crate::trainer::{is_finite, policy_file};
use anyhow::{Context, Result, bail};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// The file that says what a run was trained with.
pub const NOTE: &str = "run.json";

/// Where the runs are that were given no directory.
const RUNS: &str = "runs";
/// The file of a run's settings.
pub const CONFIG: &str = "config.toml";
/// The file that the process which trains a run has locked. It stays, empty.
const LOCK: &str = "run.lock";
/// The folder of a run's checkpoints.
const CHECKPOINTS: &str = "checkpoints";

/// The directory of a run.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the directory of a new run: the one asked for, or the next free one of the game.
    pub fn create(path: Option<PathBuf>, game: &str) -> Result<Self> {
        match path {
            Some(path) => {
                if path.exists() {
                    bail!(
                        "the run directory {} exists; go on with its run by --resume, or choose \
                         another --run-dir",
                        path.display()
                    );
                }
                std::fs::create_dir_all(&path)
                    .with_context(|| format!("cannot make the run directory {}", path.display()))?;
                Ok(Self { path })
            }
            None => {
                std::fs::create_dir_all(RUNS)
                    .with_context(|| format!("cannot make the directory {RUNS}"))?;
                for n in 1.. {
                    let path = Path::new(RUNS).join(format!("{game}-{n}"));
                    match std::fs::create_dir(&path) {
                        Ok(()) => return Ok(Self { path }),
                        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                        Err(e) => {
                            return Err(e).with_context(|| {
                                format!("cannot make the run directory {}", path.display())
                            });
                        }
                    }
                }
                unreachable!("there is always a next number")
            }
        }
    }

    /// The directory of a run to go on with: the one asked for, the game's newest, or, where no game is
    /// named either, the one written to last.
    pub fn open(path: Option<PathBuf>, game: Option<&str>) -> Result<Self> {
        let path = match (path, game) {
            (Some(path), _) => path,
            (None, Some(game)) => newest(game)?,
            (None, None) => last_written().with_context(|| {
                format!("there is no run in {RUNS} to go on with; name one by --run-dir")
            })?,
        };
        let dir = Self::existing(path)?;
        if ![dir.config(), dir.best(), dir.path.join(CHECKPOINTS)].iter().any(|path| path.exists())
        {
            bail!("{} holds no run", dir.path.display());
        }
        Ok(dir)
    }

    fn existing(path: PathBuf) -> Result<Self> {
        if !path.is_dir() {
            bail!("there is no run directory {}", path.display());
        }
        Ok(Self { path })
    }

    /// The directory of a run to look at: the one asked for, or the one written to last.
    pub fn to_watch(path: Option<PathBuf>) -> Result<Self> {
        let path = match path {
            Some(path) => path,
            None => last_written().with_context(|| {
                format!("there is no run in {RUNS} to watch; name a run directory")
            })?,
        };
        let dir = Self::existing(path)?;
        if !dir.config().is_file() {
            bail!("{} holds no run to watch: it has no {CONFIG}", dir.path.display());
        }
        Ok(dir)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    pub fn config(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// What the run was trained with last: not among its settings, for the result is the same.
    pub fn note(&self) -> PathBuf {
        self.path.join(NOTE)
    }

    pub fn store(&self) -> Store {
        Store::new(self.path.join(CHECKPOINTS))
    }

    pub fn best(&self) -> PathBuf {
        self.path.join("best")
    }

    /// Keeps other processes from training the run, as long as one holds what this returns.
    pub fn lock(&self) -> Result<Lock> {
        let path = self.path.join(LOCK);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "another process trains the run in {}; wait for its end, or stop it, and go on by \
                 --resume",
                self.path.display()
            ),
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) => say!(
                "warning: {} cannot be locked ({error}); see that no other process trains this run",
                path.display()
            ),
        }
        Ok(Lock { _file: file })
    }

    /// Writes the file of the run's settings, whole or not at all.
    pub fn write_config(&self, text: &str) -> Result<()> {
        let path = self.config();
        let beside = self.path.join(format!(".{CONFIG}.tmp"));
        let write = || {
            std::fs::write(&beside, text)?;
            std::fs::rename(&beside, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// The newest checkpoint from which the run can go on; newer ones that are damaged, or whose numbers
    /// have run out of range, are named on stderr. Where none was saved yet, it is that of the best
    /// policy, which is as whole.
    pub fn latest(&self) -> Result<Checkpoint> {
        let finite = |checkpoint: &Checkpoint| match is_finite(checkpoint) {
            true => Ok(()),
            false => Err("its values are not finite".to_string()),
        };
        let latest = match self.store().latest_usable(finite) {
            Ok(latest) => latest,
            Err(error) => {
                let best = checkpoint::load(&self.best()).ok().filter(is_finite);
                let best = best.ok_or(error)?;
                say!("Going on from the best policy, since no checkpoint can be used.");
                return Ok(best);
            }
        };
        for (_, error) in &latest.damaged {
            say!("warning: {error}");
        }
        if !latest.damaged.is_empty() {
            say!("warning: going on from {} instead", latest.path.display());
        }
        Ok(latest.checkpoint)
    }
}

/// A run that no other process trains meanwhile.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// The checkpoint that `eval` means by a path: a file with a policy and its settings, a checkpoint's
/// directory, or a run's: its best policy, or, where that is missing or damaged, its newest.
pub fn find_checkpoint(path: &Path) -> Result<Checkpoint> {
    if path.is_file() {
        let bytes = std::fs::read(path).context("it cannot be read")?;
        return Ok(policy_file(bytes)?);
    }
    if path.join("manifest.json").exists() {
        return Ok(checkpoint::load(path)?);
    }
    let run = RunDir::open(Some(path.to_path_buf()), None)?;
    match checkpoint::load(&run.best()) {
        Ok(checkpoint) => Ok(checkpoint),
        Err(checkpoint::CheckpointError::NotFound { .. }) => run.latest(),
        Err(error) => {
            say!("warning: {error}");
            say!("warning: taking the newest checkpoint instead of the best");
            run.latest()
        }
    }
}

fn newest(game: &str) -> Result<PathBuf> {
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in std::fs::read_dir(RUNS).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(game)?.strip_prefix('-')?.parse::<u64>().ok());
        if let Some(number) = number
            && newest.as_ref().is_none_or(|(n, _)| number > *n)
        {
            newest = Some((number, entry.path()));
        }
    }
    newest.map(|(_, path)| path).with_context(|| {
        format!("there is no run of {game} in {RUNS} to go on with; name one by --run-dir")
    })
}

fn last_written() -> Option<PathBuf> {
    let runs = std::fs::read_dir(RUNS).into_iter().flatten().flatten().map(|entry| entry.path());
    let written = |run: &Path| {
        let time = |name| run.join(name).metadata().and_then(|data| data.modified()).ok();
        Some(time(CONFIG)?.max(time("metrics.jsonl")?))
    };
    runs.filter_map(|run| Some((written(&run)?, run))).max().map(|(_, run)| run)
}
