//! Multi-layer perceptrons in training on the CPU, without autodiff.
//!
//! The games of a minibatch are processed in chunks. Each chunk runs forward pass, loss and
//! backward pass block by block ([`network`], [`loss`](super::loss)) and yields a partial gradient ([`chunk`]).
//! A chunk is the games of a shard, or a fraction of them.
//!
//! `gradient_accumulation_steps` has no effect, because memory does not depend on the size of a
//! minibatch.

mod chunk;
mod network;
mod operands;
mod product;
#[cfg(target_family = "wasm")]
mod quads;
mod sparse;
#[cfg(not(target_family = "wasm"))]
mod tiles;

use super::loss::{LaneSums, StepLoss};
use super::{LearnerContext, NativeExperience, NativeLearner, RolloutPolicy, take_optimizer_step};
use crate::data::NativeTrajectory;
use crate::learner::means::NUM_SUMS;
use crate::learner::optimizer::Moments;
use crate::learner::order::{MIN_SHARD_STEPS, Minibatch, split_evenly};
use crate::model::{Mlp, NativeMlp, Pool, flatten, to_vec};
use crate::objective::weights::StepDenominators;
use crate::parallel::{LeafThreads, PartialSum, PartialSumLen, TeamError, sum_leaves};
use crate::settings::TrainConfig;
use chunk::{GradientInputs, Workspace};
use network::{PaddedLayout, PaddedNetwork};
use rayon::prelude::*;

/// Minimum number of steps per chunk.
const CHUNK_STEPS: usize = 1024;

/// Approximate maximum number of chunks per minibatch, and thus of busy threads.
const MAX_CHUNKS: usize = 256;

/// A multi-layer perceptron in training on the CPU.
#[derive(Debug)]
pub struct PerceptronLearner {
    network: PaddedNetwork,
    reference: Option<PaddedNetwork>,
    /// Adam moments, padded like the parameters.
    moments: Moments,
    context: LearnerContext,
    /// Free list of workspaces, as many as threads have been busy at a time.
    workspaces: Pool<Option<Workspace>>,
    /// Free list of gradient vectors, `[num_params]`, padded.
    vectors: Pool<Vec<f32>>,
}

impl PerceptronLearner {
    /// Trains a copy of `policy`. If `kl_coef` is not 0, the initial policy becomes the reference
    /// policy.
    pub fn new(policy: &Mlp, config: &TrainConfig) -> Self {
        let layout = PaddedLayout::new(&policy.widths(), policy.activation());
        let flat = to_vec(flatten(policy).without_autodiff());
        let network = PaddedNetwork::new(&layout, layout.pad(&flat));
        Self {
            reference: (config.loss.kl_coef > 0.0).then(|| network.clone()),
            moments: Moments::new(layout.len),
            network,
            context: LearnerContext::single_rank(config),
            workspaces: Pool::default(),
            vectors: Pool::default(),
        }
    }

    /// Gradient and sums of some games of a minibatch in a shard.
    fn differentiate(&self, inputs: &GradientInputs, games: &[i32], shard: usize) -> PartialSum {
        let mut gradient = self.take_zeros();
        let mut sums = LaneSums::default();
        self.with_workspace(|workspace| {
            workspace.compute_gradient(inputs, games, &mut gradient, &mut sums);
        });
        PartialSum { shards: shard..shard + 1, vector: gradient, numbers: sums.totals().to_vec() }
    }

    /// Takes a gradient vector from the free list, and clears it.
    fn take_zeros(&self) -> Vec<f32> {
        let mut vector = self.vectors.take();
        vector.clear();
        vector.resize(self.network.layout.len, 0.0);
        vector
    }

    /// Lends `run` a workspace.
    fn with_workspace(&self, run: impl FnOnce(&mut Workspace)) {
        let layout = &self.network.layout;
        self.workspaces.with(|place| run(place.get_or_insert_with(|| Workspace::new(layout))));
    }
}

impl NativeLearner for PerceptronLearner {
    fn context_mut(&mut self) -> &mut LearnerContext {
        &mut self.context
    }

    fn min_shard_steps(&self) -> usize {
        MIN_SHARD_STEPS
    }

    fn policy(&self) -> RolloutPolicy {
        let (layout, params) = (&self.network.layout, self.params());
        let policy = NativeMlp::from_params(&layout.widths(), layout.activation, &params);
        RolloutPolicy::Perceptron(policy)
    }

    fn params(&self) -> Vec<f32> {
        self.network.layout.unpad(self.network.params())
    }

    fn moments(&self) -> Moments {
        self.moments.map(|values| self.network.layout.unpad(values))
    }

    fn reference_params(&self) -> Option<Vec<f32>> {
        let layout = &self.network.layout;
        self.reference.as_ref().map(|reference| layout.unpad(reference.params()))
    }

    fn restore(&mut self, params: &[f32], moments: &Moments, reference: Option<&[f32]>) {
        let layout = self.network.layout.clone();
        self.network = PaddedNetwork::new(&layout, layout.pad(params));
        self.moments = moments.map(|values| layout.pad(values));
        if let (Some(network), Some(params)) = (&mut self.reference, reference) {
            *network = PaddedNetwork::new(&layout, layout.pad(params));
        }
    }

    fn compute_reference_logprobs(
        &mut self,
        experience: &NativeExperience,
        _: &[Minibatch],
    ) -> Vec<f32> {
        let Some(reference) = &self.reference else { return Vec::new() };
        let NativeTrajectory { num_envs, num_steps: slots, .. } = *experience.trajectory;
        let mut logprobs = vec![0.0; num_envs * slots];
        let games: Vec<i32> = (0..num_envs as i32).collect();
        let min_games = CHUNK_STEPS.div_ceil(experience.learn_steps);
        let chunk = num_envs.div_ceil(MAX_CHUNKS).max(min_games);
        games.par_chunks(chunk).zip(logprobs.par_chunks_mut(chunk * slots)).for_each(
            |(games, out)| {
                self.with_workspace(|workspace| {
                    workspace.compute_logprobs(reference, experience, games, out);
                });
            },
        );
        logprobs
    }

    /// Computes the gradient chunk by chunk in parallel; the chunks of a shard, and then the shards, are summed in a
    /// tree.
    fn compute_gradient(
        &mut self,
        experience: &NativeExperience,
        minibatch: &Minibatch,
        loss: &StepLoss,
        denominators: StepDenominators,
    ) -> Result<PartialSum, TeamError> {
        let features = self.network.layout.features();
        assert_eq!(experience.trajectory.num_features, features, "features of the policy");
        let inputs = GradientInputs { network: &self.network, experience, loss, denominators };
        let shards = &self.context.batches.shards(experience.counts.len());
        // A power of two chunks per shard, so that each shard is a node of their tree.
        let steps = denominators.steps as usize / shards.count();
        let num_chunks = (steps / CHUNK_STEPS).min(MAX_CHUNKS / shards.count()).max(1);
        let num_chunks = 1 << num_chunks.ilog2();
        let give_back = |vector| self.give_back(vector);
        let leaf = |shard: usize| {
            let chunks: Vec<&[i32]> = split_evenly(minibatch.shard(shard), num_chunks).collect();
            let chunk_leaf = |index: usize| self.differentiate(&inputs, chunks[index], shard);
            sum_leaves(num_chunks, LeafThreads::All, &chunk_leaf, &|sum: PartialSum, other| {
                sum.add_reusing(other, give_back)
            })
        };
        let nodes = shards.compute_partial_sums(&leaf, &give_back);
        if self.context.team.size() == 1 {
            let len = PartialSumLen { vector: self.network.layout.len, numbers: NUM_SUMS };
            return self.context.team.all_reduce_shards(shards, nodes, len);
        }
        let layout = &self.network.layout;
        // Padding is not sent.
        let unpad_node = |node: PartialSum| {
            let vector = layout.unpad(&node.vector);
            self.give_back(node.vector);
            PartialSum { vector, ..node }
        };
        let nodes: Vec<PartialSum> = nodes.into_iter().map(unpad_node).collect();
        let len = PartialSumLen { vector: layout.num_params(), numbers: NUM_SUMS };
        let sum = self.context.team.all_reduce_shards(shards, nodes, len)?;
        let mut vector = self.take_zeros();
        layout.pad_into(&sum.vector, &mut vector);
        Ok(PartialSum { vector, ..sum })
    }

    fn step(&mut self, gradient: &[f32], step_index: u64) -> f32 {
        let Self { context, network, moments, .. } = self;
        take_optimizer_step(context, gradient, step_index, |scale, settings| {
            network.change(|params| moments.step(params, gradient, scale, settings));
        })
    }

    fn give_back(&self, gradient: Vec<f32>) {
        self.vectors.put(gradient);
    }
}
