//! The general learner: any Burn module, by Burn's autodiff, on any device.

use super::loss::{Loss, Steps, Totals, loss};
use super::native::UpdateMeans;
use super::optimizer::clip_grad_norm;
use super::schedule::{learning_rate, linear};
use super::weights::Weights;
use crate::config::TrainConfig;
use crate::draws::{Stream, draw};
use crate::policy::{Categorical, Policy, unflatten};
use crate::trajectory::Trajectory;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// A policy in training: its parameters, the optimiser, and a reference policy where one is asked
/// for.
#[derive(Clone, Debug)]
pub struct Learner<P: Policy> {
    weights: Weights<P>,
    config: TrainConfig,
    shuffle_key: u32,
}

/// Sums over an update, still on the device.
#[derive(Clone, Debug)]
pub struct UpdateStats {
    /// Means over all steps of all epochs that count, of [`Loss::SUMS`]; then the means over the
    /// optimiser steps of the loss and of the gradient's norm before clipping: `[6]`.
    pub means: Tensor<1>,
}

impl UpdateStats {
    /// The number of means.
    #[cfg(feature = "kernels")]
    pub(super) const LEN: usize = Loss::SUMS.len() + 2;

    /// Of means in host memory.
    pub fn new(means: UpdateMeans, device: &Device) -> Self {
        let UpdateMeans { approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm } =
            means;
        let means = [approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm];
        Self { means: Tensor::from_floats(means.map(|mean| mean as f32), device) }
    }
}

impl<P: Policy> Learner<P> {
    /// Trains `policy` where it lies. The reference policy, if `kl_coef` asks for one, is the policy
    /// as it is now.
    pub fn new(policy: P, config: &TrainConfig) -> Self {
        let weights = Weights::new(policy, config);
        Self { weights, config: config.clone(), shuffle_key: Stream::Shuffle.key(config.seed) }
    }

    /// Parameters, optimiser and reference policy.
    pub fn weights(&self) -> &Weights<P> {
        &self.weights
    }

    /// The same, to be changed.
    pub fn weights_mut(&mut self) -> &mut Weights<P> {
        &mut self.weights
    }

    /// `update_epochs` passes over the trajectory of `iteration` in `num_minibatches` steps each.
    ///
    /// `advantages` and `mask` are `[num_steps, num_envs]`, as the trajectory's own steps.
    pub fn update(
        &mut self,
        trajectory: &Trajectory,
        advantages: &Tensor<2>,
        mask: &Tensor<2>,
        iteration: u32,
    ) -> UpdateStats {
        let [_, num_envs, _] = trajectory.dims();
        let update = self.config.update.clone();
        let device = trajectory.obs.device();
        let entropy_coef = linear(
            self.config.loss.entropy_coef,
            self.config.loss.entropy_coef_final,
            iteration,
            self.config.iterations,
        );
        let reference_logprobs =
            self.weights.reference.as_ref().map(|reference| logprobs(reference, trajectory));
        let counted = mask.clone().sum();
        let games = num_envs / update.num_minibatches;
        let mut sums = Tensor::<1>::zeros([Loss::SUMS.len()], &device);
        let mut losses = Tensor::<1>::zeros([1], &device);
        let mut norms = Tensor::<1>::zeros([1], &device);
        for epoch in 0..update.update_epochs {
            let order = shuffled(num_envs, draw(draw(self.shuffle_key, iteration), epoch as u32));
            for minibatch in order.chunks_exact(games) {
                let whole = update.num_minibatches == 1;
                let steps = if whole { counted.clone() } else { select(mask, minibatch).sum() };
                let totals = Totals {
                    games,
                    steps,
                    rollout_share: counted.clone() / update.num_minibatches as f32,
                };
                let mut gradient = self.weights.params.zeros_like();
                for part in parts(minibatch, update.gradient_accumulation_steps) {
                    let leaf = self.weights.params.clone().autodiff().require_grad();
                    let policy = unflatten(self.weights.module.clone(), &leaf);
                    let steps = if part.len() == num_envs {
                        steps_of(&policy, trajectory, advantages, mask, &reference_logprobs)
                    } else {
                        let picked = pick(trajectory, part);
                        let reference = reference_logprobs.as_ref().map(|r| select(r, part));
                        let (advantages, mask) = (select(advantages, part), select(mask, part));
                        steps_of(&policy, &picked, &advantages, &mask, &reference)
                    };
                    let loss = loss(&self.config.loss, entropy_coef, &steps, &totals);
                    let mut gradients = loss.loss.backward();
                    let part = leaf.grad_remove(&mut gradients).expect("the loss has parameters");
                    gradient = gradient + part;
                    sums = sums + loss.sums.without_autodiff();
                    losses = losses + loss.loss.without_autodiff();
                }
                let (gradient, norm) = clip_grad_norm(gradient, update.max_grad_norm);
                norms = norms + norm;
                let rate = learning_rate(
                    &self.config.optimizer,
                    self.weights.optimizer.steps,
                    total_updates(&self.config),
                );
                self.weights.params = self.weights.optimizer.step(
                    self.weights.params.clone(),
                    gradient,
                    rate,
                    &self.config.optimizer,
                );
            }
        }
        let updates = (update.update_epochs * update.num_minibatches) as f32;
        let steps = counted * update.update_epochs as f32;
        let means = vec![sums / steps, losses / updates, norms / updates];
        UpdateStats { means: Tensor::cat(means, 0) }
    }
}

/// Optimiser steps of a whole run.
pub(crate) fn total_updates(config: &TrainConfig) -> u64 {
    let update = &config.update;
    u64::from(config.iterations) * (update.update_epochs * update.num_minibatches) as u64
}

/// Evaluates the policy on the steps of some games.
fn steps_of<P: Policy>(
    policy: &P,
    trajectory: &Trajectory,
    advantages: &Tensor<2>,
    mask: &Tensor<2>,
    reference_logprobs: &Option<Tensor<2>>,
) -> Steps {
    let [num_steps, games, _] = trajectory.dims();
    let distribution = distribution(policy, trajectory);
    let actions = trajectory.actions.clone().reshape([num_steps * games]);
    Steps {
        logprobs: distribution.logprob(actions).reshape([num_steps, games]),
        entropy: distribution.entropy().reshape([num_steps, games]),
        old_logprobs: trajectory.logprobs.clone(),
        reference_logprobs: reference_logprobs.clone(),
        advantages: advantages.clone(),
        mask: mask.clone(),
    }
}

fn distribution<P: Policy>(policy: &P, trajectory: &Trajectory) -> Categorical {
    let [num_steps, games, num_features] = trajectory.dims();
    let obs = trajectory.obs.clone().reshape([num_steps * games, num_features]);
    Categorical::new(policy.logits(obs))
}

/// Log-probabilities `[num_steps, num_envs]` of a trajectory's actions.
fn logprobs<P: Policy>(policy: &P, trajectory: &Trajectory) -> Tensor<2> {
    let [num_steps, games, _] = trajectory.dims();
    let actions = trajectory.actions.clone().reshape([num_steps * games]);
    distribution(policy, trajectory).logprob(actions).reshape([num_steps, games])
}

/// The games of a trajectory at these indices.
fn pick(trajectory: &Trajectory, games: &[i32]) -> Trajectory {
    let indices = indices(games, &trajectory.obs.device());
    let rows = |tensor: &Tensor<2>| tensor.clone().select(1, indices.clone());
    Trajectory {
        obs: trajectory.obs.clone().select(1, indices.clone()),
        actions: trajectory.actions.clone().select(1, indices.clone()),
        logprobs: rows(&trajectory.logprobs),
        rewards: rows(&trajectory.rewards),
        ends: rows(&trajectory.ends),
        scores: rows(&trajectory.scores),
    }
}

fn select(tensor: &Tensor<2>, games: &[i32]) -> Tensor<2> {
    tensor.clone().select(1, indices(games, &tensor.device()))
}

fn indices(games: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::from(games), device)
}

/// `0..count` in the order that `key` draws (Fisher-Yates).
pub(super) fn shuffled(count: usize, key: u32) -> Vec<i32> {
    let mut order: Vec<i32> = (0..count as i32).collect();
    for i in (1..count).rev() {
        order.swap(i, draw(key, i as u32) as usize % (i + 1));
    }
    order
}

/// `games` in `count` parts that differ in length by one at most.
fn parts(games: &[i32], count: usize) -> impl Iterator<Item = &[i32]> {
    (0..count).map(move |i| &games[i * games.len() / count..(i + 1) * games.len() / count])
}
