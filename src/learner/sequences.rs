//! Updates of networks with a hand-written backward pass over sequences, in host memory.

use super::loss::{GROUP, GameRatio, Group, Rule, Steps, Sums, differentiate, logprobs};
use super::means::{Partial, SUMS, UpdateMeans, plus};
use super::optimizer::clip_grad_norm;
use super::order::{Minibatch, parts};
use super::update::{HostGradients, Lengths, update};
use super::weights::Weights;
use crate::data::Trajectory;
use crate::data::host::{bit_masks, floats, integers};
use crate::device;
use crate::model::{ByHand, Network, Pool, Sequences};
use crate::objective::weights::{Sizes, weight};
use crate::parallel::{Node, NodeLen, Shards, Team, TeamError, nodes, sum_leaves};
use crate::settings::TrainConfig;
use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

/// Maximum number of partial gradients per minibatch, if there are fewer shards; each can run on its own thread.
const PARTIALS: usize = 16;

/// Groups of steps whose sums are added up in single precision, and which one thread differentiates.
const BLOCK: usize = 32;

/// Steps of some games: the inputs of the network and of the loss. Step `t` of game `g` is at `t * games + g`.
#[derive(Clone, Debug, Default)]
pub(super) struct SequenceSteps {
    sequences: Sequences,
    actions: Vec<i32>,
    /// Log-probabilities under the behaviour policy.
    old_logprobs: Vec<f32>,
    /// Log-probabilities under the reference policy; empty without one.
    reference_logprobs: Vec<f32>,
    advantages: Vec<f32>,
    /// 1 for steps that count, else 0.
    mask: Vec<f32>,
    /// Action masks, bit 0 for action 0; empty if all actions are always legal.
    legal: Vec<u32>,
}

/// Free list of the steps of parts of a minibatch, whose memory is used again.
pub(super) type SequencePool = Pool<SequenceSteps>;

impl SequenceSteps {
    /// Copies a trajectory, its advantages and its mask from tensors.
    pub fn new(trajectory: &Trajectory, advantages: &Tensor<2>, mask: &Tensor<2>) -> Self {
        let [_, games, _] = trajectory.dims();
        let rows = |tensor: &Tensor<2>| floats(tensor.clone());
        Self {
            sequences: Sequences {
                games,
                obs: floats(trajectory.obs.clone()),
                starts: floats(trajectory.starts()),
                memory: trajectory.memory.as_ref().map_or_else(Vec::new, rows),
            },
            actions: integers(trajectory.actions.clone()),
            old_logprobs: rows(&trajectory.logprobs),
            reference_logprobs: Vec::new(),
            advantages: rows(advantages),
            mask: rows(mask),
            legal: trajectory.legal.as_ref().map_or_else(Vec::new, bit_masks),
        }
    }

    /// Number of counted steps of each game.
    fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.sequences.games];
        for mask in self.mask.chunks_exact(self.sequences.games) {
            counts.iter_mut().zip(mask).for_each(|(count, counts)| *count += *counts as usize);
        }
        counts
    }

    /// Copies some games to `part`. What the loss reads is padded to whole groups with steps that do not count.
    fn games_into(&self, games: &[i32], part: &mut Self) {
        let all = self.sequences.games;
        let padded = (self.sequences.num_steps() * games.len()).next_multiple_of(GROUP);
        let Sequences { obs, starts, memory, .. } = &self.sequences;
        part.sequences.games = games.len();
        gather(obs, all, self.sequences.num_features(), games, &mut part.sequences.obs);
        gather(starts, all, 1, games, &mut part.sequences.starts);
        gather(memory, all, memory.len() / all, games, &mut part.sequences.memory);
        gather(&self.actions, all, 1, games, &mut part.actions);
        part.actions.resize(padded, 0);
        for (from, to) in [
            (&self.old_logprobs, &mut part.old_logprobs),
            (&self.reference_logprobs, &mut part.reference_logprobs),
            (&self.advantages, &mut part.advantages),
            (&self.mask, &mut part.mask),
        ] {
            gather(from, all, 1, games, to);
            to.resize(padded, 0.0);
        }
        gather(&self.legal, all, 1, games, &mut part.legal);
        if !part.legal.is_empty() {
            part.legal.resize(padded, u32::MAX);
        }
    }

    /// Gradient of the games, and its sums.
    fn gradient(&self, by_hand: &ByHand, partials: usize, rule: &Rule, sizes: &Sizes) -> Partial {
        let mut sums = [0.0; SUMS];
        let slopes = |mut logits: Vec<f32>| {
            sums = self.differentiate(&mut logits, rule, sizes);
            logits
        };
        let gradient = by_hand.gradient(&self.sequences, partials, slopes);
        (gradient, sums)
    }

    /// Replaces the logits of all steps, `[num_steps, games, num_actions]`, by the gradient of the loss, and returns its
    /// sums.
    fn differentiate(&self, logits: &mut [f32], rule: &Rule, sizes: &Sizes) -> [f64; SUMS] {
        let averaging = rule.form.loss_type.averaging();
        let of_games: Vec<f32> =
            self.counts().iter().map(|count| weight(*count as f32, sizes, averaging)).collect();
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

/// Copies rows of some games, `width` numbers each, from `[num_steps, all, width]`.
fn gather<T: Copy>(from: &[T], all: usize, width: usize, games: &[i32], to: &mut Vec<T>) {
    to.clear();
    to.reserve(from.len() / all * games.len());
    for step in from.chunks_exact((all * width).max(1)) {
        match width {
            1 => to.extend(games.iter().map(|game| step[*game as usize])),
            _ => games
                .iter()
                .for_each(|game| to.extend_from_slice(&step[*game as usize * width..][..width])),
        }
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

/// An update of a network with memory.
pub(super) struct SequenceUpdate<'a> {
    pub weights: &'a mut Weights,
    pub by_hand: &'a mut ByHand,
    pub config: &'a TrainConfig,
    pub team: &'a Team,
    /// The shards of the games.
    pub shards: Shards,
    pub pool: &'a SequencePool,
    pub steps: SequenceSteps,
}

impl SequenceUpdate<'_> {
    /// Takes the optimizer steps of `iteration`.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    pub fn run(
        &mut self,
        minibatches: &[Minibatch],
        iteration: u32,
    ) -> Result<UpdateMeans, TeamError> {
        if let Some(reference) = &self.weights.reference {
            self.steps.reference_logprobs = self.reference_logprobs(reference);
        }
        let (counts, learn_steps) = (self.steps.counts(), self.steps.sequences.num_steps());
        let lengths = Lengths { counts: &counts, learn_steps };
        update(self, minibatches, lengths, iteration)
    }

    /// Log-probabilities of all actions under the reference policy, computed shard by shard for the sake of memory.
    fn reference_logprobs(&self, reference: &Network) -> Vec<f32> {
        let mut by_hand = self.by_hand.clone();
        by_hand.set_params(device::fetch(reference.flatten()));
        let all = self.steps.sequences.games;
        let mut logprobs = vec![0.0; self.steps.mask.len()];
        let mut part = SequenceSteps::default();
        for shard in self.shards.own() {
            let games: Vec<i32> = self.shards.places_of(shard).map(|game| game as i32).collect();
            self.steps.games_into(&games, &mut part);
            let values = part.logprobs(&by_hand.logits(&part.sequences));
            for (row, values) in values.chunks_exact(games.len()).enumerate() {
                for (game, value) in games.iter().zip(values) {
                    logprobs[row * all + *game as usize] = *value;
                }
            }
        }
        logprobs
    }

    /// Gradient and sums of some games of a minibatch, accumulated over `count` parts.
    fn of_games(&self, games: &[i32], count: usize, rule: &Rule, sizes: &Sizes) -> Partial {
        let partials = PARTIALS.div_ceil(self.shards.count());
        let of_part = |games: &[i32]| {
            self.pool.with(|part| {
                self.steps.games_into(games, part);
                part.gradient(self.by_hand, partials, rule, sizes)
            })
        };
        let sums = parts(games, count).filter(|games| !games.is_empty()).map(of_part);
        let nothing = || (vec![0.0; self.num_params()], [0.0; SUMS]);
        sums.reduce(|sum, part| self.add(sum, part)).unwrap_or_else(nothing)
    }

    fn num_params(&self) -> usize {
        self.weights.params.dims()[0]
    }

    /// Adds two gradients and their sums.
    fn add(&self, sum: Partial, other: Partial) -> Partial {
        let sum = plus(sum, &other);
        self.by_hand.give_back(other.0);
        sum
    }
}

impl HostGradients for SequenceUpdate<'_> {
    fn config(&self) -> &TrainConfig {
        self.config
    }

    fn team(&self) -> &Team {
        self.team
    }

    fn gradient(
        &mut self,
        minibatch: &Minibatch,
        rule: &Rule,
        sizes: Sizes,
    ) -> Result<Node, TeamError> {
        self.by_hand.set_params(device::fetch(self.weights.params.clone()));
        let accumulation = self.config.update.gradient_accumulation_steps;
        if self.team.has_devices() {
            let (vector, sums) = self.of_games(minibatch.games(), accumulation, rule, &sizes);
            return self.team.sum_ranks(vector, sums.to_vec());
        }
        let shards = &self.shards;
        let parts = accumulation.div_ceil(shards.count());
        let first = shards.own().start;
        let shard =
            |shard: usize| self.of_games(minibatch.shard(shard - first), parts, rule, &sizes);
        let ours = nodes(shards.count(), &shards.own()).into_iter().map(|node| {
            let leaf = |at| shard(node.start + at);
            let (vector, sums) = sum_leaves(node.len(), &leaf, &|sum, other| self.add(sum, other));
            Node { shards: node, vector, numbers: sums.to_vec() }
        });
        let len = NodeLen { vector: self.num_params(), numbers: SUMS };
        self.team.sum(shards, ours.collect(), len)
    }

    fn step(&mut self, gradient: &[f32], update: u64) -> Result<f32, TeamError> {
        let device = self.weights.params.device();
        let gradient = TensorData::new(gradient.to_vec(), [gradient.len()]);
        let gradient = Tensor::from_data(gradient, &device);
        let (gradient, norm) = clip_grad_norm(gradient, self.config.update.max_grad_norm);
        self.weights.step(gradient, update, self.config, self.team)?;
        Ok(device::fetch(norm)[0])
    }

    fn give_back(&mut self, gradient: Vec<f32>) {
        self.by_hand.give_back(gradient);
    }
}
