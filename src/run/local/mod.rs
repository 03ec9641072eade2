//! Runs on this machine: the interface that drives them, and the files that they leave.

mod drive;
mod error;
mod events;
mod file_names;
mod files;
mod folder;
mod format;
mod game;
mod guard;
mod iteration_report;
mod lock;
mod metadata;
mod model_folder;
mod pace;
mod panics;
mod preview;
mod report;
mod resume;
mod run_summary;
mod text;
mod trainer_status;

pub use crate::metrics::pluralize;
pub use drive::{RunObserver, drive, finish, restore_best};
pub use error::{RunError, SavedState};
pub use events::{Event, Events};
pub use file_names::{CHECKPOINTS, COMPLETIONS, CONFIG, METADATA, METRICS};
pub use files::RunFiles;
pub use folder::{BestCheckpoint, FoundCheckpoint, RunFolder};
pub use format::format_with_prefix;
pub use game::{GameRun, score_policy};
pub use iteration_report::IterationReport;
pub use lock::RunLock;
pub use metadata::RunMetadata;
pub use model_folder::{ModelPlace, find_language_model, is_of_language_model, load_model};
pub use panics::{Panic, catch_device_panics, catch_panic, silence_panics};
pub use preview::{Preview, preview};
pub use report::{FinalEvaluation, HeldOutReport, Report, Scores};
pub use resume::ResumedRun;
pub use run_summary::RunSummary;
pub use text::LanguageRun;
pub use trainer_status::TrainerStatus;

use crate::checkpoint::Checkpoint;
use crate::metrics::IterationRecord;
use crate::text::LanguageModel;
use crate::trainer::Validation;
use crate::trainer::text::CompletionRecord;
use serde::{Serialize, Serializer};

/// The game or task of a run. Serialized as `"env": NAME` or `"task": NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// A game, by name.
    Env(String),
    /// A task of a language model, by name.
    Task(String),
}

impl Subject {
    /// Name of the game or task.
    pub fn name(&self) -> &str {
        match self {
            Self::Env(name) | Self::Task(name) => name,
        }
    }
}

/// Training algorithm of a stage. Serialized as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// GRPO on the policy's own games or completions.
    Grpo,
    /// Supervised fine-tuning of a language model on solutions.
    Sft,
    /// Imitation of the actions in a dataset.
    Imitation,
}

impl Algorithm {
    /// Name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpo => "GRPO",
            Self::Sft => "SFT",
            Self::Imitation => "imitation",
        }
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A stage of a run, with its own loss: SFT or GRPO of a language model; a game has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Algorithm by which it trains.
    #[serde(rename = "name")]
    pub algorithm: Algorithm,
    /// First iteration, counted from 1.
    pub first: u32,
    /// Last iteration.
    pub last: u32,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.algorithm.name(), self.first)?;
        if self.last > self.first { write!(f, "-{}", self.last) } else { Ok(()) }
    }
}

/// Sizes of a run, as shown by a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunSizes {
    /// Number of learnt parameters.
    pub num_params: usize,
    /// Description of the policy or model.
    #[serde(skip)]
    pub policy_description: String,
    /// Number of episodes played at once: games, or completions of an iteration (of SFT alone, solutions).
    pub num_envs: usize,
    /// Number of steps of the whole run, if known beforehand.
    pub env_steps: Option<u64>,
    /// Description of an iteration's rollout.
    #[serde(skip)]
    pub rollout_description: String,
    /// Description of an iteration's update.
    #[serde(skip)]
    pub update_description: String,
}

/// A run in memory, of a game, a dataset or a language model, as trained by one of its ranks.
///
/// All ranks must call [`Run::iterate`], [`Run::validate`], [`Run::snapshot`] and [`Run::evaluate_fresh`] together.
pub trait Run {
    /// The game or task.
    fn subject(&self) -> Subject;

    /// Seed of all randomness.
    fn seed(&self) -> u64;

    /// The trainer.
    fn trainer(&self) -> &dyn TrainerStatus;

    /// Stages, in order.
    fn stages(&self) -> Vec<Stage>;

    /// Sizes, for a dry run.
    fn sizes(&self) -> RunSizes;

    /// Iterations between checks for growing memory: an epoch of a dataset, or the interval of evaluations.
    fn leak_check_interval(&self) -> u32;

    /// The reason why the run does not use a fused engine; `None` if it does.
    fn fallback_reason(&self) -> Option<String> {
        None
    }

    /// Warnings about the settings and the model.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Highest possible score of a completion; `None` for games.
    fn highest_score(&self) -> Option<f64> {
        None
    }

    /// Options that make the launches of a resumed run smaller, without changing its result; `None` on the CPU.
    fn smaller_launches(&self) -> Option<String> {
        None
    }

    /// Trains one iteration. Returns its record and, for language models, its completions.
    ///
    /// # Errors
    /// If numbers run out of range, an environment or a task fails, or another rank fails or does not respond.
    fn iterate(&mut self) -> Result<(IterationRecord, Vec<CompletionRecord>), RunError>;

    /// Evaluates the greedy policy on the episodes or the data by which the best policy is selected.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    fn validate(&mut self) -> Result<Validation, RunError>;

    /// Takes a snapshot of everything needed to resume.
    ///
    /// # Errors
    /// If another rank fails or does not respond.
    fn snapshot(&self) -> Result<Checkpoint, RunError>;

    /// Evaluates the policy on fresh episodes, at most `max_episodes`. At the end of a run, [`finish()`] restores the
    /// best policy first.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    fn evaluate_fresh(&mut self, max_episodes: usize) -> Result<FinalEvaluation, RunError>;

    /// The language model in the form that is exported; `None` for games.
    fn language_model(&self) -> Option<LanguageModel> {
        None
    }

    /// Restores the state of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint does not fit.
    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), RunError>;

    /// Returns an iterator over the events of the run, which trains it to its end. The rank with its `files` writes
    /// records and checkpoints.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use grove::env::Catch;
    /// use grove::run::{Event, GameRun, Run};
    /// use grove::settings::TrainConfig;
    /// use grove::trainer::GameTrainer;
    ///
    /// let config = TrainConfig { iterations: 3, ..TrainConfig::for_game("catch") };
    /// let trainer = GameTrainer::new(Catch::default(), &config, &Device::flex());
    /// let mut run = GameRun::new(trainer, 1, Vec::new());
    /// for event in run.events(None) {
    ///     match event? {
    ///         Event::Iteration(step) => println!("{}: {:?}", step.record.iteration, step.record.score),
    ///         Event::Warning(warning) => eprintln!("warning: {warning}"),
    ///         Event::End(summary) => println!("{} steps", summary.env_steps),
    ///     }
    /// }
    /// # Ok::<(), grove::run::RunError>(())
    /// ```
    ///
    /// [`Events::stop`] ends the run early; another call continues it, before [`finish()`]. If the iterator is dropped
    /// before [`Event::End`], the last iterations may be in the records but in no checkpoint.
    fn events<'a>(&'a mut self, files: Option<&'a mut RunFiles>) -> Events<'a>
    where
        Self: Sized,
    {
        Events::new(self, files)
    }

    /// Observes the record of an iteration before the resume, so that monitors continue from there.
    fn observe_record(&mut self, _record: &IterationRecord) {}

    /// Skips to a later iteration without training those in between, for a dry run.
    fn skip_to(&mut self, _iteration: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_of_one_iteration_names_it_once() {
        let stage = |last| Stage { algorithm: Algorithm::Grpo, first: 1, last };
        assert_eq!([1, 2].map(|last| stage(last).to_string()), ["GRPO 1", "GRPO 1-2"]);
        let json = serde_json::to_string(&stage(2)).unwrap();
        assert_eq!(json, r#"{"name":"GRPO","first":1,"last":2}"#);
    }
}
