//! What the learner's kernels read of a step, its weight in the loss, and the kernels that prepare an update.

use super::tiles::Tiling;
use crate::data::ENDED;
use crate::device::buffers::Buffer;
use crate::math::softmax::{
    ILLEGAL, Normalizer, entropy_of, logprob, normalizer, prob, unnormalized,
};
use crate::math::{at_least, exp};
use crate::model::kernels::{FeatureSlots, MlpShape, Observer, StepWords, input, mlp_logits};
use crate::objective::weights::{self, Sizes};
use crate::objective::{Coefficients, Form, Step, term};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Units of the cubes that [`count_kernel`] adds up by.
pub(super) const COUNT_UNITS: usize = 128;

/// The bits of an action's word that hold the action.
const ACTION: u32 = !ENDED;

// An update's summary begins as a recording's does: the steps that count in all, and what the advantages
// are to be multiplied by. Then come the steps of each minibatch that count; and for losses with one ratio
// a game `[2, games]`: the games' ratios, and the loss's derivative by each of their log-probabilities.
use crate::data::summary::{SCALE, STEPS};
/// Where the minibatches' steps start.
pub(super) const COUNTS: usize = 2;

/// What the kernels of an update are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Plan<O> {
    /// What makes features of a recording's words; the actions are in the row behind those.
    pub observer: O,
    /// The policy.
    pub mlp: MlpShape,
    /// The loss.
    pub loss: Form,
    /// The units and samples of a cube of the gradient's kernel.
    pub tiling: Tiling,
}

/// The sizes of a part of a recording.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct PartSizes {
    /// The first game of the part.
    pub first_env: usize,
    /// Games of the part.
    pub num_envs: usize,
    /// Steps of the recording.
    pub num_steps: usize,
    /// Steps that are learnt from.
    pub learn_steps: usize,
}

#[cube]
impl PartSizes {
    /// Step `t` of the part's game `env`.
    fn step(&self, env: usize, t: usize) -> StepIndex {
        let stride = self.num_steps * self.num_envs;
        StepIndex { env, t, words: StepWords { at: t * self.num_envs + env, stride } }
    }

    /// Where among the advantages the number of a game's steps that count lies.
    fn length(&self, env: usize) -> usize {
        self.learn_steps * self.num_envs + env
    }

    /// Where behind the advantages the log-probability of a step's action under the reference policy
    /// lies, if there is one; the advantage itself lies at `at`.
    fn reference(&self, at: usize) -> usize {
        (self.learn_steps + 2) * self.num_envs + at
    }
}

/// A minibatch of an update: the games `order[first..first + games]` are what it has in a part of the
/// recording.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Batch {
    /// The update's summary.
    pub summary: Buffer<f32>,
    /// Where its games start in the order.
    pub first: usize,
    /// Its games in this part.
    pub games: usize,
    /// Where they start among those of the minibatch.
    pub offset: usize,
    /// The minibatch's games in all parts.
    pub all_games: usize,
    /// The minibatch's number in the update.
    pub number: usize,
    /// Minibatches an epoch.
    pub num_minibatches: usize,
    /// Where the ratios of games start in the summary.
    pub sequences: usize,
}

#[cube]
impl Batch {
    /// The ratio of its game `game` in this part.
    pub fn game_ratio(&self, game: usize) -> GameRatio {
        let at = self.sequences + self.offset + game;
        GameRatio { ratio: self.summary[at], slope: self.summary[at + self.all_games] }
    }

    /// Leaves the ratio of its game `game` in this part.
    fn store_game_ratio(&mut self, game: usize, of: &GameRatio) {
        let at = self.sequences + self.offset + game;
        self.summary[at] = of.ratio;
        self.summary[at + self.all_games] = of.slope;
    }
}

/// What a game's own ratio tells its steps, where the loss has one ratio a game.
#[derive(CubeType, Clone, Copy)]
pub(super) struct GameRatio {
    /// The geometric mean of its steps' ratios.
    pub ratio: f32,
    /// The loss's derivative by each of its steps' log-probabilities.
    pub slope: f32,
}

/// What the kernels of an update read of a part of a recording.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Experience {
    /// Words of [`Part`](crate::data::Part), `[observed words + 1, num_steps, num_envs]`.
    pub words: Buffer<u32>,
    /// Values of [`Part`](crate::data::Part): first the log-probabilities, `[num_steps, num_envs]`.
    pub values: Buffer<f32>,
    /// A part of [`RecordingAdvantages::parts`](crate::data::RecordingAdvantages::parts); where there is
    /// a reference policy, the actions' log-probabilities under it come after, `[learn_steps, num_envs]`.
    pub advantages: Buffer<f32>,
    /// The games of the update's minibatches.
    pub order: Buffer<u32>,
    /// The sizes of the part.
    pub sizes: PartSizes,
}

#[cube]
impl Experience {
    /// Step `t` of a minibatch's game `game` in this part.
    pub fn step(&self, batch: &Batch, game: usize, t: usize) -> StepIndex {
        self.sizes.step(self.order[batch.first + game] as usize - self.sizes.first_env, t)
    }

    /// The sample that a step is.
    pub fn sample<O: Observer>(
        &self,
        step: &StepIndex,
        batch: &Batch,
        #[comptime] plan: Plan<O>,
    ) -> Sample {
        let at = step.words.at;
        let reference = if comptime!(plan.loss.kl.is_some()) {
            self.advantages[self.sizes.reference(at)]
        } else {
            0.0f32.runtime()
        };
        Sample {
            action: action::<O>(&self.words, step, plan),
            logprob: self.values[at],
            advantage: self.advantages[at] * batch.summary[SCALE],
            counts: (step.t as f32) < self.advantages[self.sizes.length(step.env)],
            reference,
        }
    }

    /// The length of the part's game `env`: its steps that count, at least 1.
    fn length(&self, env: usize) -> f32 {
        at_least(1.0f32, self.advantages[self.sizes.length(env)])
    }

    /// The weight of a step of the part's game `env`, where it counts.
    pub fn weight(&self, env: usize, batch: &Batch, #[comptime] form: Form) -> f32 {
        let sizes = Sizes {
            games: batch.all_games as f32,
            learn_steps: self.sizes.learn_steps as f32,
            steps: batch.summary[COUNTS + batch.number],
            rollout_share: batch.summary[STEPS] / batch.num_minibatches as f32,
        };
        weights::weight(self.length(env), &sizes, comptime!(form.loss_type.averaging()))
    }
}

/// A step of a game.
#[derive(CubeType, Clone, Copy)]
pub(super) struct StepIndex {
    /// The game's number in the part.
    pub env: usize,
    /// The step's number in the game.
    pub t: usize,
    /// Where its words lie; its values lie at the same place of their rows.
    pub words: StepWords,
}

/// The action taken in a step.
#[cube]
fn action<O: Observer>(words: &[u32], step: &StepIndex, #[comptime] plan: Plan<O>) -> u32 {
    words[comptime!(plan.observer.num_words()) * step.words.stride + step.words.at] & ACTION
}

/// What a learner needs of a step beside its observation.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Sample {
    /// The action taken.
    pub action: u32,
    /// Its log-probability then.
    pub logprob: f32,
    /// The advantage.
    pub advantage: f32,
    /// Whether the step counts.
    pub counts: bool,
    /// The action's log-probability under the reference policy, if there is one.
    pub reference: f32,
}

/// A softmax, in the parts that the loss needs.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Softmax {
    /// What makes logits probabilities.
    pub by: Normalizer,
    /// The log-probability of the action taken.
    pub logprob: f32,
    /// The entropy, nats.
    pub entropy: f32,
}

/// The softmax of `logits[first + a * stride]`, with the log-probability of `action`.
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
        total += unnormalized(logits[first + comptime!(a * stride)], max);
    }
    let by = normalizer(max, total);
    let mut entropy = 0.0f32;
    #[unroll]
    for a in 0..actions {
        let z = logits[first + comptime!(a * stride)];
        entropy += entropy_of(prob(z, &by), logprob(z, &by));
    }
    // No policy's recording has an action that there is not; whoever writes one by hand might.
    let last = comptime!(actions as u32 - 1);
    let action = select(action > last, last, action);
    let taken = logprob(logits[first + action as usize * stride], &by);
    Softmax { by, logprob: taken, entropy }
}

/// Takes the actions out of `logits[first + a * stride]` that might not have been taken in a step.
#[cube]
pub(super) fn mask_logits<O: Observer>(
    logits: &mut [f32],
    first: usize,
    #[comptime] stride: usize,
    words: &[u32],
    step: &StepIndex,
    #[comptime] plan: Plan<O>,
) {
    if comptime!(O::MASKED) {
        #[unroll]
        for a in 0..comptime!(plan.mlp.actions) {
            let at = first + comptime!(a * stride);
            let legal = O::legal(words, &step.words, a, comptime!(plan.observer));
            logits[at] = select(legal, logits[at], comptime!(ILLEGAL));
        }
    }
}

/// One cube adds up the lengths of one minibatch's games in a part, to those of the parts before.
///
/// Buffers: the order `[minibatches of the update, games]`; the part of
/// [`RecordingAdvantages::parts`](crate::data::RecordingAdvantages::parts); the summary of the recording; those of the update.
#[cube(launch_unchecked)]
pub(super) fn count_kernel(
    order: &[u32],
    advantages: &[f32],
    recorded: &[f32],
    summary: &mut [f32],
    games: usize,
    sizes: PartSizes,
) {
    let unit = UNIT_POS as usize;
    let mut sum = 0.0f32;
    for i in range_stepped(unit, games, comptime!(COUNT_UNITS)) {
        let env = order[CUBE_POS * games + i] as usize;
        if env >= sizes.first_env && env < sizes.first_env + sizes.num_envs {
            sum += advantages[sizes.length(env) - sizes.first_env];
        }
    }
    let mut sums = Shared::<[f32]>::new_slice(COUNT_UNITS);
    sums[unit] = sum;
    sync_cube();
    if unit == 0 {
        let mut total = 0.0f32;
        if sizes.first_env > 0 {
            total = summary[COUNTS + CUBE_POS];
        }
        for i in 0..comptime!(COUNT_UNITS) {
            total += sums[i];
        }
        summary[COUNTS + CUBE_POS] = total;
        if CUBE_POS == 0 {
            summary[STEPS] = recorded[STEPS];
            summary[SCALE] = recorded[SCALE];
        }
    }
}

/// One unit copies what is known of one game of a part, and adds the log-probabilities of its actions
/// under the reference policy.
///
/// Buffers: the reference's parameters `[num_params]`; words and advantages of [`Experience`]; and the
/// same advantages with room for the log-probabilities, `[2 * learn_steps + 2, num_envs]`.
#[cube(launch_unchecked)]
pub(super) fn reference_kernel<O: Observer, I: Float>(
    params: &[f32],
    words: &[u32],
    advantages: &[f32],
    extended: &mut [f32],
    sizes: PartSizes,
    #[comptime] plan: Plan<O>,
    #[define(I)] _input: ElemType,
) {
    let env = ABSOLUTE_POS;
    if env < sizes.num_envs {
        let mut room = Room::new(comptime!(plan.mlp));
        for row in 0..sizes.learn_steps + 2 {
            extended[row * sizes.num_envs + env] = advantages[row * sizes.num_envs + env];
        }
        for t in 0..sizes.learn_steps {
            let step = sizes.step(env, t);
            let taken = action::<O>(words, &step, plan);
            let soft = forward::<O, I>(params, words, &step, taken, &mut room, plan);
            extended[sizes.reference(step.words.at)] = soft.logprob;
        }
    }
}

/// Room for one unit's forward pass.
#[derive(CubeType)]
struct Room {
    /// Features, `[features]`.
    x: Array<f32>,
    /// Logits, `[actions]`.
    logits: Array<f32>,
}

#[cube]
impl Room {
    fn new(#[comptime] mlp: MlpShape) -> Room {
        Room {
            x: Array::<f32>::new(comptime!(mlp.features)),
            logits: Array::<f32>::new(comptime!(mlp.actions)),
        }
    }
}

/// The log-softmax of a step, by one unit.
#[cube]
fn forward<O: Observer, I: Float>(
    params: &[f32],
    words: &[u32],
    step: &StepIndex,
    action: u32,
    room: &mut Room,
    #[comptime] plan: Plan<O>,
) -> Softmax {
    let all = FeatureSlots {
        first: 0usize.runtime(),
        step: 1usize.runtime(),
        share: 0usize.runtime(),
        shares: 1usize,
    };
    let x = room.x.as_mut_slice();
    O::observe::<f32>(words, &step.words, x, &all, comptime!(plan.observer));
    #[unroll]
    for i in 0..comptime!(plan.mlp.features) {
        room.x[i] = input::<I>(room.x[i]);
    }
    mlp_logits::<f32, I>(params, &room.x, &mut room.logits, comptime!(plan.mlp));
    mask_logits::<O>(room.logits.as_mut_slice(), 0usize, 1usize, words, step, plan);
    softmax(room.logits.as_slice(), 0usize, action, 1usize, comptime!(plan.mlp.actions))
}

/// One unit sees to one game of a minibatch: its ratio, and how the loss depends on it.
///
/// Buffers: parameters `[num_params]`; those of [`Experience`]; that of [`Batch`], of which it writes the
/// ratios.
#[cube(launch_unchecked)]
pub(super) fn sequence_kernel<O: Observer, I: Float>(
    params: &[f32],
    data: &Experience,
    batch: &mut Batch,
    by: Coefficients,
    #[comptime] plan: Plan<O>,
    #[define(I)] _input: ElemType,
) {
    let game = ABSOLUTE_POS;
    if game < batch.games {
        let env = data.step(&*batch, game, 0usize).env;
        let mut room = Room::new(comptime!(plan.mlp));
        let mut sum = 0.0f32;
        for t in 0..data.sizes.learn_steps {
            let step = data.step(&*batch, game, t);
            let sample = data.sample::<O>(&step, &*batch, plan);
            if sample.counts {
                let action = sample.action;
                let soft = forward::<O, I>(params, &data.words, &step, action, &mut room, plan);
                sum += soft.logprob - sample.logprob;
            }
        }
        let length = data.length(env);
        let ratio = exp(sum / length);
        let mut slopes = 0.0f32;
        for t in 0..data.sizes.learn_steps {
            let step = data.step(&*batch, game, t);
            let sample = data.sample::<O>(&step, &*batch, plan);
            if sample.counts {
                let step = Step { ratio, advantage: sample.advantage, logprob: 0.0f32.runtime() };
                let policy = term(&step, &by, comptime!(plan.loss.loss_type));
                slopes += policy.slope;
            }
        }
        let weight = data.weight(env, &*batch, comptime!(plan.loss));
        batch.store_game_ratio(game, &GameRatio { ratio, slope: slopes * weight / length });
    }
}
