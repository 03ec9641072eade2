//! Forward and backward passes over some games, in blocks of samples; the work of one thread.

use super::network::{PaddedLayout, PaddedNetwork, SampleBlock};
use crate::learner::native::NativeExperience;
use crate::learner::native::loss::{
    LANE_STEPS, LaneBlock, LaneSums, LossColumns, StepLoss, compute_block_logprobs, differentiate,
};
use crate::objective::SequenceRatio;
use crate::objective::weights::{StepDenominators, weight};
use std::ops::Range;

/// Samples per block: few enough to stay in the L1 and L2 caches, enough to amortize holding a tile
/// of the gradient in registers.
pub const BLOCK_SAMPLES: usize = 2 * LANE_STEPS;

/// Scratch buffers of one thread.
#[derive(Clone, Debug)]
pub struct Workspace {
    block: SampleBlock,
    /// Inputs of the loss for a block of samples.
    columns: LossColumns,
    logits: Vec<LaneBlock>,
    probs: Vec<LaneBlock>,
    /// Ratio of each game, for losses with one ratio per game: `[games]`.
    ratios: Vec<SequenceRatio>,
}

/// Consecutive steps of one game in a block.
#[derive(Clone, Debug)]
struct StepRun {
    /// Index of the game among those passed.
    game: usize,
    slots: Range<usize>,
    /// Samples of the block that they become.
    samples: Range<usize>,
}

/// Divides the counted steps of some games into full blocks and a rest.
fn divide_into_blocks(experience: &NativeExperience, games: &[i32]) -> Vec<Vec<StepRun>> {
    let (mut blocks, mut end) = (Vec::new(), BLOCK_SAMPLES);
    for (game, index) in games.iter().enumerate() {
        let mut slots = experience.slots(*index);
        while !slots.is_empty() {
            if end == BLOCK_SAMPLES {
                blocks.push(Vec::new());
                end = 0;
            }
            let (first, len) = (end, slots.len().min(BLOCK_SAMPLES - end));
            end += len;
            let run = StepRun { game, slots: slots.start..slots.start + len, samples: first..end };
            slots.start += len;
            blocks.last_mut().expect("just begun").push(run);
        }
    }
    blocks
}

/// Inputs of the gradient of a minibatch, shared by its chunks.
#[derive(Clone, Copy, Debug)]
pub struct GradientInputs<'a> {
    pub network: &'a PaddedNetwork,
    pub experience: &'a NativeExperience<'a>,
    pub loss: &'a StepLoss,
    pub denominators: StepDenominators,
}

impl GradientInputs<'_> {
    /// Weight of each step of a game.
    fn step_weight(&self, game: i32) -> f32 {
        let length = self.experience.counts[game as usize] as f32;
        weight(length, &self.denominators, self.loss.form.loss_type.averaging())
    }
}

impl Workspace {
    /// Allocates buffers for networks of the given layout.
    pub fn new(layout: &PaddedLayout) -> Self {
        Self {
            block: SampleBlock::new(layout, BLOCK_SAMPLES),
            columns: empty_columns(),
            logits: vec![[0.0; LANE_STEPS]; layout.actions()],
            probs: vec![[0.0; LANE_STEPS]; layout.actions()],
            ratios: Vec::new(),
        }
    }

    /// Computes log-probabilities of the actions in the slots of consecutive games: `[games *
    /// slots]`.
    pub fn compute_logprobs(
        &mut self,
        network: &PaddedNetwork,
        experience: &NativeExperience,
        games: &[i32],
        output: &mut [f32],
    ) {
        let first = games[0] as usize * experience.trajectory.num_steps;
        self.for_each_run(network, experience, games, |run, values| {
            output[run.slots.start - first..][..values.len()].copy_from_slice(values);
        });
    }

    /// Adds the gradient of some games of a minibatch to `gradient` (padded) and their metrics to
    /// `sums`.
    pub fn compute_gradient(
        &mut self,
        inputs: &GradientInputs,
        games: &[i32],
        gradient: &mut [f32],
        sums: &mut LaneSums,
    ) {
        let GradientInputs { network, experience, loss, .. } = *inputs;
        if loss.form.loss_type.has_sequence_ratio() {
            self.compute_sequence_ratios(inputs, games);
        }
        for runs in divide_into_blocks(experience, games) {
            let mut len = 0;
            for run in &runs {
                self.block.assign_obs(run.samples.clone(), run.slots.start);
                self.columns.load(run, inputs, games, &self.ratios);
                len = run.samples.end;
            }
            self.columns.clear_from(len);
            let rows = self.block.pad_to_lanes(len);
            network.forward(&mut self.block, &experience.trajectory.obs, rows);
            // Lanes past the last sample have weight 0.
            for lane_block in 0..rows.div_ceil(LANE_STEPS) {
                with_logits(&mut self.block, lane_block, &mut self.logits, |logits| {
                    differentiate(loss, &self.columns, lane_block, logits, &mut self.probs, sums);
                });
            }
            network.backward(&mut self.block, &experience.trajectory.obs, rows, gradient);
        }
    }

    /// Computes `ratios` in a separate forward pass.
    fn compute_sequence_ratios(&mut self, inputs: &GradientInputs, games: &[i32]) {
        let experience = inputs.experience;
        let mut log_ratios = vec![0.0f32; games.len()];
        self.for_each_run(inputs.network, experience, games, |run, values| {
            let old = &experience.trajectory.logprobs[run.slots.clone()];
            log_ratios[run.game] += values.iter().zip(old).map(|(new, old)| new - old).sum::<f32>();
        });
        self.ratios.clear();
        let ratios = games.iter().zip(&log_ratios).map(|(game, log_ratio)| {
            let advantages = experience.advantages[experience.slots(*game)].iter().copied();
            let weight = inputs.step_weight(*game);
            inputs.loss.sequence_ratio(*log_ratio, weight, advantages)
        });
        self.ratios.extend(ratios);
    }

    /// Computes the log-probabilities of the actions in all steps of some games and passes them to
    /// `visit` run by run.
    fn for_each_run(
        &mut self,
        network: &PaddedNetwork,
        experience: &NativeExperience,
        games: &[i32],
        mut visit: impl FnMut(&StepRun, &[f32]),
    ) {
        for runs in divide_into_blocks(experience, games) {
            let mut len = 0;
            for run in &runs {
                self.block.assign_obs(run.samples.clone(), run.slots.start);
                self.columns.load_actions(run, experience);
                len = run.samples.end;
            }
            let rows = self.block.pad_to_lanes(len);
            network.forward(&mut self.block, &experience.trajectory.obs, rows);
            let mut values = [0.0; BLOCK_SAMPLES];
            let (lane_blocks, _) = values[..rows.next_multiple_of(LANE_STEPS)].as_chunks_mut();
            for (lane_block, values) in lane_blocks.iter_mut().enumerate() {
                *values = with_logits(&mut self.block, lane_block, &mut self.logits, |logits| {
                    compute_block_logprobs(&self.columns, lane_block, logits, &mut self.probs)
                });
            }
            for run in &runs {
                visit(run, &values[run.samples.clone()]);
            }
        }
    }
}

/// Creates the columns of a block without samples.
fn empty_columns() -> LossColumns {
    let zeros = || vec![0.0; BLOCK_SAMPLES];
    LossColumns {
        actions: vec![0; BLOCK_SAMPLES],
        old_logprobs: zeros(),
        reference_logprobs: zeros(),
        advantages: zeros(),
        mask: zeros(),
        weights: zeros(),
        sequence_ratios: vec![SequenceRatio::default(); BLOCK_SAMPLES],
        legal: Vec::new(),
    }
}

impl LossColumns {
    /// Loads a run of samples.
    fn load(
        &mut self,
        run: &StepRun,
        inputs: &GradientInputs,
        games: &[i32],
        ratios: &[SequenceRatio],
    ) {
        let experience = inputs.experience;
        let StepRun { game, slots, samples } = run.clone();
        self.load_actions(run, experience);
        self.old_logprobs[samples.clone()]
            .copy_from_slice(&experience.trajectory.logprobs[slots.clone()]);
        self.advantages[samples.clone()].copy_from_slice(&experience.advantages[slots.clone()]);
        self.mask[samples.clone()].fill(1.0);
        self.weights[samples.clone()].fill(inputs.step_weight(games[game]));
        if let Some(logprobs) = experience.reference_logprobs.get(slots) {
            self.reference_logprobs[samples.clone()].copy_from_slice(logprobs);
        }
        if let Some(ratio) = ratios.get(game) {
            self.sequence_ratios[samples].fill(*ratio);
        }
    }

    /// Loads the actions and masks of a run of samples.
    fn load_actions(&mut self, run: &StepRun, experience: &NativeExperience) {
        let StepRun { slots, samples, .. } = run.clone();
        self.actions[samples.clone()]
            .copy_from_slice(&experience.trajectory.actions[slots.clone()]);
        if let Some(legal) = experience.trajectory.legal.get(slots) {
            self.legal.resize(BLOCK_SAMPLES, u32::MAX);
            self.legal[samples].copy_from_slice(legal);
        }
    }

    /// Clears the samples from `len` on, so that they do not contribute.
    fn clear_from(&mut self, len: usize) {
        self.advantages[len..].fill(0.0);
        self.mask[len..].fill(0.0);
        self.weights[len..].fill(0.0);
        self.sequence_ratios[len..].fill(SequenceRatio::default());
    }
}

/// Calls `run` with the logits of a lane block of samples and writes them back.
fn with_logits<T>(
    block: &mut SampleBlock,
    lane_block: usize,
    logits: &mut [LaneBlock],
    run: impl FnOnce(&mut [LaneBlock]) -> T,
) -> T {
    for (to, from) in logits.iter_mut().zip(block.logits(lane_block)) {
        *to = *from;
    }
    let result = run(logits);
    for (from, to) in logits.iter().zip(block.logits(lane_block)) {
        *to = *from;
    }
    result
}
