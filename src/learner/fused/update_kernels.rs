//! Sample access and step weights in the learner's kernels, and the kernels that prepare an update.

use super::tiles::Tiling;
use crate::data::ENDED;
use crate::data::summary::{LEARNT_STEPS, SCALE};
use crate::device::buffers::Buffer;
use crate::math::softmax::{
    MASKED_LOGIT, Normalizer, compute_normalizer, entropy_term, logprob, prob, unnormalized_prob,
};
use crate::math::{at_least, exp};
use crate::model::kernels::{MlpShape, mlp_logits, round_to};
use crate::model::{FeatureSlots, Observer, StepWords};
use crate::objective::weights::{self, StepDenominators};
use crate::objective::{LossForm, LossParams, SequenceRatio, Step, term};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Units per cube of [`count_kernel`].
pub(super) const COUNT_UNITS: usize = 128;

/// Mask of the action in an action word.
const ACTION_BITS: u32 = !ENDED;

/// Offset of the minibatches' step counts in an update's summary: as for a recording, first the number of counted steps
/// and the scale of the advantages; then the counted steps of each minibatch; and for losses with one ratio per game
/// `[2, games]`: the ratios, and the loss's derivative with respect to each log-probability of the game.
pub(super) const MINIBATCH_COUNTS: usize = 2;

/// Compile-time parameters of an update's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct UpdateVariant<O> {
    /// Computes features from a recording's words; the row after those words holds the actions.
    pub observer: O,
    pub mlp: MlpShape,
    pub loss: LossForm,
    /// Units and samples per cube of the gradient kernel.
    pub tiling: Tiling,
}

/// Sizes of a part of a recording.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct PartSizes {
    /// Index of the part's first game.
    pub first_env: usize,
    /// Number of games in the part.
    pub num_envs: usize,
    /// Steps of the recording.
    pub num_steps: usize,
    /// Number of steps to learn from.
    pub learn_steps: usize,
}

#[cube]
impl PartSizes {
    /// Index of step `t` of the part's game `env`.
    fn step_index(&self, env: usize, t: usize) -> StepIndex {
        let stride = self.num_steps * self.num_envs;
        StepIndex { env, t, words: StepWords { first: t * self.num_envs + env, stride } }
    }

    /// Index of a game's number of counted steps among the advantages.
    fn length_index(&self, env: usize) -> usize {
        self.learn_steps * self.num_envs + env
    }

    /// Index of a step's log-probability under the reference policy, past the advantages, from
    /// that of its advantage.
    fn reference_index(&self, advantage_index: usize) -> usize {
        (self.learn_steps + 2) * self.num_envs + advantage_index
    }
}

/// The portion of a minibatch in one part of the recording: games `order[first..first + num_games]`.
#[derive(CubeType, CubeLaunch)]
pub(super) struct MinibatchPortion {
    /// Summary of the update.
    pub summary: Buffer<f32>,
    /// Offset of the games in the order.
    pub first: usize,
    /// Number of games of the portion.
    pub num_games: usize,
    /// Offset of these games within the minibatch.
    pub offset: usize,
    /// Number of games of the minibatch in all parts.
    pub minibatch_size: usize,
    /// Index of the minibatch within the update.
    pub index: usize,
    /// Minibatches per epoch.
    pub num_minibatches: usize,
    /// Offset of the sequence ratios in the summary.
    pub ratios_offset: usize,
}

#[cube]
impl MinibatchPortion {
    /// Reads the ratio of game `game` of this portion.
    pub fn sequence_ratio(&self, game: usize) -> SequenceRatio {
        let at = self.ratios_offset + self.offset + game;
        SequenceRatio { ratio: self.summary[at], d_logprob: self.summary[at + self.minibatch_size] }
    }

    /// Stores the ratio of game `game` of this portion.
    fn store_sequence_ratio(&mut self, game: usize, ratio: &SequenceRatio) {
        let at = self.ratios_offset + self.offset + game;
        self.summary[at] = ratio.ratio;
        self.summary[at + self.minibatch_size] = ratio.d_logprob;
    }
}

/// A part of a recording as read by the kernels of an update.
#[derive(CubeType, CubeLaunch)]
pub(super) struct ExperienceBuffers {
    /// Words of [`RecordingPart`](crate::data::RecordingPart), `[observed words + 1, num_steps, num_envs]`.
    pub words: Buffer<u32>,
    /// Values of [`RecordingPart`](crate::data::RecordingPart), starting with the log-probabilities, `[num_steps,
    /// num_envs]`.
    pub values: Buffer<f32>,
    /// A part of [`RecordingAdvantages::parts`](crate::data::RecordingAdvantages::parts), followed
    /// by log-probabilities under the reference policy, `[learn_steps, num_envs]`, if there is one.
    pub advantages: Buffer<f32>,
    /// Games of the update's minibatches.
    pub order: Buffer<u32>,
    pub sizes: PartSizes,
}

#[cube]
impl ExperienceBuffers {
    /// Index of step `t` of game `game` of a minibatch in this part.
    pub fn step_index(&self, portion: &MinibatchPortion, game: usize, t: usize) -> StepIndex {
        self.sizes.step_index(self.order[portion.first + game] as usize - self.sizes.first_env, t)
    }

    /// Loads the sample at a step.
    pub fn load_sample<O: Observer>(
        &self,
        step: &StepIndex,
        portion: &MinibatchPortion,
        #[comptime] variant: UpdateVariant<O>,
    ) -> Sample {
        let at = step.words.first;
        let reference = if comptime!(variant.loss.kl.is_some()) {
            self.advantages[self.sizes.reference_index(at)]
        } else {
            0.0f32.runtime()
        };
        Sample {
            action: read_action::<O>(&self.words, step, variant),
            logprob: self.values[at],
            advantage: self.advantages[at] * portion.summary[SCALE],
            is_counted: (step.t as f32) < self.advantages[self.sizes.length_index(step.env)],
            reference,
        }
    }

    /// Number of counted steps of the part's game `env`, at least 1.
    fn length(&self, env: usize) -> f32 {
        at_least(1.0f32, self.advantages[self.sizes.length_index(env)])
    }

    /// Weight of the counted steps of the part's game `env`.
    pub fn weight(
        &self,
        env: usize,
        portion: &MinibatchPortion,
        #[comptime] form: LossForm,
    ) -> f32 {
        let denominators = StepDenominators {
            sequences: portion.minibatch_size as f32,
            learn_steps: self.sizes.learn_steps as f32,
            steps: portion.summary[MINIBATCH_COUNTS + portion.index],
            rollout_steps_per_minibatch: portion.summary[LEARNT_STEPS]
                / portion.num_minibatches as f32,
        };
        weights::weight(self.length(env), &denominators, comptime!(form.loss_type.averaging()))
    }
}

/// Position of a step.
#[derive(CubeType, Clone, Copy)]
pub(super) struct StepIndex {
    /// Index of the game within the part.
    pub env: usize,
    /// Index of the step within the game.
    pub t: usize,
    /// Position of its words; values have the same position within their rows.
    pub words: StepWords,
}

/// Reads the action taken in a step.
#[cube]
fn read_action<O: Observer>(
    words: &[u32],
    step: &StepIndex,
    #[comptime] variant: UpdateVariant<O>,
) -> u32 {
    words[comptime!(variant.observer.num_words()) * step.words.stride + step.words.first]
        & ACTION_BITS
}

/// A sample without its observation.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Sample {
    pub action: u32,
    /// Log-probability of the action under the behaviour policy.
    pub logprob: f32,
    pub advantage: f32,
    pub is_counted: bool,
    /// Log-probability under the reference policy; 0 without one.
    pub reference: f32,
}

/// Softmax of a sample's logits.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Softmax {
    pub normalizer: Normalizer,
    /// Log-probability of the action taken.
    pub logprob: f32,
    /// Entropy in nats.
    pub entropy: f32,
}

/// Computes the softmax of `logits[first + a * stride]`.
#[cube]
pub(super) fn softmax(
    logits: &[f32],
    first: usize,
    action: u32,
    #[comptime] stride: usize,
    #[comptime] actions: usize,
) -> Softmax {
    let mut max = logits[first];
    #[unroll]
    for a in 1..actions {
        max = at_least(logits[first + comptime!(a * stride)], max);
    }
    let mut total = 0.0f32;
    #[unroll]
    for a in 0..actions {
        total += unnormalized_prob(logits[first + comptime!(a * stride)], max);
    }
    let normalizer = compute_normalizer(max, total);
    let mut entropy = 0.0f32;
    #[unroll]
    for a in 0..actions {
        let z = logits[first + comptime!(a * stride)];
        entropy += entropy_term(prob(z, &normalizer), logprob(z, &normalizer));
    }
    // Recordings made by policies contain no invalid actions, but user-supplied ones might.
    let last = comptime!(actions as u32 - 1);
    let action = select(action > last, last, action);
    let taken = logprob(logits[first + action as usize * stride], &normalizer);
    Softmax { normalizer, logprob: taken, entropy }
}

/// Masks the logits `logits[first + a * stride]` of illegal actions.
#[cube]
pub(super) fn mask_logits<O: Observer>(
    logits: &mut [f32],
    first: usize,
    #[comptime] stride: usize,
    words: &[u32],
    step: &StepIndex,
    #[comptime] variant: UpdateVariant<O>,
) {
    if comptime!(O::HAS_ILLEGAL_ACTIONS) {
        #[unroll]
        for a in 0..comptime!(variant.mlp.num_actions) {
            let at = first + comptime!(a * stride);
            let is_legal = O::legal(words, &step.words, a, comptime!(variant.observer));
            logits[at] = select(is_legal, logits[at], comptime!(MASKED_LOGIT));
        }
    }
}

/// Counts the steps of a minibatch's games in a part, added to those of previous parts; one cube
/// per minibatch.
///
/// Buffers: the order `[minibatches of the update, games]`; a part of
/// [`RecordingAdvantages::parts`](crate::data::RecordingAdvantages::parts); the summaries of the
/// recording and of the update.
#[cube(launch_unchecked)]
pub(super) fn count_kernel(
    order: &[u32],
    advantages: &[f32],
    recording_summary: &[f32],
    summary: &mut [f32],
    num_minibatches: usize,
    games_per_minibatch: usize,
    sizes: PartSizes,
) {
    let unit = UNIT_POS as usize;
    let mut sum = 0.0f32;
    if CUBE_POS < num_minibatches {
        for i in range_stepped(unit, games_per_minibatch, comptime!(COUNT_UNITS)) {
            let env = order[CUBE_POS * games_per_minibatch + i] as usize;
            if env >= sizes.first_env && env < sizes.first_env + sizes.num_envs {
                sum += advantages[sizes.length_index(env) - sizes.first_env];
            }
        }
    }
    let mut sums = Shared::<[f32]>::new_slice(COUNT_UNITS);
    sums[unit] = sum;
    sync_cube();
    if unit == 0 && CUBE_POS < num_minibatches {
        let mut total = 0.0f32;
        if sizes.first_env > 0 {
            total = summary[MINIBATCH_COUNTS + CUBE_POS];
        }
        for i in 0..comptime!(COUNT_UNITS) {
            total += sums[i];
        }
        summary[MINIBATCH_COUNTS + CUBE_POS] = total;
        if CUBE_POS == 0 {
            summary[LEARNT_STEPS] = recording_summary[LEARNT_STEPS];
            summary[SCALE] = recording_summary[SCALE];
        }
    }
}

/// Copies the advantages of games `first..end`, one per unit, and appends the log-probabilities of its actions
/// under the reference policy.
///
/// Buffers: the reference parameters `[num_params]`; words and advantages of [`ExperienceBuffers`]; the
/// extended advantages, `[2 * learn_steps + 2, num_envs]`.
#[cube(launch_unchecked)]
pub(super) fn reference_kernel<O: Observer, I: Float>(
    params: &[f32],
    words: &[u32],
    advantages: &[f32],
    extended: &mut [f32],
    sizes: PartSizes,
    first: usize,
    end: usize,
    #[comptime] variant: UpdateVariant<O>,
    #[define(I)] _input: ElemType,
) {
    let env = first + ABSOLUTE_POS;
    if env < end {
        let mut scratch = Scratch::new(comptime!(variant.mlp));
        for row in 0..sizes.learn_steps + 2 {
            extended[row * sizes.num_envs + env] = advantages[row * sizes.num_envs + env];
        }
        for t in 0..sizes.learn_steps {
            let step = sizes.step_index(env, t);
            let action = read_action::<O>(words, &step, variant);
            let distribution = forward::<O, I>(params, words, &step, action, &mut scratch, variant);
            extended[sizes.reference_index(step.words.first)] = distribution.logprob;
        }
    }
}

/// Scratch of a unit's forward pass.
#[derive(CubeType)]
struct Scratch {
    /// Features, `[features]`.
    x: Array<f32>,
    /// Logits, `[actions]`.
    logits: Array<f32>,
}

#[cube]
impl Scratch {
    fn new(#[comptime] mlp: MlpShape) -> Scratch {
        Scratch {
            x: Array::<f32>::new(comptime!(mlp.num_features)),
            logits: Array::<f32>::new(comptime!(mlp.num_actions)),
        }
    }
}

/// Computes the softmax of a step in a single unit.
#[cube]
fn forward<O: Observer, I: Float>(
    params: &[f32],
    words: &[u32],
    step: &StepIndex,
    action: u32,
    scratch: &mut Scratch,
    #[comptime] variant: UpdateVariant<O>,
) -> Softmax {
    let slots = FeatureSlots {
        first: 0usize.runtime(),
        stride: 1usize.runtime(),
        worker: 0usize.runtime(),
        num_workers: 1usize,
    };
    let x = scratch.x.as_mut_slice();
    O::observe::<f32>(words, &step.words, x, &slots, comptime!(variant.observer));
    #[unroll]
    for i in 0..comptime!(variant.mlp.num_features) {
        scratch.x[i] = round_to::<I>(scratch.x[i]);
    }
    mlp_logits::<f32, I>(params, &scratch.x, &mut scratch.logits, comptime!(variant.mlp));
    mask_logits::<O>(scratch.logits.as_mut_slice(), 0usize, 1usize, words, step, variant);
    softmax(scratch.logits.as_slice(), 0usize, action, 1usize, comptime!(variant.mlp.num_actions))
}

/// Computes the ratios of games `first..end` of a minibatch, one per unit, and the loss's derivative with
/// respect to their log-probabilities.
///
/// Buffers: parameters `[num_params]`; those of [`ExperienceBuffers`]; the buffer of [`MinibatchPortion`], to which the
/// ratios are written.
#[cube(launch_unchecked)]
pub(super) fn sequence_ratio_kernel<O: Observer, I: Float>(
    params: &[f32],
    experience: &ExperienceBuffers,
    portion: &mut MinibatchPortion,
    loss_params: LossParams,
    first: usize,
    end: usize,
    #[comptime] variant: UpdateVariant<O>,
    #[define(I)] _input: ElemType,
) {
    let game = first + ABSOLUTE_POS;
    if game < end {
        let env = experience.step_index(&*portion, game, 0usize).env;
        let mut scratch = Scratch::new(comptime!(variant.mlp));
        let mut sum = 0.0f32;
        for t in 0..experience.sizes.learn_steps {
            let step = experience.step_index(&*portion, game, t);
            let sample = experience.load_sample::<O>(&step, &*portion, variant);
            if sample.is_counted {
                let action = sample.action;
                let distribution = forward::<O, I>(
                    params,
                    &experience.words,
                    &step,
                    action,
                    &mut scratch,
                    variant,
                );
                sum += distribution.logprob - sample.logprob;
            }
        }
        let length = experience.length(env);
        let ratio = exp(sum / length);
        let mut d_logprob = 0.0f32;
        for t in 0..experience.sizes.learn_steps {
            let step = experience.step_index(&*portion, game, t);
            let sample = experience.load_sample::<O>(&step, &*portion, variant);
            if sample.is_counted {
                let step = Step { ratio, advantage: sample.advantage, logprob: 0.0f32.runtime() };
                let policy_term = term(&step, &loss_params, comptime!(variant.loss.loss_type));
                d_logprob += policy_term.d_logprob;
            }
        }
        let weight = experience.weight(env, &*portion, comptime!(variant.loss));
        portion.store_sequence_ratio(
            game,
            &SequenceRatio { ratio, d_logprob: d_logprob * weight / length },
        );
    }
}
