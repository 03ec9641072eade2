//! Learners in host memory: built-in networks on CPU threads, without a tensor library.
//!
//! A [`HostLearner`] differentiates minibatches of an [`Experience`]: [`PerceptronLearner`] step by step,
//! [`SequenceLearner`] over whole sequences, for networks with memory. Partial gradients are summed in a fixed tree over
//! shards ([`crate::parallel`]), so the result has the same bits for any number of threads and ranks.

mod experience;
mod loss;
mod perceptron;
mod sequences;
#[cfg(test)]
mod tests;

pub use experience::Experience;
pub use perceptron::PerceptronLearner;
pub use sequences::SequenceLearner;

use super::means::{UpdateMeans, UpdateSums};
use super::optimizer::{Moments, StepSettings, clipped_step};
use super::order::{Batches, Minibatch};
use super::schedule::{entropy_coef, first_update, learning_rate, total_updates};
use crate::model::{Mlp, NativeMlp, NativePolicy, Network};
use crate::objective::weights::Sizes;
use crate::parallel::{Node, Shards, Team, TeamError};
use crate::settings::TrainConfig;
use loss::Rule;
use std::fmt::Debug;

/// A policy for rollouts on the CPU. Perceptrons, whose steps take nanoseconds, have their own type.
#[derive(Debug)]
pub enum HostPolicy {
    /// A multi-layer perceptron.
    Perceptron(NativeMlp),
    /// Any other network.
    Other(NativePolicy),
}

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
    /// The whole of a run.
    fn whole(config: &TrainConfig) -> Self {
        Self { config: config.clone(), batches: Batches::new(config), team: Team::alone() }
    }

    /// Performs optimizer step `update` of the run by `step`, which is given the factor that clips the gradient. Returns the
    /// norm before clipping.
    fn optimizer_step(
        &self,
        gradient: &[f32],
        update: u64,
        step: impl FnOnce(f32, &StepSettings),
    ) -> f32 {
        let Self { config, .. } = self;
        let learning_rate = learning_rate(&config.optimizer, update, total_updates(config));
        let by = StepSettings { learning_rate, config: &config.optimizer, spared: &[] };
        clipped_step(gradient, config.update.max_grad_norm, |scale| step(scale, &by))
    }
}

/// A policy in training whose gradients are computed in host memory.
pub trait HostLearner: Debug + Send {
    /// Settings, and this rank's share of the run.
    fn share(&self) -> &Share;

    /// Mutable access to the settings and this rank's share of the run.
    fn share_mut(&mut self) -> &mut Share;

    /// Minimum number of steps of a minibatch per shard; smaller shards are not worth a separate gradient.
    fn shard_steps(&self) -> usize;

    /// The current policy for rollouts on the CPU.
    fn policy(&self) -> HostPolicy;

    /// All parameters, `[num_params]`, in the order of [`flatten`](crate::model::flatten).
    fn params(&self) -> Vec<f32>;

    /// Optimizer state in the order of the parameters.
    fn moments(&self) -> Moments;

    /// Parameters of the reference policy, `[num_params]`, if there is one.
    fn reference_params(&self) -> Option<Vec<f32>>;

    /// Restores saved parameters, optimizer state and reference parameters, `[num_params]` each.
    ///
    /// # Panics
    /// If a length is wrong.
    fn restore(&mut self, params: &[f32], moments: &Moments, reference: Option<&[f32]>);

    /// Log-probabilities of all actions under the reference policy, `[num_envs * num_steps]`; empty without one.
    fn reference_logprobs(&mut self, experience: &Experience) -> Vec<f32>;

    /// Gradient of a minibatch over all ranks, and its sums in the order of [`Sums`](loss::Sums).
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    #[doc(hidden)]
    fn gradient(
        &mut self,
        experience: &Experience,
        minibatch: &Minibatch,
        rule: &Rule,
        sizes: Sizes,
    ) -> Result<Node, TeamError>;

    /// Performs optimizer step `update` of the run and returns the norm of the gradient before clipping.
    #[doc(hidden)]
    fn step(&mut self, gradient: &[f32], update: u64) -> f32;

    /// Takes back the memory of a gradient.
    #[doc(hidden)]
    fn give_back(&self, gradient: Vec<f32>);

    /// Performs one update: `update_epochs` passes over the games of `iteration`, in `num_minibatches` optimizer steps
    /// each, or fewer if `update.target_kl` ends it early.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    fn update(
        &mut self,
        experience: &Experience,
        iteration: u32,
    ) -> Result<UpdateMeans, TeamError> {
        let reference_logprobs = self.reference_logprobs(experience);
        let experience = &Experience { reference_logprobs: &reference_logprobs, ..*experience };
        let share = self.share_mut();
        let minibatches = share.batches.of(iteration, experience.counts.len());
        let config = &share.config;
        let rule = Rule::new(&config.loss, entropy_coef(config, iteration));
        let first = first_update(config, iteration);
        let (is_data, epochs) = (config.data.is_on(), config.update.update_epochs);
        let num_minibatches = config.update.num_minibatches as f32;
        let of_games =
            |games: &[i32]| games.iter().map(|game| experience.counts[*game as usize]).sum();
        let ours = minibatches.iter().map(|minibatch| of_games(minibatch.games()));
        let ours = ours.chain([experience.counts.iter().sum()]);
        let counts =
            share.team.total(&ours.map(|count: usize| count as f64).collect::<Vec<_>>())?;
        let (counts, counted) = (&counts[..minibatches.len()], counts[minibatches.len()]);
        let mut sums = UpdateSums::default();
        let mut taken = 0;
        for (minibatch, steps) in minibatches.iter().zip(counts) {
            let sizes = Sizes {
                games: minibatch.size as f32,
                learn_steps: experience.learn_steps as f32,
                steps: *steps as f32,
                rollout_share: counted as f32 / num_minibatches,
            };
            let gradient = self.gradient(experience, minibatch, &rule, sizes)?;
            if self.share().config.update.ends_at(gradient.numbers[0] / steps.max(1.0)) {
                self.give_back(gradient.vector);
                break;
            }
            sums.add(&gradient.numbers, self.step(&gradient.vector, first + taken as u64));
            self.give_back(gradient.vector);
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
}

/// The learner of a built-in network on the CPU; `None` for user-defined networks. If `kl_coef` is not 0, the initial
/// policy becomes the reference policy.
pub fn host_learner(network: &Network, config: &TrainConfig) -> Option<Box<dyn HostLearner>> {
    if let Some(mlp) = network.get::<Mlp>() {
        return Some(Box::new(PerceptronLearner::new(mlp, config)));
    }
    Some(Box::new(SequenceLearner::new(network, config)?))
}

/// Assigns a learner the shards of games, or of windows of a dataset, that this rank of `team` learns from.
///
/// # Panics
/// If other ranks compute on devices: these sum their shards in another order than a learner in host memory.
pub fn assign(learner: &mut dyn HostLearner, shards: Shards, team: Team) {
    assert!(!team.is_mixed(), "ranks on the CPU and on devices sum gradients in different orders");
    let share = learner.share_mut();
    share.batches = Batches::of_shards(&share.config, shards);
    share.team = team;
}
