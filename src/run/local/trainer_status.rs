//! Status of a trainer as a trait object, whatever its engine.

use crate::parallel::{Shards, Team};
use crate::run::Schedule;
use crate::trainer::{BestEvaluation, Engine, Trainer};

/// Status of a trainer, uniform over games, datasets and language models: its schedule, and the methods of [`Trainer`]
/// of the same names.
pub trait TrainerStatus {
    /// Schedule of the run.
    fn schedule(&self) -> Schedule;
    fn iterations_done(&self) -> u32;
    fn env_steps(&self) -> u64;
    fn best(&self) -> Option<BestEvaluation>;
    fn team(&self) -> &Team;
    fn shards(&self) -> Shards;
    fn describe_engine(&self) -> String;
}

impl<E: Engine> TrainerStatus for Trainer<E>
where
    for<'a> Schedule: From<&'a E::Config>,
{
    fn schedule(&self) -> Schedule {
        self.config().into()
    }

    fn iterations_done(&self) -> u32 {
        self.iterations_done()
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
