//! The CPU learner: the update of [`Learner`](super::Learner) for an [`Mlp`] without autodiff.
//!
//! The games of a minibatch are processed in chunks. Each chunk runs forward pass, loss and
//! backward pass block by block ([`network`], [`loss`](super::loss)) and yields a partial gradient ([`chunk`]).
//! A chunk is the games of a shard, or a fraction of them, and partial gradients are summed in a
//! fixed tree over shards ([`crate::parallel`]), so the result has the same bits for any number of
//! threads and ranks.
//!
//! `gradient_accumulation_steps` has no effect, because memory does not depend on the size of a
//! minibatch.

mod chunk;
mod experience;
mod network;
mod operands;
mod product;
#[cfg(target_family = "wasm")]
mod quads;
mod sparse;
#[cfg(not(target_family = "wasm"))]
mod tiles;

use super::loss::{Rule, Sums};
use super::means::{Partial, SUMS, UpdateMeans, plus};
use super::optimizer::{Moments, StepSettings, clipped_step};
use super::order::{Batches, Minibatch as Games, parts};
use super::schedule::{learning_rate, total_updates};
use super::update::{HostGradients, Lengths, update};
use crate::data::host::floats;
use crate::data::{HostTrajectory, Trajectory, by_game};
use crate::model::{Mlp, NativeMlp, Pool, flatten, unflatten};
use crate::objective::weights::Sizes;
use crate::parallel::{Node, NodeLen, Shards, Team, TeamError, nodes, sum_leaves};
use crate::settings::TrainConfig;
use burn::tensor::{Tensor, TensorData};
use chunk::{Minibatch, Workspace};
use experience::Experience;
pub(super) use experience::squeeze;
use network::{Layout, Network};
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Minimum number of steps per chunk.
const CHUNK_STEPS: usize = 1024;

/// Approximate maximum number of chunks per minibatch, and thus of busy threads.
const MAX_CHUNKS: usize = 256;

/// A multi-layer perceptron in training on the CPU.
#[derive(Debug)]
pub struct NativeLearner {
    module: Mlp,
    network: Network,
    reference: Option<Network>,
    /// Adam moments, padded like the parameters.
    moments: Moments,
    config: TrainConfig,
    batches: Batches,
    team: Team,
    /// One workspace per thread.
    workspaces: Vec<Mutex<Workspace>>,
    /// Free list of gradient vectors, `[num_params]`, padded.
    vectors: Pool<Vec<f32>>,
}

impl NativeLearner {
    /// Trains a copy of `policy`. If `kl_coef` is not 0, the initial policy becomes the reference
    /// policy.
    pub fn new(policy: &Mlp, config: &TrainConfig) -> Self {
        let layout = Layout::new(&policy.widths(), policy.activation());
        let flat = floats(flatten(policy).without_autodiff());
        let network = Network::new(&layout, layout.pad(&flat));
        Self {
            module: policy.clone(),
            reference: (config.loss.kl_coef > 0.0).then(|| network.clone()),
            moments: Moments::new(layout.len()),
            network,
            config: config.clone(),
            batches: Batches::new(config),
            team: Team::alone(),
            workspaces: Vec::new(),
            vectors: Pool::default(),
        }
    }

    /// Sets the shards of games, or of windows of a dataset, that this rank of `team` learns from.
    pub fn sharing(self, shards: Shards, team: Team) -> Self {
        let batches = Batches::of_shards(&self.config, shards);
        Self { batches, team, ..self }
    }

    /// Sets whether the data passed to an update are exactly the batches of that iteration, in
    /// order.
    pub fn set_in_order(&mut self, in_order: bool) {
        self.batches.set_in_order(in_order);
    }

    /// The current policy, on the device of the initial one.
    pub fn policy(&self) -> Mlp {
        let params = self.params();
        let device = self.module.layers()[0].weight.val().device();
        let count = params.len();
        let params = Tensor::from_data(TensorData::new(params, [count]), &device);
        unflatten(self.module.clone(), &params)
    }

    /// The current policy for rollouts on the CPU.
    pub fn native_policy(&self) -> NativeMlp {
        let layout = self.network.layout();
        NativeMlp::from_params(&layout.widths(), layout.activation(), &self.params())
    }

    /// All parameters, `[num_params]`, in the order of [`flatten`].
    pub fn params(&self) -> Vec<f32> {
        self.network.layout().unpad(self.network.params())
    }

    /// Parameters of the reference policy, `[num_params]`, if there is one.
    pub fn reference_params(&self) -> Option<Vec<f32>> {
        let layout = self.network.layout();
        self.reference.as_ref().map(|reference| layout.unpad(reference.params()))
    }

    /// Optimizer state in the order of the parameters.
    pub fn optimizer(&self) -> Moments {
        let layout = self.network.layout();
        Moments {
            first_moment: layout.unpad(&self.moments.first_moment),
            second_moment: layout.unpad(&self.moments.second_moment),
            steps: self.moments.steps,
        }
    }

    /// Restores saved parameters, optimizer state and reference parameters, `[num_params]` each.
    ///
    /// # Panics
    /// If a length is wrong.
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

    /// Performs one update: `update_epochs` passes over the trajectory of `iteration`, in
    /// `num_minibatches` optimizer steps each.
    ///
    /// `advantages` and `mask` are `[num_steps, num_envs]` and, like the trajectory, cover this
    /// rank's shards.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    pub fn update(
        &mut self,
        trajectory: &Trajectory,
        advantages: &Tensor<2>,
        mask: &Tensor<2>,
        iteration: u32,
    ) -> Result<UpdateMeans, TeamError> {
        let mut host = HostTrajectory::from_tensors(trajectory);
        let mut advantages = by_game(advantages);
        let counts = squeeze(&mut host, &mut advantages, &by_game(mask));
        self.update_from_host(&host, &advantages, &counts, host.num_steps, iteration)
    }

    /// [`NativeLearner::update`] without tensors, on the first `counts[i]` (at most `learn_steps`)
    /// steps of each game `i`; `advantages` are `[num_envs, num_steps]`.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    ///
    /// # Panics
    /// If lengths are inconsistent.
    pub fn update_from_host(
        &mut self,
        trajectory: &HostTrajectory,
        advantages: &[f32],
        counts: &[usize],
        learn_steps: usize,
        iteration: u32,
    ) -> Result<UpdateMeans, TeamError> {
        let features = self.network.layout().features();
        assert_eq!(trajectory.num_features, features, "features of the policy");
        let experience = Experience::new(trajectory, advantages, counts, learn_steps);
        self.learn(&experience, iteration)
    }

    fn learn(&mut self, experience: &Experience, iteration: u32) -> Result<UpdateMeans, TeamError> {
        self.make_room();
        let reference_logprobs = self.evaluate_reference(experience);
        let experience = Experience { reference_logprobs: &reference_logprobs, ..*experience };
        let minibatches = self.batches.of(iteration, experience.counts.len());
        let lengths = Lengths { counts: experience.counts, learn_steps: experience.learn_steps };
        let mut learning = Learning { learner: self, experience: &experience };
        update(&mut learning, &minibatches, lengths, iteration)
    }

    /// Allocates a workspace for each thread of the current pool.
    fn make_room(&mut self) {
        let layout = self.network.layout();
        let threads = rayon::current_num_threads().max(self.workspaces.len());
        self.workspaces.resize_with(threads, || Mutex::new(Workspace::new(layout)));
    }

    /// Log-probabilities under the reference policy, `[num_envs * num_steps]`; empty without one.
    fn evaluate_reference(&self, experience: &Experience) -> Vec<f32> {
        let Some(reference) = &self.reference else {
            return Vec::new();
        };
        let (slots, num_envs) = (experience.slots, experience.counts.len());
        let mut logprobs = vec![0.0; num_envs * slots];
        let games: Vec<i32> = (0..num_envs as i32).collect();
        let least = CHUNK_STEPS.div_ceil(experience.learn_steps);
        let chunk = num_envs.div_ceil(MAX_CHUNKS).max(least);
        games.par_chunks(chunk).zip(logprobs.par_chunks_mut(chunk * slots)).for_each(
            |(games, out)| {
                self.with_workspace(|workspace| {
                    workspace.logprobs(reference, experience, games, out);
                });
            },
        );
        logprobs
    }

    /// Gradient of a minibatch, padded, and its sums in the order of [`Sums::lanes`].
    fn gradient(
        &self,
        experience: &Experience,
        games: &Games,
        rule: &Rule,
        sizes: Sizes,
    ) -> Result<Node, TeamError> {
        let minibatch = Minibatch { network: &self.network, experience, rule, sizes };
        let shards = &self.batches.shards(experience.counts.len());
        // A power of two chunks per shard, so that each shard is a node of their tree.
        let steps = sizes.steps as usize / shards.count();
        let pieces = (steps / CHUNK_STEPS).min(MAX_CHUNKS / shards.count()).max(1);
        let pieces = 1 << pieces.ilog2();
        let first = shards.own().start;
        let chunks: Vec<&[i32]> =
            shards.own().flat_map(|shard| parts(games.shard(shard - first), pieces)).collect();
        let ours = nodes(shards.count(), &shards.own()).into_iter().map(|node| {
            let of = |at: usize| (node.start - first) * pieces + at;
            let leaf = |at: usize| self.differentiate(&minibatch, chunks[of(at)]);
            let add = |sum: Partial, other: Partial| {
                let sum = plus(sum, &other);
                self.give_back(other.0);
                sum
            };
            let (vector, sums) = sum_leaves(node.len() * pieces, &leaf, &add);
            Node { shards: node, vector, numbers: sums.to_vec() }
        });
        if self.team.size() == 1 {
            let len = NodeLen { vector: self.network.layout().len(), numbers: SUMS };
            return self.team.sum(shards, ours.collect(), len);
        }
        let layout = self.network.layout();
        // Padding is not sent.
        let bare = |node: Node| {
            let vector = layout.unpad(&node.vector);
            self.give_back(node.vector);
            Node { vector, ..node }
        };
        let nodes: Vec<Node> = ours.map(bare).collect();
        let len =
            NodeLen { vector: nodes.first().map_or(0, |node| node.vector.len()), numbers: SUMS };
        let sum = self.team.sum(shards, nodes, len)?;
        let mut vector = self.vector();
        vector.fill(0.0);
        layout.pad_into(&sum.vector, &mut vector);
        Ok(Node { vector, ..sum })
    }

    /// Gradient and sums of some games of a minibatch.
    fn differentiate(&self, minibatch: &Minibatch, games: &[i32]) -> Partial {
        let mut gradient = self.vector();
        gradient.fill(0.0);
        let mut sums = Sums::default();
        self.with_workspace(|workspace| {
            workspace.gradient(minibatch, games, &mut gradient, &mut sums);
        });
        (gradient, sums.totals())
    }

    /// Takes a gradient vector with arbitrary contents from the free list.
    fn vector(&self) -> Vec<f32> {
        let mut vector = self.vectors.take();
        vector.resize(self.network.layout().len(), 0.0);
        vector
    }

    /// Returns a gradient vector to the free list.
    fn give_back(&self, vector: Vec<f32>) {
        self.vectors.put(vector);
    }

    /// Calls `run` with the workspace of the current thread.
    fn with_workspace(&self, run: impl FnOnce(&mut Workspace)) {
        let thread = rayon::current_thread_index().unwrap_or(0);
        // Chunks do not nest, so the lock is free; workspaces remain valid after a panic.
        let mut workspace = self.workspaces[thread].lock().unwrap_or_else(PoisonError::into_inner);
        run(&mut workspace);
    }
}

/// A learner with the steps that it learns from.
struct Learning<'a> {
    learner: &'a mut NativeLearner,
    experience: &'a Experience<'a>,
}

impl HostGradients for Learning<'_> {
    fn config(&self) -> &TrainConfig {
        &self.learner.config
    }

    fn team(&self) -> &Team {
        &self.learner.team
    }

    fn gradient(&mut self, games: &Games, rule: &Rule, sizes: Sizes) -> Result<Node, TeamError> {
        self.learner.gradient(self.experience, games, rule, sizes)
    }

    fn step(&mut self, gradient: &[f32], update: u64) -> Result<f32, TeamError> {
        let NativeLearner { config, network, moments, .. } = &mut *self.learner;
        let learning_rate = learning_rate(&config.optimizer, update, total_updates(config));
        let by = StepSettings { learning_rate, config: &config.optimizer, spared: &[] };
        Ok(clipped_step(gradient, config.update.max_grad_norm, |scale| {
            network.change(|params| moments.step(params, gradient, scale, &by));
        }))
    }

    fn give_back(&mut self, gradient: Vec<f32>) {
        self.learner.give_back(gradient);
    }
}
