//! Learners in host memory: built-in networks on CPU threads, without a tensor library.
//!
//! A [`NativeLearner`] differentiates minibatches of a [`NativeExperience`]: [`PerceptronLearner`] step by step,
//! [`SequenceLearner`] over whole sequences, for networks with memory and for products in bf16. Partial gradients are
//! summed in a fixed tree over shards ([`crate::parallel`]), so the result has the same bits for any number of threads
//! and ranks.

mod experience;
mod loss;
mod perceptron;
mod sequences;
#[cfg(test)]
mod tests;

pub use experience::NativeExperience;
pub use perceptron::PerceptronLearner;
pub use sequences::SequenceLearner;

use super::context::LearnerContext;
use super::counted_steps::CountedSteps;
use super::means::{APPROX_KL, UpdateMeans, UpdateSums};
use super::optimizer::{Moments, StepSettings, clip_and_step};
use super::order::Minibatch;
use super::schedule::entropy_coef;
use super::update::{UpdateSteps, take_steps};
use crate::model::{Mlp, NativeMlp, NativePolicy, Network};
use crate::objective::weights::StepDenominators;
use crate::parallel::{PartialSum, TeamError};
use crate::settings::{Precision, TrainConfig};
use loss::StepLoss;
use std::fmt::Debug;

/// A policy for rollouts on the CPU. Perceptrons in f32, whose steps take nanoseconds, have their own type.
#[derive(Debug)]
pub enum RolloutPolicy {
    /// A multi-layer perceptron in f32.
    Perceptron(NativeMlp),
    /// Any other policy.
    Other(NativePolicy),
}

/// A policy in training whose gradients are computed in host memory.
pub trait NativeLearner: Debug + Send {
    /// Mutable access to the settings and the part of the run that this rank learns from.
    fn context_mut(&mut self) -> &mut LearnerContext;

    /// Minimum number of steps of a minibatch per shard; smaller shards are not worth a separate gradient.
    fn min_shard_steps(&self) -> usize;

    /// The current policy for rollouts on the CPU.
    fn policy(&self) -> RolloutPolicy;

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

    /// Log-probabilities of all actions under the reference policy, `[num_envs * num_steps]`; empty without one. The
    /// `minibatches` are those of the update.
    #[doc(hidden)]
    fn compute_reference_logprobs(
        &mut self,
        experience: &NativeExperience,
        minibatches: &[Minibatch],
    ) -> Vec<f32>;

    /// Gradient of a minibatch over all ranks, and its sums in the order of [`LaneSums`](loss::LaneSums).
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    #[doc(hidden)]
    fn compute_gradient(
        &mut self,
        experience: &NativeExperience,
        minibatch: &Minibatch,
        loss: &StepLoss,
        denominators: StepDenominators,
    ) -> Result<PartialSum, TeamError>;

    /// Performs optimizer step `step_index` of the run and returns the norm of the gradient before clipping.
    #[doc(hidden)]
    fn step(&mut self, gradient: &[f32], step_index: u64) -> f32;

    /// Returns the memory of a gradient for reuse.
    #[doc(hidden)]
    fn give_back(&self, gradient: Vec<f32>);

    /// Performs one update: `update_epochs` passes over the games of `iteration`, in `num_minibatches` optimizer steps
    /// each, or fewer if `update.target_kl` ends it early. The experience is that of this rank's shards.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    ///
    /// # Panics
    /// If other ranks compute on devices, which sum their shards in a different order.
    fn update(
        &mut self,
        experience: &NativeExperience,
        iteration: u32,
    ) -> Result<UpdateMeans, TeamError> {
        let context = self.context_mut();
        assert!(
            !context.team.is_mixed(),
            "ranks on the CPU and on devices sum in different orders"
        );
        let NativeExperience { counts, learn_steps, .. } = *experience;
        let minibatches = context.batches.minibatches(iteration, counts.len());
        let counted = CountedSteps::count(context, &minibatches, counts, learn_steps, iteration)?;
        let config = context.config.clone();
        let loss = StepLoss::new(&config.loss, entropy_coef(&config, iteration));
        let reference_logprobs = self.compute_reference_logprobs(experience, &minibatches);
        let experience =
            &NativeExperience { reference_logprobs: &reference_logprobs, ..*experience };
        let sums = UpdateSums::default();
        let mut update = NativeUpdate { learner: self, experience, loss, counted, sums };
        let taken = take_steps(&mut update, &minibatches, &config.update)?;
        let mut means = update.sums.means(update.counted.num_learnt(taken.count, &config));
        taken.write_ending_kl(&mut means.approx_kl);
        Ok(means)
    }
}

/// An update of a learner in host memory.
struct NativeUpdate<'a, L: ?Sized> {
    learner: &'a mut L,
    experience: &'a NativeExperience<'a>,
    loss: StepLoss,
    counted: CountedSteps,
    sums: UpdateSums,
}

impl<L: NativeLearner + ?Sized> UpdateSteps for NativeUpdate<'_, L> {
    type Minibatch = Minibatch;
    type Gradient = PartialSum;

    fn compute_gradient(
        &mut self,
        index: usize,
        minibatch: &Minibatch,
    ) -> Result<Option<PartialSum>, TeamError> {
        let denominators = self.counted.denominators(index, minibatch);
        self.learner
            .compute_gradient(self.experience, minibatch, &self.loss, denominators)
            .map(Some)
    }

    fn approx_kl(&self, index: usize, gradient: &PartialSum) -> f64 {
        gradient.numbers[APPROX_KL] / self.counted.per_minibatch[index].max(1.0)
    }

    fn step(&mut self, index: usize, gradient: PartialSum) -> Result<(), TeamError> {
        let norm =
            self.learner.step(&gradient.vector, self.counted.first_optimizer_step + index as u64);
        self.sums.add(&gradient.numbers, norm);
        self.learner.give_back(gradient.vector);
        Ok(())
    }
}

/// Performs optimizer step `step_index` of the run by `step`, which is given the factor that clips the gradient.
/// Returns the norm before clipping.
fn take_optimizer_step(
    context: &LearnerContext,
    gradient: &[f32],
    step_index: u64,
    step: impl FnOnce(f32, &StepSettings),
) -> f32 {
    let LearnerContext { config, .. } = context;
    let learning_rate = context.learning_rate(step_index);
    let settings =
        StepSettings { learning_rate, config: &config.optimizer, undecayed: &[], key: 0 };
    clip_and_step(gradient, config.update.max_grad_norm, |scale| step(scale, &settings))
}

/// Creates the learner of a built-in network on the CPU; `None` for user-defined networks, and, in a build without the
/// feature `general`, such as the page, which is smaller without it, for networks with memory and products in bf16. If
/// `kl_coef` is not 0, the initial policy becomes the reference policy.
pub fn native_learner(network: &Network, config: &TrainConfig) -> Option<Box<dyn NativeLearner>> {
    if let Some(mlp) = network.get::<Mlp>().filter(|_| config.precision != Precision::Bf16) {
        return Some(Box::new(PerceptronLearner::new(mlp, config)));
    }
    #[cfg(feature = "general")]
    if let Some(learner) = SequenceLearner::new(network, config) {
        return Some(Box::new(learner));
    }
    None
}
