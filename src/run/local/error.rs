//! Errors of a run on disk.

use super::Panic;
use crate::checkpoint::CheckpointError;
use crate::disk::FolderError;
use crate::metrics::RecordsError;
use crate::model::policy_file::PolicyFileError;
use crate::parallel::TeamError;
use crate::text::LanguageError;
use crate::trainer::text::LanguageTrainError;
use crate::trainer::{SnapshotError, TrainError};
use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};

/// Reasons why a run cannot be trained, saved, resumed or found.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Training of a policy failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Training of a language model failed.
    #[error(transparent)]
    Language(#[from] LanguageTrainError),
    /// Another rank failed, does not respond, or has other settings or weights.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A checkpoint cannot be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A checkpoint does not fit the run.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Records cannot be written.
    #[error(transparent)]
    Metrics(#[from] RecordsError),
    /// The folder of a language model cannot be written.
    #[error(transparent)]
    Model(#[from] LanguageError),
    /// The device, its driver, the engine or an environment panicked.
    #[error("{work} failed: {panic}{}", .saved.as_ref().map(|saved| format!(". {saved}")).unwrap_or_default())]
    Panicked {
        /// Attempted work, for instance `iteration 7`.
        work: String,
        /// The panic that ended it.
        panic: Panic,
        /// State of the run directory; known to the first rank only.
        saved: Option<SavedState>,
    },
    /// A file is not a policy file.
    #[error("{path} is not a policy: {cause}")]
    NotAPolicy { path: PathBuf, cause: PolicyFileError },
    /// A file or folder of the run cannot be used.
    #[error("cannot {action} {path}: {cause}")]
    File {
        /// Attempted action, for instance `write`.
        action: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
    /// A new run would replace another.
    #[error(
        "the run directory {0} exists; `grove train --resume {0}` continues its run, or choose another --run-dir"
    )]
    Exists(PathBuf),
    /// A folder that is not a run's would be filled by one.
    #[error("the folder {0} is not empty and holds no run; choose another --run-dir")]
    Occupied(PathBuf),
    /// The run has no checkpoint yet.
    #[error(
        "the run in {0} has no checkpoint yet; if it was stopped, start it again with its original command and \
         --run-dir {0}"
    )]
    Unsaved(PathBuf),
    /// The run does not exist.
    #[error("no such run: {0}; `grove train` creates runs in the folder `runs`")]
    Missing(PathBuf),
    /// The run directory was moved or deleted during training.
    #[error(
        "the run directory {0} was moved or deleted during training, and its checkpoints with it"
    )]
    Gone(PathBuf),
    /// A folder of the run is a symbolic link.
    #[error(
        "{0} is a symbolic link; run directories must not contain links: replace it with the folder it points to"
    )]
    Link(PathBuf),
    /// An output would replace a file of a run.
    #[error("{0} is a file of a run, which the output would replace; give another path")]
    ReplacesRunFile(PathBuf),
    /// There is no run of this game or task, or none at all.
    #[error("there is no {0}; name a run directory")]
    NoRunYet(String),
    /// The folder is not a run directory.
    #[error(
        "{0} holds no run: it has neither config.toml nor a checkpoint; `grove runs` lists the runs"
    )]
    NotARun(PathBuf),
    /// The run or checkpoint is of a game.
    #[error("{0} is of a game, and has no language model")]
    NoLanguageModel(PathBuf),
    /// The folder is a checkpoint of a run.
    #[error("{0} is a checkpoint; name the directory of the run that it belongs to")]
    IsCheckpoint(PathBuf),
    /// The run is locked by this or another process.
    #[error(
        "the run in {0} is being trained, by this or another process; wait for it, or stop it, then use --resume"
    )]
    Locked(PathBuf),
    /// The run has done more iterations than it is to do.
    #[error(
        "the run in {path} has done {iterations} iterations already; a larger --iterations continues it"
    )]
    BeyondEnd { path: PathBuf, iterations: u32 },
    /// The run has done all its iterations.
    #[error(
        "the run in {path} has finished all {iterations} iterations; a larger --iterations continues it, and `grove eval {path}` prints \
         its scores"
    )]
    Done {
        path: PathBuf,
        /// Number of iterations of the run.
        iterations: u32,
    },
    /// The run reached the score at which it was to stop.
    #[error(
        "the run in {path} reached a score of {score} (stop.score); `--set stop.score=inf` continues it"
    )]
    ScoreReached { path: PathBuf, score: f64 },
    /// The run stopped early for lack of improvement.
    #[error(
        "the run in {path} stopped early at iteration {iteration}: no improvement in {patience} evaluations; raise \
         data.patience (fit.patience) to continue"
    )]
    OutOfPatience {
        path: PathBuf,
        iteration: u32,
        /// The setting `data.patience` or `fit.patience`.
        patience: u32,
    },
}

/// State of a run directory after a failure.
#[derive(Debug)]
pub struct SavedState {
    pub path: PathBuf,
    /// Iteration of the newest checkpoint; `None` without one.
    pub iteration: Option<u64>,
    /// Number of iterations of the run.
    pub iterations: u32,
    /// Options that make the run's launches smaller, if there are any.
    pub smaller_launches: Option<String>,
}

impl Display for SavedState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.iteration {
            Some(iteration) if iteration >= self.iterations.into() => {
                write!(f, "The run in {path} is saved with all its iterations")
            }
            Some(iteration) => {
                write!(
                    f,
                    "The run in {path} is saved up to iteration {iteration}, from where --resume continues it"
                )?;
                match &self.smaller_launches {
                    Some(options) => write!(f, ", in smaller launches with {options}"),
                    None => Ok(()),
                }
            }
            None => write!(f, "The run in {path} had no checkpoint yet (checkpoint.save_every)"),
        }
    }
}

impl From<FolderError> for RunError {
    fn from(FolderError { action, path, source: cause }: FolderError) -> Self {
        Self::File { action, path, cause }
    }
}

impl RunError {
    /// Whether the error is about another rank, which reports it in more detail itself.
    pub fn is_about_another_rank(&self) -> bool {
        match self {
            Self::Team(_) | Self::Train(TrainError::Team(_)) => true,
            Self::Language(error) => error.is_about_another_rank(),
            _ => false,
        }
    }

    /// Creates the error of a failed action on a file or folder.
    pub(super) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |cause| Self::File { action, path, cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_state_is_a_sentence_of_its_own() {
        let state = |iteration| SavedState {
            path: PathBuf::from("run"),
            iteration,
            iterations: 4,
            smaller_launches: Some("--set launch_size=0.25".to_string()),
        };
        for (iteration, sentence) in [
            (None, "The run in run had no checkpoint yet (checkpoint.save_every)"),
            (
                Some(3),
                "The run in run is saved up to iteration 3, from where --resume continues it, in smaller launches with \
                 --set launch_size=0.25",
            ),
            (Some(4), "The run in run is saved with all its iterations"),
        ] {
            assert_eq!(state(iteration).to_string(), sentence);
        }
    }
}
