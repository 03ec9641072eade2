//! Errors of a run on disk.

use super::Panic;
use crate::checkpoint::CheckpointError;
use crate::disk::FolderError;
use crate::metrics::MetricsError;
use crate::model::saved::SavedError;
use crate::parallel::TeamError;
use crate::text::LanguageError;
use crate::trainer::text::LanguageTrainError;
use crate::trainer::{SnapshotError, TrainError};
use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};

/// The reasons for which a run cannot be trained, saved, resumed or found.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Training a policy stopped.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Training a language model stopped.
    #[error(transparent)]
    Text(#[from] LanguageTrainError),
    /// Another rank is gone, silent, or does not fit.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A checkpoint cannot be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A checkpoint does not fit the run.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The records cannot be written.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// A model's folder cannot be written.
    #[error(transparent)]
    Model(#[from] LanguageError),
    /// The device, its driver, the engine or an environment panicked.
    #[error("{work} failed: {panic}{}", .saved.as_ref().map(Saved::to_string).unwrap_or_default())]
    Failed {
        /// The work, for instance `iteration 7`.
        work: String,
        /// The failure.
        panic: Panic,
        /// The state of the run's folder, which the first rank knows.
        saved: Option<Saved>,
    },
    /// A file is not a policy's.
    #[error("{path} is not a policy: {source}")]
    Policy {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: SavedError,
    },
    /// A file or folder of the run cannot be used.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The attempt, for instance `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A new run would be in the place of another.
    #[error(
        "the run directory {0} exists; continue its run with --resume, or choose another --run-dir"
    )]
    Exists(PathBuf),
    /// The run has no checkpoint yet.
    #[error(
        "the run in {0} has no checkpoint yet; if it was ended, start it again by the command that began it, with \
         --run-dir {0}"
    )]
    Unsaved(PathBuf),
    /// The run does not exist.
    #[error("no such run: {0}; `grove train` makes runs, in the folder runs")]
    Missing(PathBuf),
    /// The run's folder is no longer there.
    #[error(
        "the run's folder {0} was moved or removed while the run was trained; its last checkpoint went with it"
    )]
    Gone(PathBuf),
    /// A folder of the run is a link.
    #[error(
        "{0} is a symbolic link; run directories must not contain links: replace it with the folder it points to"
    )]
    Link(PathBuf),
    /// An output would replace a file of a run.
    #[error("{0} is a file of a run, which the output would replace; give another path")]
    Output(PathBuf),
    /// No run of this game or task exists, or none at all.
    #[error("there is no {0}; name a run directory")]
    NoneYet(String),
    /// The folder is not a run's.
    #[error("{0} holds no run: it has neither config.toml nor a checkpoint")]
    NoRun(PathBuf),
    /// The run is locked, by this or another process.
    #[error(
        "the run in {0} is being trained, by this or another process; wait for it, or stop it, then use --resume"
    )]
    Locked(PathBuf),
    /// The run has done all its iterations.
    #[error(
        "the run in {path} has finished all {iterations} iterations; pass a larger --iterations to continue"
    )]
    Done {
        /// The run's folder.
        path: PathBuf,
        /// All iterations of the run.
        iterations: u32,
    },
    /// The run reached the score that it was to reach.
    #[error(
        "the run in {path} reached a score of {score} (stop.score); `--set stop.score=inf` continues it"
    )]
    Reached {
        /// The run's folder.
        path: PathBuf,
        /// The setting.
        score: f64,
    },
    /// The run ended early.
    #[error(
        "the run in {path} stopped early at iteration {iteration}: no improvement in {patience} evaluations; raise \
         data.patience (fit.patience) to continue"
    )]
    OutOfPatience {
        /// The run's folder.
        path: PathBuf,
        /// The last iteration.
        iteration: u32,
        /// The setting.
        patience: u32,
    },
}

/// The state of a run's folder after a failure.
#[derive(Debug)]
pub struct Saved {
    /// The folder.
    pub path: PathBuf,
    /// The iteration of the newest checkpoint; `None` without one.
    pub iteration: Option<u64>,
    /// Iterations of the whole run.
    pub iterations: u32,
    /// Options with which the run asks less of its device at a time, if there are any.
    pub smaller: Option<String>,
}

impl Display for Saved {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.iteration {
            Some(iteration) if iteration >= self.iterations.into() => {
                write!(f, ". The run in {path} is saved with all its iterations")
            }
            Some(iteration) => {
                write!(
                    f,
                    ". The run in {path} is saved up to iteration {iteration}, from where --resume continues it"
                )?;
                match &self.smaller {
                    Some(options) => write!(f, ", in smaller launches with {options}"),
                    None => Ok(()),
                }
            }
            None => write!(f, ". The run in {path} had no checkpoint yet (checkpoint.save_every)"),
        }
    }
}

impl From<FolderError> for RunError {
    fn from(FolderError { action, path, source }: FolderError) -> Self {
        Self::File { action, path, source }
    }
}

impl RunError {
    /// Whether the error is about another rank, which says more itself.
    pub fn is_about_another_rank(&self) -> bool {
        match self {
            Self::Team(_) | Self::Train(TrainError::Team(_)) => true,
            Self::Text(error) => error.is_about_another_rank(),
            _ => false,
        }
    }

    /// Makes the error of an attempt on a file or folder.
    pub(super) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { action, path, source }
    }
}
