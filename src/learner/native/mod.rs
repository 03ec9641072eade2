//! The CPU's learner: what [`Learner`](super::Learner) does for an [`Mlp`], without autodiff.
//!
//! A minibatch's games are worked off in chunks, each forward, loss and backward for a block of
//! samples at a time ([`network`], [`loss`]), with a partial gradient of its own ([`chunk`]). The
//! partial gradients are summed in a fixed order, and which games make up a chunk does not depend on
//! the threads, so that any number of threads gives the same bytes.
//!
//! Gradient accumulation saves memory in the general learner and changes nothing but rounding there;
//! here no memory depends on the size of a minibatch, and the setting has no effect.

mod chunk;
mod experience;
mod loss;
mod network;
mod product;
#[cfg(target_family = "wasm")]
mod quads;
mod sparse;
#[cfg(test)]
mod tests;
#[cfg(not(target_family = "wasm"))]
mod tiles;

use super::optimizer::{Moments, clip_scale};
use super::order::Batches;
use super::schedule::{entropy_coef, learning_rate, total_updates};
use crate::config::TrainConfig;
use crate::data::{HostTrajectory, Trajectory, by_game};
use crate::model::{Mlp, NativeMlp, flatten, unflatten};
use crate::objective::weights::Sizes;
use burn::tensor::{Tensor, TensorData};
use chunk::{Minibatch, Workspace};
use experience::{Experience, squeeze};
use loss::{Rule, Sums};
use network::{Layout, Network};
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Steps that a chunk has at least, where games are shorter.
const CHUNK_STEPS: usize = 256;

/// Chunks of a minibatch at most: they hold a partial gradient each.
const MAX_CHUNKS: usize = 64;

/// Numbers in all partial gradients together at most, where one has not more already (512 MiB).
const MAX_PARTIALS: usize = 1 << 27;

/// Parameters that are summed up by one thread at a time.
const SUM_CHUNK: usize = 1 << 9;

/// What an update was like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateMeans {
    /// The estimate of KL(old || new), over all steps of all epochs that count.
    pub approx_kl: f64,
    /// The share of those steps at which a bound of the ratio acts.
    pub clip_fraction: f64,
    /// The entropy, over the same steps.
    pub entropy: f64,
    /// The estimate of KL(policy || reference), over the same steps.
    pub reference_kl: f64,
    /// The loss, over the optimiser steps.
    pub loss: f64,
    /// The norm of the gradient before clipping, over the optimiser steps.
    pub grad_norm: f64,
}

/// A multi-layer perceptron in training on the CPU.
#[derive(Debug)]
pub struct NativeLearner {
    module: Mlp,
    network: Network,
    reference: Option<Network>,
    /// Padded, as the parameters.
    moments: Moments,
    config: TrainConfig,
    batches: Batches,
    /// One for each thread.
    workspaces: Vec<Mutex<Workspace>>,
    partials: Vec<Partial>,
}

/// What a chunk of games adds to a minibatch's gradient and statistics.
#[derive(Clone, Debug)]
struct Partial {
    /// Padded.
    gradient: Vec<f32>,
    sums: Sums,
}

impl NativeLearner {
    /// Trains a copy of `policy`. The reference policy, if `kl_coef` asks for one, is the policy as it
    /// is now.
    pub fn new(policy: &Mlp, config: &TrainConfig) -> Self {
        let shapes = policy.layers().iter().map(|layer| layer.weight.dims());
        let features = policy.layers()[0].weight.dims()[0];
        let widths: Vec<usize> =
            std::iter::once(features).chain(shapes.map(|[_, outputs]| outputs)).collect();
        let layout = Layout::new(&widths, policy.activation());
        let flat = floats(flatten(policy).without_autodiff().into_data());
        let network = Network::new(&layout, layout.pad(&flat));
        Self {
            module: policy.clone(),
            reference: (config.loss.kl_coef > 0.0).then(|| network.clone()),
            moments: Moments::new(layout.len()),
            network,
            config: config.clone(),
            batches: Batches::new(config),
            workspaces: Vec::new(),
            partials: Vec::new(),
        }
    }

    /// Learns from trajectories that are the batches of their iteration, one after the other.
    pub fn in_order(mut self) -> Self {
        self.batches = self.batches.in_order();
        self
    }

    /// The policy as it is now, on the device of the one it started from.
    pub fn policy(&self) -> Mlp {
        let params = self.params();
        let device = self.module.layers()[0].weight.val().device();
        let count = params.len();
        let params = Tensor::from_data(TensorData::new(params, [count]), &device);
        unflatten(self.module.clone(), &params)
    }

    /// The policy as it is now, for rollouts on the CPU.
    pub fn native_policy(&self) -> NativeMlp {
        let layout = self.network.layout();
        NativeMlp::from_params(&layout.widths(), layout.activation(), &self.params())
    }

    /// All parameters, `[num_params]`, in the order of [`flatten`].
    pub fn params(&self) -> Vec<f32> {
        self.network.layout().unpad(self.network.params())
    }

    /// The parameters of the policy that the KL term refers to, if there is one: `[num_params]`.
    pub fn reference_params(&self) -> Option<Vec<f32>> {
        let layout = self.network.layout();
        self.reference.as_ref().map(|reference| layout.unpad(reference.params()))
    }

    /// The optimiser's state, in the order of the parameters.
    pub fn optimizer(&self) -> Moments {
        let layout = self.network.layout();
        Moments {
            first_moment: layout.unpad(&self.moments.first_moment),
            second_moment: layout.unpad(&self.moments.second_moment),
            steps: self.moments.steps,
        }
    }

    /// Optimiser steps taken.
    pub fn steps(&self) -> u64 {
        self.moments.steps
    }

    /// Goes on from saved parameters, optimiser state and reference parameters, `[num_params]` each.
    ///
    /// # Panics
    /// If a length is another.
    pub fn restore(&mut self, params: &[f32], optimizer: &Moments, reference: Option<&[f32]>) {
        let layout = self.network.layout().clone();
        self.network = Network::new(&layout, layout.pad(params));
        self.moments = Moments {
            first_moment: layout.pad(&optimizer.first_moment),
            second_moment: layout.pad(&optimizer.second_moment),
            steps: optimizer.steps,
        };
        if let (Some(network), Some(params)) = (&mut self.reference, reference) {
            *network = Network::new(&layout, layout.pad(params));
        }
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
    ) -> UpdateMeans {
        let mut host = HostTrajectory::from_tensors(trajectory);
        let mut advantages = by_game(advantages);
        let counts = squeeze(&mut host, &mut advantages, &by_game(mask));
        self.update_from_host(&host, &advantages, &counts, host.num_steps, iteration)
    }

    /// [`NativeLearner::update`] without tensors, from the first `counts[i]` steps of each game `i`,
    /// `learn_steps` at most; `advantages` are `[num_envs, num_steps]`.
    ///
    /// # Panics
    /// If lengths do not belong together.
    pub fn update_from_host(
        &mut self,
        trajectory: &HostTrajectory,
        advantages: &[f32],
        counts: &[usize],
        learn_steps: usize,
        iteration: u32,
    ) -> UpdateMeans {
        let features = self.network.layout().features();
        assert_eq!(trajectory.num_features, features, "features of the policy");
        let experience = Experience::new(trajectory, advantages, counts, learn_steps);
        self.learn(&experience, iteration)
    }

    fn learn(&mut self, experience: &Experience, iteration: u32) -> UpdateMeans {
        let rule = Rule::new(&self.config.loss, entropy_coef(&self.config, iteration));
        self.make_room();
        let reference_logprobs = self.evaluate_reference(experience);
        let experience = Experience { reference_logprobs: &reference_logprobs, ..*experience };
        let num_envs = experience.counts.len();
        let minibatches = self.batches.of(iteration, num_envs);
        let (mut sums, mut norms, mut steps) = ([0.0f64; 5], 0.0f64, 0.0f64);
        for minibatch in &minibatches {
            let added = self.gradient(&experience, minibatch, &rule);
            sums.iter_mut().zip(added).for_each(|(sum, x)| *sum += x);
            norms += f64::from(self.step());
            steps += experience.steps(minibatch) as f64;
        }
        // Games are new in each iteration, and every epoch takes all of them.
        if !self.config.data.is_on() {
            let counted: usize = experience.counts.iter().sum();
            steps = (counted * self.config.update.update_epochs) as f64;
        }
        let updates = minibatches.len() as f64;
        let [approx_kl, clip_fraction, entropy, reference_kl, loss] = sums;
        UpdateMeans {
            approx_kl: approx_kl / steps,
            clip_fraction: clip_fraction / steps,
            entropy: entropy / steps,
            reference_kl: reference_kl / steps,
            loss: loss / updates,
            grad_norm: norms / updates,
        }
    }

    /// A workspace for each thread of the pool that this runs in.
    fn make_room(&mut self) {
        let layout = self.network.layout();
        let threads = rayon::current_num_threads().max(self.workspaces.len());
        self.workspaces.resize_with(threads, || Mutex::new(Workspace::new(layout)));
    }

    /// The log-probabilities under the reference policy, if there is one: `[num_envs * num_steps]`.
    fn evaluate_reference(&self, experience: &Experience) -> Vec<f32> {
        let Some(reference) = &self.reference else {
            return Vec::new();
        };
        let (slots, num_envs) = (experience.slots, experience.counts.len());
        let mut logprobs = vec![0.0; num_envs * slots];
        let games: Vec<i32> = (0..num_envs as i32).collect();
        let chunk = self.games_of_a_chunk(experience, num_envs);
        games.par_chunks(chunk).zip(logprobs.par_chunks_mut(chunk * slots)).for_each(
            |(games, out)| {
                self.with_workspace(|workspace| {
                    workspace.logprobs(reference, experience, games, out);
                });
            },
        );
        logprobs
    }

    /// Leaves the gradient of a minibatch in the first partial, and gives its sums: those of
    /// [`Sums::lanes`].
    fn gradient(&mut self, experience: &Experience, games: &[i32], rule: &Rule) -> [f64; 5] {
        let minibatch = Minibatch {
            network: &self.network,
            experience,
            rule,
            sizes: self.sizes(experience, games),
        };
        let chunk = self.games_of_a_chunk(experience, games.len());
        let mut partials = std::mem::take(&mut self.partials);
        let len = self.network.layout().len();
        partials.resize_with(games.len().div_ceil(chunk), || Partial {
            gradient: vec![0.0; len],
            sums: Sums::default(),
        });
        games.par_chunks(chunk).zip(&mut partials).for_each(|(games, partial)| {
            let Partial { gradient, sums } = partial;
            gradient.fill(0.0);
            *sums = Sums::default();
            self.with_workspace(|workspace| {
                workspace.gradient(&minibatch, games, gradient, sums);
            });
        });
        let mut sums = [0.0f64; 5];
        for partial in &partials {
            for (sum, lanes) in sums.iter_mut().zip(&partial.sums.lanes) {
                *sum += lanes.iter().copied().map(f64::from).sum::<f64>();
            }
        }
        if let Some((total, others)) = partials.split_first_mut() {
            let chunks = total.gradient.par_chunks_mut(SUM_CHUNK).enumerate();
            chunks.for_each(|(i, total)| {
                for other in &*others {
                    let other = &other.gradient[i * SUM_CHUNK..][..total.len()];
                    total.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
                }
            });
        }
        self.partials = partials;
        sums
    }

    /// One step of the optimiser along the gradient in the first partial; gives its norm.
    fn step(&mut self) -> f32 {
        let config = &self.config;
        let gradient = &self.partials[0].gradient;
        let norm = super::optimizer::norm(gradient);
        let scale = clip_scale(norm, config.update.max_grad_norm);
        let rate = learning_rate(&config.optimizer, self.moments.steps, total_updates(config));
        self.network.change(|params| {
            self.moments.step(params, gradient, scale, rate, &config.optimizer);
        });
        norm
    }

    /// What the weights of a minibatch's steps refer to.
    fn sizes(&self, experience: &Experience, games: &[i32]) -> Sizes {
        let Experience { learn_steps, counts, .. } = experience;
        let steps = experience.steps(games);
        let counted: usize = counts.iter().sum();
        Sizes {
            games: games.len() as f32,
            learn_steps: *learn_steps as f32,
            steps: steps as f32,
            rollout_share: counted as f32 / self.config.update.num_minibatches as f32,
        }
    }

    /// How many of some games make up a chunk: enough to be worth a partial gradient, whatever the
    /// threads.
    fn games_of_a_chunk(&self, experience: &Experience, games: usize) -> usize {
        let most = (MAX_PARTIALS / self.network.layout().len()).clamp(1, MAX_CHUNKS);
        let least = CHUNK_STEPS.div_ceil(experience.learn_steps);
        games.div_ceil(most).max(least)
    }

    /// Runs with the workspace of this thread.
    fn with_workspace(&self, run: impl FnOnce(&mut Workspace)) {
        let thread = rayon::current_thread_index().unwrap_or(0);
        // No chunk starts another, so the lock is free; and a workspace is as good after a panic.
        let mut workspace = self.workspaces[thread].lock().unwrap_or_else(PoisonError::into_inner);
        run(&mut workspace);
    }
}

fn floats(data: TensorData) -> Vec<f32> {
    data.try_into_vec().expect("policies hold f32 parameters")
}
