//! Settings of a learner, and its rank's share of a run.

use super::order::Batches;
use super::schedule::{learning_rate, total_updates};
use crate::parallel::{Shards, Team};
use crate::settings::TrainConfig;

/// Settings of a learner, and its rank's share of the run.
#[derive(Clone, Debug)]
pub struct Share {
    /// Settings of the run.
    pub config: TrainConfig,
    /// Minibatches of this rank's games, or windows of a dataset.
    pub batches: Batches,
    /// Ranks that share the run.
    pub team: Team,
}

impl Share {
    /// Creates the share of a single rank: the whole run.
    pub(super) fn whole(config: &TrainConfig) -> Self {
        Self { config: config.clone(), batches: Batches::new(config), team: Team::alone() }
    }

    /// Assigns the shards of games, or of windows of a dataset, that this rank of `team` learns from.
    pub fn assign(&mut self, shards: Shards, team: Team) {
        self.batches = Batches::of_shards(&self.config, shards);
        self.team = team;
    }

    /// Learning rate of optimizer step `update` of the run.
    pub(super) fn learning_rate(&self, update: u64) -> f64 {
        learning_rate(&self.config.optimizer, update, total_updates(&self.config))
    }
}
