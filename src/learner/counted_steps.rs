//! Counted steps of an update, by which losses and means are divided.

use super::context::LearnerContext;
use super::order::Minibatch;
use super::schedule::first_optimizer_step;
use crate::objective::weights::StepDenominators;
use crate::parallel::TeamError;
use crate::settings::TrainConfig;

/// The minibatches over whose counted steps an update's means are taken: one rule for all learners of games. Means over
/// no steps divide by 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LearntSteps {
    /// The first minibatches: of a dataset, which advances by batches, or of an update that ended early.
    Minibatches(usize),
    /// All minibatches of this many epochs, each of which covers all games of a rollout.
    Epochs(usize),
}

impl LearntSteps {
    /// The steps of an update that took the first `taken` of its minibatches.
    pub fn new(config: &TrainConfig, taken: usize, num_minibatches: usize) -> Self {
        if config.data.is_on() || taken < num_minibatches {
            Self::Minibatches(taken)
        } else {
            Self::Epochs(config.update.update_epochs)
        }
    }
}

/// Counted steps of the minibatches of an update over all ranks.
#[derive(Debug)]
pub(super) struct CountedSteps {
    /// Index of the update's first optimizer step in the run.
    pub first_optimizer_step: u64,
    /// Counted steps of each minibatch.
    pub per_minibatch: Vec<f64>,
    /// Counted steps of all games.
    pub total: f64,
    learn_steps: usize,
    /// Minibatches of an epoch.
    num_minibatches: usize,
}

impl CountedSteps {
    /// Counts the steps of an iteration's update in `minibatches` from `lengths`, those of this rank's games.
    pub fn count(
        context: &LearnerContext,
        minibatches: &[Minibatch],
        lengths: &[usize],
        learn_steps: usize,
        iteration: u32,
    ) -> Result<Self, TeamError> {
        let count = |minibatch: &Minibatch| {
            minibatch.games().iter().map(|game| lengths[*game as usize]).sum::<usize>() as f64
        };
        let own_total = lengths.iter().sum::<usize>() as f64;
        let local_counts: Vec<f64> = minibatches.iter().map(count).chain([own_total]).collect();
        let mut counts = context.team.all_reduce_counts(&local_counts)?;
        let total = counts.pop().expect("the last is that of all games");
        Ok(Self {
            first_optimizer_step: first_optimizer_step(&context.config, iteration),
            per_minibatch: counts,
            total,
            learn_steps,
            num_minibatches: context.config.update.num_minibatches,
        })
    }

    /// Denominators of the step weights of minibatch `index`.
    pub fn denominators(&self, index: usize, minibatch: &Minibatch) -> StepDenominators {
        StepDenominators {
            sequences: minibatch.global_size as f32,
            learn_steps: self.learn_steps as f32,
            steps: self.per_minibatch[index] as f32,
            rollout_steps_per_minibatch: self.total as f32 / self.num_minibatches as f32,
        }
    }

    /// Number of [`LearntSteps`] of an update that took the first `taken` minibatches.
    pub fn num_learnt(&self, taken: usize, config: &TrainConfig) -> f64 {
        match LearntSteps::new(config, taken, self.per_minibatch.len()) {
            LearntSteps::Minibatches(taken) => self.per_minibatch[..taken].iter().sum(),
            LearntSteps::Epochs(epochs) => self.total * epochs as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_that_ends_early_learns_from_its_minibatches_alone() {
        let mut config = TrainConfig::for_game("any");
        config.update.update_epochs = 3;
        let learnt = |config: &TrainConfig, taken| LearntSteps::new(config, taken, 12);
        assert_eq!(learnt(&config, 12), LearntSteps::Epochs(3));
        assert_eq!(learnt(&config, 11), LearntSteps::Minibatches(11));
        assert_eq!(learnt(&config, 0), LearntSteps::Minibatches(0));
        config.data.path = "data".to_string();
        assert_eq!(learnt(&config, 12), LearntSteps::Minibatches(12));
    }
}
