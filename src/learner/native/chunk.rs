//! What one thread does at a time: some games, block by block.

use super::experience::Experience;
use super::loss::{GameRatio, Rule, Steps, Sums, differentiate, logprobs};
use super::network::{Block, Layout, Network};
use crate::config::LossType;
use crate::policy::{LANES, Lanes};

/// Samples that go through the network together: few enough that they stay in the first two caches,
/// and so many that it pays to hold a tile of the gradient in registers meanwhile.
pub const BLOCK: usize = 64;

/// Room for the work of one thread.
#[derive(Clone, Debug)]
pub struct Workspace {
    samples: Vec<Sample>,
    block: Block,
    logits: Vec<Lanes>,
    /// What gspo needs of each game: `[games]`.
    ratios: Vec<GameRatio>,
}

/// A step, by its place in the experience.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Which of the chunk's games it is of.
    game: usize,
    /// Its slot.
    slot: usize,
}

/// What the chunks of a minibatch have in common.
#[derive(Clone, Copy, Debug)]
pub struct Minibatch<'a> {
    /// The network in training.
    pub network: &'a Network,
    /// What it learns from.
    pub experience: &'a Experience,
    /// The loss.
    pub rule: &'a Rule,
    /// The weight of a step, or where `by_game` is set, of all steps of a game together.
    pub weight: f32,
    /// Whether games count the same however long they are.
    pub by_game: bool,
}

impl Minibatch<'_> {
    /// The weight of each step of a game.
    fn weight_of(&self, game: i32) -> f32 {
        if self.by_game {
            self.weight / self.experience.counts[game as usize] as f32
        } else {
            self.weight
        }
    }
}

impl Workspace {
    /// For networks of this layout.
    pub fn new(layout: &Layout) -> Self {
        Self {
            samples: Vec::new(),
            block: Block::new(layout, BLOCK),
            logits: vec![[0.0; LANES]; layout.actions()],
            ratios: Vec::new(),
        }
    }

    /// Log-probabilities of the actions in the slots of neighbouring games: `[games * num_steps]`.
    pub fn logprobs(
        &mut self,
        network: &Network,
        experience: &Experience,
        games: &[i32],
        out: &mut [f32],
    ) {
        let first = games[0] as usize * experience.num_steps;
        list(&mut self.samples, experience, games);
        self.each_logprob(network, experience, |sample, logprob| {
            out[sample.slot - first] = logprob;
        });
    }

    /// Adds to `gradient`, padded, that of the loss of some games of a minibatch, and to `sums`.
    pub fn gradient(
        &mut self,
        minibatch: &Minibatch,
        games: &[i32],
        gradient: &mut [f32],
        sums: &mut Sums,
    ) {
        let Minibatch { network, experience, rule, .. } = *minibatch;
        list(&mut self.samples, experience, games);
        if rule.loss_type == LossType::Gspo {
            self.game_ratios(minibatch, games);
        }
        for samples in self.samples.chunks(BLOCK) {
            let rows = samples.len().next_multiple_of(LANES);
            load_obs(&mut self.block, experience, samples);
            network.forward(&mut self.block, rows);
            for (group, samples) in samples.chunks(LANES).enumerate() {
                let steps = steps(minibatch, games, &self.ratios, samples);
                load_logits(&self.block, group, &mut self.logits);
                differentiate(rule, &steps, &mut self.logits, sums);
                store_logits(&mut self.block, group, &self.logits);
            }
            network.backward(&mut self.block, rows, gradient);
        }
    }

    /// Fills in `ratios` by a forward pass of its own.
    fn game_ratios(&mut self, minibatch: &Minibatch, games: &[i32]) {
        let experience = minibatch.experience;
        let mut log_ratios = vec![0.0f32; games.len()];
        self.each_logprob(minibatch.network, experience, |sample, logprob| {
            log_ratios[sample.game] += logprob - experience.steps[sample.slot].old_logprob;
        });
        self.ratios.clear();
        let ratios = games.iter().zip(&log_ratios).map(|(game, log_ratio)| {
            let steps = &experience.steps[experience.slots(*game)];
            let advantages = steps.iter().map(|step| step.advantage);
            let weight = minibatch.weight_of(*game);
            minibatch.rule.game_ratio(*log_ratio, weight, advantages)
        });
        self.ratios.extend(ratios);
    }

    /// Runs through the log-probabilities of all samples' actions.
    fn each_logprob(
        &mut self,
        network: &Network,
        experience: &Experience,
        mut run: impl FnMut(&Sample, f32),
    ) {
        for samples in self.samples.chunks(BLOCK) {
            load_obs(&mut self.block, experience, samples);
            network.forward(&mut self.block, samples.len().next_multiple_of(LANES));
            for (group, samples) in samples.chunks(LANES).enumerate() {
                let mut actions = [0; LANES];
                for (action, sample) in actions.iter_mut().zip(samples) {
                    *action = experience.steps[sample.slot].action;
                }
                load_logits(&self.block, group, &mut self.logits);
                let values = logprobs(&mut self.logits, &actions);
                for (sample, value) in samples.iter().zip(values) {
                    run(sample, value);
                }
            }
        }
    }
}

/// Lists the steps of some games.
fn list(samples: &mut Vec<Sample>, experience: &Experience, games: &[i32]) {
    samples.clear();
    for (game, env) in games.iter().enumerate() {
        samples.extend(experience.slots(*env).map(|slot| Sample { game, slot }));
    }
}

/// The observations of up to [`BLOCK`] samples, neighbours at once.
fn load_obs(block: &mut Block, experience: &Experience, samples: &[Sample]) {
    let stride = experience.obs_stride;
    let mut to = &mut block.obs[..];
    for run in samples.chunk_by(|a, b| a.slot + 1 == b.slot) {
        let (row, rest) = to.split_at_mut(run.len() * stride);
        row.copy_from_slice(&experience.obs[run[0].slot * stride..][..row.len()]);
        to = rest;
    }
}

/// What else the loss needs of up to [`LANES`] samples, side by side.
#[inline(always)]
fn steps(minibatch: &Minibatch, games: &[i32], ratios: &[GameRatio], samples: &[Sample]) -> Steps {
    let experience = minibatch.experience;
    let mut steps = Steps::NONE;
    for (lane, sample) in samples.iter().enumerate() {
        let step = experience.steps[sample.slot];
        steps.actions[lane] = step.action;
        steps.old_logprobs[lane] = step.old_logprob;
        steps.advantages[lane] = step.advantage;
        steps.mask[lane] = 1.0;
        steps.weights[lane] = minibatch.weight_of(games[sample.game]);
        if let Some(logprob) = experience.reference_logprobs.get(sample.slot) {
            steps.reference_logprobs[lane] = *logprob;
        }
        if let Some(ratio) = ratios.get(sample.game) {
            steps.games[lane] = *ratio;
        }
    }
    steps
}

/// The logits of a group of [`LANES`] samples side by side.
fn load_logits(block: &Block, group: usize, logits: &mut [Lanes]) {
    let stride = block.logits_stride;
    let rows = block.logits[group * LANES * stride..].chunks_exact(stride);
    for (lane, row) in rows.take(LANES).enumerate() {
        for (logits, z) in logits.iter_mut().zip(row) {
            logits[lane] = *z;
        }
    }
}

/// The inverse of [`load_logits`].
fn store_logits(block: &mut Block, group: usize, logits: &[Lanes]) {
    let stride = block.logits_stride;
    let rows = block.logits[group * LANES * stride..].chunks_exact_mut(stride);
    for (lane, row) in rows.take(LANES).enumerate() {
        for (logits, z) in logits.iter().zip(row) {
            *z = logits[lane];
        }
    }
}
