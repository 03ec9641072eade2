//! The general learner: any model, by Burn's autodiff, on any device; sequences that can be worked off by
//! hand on the CPU are.

use super::optimizer::clip_grad_norm;
use super::order::{Batches, parts};
use super::schedule::{entropy_coef, learning_rate, total_updates};
use super::weights::Weights;
use crate::config::{Engine, TrainConfig};
use crate::data::Trajectory;
use crate::device;
use crate::model::{
    Categorical, FastForm, Memory, Model, SequenceLearner, Sequences, flatten, unflatten,
};
use crate::objective::{Loss, Steps, Totals, loss};
use burn::tensor::{Device, Int, Tensor, TensorData};

/// A policy in training: its parameters, the optimiser, and a reference policy where one is asked
/// for.
#[derive(Clone, Debug)]
pub struct Learner<M: Model> {
    weights: Weights<M>,
    config: TrainConfig,
    batches: Batches,
    by_hand: Option<SequenceLearner>,
}

/// Sums over an update, still on the device.
#[derive(Clone, Debug)]
pub struct UpdateStats {
    /// Means over all steps of all epochs that count, of [`Loss::SUMS`]; then the means over the
    /// optimiser steps of the loss and of the gradient's norm before clipping: `[6]`.
    pub means: Tensor<1>,
}

#[cfg(feature = "kernels")]
impl UpdateStats {
    /// The number of means.
    pub(super) const LEN: usize = Loss::SUMS.len() + 2;
}

impl<M: Model> Learner<M> {
    /// Trains `policy` where it lies. The reference policy, if `kl_coef` asks for one, is the policy
    /// as it is now.
    pub fn new(policy: M, config: &TrainConfig) -> Self {
        let on_cpu = !device::has_kernels(&flatten(&policy).device());
        let by_hand = match policy.fast_form() {
            Some(FastForm::Decoder(decoder)) if on_cpu && config.engine != Engine::General => {
                Some(SequenceLearner::new(decoder.shape(), config.update.gradient_checkpointing))
            }
            _ => None,
        };
        let (weights, batches) = (Weights::new(policy, config), Batches::new(config));
        Self { weights, config: config.clone(), batches, by_hand }
    }

    /// Learns from trajectories that are the batches of their iteration, one after the other.
    pub fn in_order(mut self) -> Self {
        self.batches = self.batches.in_order();
        self
    }

    /// Whether gradients are computed by hand instead of by autodiff.
    pub fn by_hand(&self) -> bool {
        self.by_hand.is_some()
    }

    /// Parameters, optimiser and reference policy.
    pub fn weights(&self) -> &Weights<M> {
        &self.weights
    }

    /// The same, to be changed.
    pub fn weights_mut(&mut self) -> &mut Weights<M> {
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
        let entropy_coef = entropy_coef(&self.config, iteration);
        let mut experience = Experience {
            obs: trajectory.obs.clone(),
            starts: trajectory.starts(),
            memory: self.first_memory(trajectory),
            actions: trajectory.actions.clone(),
            old_logprobs: trajectory.logprobs.clone(),
            reference_logprobs: None,
            advantages: advantages.clone(),
            mask: mask.clone(),
            legal: trajectory.legal.clone(),
            smoothed: self.config.loss.label_smoothing > 0.0,
        };
        experience.reference_logprobs =
            self.weights.reference.as_ref().map(|policy| experience.steps(policy).logprobs);
        let counted = mask.clone().sum();
        let minibatches = self.batches.of(iteration, num_envs);
        let zeros = |len: usize| Tensor::<1>::zeros([len], &device);
        let (mut sums, mut losses, mut norms) = (zeros(Loss::SUMS.len()), zeros(1), zeros(1));
        let mut learnt = zeros(1);
        for minibatch in &minibatches {
            let steps = if minibatch.len() == num_envs {
                counted.clone()
            } else {
                mask.clone().select(1, indices(minibatch, &device)).sum()
            };
            learnt = learnt + steps.clone();
            let totals = Totals {
                games: minibatch.len(),
                steps,
                rollout_share: counted.clone() / update.num_minibatches as f32,
            };
            let mut gradient = self.weights.params.zeros_like();
            let parts = parts(minibatch, update.gradient_accumulation_steps);
            for part in parts.filter(|part| !part.is_empty()) {
                let some =
                    (part.len() != num_envs).then(|| experience.games(indices(part, &device)));
                let part = some.as_ref().unwrap_or(&experience);
                let loss = |steps| loss(&self.config.loss, entropy_coef, &steps, &totals);
                let (loss, of_part) = match &mut self.by_hand {
                    Some(learner) => part.gradient_by_hand(learner, &self.weights, loss),
                    None => part.gradient(&self.weights, loss),
                };
                gradient = gradient + of_part;
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
        // Games are new in each iteration, and every epoch takes all of them.
        if !self.config.data.is_on() {
            learnt = counted * update.update_epochs as f32;
        }
        let updates = minibatches.len() as f32;
        let means = vec![sums / learnt, losses / updates, norms / updates];
        UpdateStats { means: Tensor::cat(means, 0) }
    }

    /// What the policy remembered before a trajectory's first step.
    fn first_memory(&self, trajectory: &Trajectory) -> Remembered<M::Memory> {
        let [_, num_envs, _] = trajectory.dims();
        let fresh = |games| self.weights.module.initial_memory(games, &trajectory.obs.device());
        match &trajectory.memory {
            Some(rows) => Remembered::Rows(fresh(num_envs).with_rows(rows.clone())),
            None => Remembered::Nothing(fresh(1)),
        }
    }
}

/// What the policy remembered before the first step. Where that is nothing, it is held once and not for each
/// game: a dataset has many, and a cache is large.
enum Remembered<R> {
    /// What it remembers of any game that begins.
    Nothing(R),
    /// What it remembers of each game.
    Rows(R),
}

impl<R: Memory> Remembered<R> {
    /// Of the games at these indices.
    fn games(&self, indices: Tensor<1, Int>) -> Self {
        match self {
            Self::Nothing(fresh) => Self::Nothing(fresh.clone()),
            Self::Rows(rows) => Self::Rows(rows.select(indices)),
        }
    }

    /// Of each of so many games.
    fn rows(&self, games: usize, device: &Device) -> R {
        match self {
            Self::Nothing(fresh) => fresh.select(Tensor::zeros([games], device)),
            Self::Rows(rows) => rows.clone(),
        }
    }
}

/// What an update learns from: the steps of some games, time-major, `[num_steps, games]` but for the
/// observations, `[num_steps, games, num_features]`.
struct Experience<R> {
    obs: Tensor<3>,
    starts: Tensor<2>,
    memory: Remembered<R>,
    actions: Tensor<2, Int>,
    old_logprobs: Tensor<2>,
    reference_logprobs: Option<Tensor<2>>,
    advantages: Tensor<2>,
    mask: Tensor<2>,
    legal: Option<Tensor<3>>,
    /// Whether all actions have a share of what is right.
    smoothed: bool,
}

impl<R: Memory> Experience<R> {
    /// The games at these indices.
    fn games(&self, indices: Tensor<1, Int>) -> Self {
        let pick = |tensor: &Tensor<2>| tensor.clone().select(1, indices.clone());
        Self {
            obs: self.obs.clone().select(1, indices.clone()),
            starts: pick(&self.starts),
            memory: self.memory.games(indices.clone()),
            actions: self.actions.clone().select(1, indices.clone()),
            old_logprobs: pick(&self.old_logprobs),
            reference_logprobs: self.reference_logprobs.as_ref().map(pick),
            advantages: pick(&self.advantages),
            mask: pick(&self.mask),
            legal: self.legal.as_ref().map(|legal| legal.clone().select(1, indices.clone())),
            smoothed: self.smoothed,
        }
    }

    /// The loss, and its gradient with respect to all parameters.
    fn gradient<M: Model<Memory = R>>(
        &self,
        weights: &Weights<M>,
        loss: impl Fn(Steps) -> Loss,
    ) -> (Loss, Tensor<1>) {
        let leaf = weights.params.clone().autodiff().require_grad();
        let loss = loss(self.steps(&unflatten(weights.module.clone(), &leaf)));
        let mut gradients = loss.loss.backward();
        let gradient = leaf.grad_remove(&mut gradients).expect("the loss has parameters");
        (loss, gradient)
    }

    /// The same where autodiff ends at the logits, and what lies before them goes by hand.
    fn gradient_by_hand<M: Model<Memory = R>>(
        &self,
        learner: &mut SequenceLearner,
        weights: &Weights<M>,
        loss: impl Fn(Steps) -> Loss,
    ) -> (Loss, Tensor<1>) {
        let ([num_steps, games, _], device) = (self.obs.dims(), self.obs.device());
        let params = floats(weights.params.clone());
        let memory = self.memory.rows(games, &device).rows();
        let memory = memory.expect("what is worked off by hand has a memory");
        let sequences = Sequences {
            obs: floats(self.obs.clone()),
            starts: floats(self.starts.clone()),
            memory: floats(memory),
        };
        let logits = learner.logits(&params, &sequences);
        let shape = [num_steps, games, logits.len() / (num_steps * games)];
        let leaf = Tensor::<3>::from_data(TensorData::new(logits, shape), &device);
        let leaf = leaf.autodiff().require_grad();
        let loss = loss(self.steps_of(leaf.clone()));
        let mut gradients = loss.loss.backward();
        let of_logits = leaf.grad_remove(&mut gradients).expect("the loss has logits");
        let gradient = learner.gradient(&params, &floats(of_logits));
        let count = gradient.len();
        (loss, Tensor::from_data(TensorData::new(gradient, [count]), &device))
    }

    /// The steps as `policy` sees them.
    fn steps<M: Model<Memory = R>>(&self, policy: &M) -> Steps {
        let [_, games, _] = self.obs.dims();
        let memory = self.memory.rows(games, &self.obs.device());
        let logits = policy.sequence(self.obs.clone(), self.starts.clone(), memory);
        self.steps_of(logits)
    }

    /// The steps, by the logits of a policy, `[num_steps, games, num_actions]`.
    fn steps_of(&self, logits: Tensor<3>) -> Steps {
        let [num_steps, games, num_actions] = logits.dims();
        let actions = self.actions.clone().reshape([num_steps * games]);
        let legal = self.legal.clone();
        let legal = legal.map(|legal| legal.reshape([num_steps * games, num_actions]));
        let logits = logits.reshape([num_steps * games, num_actions]);
        let distribution = Categorical::masked(logits, legal);
        Steps {
            logprobs: distribution.logprob(actions).reshape([num_steps, games]),
            entropy: distribution.entropy().reshape([num_steps, games]),
            old_logprobs: self.old_logprobs.clone(),
            reference_logprobs: self.reference_logprobs.clone(),
            mean_logprobs: self
                .smoothed
                .then(|| distribution.mean_logprob().reshape([num_steps, games])),
            advantages: self.advantages.clone(),
            mask: self.mask.clone(),
        }
    }
}

/// The numbers of a tensor that lies in host memory.
fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("models compute in f32")
}

fn indices(games: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::from(games), device)
}
