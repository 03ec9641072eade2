//! The trainer of a run, whatever its engine.

use crate::parallel::{Shards, Team};
use crate::run::Schedule;
use crate::trainer::{Engine, Trainer};

/// The state of a trainer, the same for games, datasets and texts.
pub trait Trained {
    /// The schedule of its run.
    fn schedule(&self) -> Schedule;

    /// Iterations done.
    fn iteration(&self) -> u32;

    /// Environment steps so far; of a language model, tokens.
    fn env_steps(&self) -> u64;

    /// Value and iteration of the best evaluation so far: the score, or, with held-out data, the negative loss.
    fn best(&self) -> Option<(f64, u32)>;

    /// The ranks that share the run.
    fn team(&self) -> &Team;

    /// The shards of a batch, and which of them are this rank's.
    fn shards(&self) -> Shards;

    /// The engine, in words.
    fn engine(&self) -> String;
}

impl<E: Engine> Trained for Trainer<E>
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

    fn best(&self) -> Option<(f64, u32)> {
        self.best()
    }

    fn team(&self) -> &Team {
        self.team()
    }

    fn shards(&self) -> Shards {
        self.shards()
    }

    fn engine(&self) -> String {
        self.describe()
    }
}
