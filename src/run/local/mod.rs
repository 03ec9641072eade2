//! A run on this machine: what is driven, and the files that it leaves.

mod drive;
mod effort;
mod error;
mod events;
mod files;
mod folder;
mod game;
mod guard;
mod model_folder;
mod note;
mod panics;
mod preview;
mod progress;
mod report;
mod step;
mod text;
mod trained;

pub use drive::{Observer, drive, finish, restore_best};
pub use effort::Effort;
pub use error::{RunError, Saved};
pub use events::{Event, Events};
pub use files::RunFiles;
pub use folder::{COMPLETIONS, CONFIG, METRICS, NOTE, RunFolder, RunLock, SavedPolicy};
pub use game::{GameRun, play};
pub use model_folder::load_model;
pub use note::RunNote;
pub use panics::{Panic, caught, caught_on_devices, keep_silent};
pub use preview::{Preview, preview};
pub use progress::{counted, short};
pub use report::{FinalScores, HeldOutReport, Report, Scores};
pub use step::Step;
pub use text::TextRun;
pub use trained::Trained;

use crate::checkpoint::Checkpoint;
use crate::metrics::{EvaluationRecord, IterationRecord};
use crate::text::LanguageModel;
use crate::trainer::text::CompletionRecord;
use serde::Serialize;

/// The game or the task that a run is about. In JSON it is `"env": NAME` or `"task": NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// A game.
    Env(String),
    /// A task of a language model.
    Task(String),
}

impl Subject {
    /// The name of the game or the task.
    pub fn name(&self) -> &str {
        match self {
            Self::Env(name) | Self::Task(name) => name,
        }
    }
}

/// A part of a run with a loss of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// The name of the algorithm, for instance `SFT`.
    pub name: &'static str,
    /// The first iteration, from 1.
    pub first: u32,
    /// The last iteration.
    pub last: u32,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.first)?;
        if self.last > self.first { write!(f, "-{}", self.last) } else { Ok(()) }
    }
}

/// The sizes of a run, for its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outline {
    /// Learnt parameters.
    pub num_parameters: usize,
    /// The policy or the model, in words.
    #[serde(skip)]
    pub policy: String,
    /// Episodes that are played at once: games, or an iteration's completions.
    pub num_envs: usize,
    /// Steps of the whole run, if they are known beforehand.
    pub env_steps: Option<u64>,
    /// An iteration, in two lines: its rollout and its update.
    #[serde(skip)]
    pub iteration: [String; 2],
}

/// A run in memory, whether of a game, a dataset or a language model, as one of its ranks trains it.
///
/// All ranks must call [`Run::iterate`], [`Run::measure`], [`Run::snapshot`] and [`Run::finish`] together.
pub trait Run {
    /// The game or the task.
    fn subject(&self) -> Subject;

    /// The seed of everything random.
    fn seed(&self) -> u64;

    /// The trainer, which does the work.
    fn trainer(&self) -> &dyn Trained;

    /// The phases, in order.
    fn phases(&self) -> Vec<Phase>;

    /// The sizes.
    fn outline(&self) -> Outline;

    /// Iterations of an epoch, after each of which memory growth is checked.
    fn epoch(&self) -> u32;

    /// The reason why it does not have a fast engine, if so.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// A warning about its phases, if there is one.
    fn warning(&self) -> Option<String> {
        None
    }

    /// The highest score of a completion; `None` for games.
    fn highest_score(&self) -> Option<f64> {
        None
    }

    /// Options of a resumed run with which it asks less of its device at a time, without another result; `None` on the
    /// CPU.
    fn smaller_launches(&self) -> Option<String> {
        None
    }

    /// Trains one iteration. Returns its record and, for texts, its completions.
    ///
    /// # Errors
    /// If numbers run out of range, an environment or a task fails, or another rank fails or does not respond.
    fn iterate(&mut self) -> Result<(IterationRecord, Vec<CompletionRecord>), RunError>;

    /// Evaluates the greedy policy. Returns whether it is the best so far.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    fn measure(&mut self) -> Result<(EvaluationRecord, bool), RunError>;

    /// Everything that it needs to continue.
    ///
    /// # Errors
    /// If another rank fails or does not respond.
    fn snapshot(&self) -> Result<Checkpoint, RunError>;

    /// Evaluates the policy on fresh episodes, at most so many. At the end of a run [`finish()`] restores the best one
    /// before.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    fn finish(&mut self, most: usize) -> Result<FinalScores, RunError>;

    /// The language model, as it is exported; `None` for games.
    fn model(&self) -> Option<LanguageModel> {
        None
    }

    /// Returns to the state of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint does not fit.
    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), RunError>;

    /// Trains it to its end as an iterator: an event is what happened since the last one. The rank that has its `files`
    /// writes records and checkpoints.
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
    ///         Event::End(effort) => println!("{} steps", effort.env_steps),
    ///     }
    /// }
    /// # Ok::<(), grove::run::RunError>(())
    /// ```
    ///
    /// [`Events::stop`] ends it early; it can be continued by another call, before [`finish()`]. Without an end, the
    /// last iterations are in the records and in no checkpoint.
    fn events<'a>(&'a mut self, files: Option<&'a mut RunFiles>) -> Events<'a>
    where
        Self: Sized,
    {
        Events::new(self, files)
    }

    /// Takes the record of an iteration before a resumption, so that monitors continue as well.
    fn replay(&mut self, _record: &IterationRecord) {}

    /// Continues at a later iteration without training the ones before it, for a dry run.
    fn skip_to(&mut self, _iteration: u32) {}
}
