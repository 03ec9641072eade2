//! Counted steps of an update, by which losses and means are divided.

use super::context::LearnerContext;
use super::order::Minibatch;
use super::schedule::first_optimizer_step;
use crate::objective::weights::StepDenominators;
use crate::parallel::TeamError;

/// Counted steps of the minibatches of an update over all ranks, by which losses and means are divided.
#[derive(Debug)]
pub(super) struct Plan {
    /// Number of the update's first optimizer step in the run.
    pub first_step: u64,
    /// Counted steps of each minibatch.
    pub counts: Vec<f64>,
    /// Counted steps of all games.
    pub counted: f64,
    learn_steps: usize,
    num_minibatches: usize,
    epochs: usize,
    is_data: bool,
}

impl Plan {
    /// Plans the update of an iteration from the numbers of counted steps of this rank's games. Returns its
    /// minibatches, too.
    pub fn new(
        context: &mut LearnerContext,
        lengths: &[usize],
        learn_steps: usize,
        iteration: u32,
    ) -> Result<(Vec<Minibatch>, Self), TeamError> {
        let minibatches = context.batches.minibatches(iteration, lengths.len());
        let count = |one: &Minibatch| {
            one.games().iter().map(|game| lengths[*game as usize]).sum::<usize>() as f64
        };
        let all = lengths.iter().sum::<usize>() as f64;
        let ours: Vec<f64> = minibatches.iter().map(count).chain([all]).collect();
        let mut counts = context.team.all_reduce_counts(&ours)?;
        let counted = counts.pop().expect("the last is that of all games");
        let update = &context.config.update;
        let plan = Self {
            first_step: first_optimizer_step(&context.config, iteration),
            counts,
            counted,
            learn_steps,
            num_minibatches: update.num_minibatches,
            epochs: update.update_epochs,
            is_data: context.config.data.is_on(),
        };
        Ok((minibatches, plan))
    }

    /// Denominators of the step weights of minibatch `number`.
    pub fn denominators(&self, number: usize, minibatch: &Minibatch) -> StepDenominators {
        StepDenominators {
            sequences: minibatch.size as f32,
            learn_steps: self.learn_steps as f32,
            steps: self.counts[number] as f32,
            rollout_share: self.counted as f32 / self.num_minibatches as f32,
        }
    }

    /// Counted steps of the first `taken` minibatches. Every epoch covers all games of the rollout, whereas datasets
    /// advance by batches.
    pub fn learnt(&self, taken: usize) -> f64 {
        if self.is_data || taken < self.counts.len() {
            self.counts[..taken].iter().sum()
        } else {
            self.counted * self.epochs as f64
        }
    }
}
