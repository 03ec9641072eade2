//! The update in host memory: epochs of minibatches, an optimizer step each.

use super::loss::Rule;
use super::means::{UpdateMeans, UpdateSums};
use super::order::Minibatch;
use super::schedule::{entropy_coef, first_update};
use crate::objective::weights::Sizes;
use crate::parallel::{Node, Team, TeamError};
use crate::settings::TrainConfig;

/// Parameters in training whose gradients are computed in host memory.
pub(super) trait HostGradients {
    /// The settings of the run.
    fn config(&self) -> &TrainConfig;

    /// The ranks that share the run.
    fn team(&self) -> &Team;

    /// Gradient of a minibatch over all ranks, and its sums in the order of [`Sums::lanes`](super::loss::Sums::lanes).
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    fn gradient(
        &mut self,
        minibatch: &Minibatch,
        rule: &Rule,
        sizes: Sizes,
    ) -> Result<Node, TeamError>;

    /// Performs optimizer step `update` of the run and returns the norm of the gradient before clipping.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    fn step(&mut self, gradient: &[f32], update: u64) -> Result<f32, TeamError>;

    /// Takes back the memory of a gradient.
    fn give_back(&mut self, gradient: Vec<f32>);
}

/// Steps of this rank's games.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths<'a> {
    /// Number of counted steps of each game.
    pub counts: &'a [usize],
    /// Maximum number of steps to learn from per game.
    pub learn_steps: usize,
}

/// Takes an optimizer step for each of the `minibatches` of `iteration`, or fewer if `update.target_kl` ends it early.
///
/// # Errors
/// If another rank has failed or does not respond.
pub(super) fn update(
    learner: &mut impl HostGradients,
    minibatches: &[Minibatch],
    lengths: Lengths,
    iteration: u32,
) -> Result<UpdateMeans, TeamError> {
    let config = learner.config();
    let rule = Rule::new(&config.loss, entropy_coef(config, iteration));
    let first = first_update(config, iteration);
    let (is_data, epochs) = (config.data.is_on(), config.update.update_epochs);
    let num_minibatches = config.update.num_minibatches as f32;
    let of_games = |games: &[i32]| games.iter().map(|game| lengths.counts[*game as usize]).sum();
    let ours = minibatches.iter().map(|minibatch| of_games(minibatch.games()));
    let ours = ours.chain([lengths.counts.iter().sum()]);
    let counts =
        learner.team().total(&ours.map(|count: usize| count as f64).collect::<Vec<_>>())?;
    let (counts, counted) = (&counts[..minibatches.len()], counts[minibatches.len()]);
    let mut sums = UpdateSums::default();
    let mut taken = 0;
    for (minibatch, steps) in minibatches.iter().zip(counts) {
        let sizes = Sizes {
            games: minibatch.size as f32,
            learn_steps: lengths.learn_steps as f32,
            steps: *steps as f32,
            rollout_share: counted as f32 / num_minibatches,
        };
        let gradient = learner.gradient(minibatch, &rule, sizes)?;
        if learner.config().update.ends_at(gradient.numbers[0] / steps.max(1.0)) {
            learner.give_back(gradient.vector);
            break;
        }
        sums.add(&gradient.numbers, learner.step(&gradient.vector, first + taken as u64)?);
        learner.give_back(gradient.vector);
        taken += 1;
    }
    // Every epoch covers all games of the rollout, whereas datasets advance by batches.
    let is_cut = taken < minibatches.len();
    let steps = match is_data || is_cut {
        true => counts[..taken].iter().sum(),
        false => counted * epochs as f64,
    };
    Ok(sums.means(steps))
}
