//! Networks with memory in training on the CPU, by a hand-written backward pass over sequences.

use super::loss::{GROUP, Group, Rule, Steps, Sums, differentiate, logprobs};
use super::{Experience, HostLearner, HostPolicy, Share, optimizer_step};
use crate::data::host::floats;
use crate::learner::means::SUMS;
use crate::learner::optimizer::Moments;
use crate::learner::order::{Minibatch, parts};
use crate::model::{Gradients, NativePolicy, Network, Pool, Sequences, by_hand};
use crate::objective::GameRatio;
use crate::objective::weights::{Sizes, weight};
use crate::parallel::{Node, NodeLen, TeamError};
use crate::settings::{Precision, TrainConfig};
use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

/// Maximum number of partial gradients per minibatch, if there are fewer shards; each can run on its own thread.
const PARTIALS: usize = 16;

/// Groups of steps whose sums are added up in single precision, and which one thread differentiates.
const BLOCK: usize = 32;

/// Steps of some games: the inputs of the network and of the loss. Step `t` of game `g` is at `t * games + g`. What only
/// the loss reads is padded to whole groups with steps that do not count.
#[derive(Debug, Default)]
struct SequenceSteps {
    sequences: Sequences,
    actions: Vec<i32>,
    /// Log-probabilities under the behaviour policy.
    old_logprobs: Vec<f32>,
    /// Log-probabilities under the reference policy; empty without one.
    reference_logprobs: Vec<f32>,
    advantages: Vec<f32>,
    /// Number of counted steps of each game: `[games]`.
    counts: Vec<usize>,
    /// 1 for steps that count, else 0.
    mask: Vec<f32>,
    /// Action masks, bit 0 for action 0; empty if all actions are always legal.
    legal: Vec<u32>,
}

impl SequenceSteps {
    /// Copies some games, time-major.
    fn copy(&mut self, of: &Experience, games: &[i32]) {
        let steps = of.learn_steps;
        let padded = (steps * games.len()).next_multiple_of(GROUP);
        let places = Places { games, slots: of.slots, steps };
        let width = of.memory.len() / of.counts.len();
        let Sequences { games: count, obs, starts, memory } = &mut self.sequences;
        *count = games.len();
        obs.clear();
        obs.reserve(steps * games.len() * of.features);
        places.each(|slot| obs.extend_from_slice(&of.obs[slot * of.obs_stride..][..of.features]));
        starts.clear();
        // The first step continues from the memory.
        starts.resize(games.len(), 0.0);
        let later = Places { steps: steps - 1, ..places };
        later.each(|slot| starts.push(f32::from(of.ends[slot].ended())));
        memory.clear();
        games.iter().for_each(|game| {
            memory.extend_from_slice(&of.memory[*game as usize * width..][..width]);
        });
        self.counts.clear();
        self.counts.extend(games.iter().map(|game| of.counts[*game as usize]));
        self.mask.clear();
        for t in 0..steps {
            self.mask.extend(self.counts.iter().map(|count| f32::from(t < *count)));
        }
        self.mask.resize(padded, 0.0);
        places.gather(of.actions, &mut self.actions, padded, 0);
        places.gather(of.old_logprobs, &mut self.old_logprobs, padded, 0.0);
        places.gather(of.reference_logprobs, &mut self.reference_logprobs, padded, 0.0);
        places.gather(of.advantages, &mut self.advantages, padded, 0.0);
        self.legal.clear();
        if !of.legal.is_empty() {
            places.gather(of.legal, &mut self.legal, padded, u32::MAX);
        }
    }

    /// Gradient of the games, and its sums.
    fn gradient(
        &self,
        by_hand: &dyn Gradients,
        partials: usize,
        rule: &Rule,
        sizes: &Sizes,
    ) -> (Vec<f32>, [f64; SUMS]) {
        let mut sums = [0.0; SUMS];
        let mut slopes = |mut logits: Vec<f32>| {
            sums = self.differentiate(&mut logits, rule, sizes);
            logits
        };
        let gradient = by_hand.gradient(&self.sequences, partials, &mut slopes);
        (gradient, sums)
    }

    /// Replaces the logits of all steps, `[num_steps, games, num_actions]`, by the gradient of the loss, and returns its
    /// sums.
    fn differentiate(&self, logits: &mut [f32], rule: &Rule, sizes: &Sizes) -> [f64; SUMS] {
        let averaging = rule.form.loss_type.averaging();
        let of_games: Vec<f32> =
            self.counts.iter().map(|count| weight(*count as f32, sizes, averaging)).collect();
        let weights = self.mask.iter().zip(of_games.iter().cycle());
        let weights: Vec<f32> = weights.map(|(mask, weight)| mask * weight).collect();
        let ratios = match rule.form.loss_type.ratio_of_game() {
            true => self.game_ratios(logits, rule, &of_games),
            false => Vec::new(),
        };
        let actions = logits.len() / self.sequences.starts.len();
        let blocks = logits.par_chunks_mut(BLOCK * GROUP * actions).enumerate();
        let sums: Vec<_> = blocks
            .map(|(block, logits)| {
                let mut sums = Sums::default();
                let (mut lanes, mut probs) =
                    (vec![[0.0; GROUP]; actions], vec![[0.0; GROUP]; actions]);
                for (group, logits) in logits.chunks_mut(GROUP * actions).enumerate() {
                    let group = block * BLOCK + group;
                    let of_lanes = self.ratios_of(&ratios, group);
                    let steps = Steps {
                        actions: lanes_of(&self.actions, group),
                        old_logprobs: lanes_of(&self.old_logprobs, group),
                        reference_logprobs: lanes_of(&self.reference_logprobs, group),
                        advantages: lanes_of(&self.advantages, group),
                        mask: lanes_of(&self.mask, group),
                        weights: lanes_of(&weights, group),
                        games: &of_lanes,
                        legal: self.legal_of(group),
                    };
                    to_lanes(logits, &mut lanes);
                    differentiate(rule, &steps, &mut lanes, &mut probs, &mut sums);
                    from_lanes(&lanes, logits);
                }
                sums.totals()
            })
            .collect();
        sums.iter().fold([0.0; SUMS], |sum, more| std::array::from_fn(|i| sum[i] + more[i]))
    }

    /// The ratio of each game, for losses with one ratio per game; `weights` are those of the games' steps.
    fn game_ratios(&self, logits: &[f32], rule: &Rule, weights: &[f32]) -> Vec<GameRatio> {
        let games = self.sequences.games;
        let mut log_ratios = vec![0.0; games];
        let mut advantages = vec![Vec::new(); games];
        for (i, logprob) in self.logprobs(logits).into_iter().enumerate() {
            if self.mask[i] != 0.0 {
                log_ratios[i % games] += logprob - self.old_logprobs[i];
                advantages[i % games].push(self.advantages[i]);
            }
        }
        let ratios = log_ratios.into_iter().zip(weights).zip(advantages);
        ratios.map(|((sum, weight), of)| rule.game_ratio(sum, *weight, of.into_iter())).collect()
    }

    /// The ratios of the games of a group's counted steps; `ratios` are those of all games, or empty.
    fn ratios_of(&self, ratios: &[GameRatio], group: usize) -> [GameRatio; GROUP] {
        let mut of_lanes = [GameRatio::default(); GROUP];
        if !ratios.is_empty() {
            for (l, ratio) in of_lanes.iter_mut().enumerate() {
                let i = group * GROUP + l;
                if self.mask[i] != 0.0 {
                    *ratio = ratios[i % ratios.len()];
                }
            }
        }
        of_lanes
    }

    /// Log-probabilities of the actions, from logits `[num_steps, games, num_actions]`.
    fn logprobs(&self, logits: &[f32]) -> Vec<f32> {
        let steps = self.sequences.starts.len();
        let actions = logits.len() / steps;
        let mut all = vec![0.0; steps];
        let groups = all.par_chunks_mut(GROUP).zip(logits.par_chunks(GROUP * actions)).enumerate();
        groups.for_each(|(group, (all, logits))| {
            let (mut lanes, mut probs) = (vec![[0.0; GROUP]; actions], vec![[0.0; GROUP]; actions]);
            to_lanes(logits, &mut lanes);
            let taken = lanes_of(&self.actions, group);
            let of_lanes = logprobs(&mut lanes, &mut probs, taken, self.legal_of(group));
            all.copy_from_slice(&of_lanes[..all.len()]);
        });
        all
    }

    /// Action masks of a group; `None` if all actions are always legal.
    fn legal_of(&self, group: usize) -> Option<&[u32; GROUP]> {
        (!self.legal.is_empty()).then(|| lanes_of(&self.legal, group))
    }
}

/// Slots of the first steps of some games in an [`Experience`].
#[derive(Clone, Copy)]
struct Places<'a> {
    games: &'a [i32],
    /// Slots per game.
    slots: usize,
    /// Steps of each game.
    steps: usize,
}

impl Places<'_> {
    /// Calls `with` for each slot, time-major.
    fn each(&self, mut with: impl FnMut(usize)) {
        for t in 0..self.steps {
            self.games.iter().for_each(|game| with(*game as usize * self.slots + t));
        }
    }

    /// Copies the numbers at the slots, if there are any, and pads them.
    fn gather<T: Copy>(&self, from: &[T], to: &mut Vec<T>, padded: usize, padding: T) {
        to.clear();
        if !from.is_empty() {
            to.reserve(padded);
            self.each(|slot| to.push(from[slot]));
        }
        to.resize(padded, padding);
    }
}

/// Numbers of a group of padded steps.
fn lanes_of<T>(values: &[T], group: usize) -> &[T; GROUP] {
    &values.as_chunks().0[group]
}

/// Transposes `[steps, num_actions]` of up to [`GROUP`] steps to a group per action, with 0 past the last step.
fn to_lanes(rows: &[f32], lanes: &mut [Group]) {
    let actions = lanes.len();
    for (a, lanes) in lanes.iter_mut().enumerate() {
        let column = rows.iter().skip(a).step_by(actions).chain(std::iter::repeat(&0.0));
        lanes.iter_mut().zip(column).for_each(|(lane, x)| *lane = *x);
    }
}

/// Reverses [`to_lanes`].
fn from_lanes(lanes: &[Group], rows: &mut [f32]) {
    for (l, row) in rows.chunks_exact_mut(lanes.len()).enumerate() {
        row.iter_mut().zip(lanes).for_each(|(x, lanes)| *x = lanes[l]);
    }
}

/// A network with memory in training on the CPU.
#[derive(Debug)]
pub struct SequenceLearner {
    /// The network with its initial weights.
    network: Network,
    by_hand: Box<dyn Gradients>,
    params: Vec<f32>,
    /// The reference policy and its parameters.
    reference: Option<(Box<dyn Gradients>, Vec<f32>)>,
    moments: Moments,
    share: Share,
    /// Free list of the steps of parts of a minibatch.
    pool: Pool<SequenceSteps>,
}

impl SequenceLearner {
    /// Trains a copy of `network`; `None` if it has no hand-written backward pass. If `kl_coef` is not 0, the initial policy
    /// becomes the reference policy.
    pub fn new(network: &Network, config: &TrainConfig) -> Option<Self> {
        let mut by_hand = by_hand(network, config.precision, config.update.gradient_checkpointing)?;
        let params = floats(network.flatten().without_autodiff());
        by_hand.set_params(params.clone());
        let reference = (config.loss.kl_coef > 0.0).then(|| (by_hand.clone(), params.clone()));
        Some(Self {
            network: network.clone(),
            by_hand,
            reference,
            moments: Moments::new(params.len()),
            params,
            share: Share::whole(config),
            pool: Pool::default(),
        })
    }

    /// Gradient and sums of a shard's games in a minibatch, accumulated over `count` parts.
    fn differentiate(&self, of: &Minibatches, shard: usize, count: usize) -> Node {
        let node = |(vector, sums): (Vec<f32>, [f64; SUMS])| Node {
            shards: shard..shard + 1,
            vector,
            numbers: sums.to_vec(),
        };
        let of_part = |games: &[i32]| {
            self.pool.with(|part| {
                part.copy(of.experience, games);
                node(part.gradient(&*self.by_hand, of.partials, of.rule, &of.sizes))
            })
        };
        let games = of.minibatch.shard(shard);
        let sums = parts(games, count).filter(|games| !games.is_empty()).map(of_part);
        let sum = sums.reduce(|sum, part| sum.plus_and(part, |vector| self.give_back(vector)));
        sum.unwrap_or_else(|| node((vec![0.0; self.params.len()], [0.0; SUMS])))
    }
}

/// Inputs of the gradient of a minibatch.
struct Minibatches<'a> {
    experience: &'a Experience<'a>,
    minibatch: &'a Minibatch,
    /// Maximum number of partial gradients of a part.
    partials: usize,
    rule: &'a Rule,
    sizes: Sizes,
}

impl HostLearner for SequenceLearner {
    fn share(&self) -> &Share {
        &self.share
    }

    fn share_mut(&mut self) -> &mut Share {
        &mut self.share
    }

    /// A pass over sequences has a high fixed cost.
    fn shard_steps(&self) -> usize {
        1024
    }

    fn policy(&self) -> HostPolicy {
        if self.share.config.precision != Precision::F32 {
            return HostPolicy::Other(NativePolicy::by_hand(self.by_hand.clone()));
        }
        let device = self.network.device();
        let params = TensorData::new(self.params(), [self.params.len()]);
        let network = self.network.unflatten(&Tensor::from_data(params, &device));
        let policy = NativePolicy::of_built_in(&network);
        HostPolicy::Other(policy.expect("it has a hand-written backward pass"))
    }

    fn params(&self) -> Vec<f32> {
        self.params.clone()
    }

    fn moments(&self) -> Moments {
        self.moments.clone()
    }

    fn reference_params(&self) -> Option<Vec<f32>> {
        self.reference.as_ref().map(|(_, params)| params.clone())
    }

    fn restore(&mut self, params: &[f32], moments: &Moments, reference: Option<&[f32]>) {
        assert_eq!(params.len(), self.params.len(), "params: [num_params]");
        (self.params, self.moments) = (params.to_vec(), moments.clone());
        self.by_hand.set_params(params.to_vec());
        if let (Some((by_hand, kept)), Some(params)) = (&mut self.reference, reference) {
            by_hand.set_params(params.to_vec());
            *kept = params.to_vec();
        }
    }

    /// Computed shard by shard, for the sake of memory.
    fn reference_logprobs(&mut self, experience: &Experience) -> Vec<f32> {
        let Some((reference, _)) = &self.reference else { return Vec::new() };
        let shards = self.share.batches.shards(experience.counts.len());
        let mut logprobs = vec![0.0; experience.actions.len()];
        let mut part = SequenceSteps::default();
        for shard in shards.own() {
            let games: Vec<i32> = shards.places_of(shard).map(|game| game as i32).collect();
            part.copy(experience, &games);
            let values = part.logprobs(&reference.logits(&part.sequences));
            let mut values = values.into_iter();
            let places =
                Places { games: &games, slots: experience.slots, steps: experience.learn_steps };
            places.each(|slot| logprobs[slot] = values.next().expect("a value for each step"));
        }
        logprobs
    }

    fn gradient(
        &mut self,
        experience: &Experience,
        minibatch: &Minibatch,
        rule: &Rule,
        sizes: Sizes,
    ) -> Result<Node, TeamError> {
        let Share { config, batches, team } = &self.share;
        let shards = batches.shards(experience.counts.len());
        let partials = PARTIALS.div_ceil(shards.count());
        let of = Minibatches { experience, minibatch, partials, rule, sizes };
        let parts = config.update.gradient_accumulation_steps.div_ceil(shards.count());
        let leaf = |shard: usize| self.differentiate(&of, shard, parts);
        let ours = shards.sum_nodes(&leaf, &|vector| self.give_back(vector));
        let len = NodeLen { vector: self.params.len(), numbers: SUMS };
        team.sum(&shards, ours, len)
    }

    fn step(&mut self, gradient: &[f32], update: u64) -> f32 {
        let Self { share, params, moments, .. } = self;
        let norm = optimizer_step(share, gradient, update, |scale, by| {
            moments.step(params, gradient, scale, by);
        });
        self.by_hand.set_params(self.params.clone());
        norm
    }

    fn give_back(&self, gradient: Vec<f32>) {
        self.by_hand.give_back(gradient);
    }
}
