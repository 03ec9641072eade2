//! The directory of a run: its settings, metrics, checkpoints and best policy.

use crate::checkpoint::{self, Checkpoint, Store};
use crate::trainer::policy_file;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The file that says what a run was trained with.
pub const NOTE: &str = "run.json";

/// Where the runs are that were given no directory.
const RUNS: &str = "runs";
/// The file of a run's settings.
pub const CONFIG: &str = "config.toml";

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

    /// The directory of an existing run: the one asked for, or the game's newest.
    pub fn open(path: Option<PathBuf>, game: &str) -> Result<Self> {
        let path = match path {
            Some(path) => path,
            None => newest(game)?,
        };
        Self::existing(path)
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
        Store::new(self.path.join("checkpoints"))
    }

    pub fn best(&self) -> PathBuf {
        self.path.join("best")
    }

    /// The newest intact checkpoint; damaged ones before it are named on stderr.
    pub fn latest(&self) -> Result<Checkpoint> {
        let latest = self.store().latest()?;
        for (_, error) in &latest.damaged {
            eprintln!("warning: {error}");
        }
        if !latest.damaged.is_empty() {
            eprintln!("warning: going on from {} instead", latest.path.display());
        }
        Ok(latest.checkpoint)
    }
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
    let run = RunDir::open(Some(path.to_path_buf()), "")?;
    match checkpoint::load(&run.best()) {
        Ok(checkpoint) => Ok(checkpoint),
        Err(checkpoint::CheckpointError::NotFound { .. }) => run.latest(),
        Err(error) => {
            eprintln!("warning: {error}");
            eprintln!("warning: taking the newest checkpoint instead of the best");
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
