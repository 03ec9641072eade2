//! Context of a learner in its run: settings, minibatches and ranks.

use super::order::Batches;
use super::schedule::{learning_rate, total_optimizer_steps};
use crate::parallel::{Shards, Team};
use crate::settings::TrainConfig;

/// Context of a learner in its run: the settings, and the part of the run that its rank learns from.
#[derive(Clone, Debug)]
pub struct LearnerContext {
    /// Settings of the run.
    pub config: TrainConfig,
    /// Minibatches of this rank's games, or windows of a dataset.
    pub batches: Batches,
    /// Ranks that share the run.
    pub team: Team,
}

impl LearnerContext {
    /// Creates the context of a single rank, which learns from the whole run.
    pub(super) fn single_rank(config: &TrainConfig) -> Self {
        Self { config: config.clone(), batches: Batches::new(config), team: Team::alone() }
    }

    /// Assigns the shards of games, or of windows of a dataset, that this rank of `team` learns from.
    pub fn assign(&mut self, shards: Shards, team: Team) {
        self.batches = Batches::with_shards(&self.config, shards);
        self.team = team;
    }

    /// Learning rate of optimizer step `step_index` of the run.
    pub(super) fn learning_rate(&self, step_index: u64) -> f64 {
        learning_rate(&self.config.optimizer, step_index, total_optimizer_steps(&self.config))
    }
}
