//! Status of a trainer as a trait object, whatever its engine.

use crate::parallel::{Shards, Team};
use crate::run::Schedule;
use crate::trainer::{BestEvaluation, Engine, Trainer};

/// Status of a trainer, uniform over games, datasets and language models.
pub trait TrainerStatus {
    /// Schedule of the run.
    fn schedule(&self) -> Schedule;

    /// Number of iterations done.
    fn iteration(&self) -> u32;

    /// Environment steps so far; tokens for a language model.
    fn env_steps(&self) -> u64;

    /// Value and iteration of the best evaluation so far: the score, or, with held-out data, the negative loss.
    fn best(&self) -> Option<BestEvaluation>;

    /// Ranks that share the run.
    fn team(&self) -> &Team;

    /// Shards of a batch, and this rank's range of them.
    fn shards(&self) -> Shards;

    /// Describes the engine in words.
    fn describe_engine(&self) -> String;
}

impl<E: Engine> TrainerStatus for Trainer<E>
where
    for<'a> Schedule: From<&'a E::Config>,
{
    fn schedule(&self) -> Schedule {
        self.config().into()
    }

    fn iteration(&self) -> u32 {
        self.iteration()
    }

    fn env_steps(&self) -> u64 {
        self.env_steps()
    }

    fn best(&self) -> Option<BestEvaluation> {
        self.best()
    }

    fn team(&self) -> &Team {
        self.team()
    }

    fn shards(&self) -> Shards {
        self.shards()
    }

    fn describe_engine(&self) -> String {
        self.describe_engine()
    }
}
