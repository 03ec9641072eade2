//! Networks with memory, and products in bf16, in training on the CPU, by a hand-written backward pass over sequences.

use super::loss::{
    LANE_STEPS, LaneBlock, LaneSums, LossColumns, StepLoss, compute_block_logprobs, differentiate,
};
use super::{LearnerContext, NativeExperience, NativeLearner, RolloutPolicy, take_optimizer_step};
use crate::learner::means::NUM_SUMS;
use crate::learner::optimizer::Moments;
use crate::learner::order::{Minibatch, split_evenly};
use crate::model::{
    DynSequenceModel, NativePolicy, Network, Pool, Retention, Sequences, new_sequence_model,
};
use crate::objective::SequenceRatio;
use crate::objective::weights::{StepDenominators, weight};
use crate::parallel::{PartialSum, PartialSumLen, TeamError};
use crate::settings::{Precision, TrainConfig};
use rayon::prelude::*;

/// Maximum number of partial gradients per minibatch, if there are fewer shards; each can run on its own thread.
const MAX_PARTIALS: usize = 16;

/// Approximate number of steps of a partial gradient of a network without memory, whose games need not be processed
/// together: its activations stay in the caches.
const PARTIAL_STEPS: usize = 1024;

/// Minimum number of steps of a minibatch per shard, since a pass over sequences has a high fixed cost.
const MIN_SEQUENCE_SHARD_STEPS: usize = 1024;

/// Lane blocks whose sums are added up in single precision, and which one thread differentiates.
const BLOCKS_PER_JOB: usize = 32;

/// Steps of some games: the inputs of the network and of the loss. Step `t` of game `g` is at `t * games + g`.
#[derive(Debug, Default)]
struct SequenceSteps {
    /// Slot of each step in the experience: `[num_steps, games]`.
    slots: Vec<usize>,
    sequences: Sequences,
    /// Number of counted steps of each game: `[games]`.
    counts: Vec<usize>,
    columns: LossColumns,
}

impl SequenceSteps {
    /// Copies some games, time-major.
    fn load(&mut self, experience: &NativeExperience, games: &[i32]) {
        let (steps, from) = (experience.learn_steps, experience.trajectory);
        let Self { slots, sequences, counts, columns } = self;
        slots.clear();
        for t in 0..steps {
            slots.extend(games.iter().map(|game| *game as usize * from.num_steps + t));
        }
        let width = from.memory.len() / from.num_envs;
        let Sequences { num_games, obs, starts, memory } = sequences;
        *num_games = games.len();
        obs.clear();
        obs.reserve(slots.len() * from.num_features);
        for slot in &*slots {
            obs.extend_from_slice(&from.obs[slot * from.obs_stride()..][..from.num_features]);
        }
        starts.clear();
        // The first step continues from the memory.
        starts.resize(games.len(), 0.0);
        let previous = &slots[..slots.len() - games.len()];
        starts.extend(previous.iter().map(|slot| f32::from(from.statuses[*slot].has_ended())));
        memory.clear();
        for game in games {
            memory.extend_from_slice(&from.memory[*game as usize * width..][..width]);
        }
        counts.clear();
        counts.extend(games.iter().map(|game| experience.counts[*game as usize]));
        columns.mask.clear();
        for t in 0..steps {
            columns.mask.extend(counts.iter().map(|count| f32::from(t < *count)));
        }
        let padded = slots.len().next_multiple_of(LANE_STEPS);
        columns.mask.resize(padded, 0.0);
        columns.sequence_ratios.resize(padded, SequenceRatio::default());
        gather(&from.actions, slots, &mut columns.actions, 0);
        gather(&from.logprobs, slots, &mut columns.old_logprobs, 0.0);
        gather(experience.reference_logprobs, slots, &mut columns.reference_logprobs, 0.0);
        gather(experience.advantages, slots, &mut columns.advantages, 0.0);
        columns.legal.clear();
        if !from.legal.is_empty() {
            gather(&from.legal, slots, &mut columns.legal, u32::MAX);
        }
    }

    /// Gradient of the games, and its sums.
    fn compute_gradient(
        &mut self,
        policy: &dyn DynSequenceModel,
        max_partials: usize,
        loss: &StepLoss,
        denominators: &StepDenominators,
    ) -> (Vec<f32>, [f64; NUM_SUMS]) {
        let Self { sequences, counts, columns, .. } = self;
        let averaging = loss.form.loss_type.averaging();
        let game_weight = |count: &usize| weight(*count as f32, denominators, averaging);
        let game_weights: Vec<f32> = counts.iter().map(game_weight).collect();
        columns.weights.clear();
        let weights = columns.mask.iter().zip(game_weights.iter().cycle());
        columns.weights.extend(weights.map(|(mask, weight)| mask * weight));
        let mut sums = [0.0; NUM_SUMS];
        let mut d_logits = |mut logits: Vec<f32>| {
            let actions = logits.len() / sequences.starts.len();
            if loss.form.loss_type.has_sequence_ratio() {
                columns.set_sequence_ratios(&logits, actions, loss, &game_weights);
            }
            sums = columns.differentiate_all(&mut logits, actions, loss);
            logits
        };
        let gradient = policy.gradient(sequences, max_partials, &mut d_logits);
        (gradient, sums)
    }

    /// Log-probabilities of the actions under a policy, `[num_steps, games]`.
    fn compute_logprobs(&self, policy: &dyn DynSequenceModel) -> Vec<f32> {
        let logits = policy.logits(&self.sequences);
        self.columns.all_logprobs(&logits, logits.len() / self.sequences.starts.len())
    }
}

impl LossColumns {
    /// Replaces the logits of all steps, `[num_steps, games, num_actions]`, by the gradient of the loss, and returns
    /// its sums.
    fn differentiate_all(
        &self,
        logits: &mut [f32],
        actions: usize,
        loss: &StepLoss,
    ) -> [f64; NUM_SUMS] {
        let jobs = logits.par_chunks_mut(BLOCKS_PER_JOB * LANE_STEPS * actions).enumerate();
        let sums: Vec<_> = jobs
            .map(|(job, logits)| {
                let mut sums = LaneSums::default();
                let (mut lanes, mut probs) =
                    (vec![[0.0; LANE_STEPS]; actions], vec![[0.0; LANE_STEPS]; actions]);
                for (block, logits) in logits.chunks_mut(LANE_STEPS * actions).enumerate() {
                    let block = job * BLOCKS_PER_JOB + block;
                    to_lanes(logits, &mut lanes);
                    differentiate(loss, self, block, &mut lanes, &mut probs, &mut sums);
                    from_lanes(&lanes, logits);
                }
                sums.totals()
            })
            .collect();
        sums.iter().fold([0.0; NUM_SUMS], |sum, more| std::array::from_fn(|i| sum[i] + more[i]))
    }

    /// Sets the ratios of the games, for losses with one ratio per game, from the logits of all steps; `weights` are
    /// those of the games' steps.
    fn set_sequence_ratios(
        &mut self,
        logits: &[f32],
        actions: usize,
        loss: &StepLoss,
        weights: &[f32],
    ) {
        let games = weights.len();
        let mut log_ratios = vec![0.0; games];
        let mut advantages = vec![Vec::new(); games];
        for (i, logprob) in self.all_logprobs(logits, actions).into_iter().enumerate() {
            if self.mask[i] != 0.0 {
                log_ratios[i % games] += logprob - self.old_logprobs[i];
                advantages[i % games].push(self.advantages[i]);
            }
        }
        let ratios = log_ratios.into_iter().zip(weights).zip(advantages);
        let ratios: Vec<SequenceRatio> = ratios
            .map(|((sum, weight), advantages)| {
                loss.sequence_ratio(sum, *weight, advantages.into_iter())
            })
            .collect();
        for (i, (ratio, mask)) in self.sequence_ratios.iter_mut().zip(&self.mask).enumerate() {
            *ratio = if *mask == 0.0 { SequenceRatio::default() } else { ratios[i % games] };
        }
    }

    /// Log-probabilities of the actions, from the logits of all steps.
    fn all_logprobs(&self, logits: &[f32], actions: usize) -> Vec<f32> {
        let mut step_logprobs = vec![0.0; logits.len() / actions];
        let blocks = step_logprobs
            .par_chunks_mut(LANE_STEPS)
            .zip(logits.par_chunks(LANE_STEPS * actions))
            .enumerate();
        blocks.for_each(|(block, (step_logprobs, logits))| {
            let (mut lanes, mut probs) =
                (vec![[0.0; LANE_STEPS]; actions], vec![[0.0; LANE_STEPS]; actions]);
            to_lanes(logits, &mut lanes);
            step_logprobs.copy_from_slice(
                &compute_block_logprobs(self, block, &mut lanes, &mut probs)[..step_logprobs.len()],
            );
        });
        step_logprobs
    }
}

/// Copies the values at the slots, if there are any, and pads them to whole lane blocks.
fn gather<T: Copy>(values: &[T], slots: &[usize], gathered: &mut Vec<T>, padding: T) {
    gathered.clear();
    if !values.is_empty() {
        gathered.extend(slots.iter().map(|slot| values[*slot]));
    }
    gathered.resize(slots.len().next_multiple_of(LANE_STEPS), padding);
}

/// Transposes `[steps, num_actions]` of up to [`LANE_STEPS`] steps to a lane block per action, with 0 past the last
/// step.
fn to_lanes(rows: &[f32], lanes: &mut [LaneBlock]) {
    let actions = lanes.len();
    for (a, lanes) in lanes.iter_mut().enumerate() {
        let column = rows.iter().skip(a).step_by(actions).chain(std::iter::repeat(&0.0));
        lanes.iter_mut().zip(column).for_each(|(lane, x)| *lane = *x);
    }
}

/// Reverses [`to_lanes`].
fn from_lanes(lanes: &[LaneBlock], rows: &mut [f32]) {
    for (l, row) in rows.chunks_exact_mut(lanes.len()).enumerate() {
        row.iter_mut().zip(lanes).for_each(|(x, lanes)| *x = lanes[l]);
    }
}

/// A built-in network in training on the CPU, with or without memory.
#[derive(Debug)]
pub struct SequenceLearner {
    /// The kind and the sizes of the network, with its initial weights.
    network: Network,
    policy: Box<dyn DynSequenceModel>,
    reference: Option<Box<dyn DynSequenceModel>>,
    moments: Moments,
    context: LearnerContext,
    /// Free list of the steps of parts of a minibatch.
    pool: Pool<SequenceSteps>,
}

impl SequenceLearner {
    /// Trains a copy of `network`; `None` if it has no hand-written backward pass. If `kl_coef` is not 0, the initial
    /// policy becomes the reference policy.
    pub fn new(network: &Network, config: &TrainConfig) -> Option<Self> {
        let recomputes = config.update.gradient_checkpointing;
        let retention = if recomputes { Retention::Inputs } else { Retention::All };
        let policy = new_sequence_model(network, config.precision, retention)?;
        Some(Self {
            network: network.clone(),
            reference: (config.loss.kl_coef > 0.0).then(|| policy.clone()),
            moments: Moments::new(policy.params().len()),
            policy,
            context: LearnerContext::single_rank(config),
            pool: Pool::default(),
        })
    }
}

impl NativeLearner for SequenceLearner {
    fn context_mut(&mut self) -> &mut LearnerContext {
        &mut self.context
    }

    fn min_shard_steps(&self) -> usize {
        MIN_SEQUENCE_SHARD_STEPS
    }

    fn policy(&self) -> RolloutPolicy {
        if self.context.config.precision != Precision::F32 {
            return RolloutPolicy::Other(NativePolicy::from_sequence_model(self.policy.clone()));
        }
        let policy = NativePolicy::from_built_in(&self.network, self.policy.params());
        RolloutPolicy::Other(policy.expect("it has a hand-written backward pass"))
    }

    fn params(&self) -> Vec<f32> {
        self.policy.params().to_vec()
    }

    fn moments(&self) -> Moments {
        self.moments.clone()
    }

    fn reference_params(&self) -> Option<Vec<f32>> {
        self.reference.as_ref().map(|reference| reference.params().to_vec())
    }

    fn restore(&mut self, params: &[f32], moments: &Moments, reference: Option<&[f32]>) {
        self.policy.change(&mut |own| own.copy_from_slice(params));
        self.moments = moments.clone();
        if let (Some(policy), Some(params)) = (&mut self.reference, reference) {
            policy.change(&mut |own| own.copy_from_slice(params));
        }
    }

    /// Computed portion by portion, for the sake of memory.
    fn compute_reference_logprobs(
        &mut self,
        experience: &NativeExperience,
        minibatches: &[Minibatch],
    ) -> Vec<f32> {
        let Some(reference) = &self.reference else { return Vec::new() };
        let mut logprobs = vec![0.0; experience.advantages.len()];
        let mut part = SequenceSteps::default();
        for games in self.context.batches.portions(minibatches, experience.counts.len()) {
            part.load(experience, &games);
            for (slot, logprob) in part.slots.iter().zip(part.compute_logprobs(&**reference)) {
                logprobs[*slot] = logprob;
            }
        }
        logprobs
    }

    fn compute_gradient(
        &mut self,
        experience: &NativeExperience,
        minibatch: &Minibatch,
        loss: &StepLoss,
        denominators: StepDenominators,
    ) -> Result<PartialSum, TeamError> {
        let LearnerContext { config, batches, team } = &self.context;
        let shards = batches.shards(experience.counts.len());
        // Maximum number of partial gradients of a part.
        let max_partials = MAX_PARTIALS.div_ceil(shards.count());
        let parts = config.update.gradient_accumulation_steps.div_ceil(shards.count());
        let part_steps = shards.count() * max_partials * PARTIAL_STEPS;
        let parts = match self.policy.sizes().memory_size {
            0 => parts.max(denominators.steps as usize / part_steps),
            _ => parts,
        };
        let len = PartialSumLen { vector: self.policy.params().len(), numbers: NUM_SUMS };
        let give_back = |vector| self.give_back(vector);
        let leaf = |shard: usize| {
            let node = |(vector, sums): (Vec<f32>, [f64; NUM_SUMS])| PartialSum {
                shards: shard..shard + 1,
                vector,
                numbers: sums.to_vec(),
            };
            let differentiate_part = |games: &[i32]| {
                self.pool.with(|part| {
                    part.load(experience, games);
                    node(part.compute_gradient(&*self.policy, max_partials, loss, &denominators))
                })
            };
            let games = split_evenly(minibatch.shard(shard), parts).filter(|part| !part.is_empty());
            let sum =
                games.map(differentiate_part).reduce(|sum, part| sum.add_reusing(part, give_back));
            sum.unwrap_or_else(|| node((vec![0.0; len.vector], [0.0; NUM_SUMS])))
        };
        let local = shards.compute_partial_sums(&leaf, &give_back);
        team.all_reduce_shards(&shards, local, len)
    }

    fn step(&mut self, gradient: &[f32], step_index: u64) -> f32 {
        let Self { context, policy, moments, .. } = self;
        take_optimizer_step(context, gradient, step_index, |scale, settings| {
            policy.change(&mut |params| moments.step(params, gradient, scale, settings));
        })
    }

    fn give_back(&self, gradient: Vec<f32>) {
        self.policy.give_back(gradient);
    }
}
