//! What the learner's kernels read of a step, its weight in the loss, and the kernels that prepare an update.

use crate::data::ENDED;
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
pub(super) struct Shapes {
    /// The policy.
    pub mlp: MlpShape,
    /// The loss.
    pub loss: Form,
    /// The row of a recording's words that holds the actions.
    pub last_word: usize,
}

/// What a minibatch has in a part of the recording: the games `order[first..first + games]`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Batch {
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
    /// Steps that are learnt from.
    pub steps: usize,
    /// Steps of the recording.
    pub num_steps: usize,
    /// The first game of the part.
    pub first_env: usize,
    /// Games of the part.
    pub num_envs: usize,
    /// Where the ratios of games start in the summary.
    pub sequences: usize,
}

/// What the kernels of an update read of a part of a recording.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Experience<'a> {
    /// Words of [`Part`](crate::data::Part), `[last_word + 1, num_steps, num_envs]`.
    pub words: &'a [u32],
    /// Values of [`Part`](crate::data::Part): first the log-probabilities, `[num_steps, num_envs]`.
    pub values: &'a [f32],
    /// A part of [`RecordingAdvantages::parts`](crate::data::RecordingAdvantages::parts); where there is
    /// a reference policy, the actions' log-probabilities under it come after, `[steps, num_envs]`.
    pub advantages: &'a [f32],
    /// The games of the update's minibatches.
    pub order: &'a [u32],
}

#[cube]
impl<'a> Experience<'a> {
    pub fn new(
        words: &'a [u32],
        values: &'a [f32],
        advantages: &'a [f32],
        order: &'a [u32],
    ) -> Experience<'a> {
        Experience::<'a> { words, values, advantages, order }
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

/// Step `t` of the minibatch's game `game` in this part.
#[cube]
pub(super) fn step_index(order: &[u32], game: usize, t: usize, batch: &Batch) -> StepIndex {
    let env = order[batch.first + game] as usize - batch.first_env;
    let stride = batch.num_steps * batch.num_envs;
    StepIndex { env, t, words: StepWords { at: t * batch.num_envs + env, stride } }
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

/// The sample that a step is.
#[cube]
pub(super) fn load_sample(
    data: &Experience,
    summary: &[f32],
    step: &StepIndex,
    batch: &Batch,
    #[comptime] shapes: Shapes,
) -> Sample {
    let at = step.words.at;
    let reference = if comptime!(shapes.loss.kl.is_some()) {
        data.advantages[(batch.steps + 2) * batch.num_envs + at]
    } else {
        0.0f32.runtime()
    };
    Sample {
        action: data.words[comptime!(shapes.last_word) * step.words.stride + at] & ACTION,
        logprob: data.values[at],
        advantage: data.advantages[at] * summary[SCALE],
        counts: (step.t as f32) < counted(data.advantages, step.env, batch),
        reference,
    }
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

/// The steps of game `env` of a part that count: the row behind the advantages.
#[cube]
fn counted(advantages: &[f32], env: usize, batch: &Batch) -> f32 {
    advantages[batch.steps * batch.num_envs + env]
}

/// The length of game `env` of a part: its steps that count, at least 1.
#[cube]
fn length(advantages: &[f32], env: usize, batch: &Batch) -> f32 {
    at_least(1.0f32, counted(advantages, env, batch))
}

/// The weight of a step of game `env` of a part, where it counts.
#[cube]
pub(super) fn weight(
    advantages: &[f32],
    summary: &[f32],
    env: usize,
    batch: &Batch,
    #[comptime] form: Form,
) -> f32 {
    let sizes = Sizes {
        games: batch.all_games as f32,
        learn_steps: batch.steps as f32,
        steps: summary[COUNTS + batch.number],
        rollout_share: summary[STEPS] / batch.num_minibatches as f32,
    };
    weights::weight(length(advantages, env, batch), &sizes, comptime!(form.loss_type.averaging()))
}

/// Takes the actions out of `logits[first + a * stride]` that might not have been taken in a step.
#[cube]
pub(super) fn mask_logits<O: Observer>(
    logits: &mut [f32],
    first: usize,
    #[comptime] stride: usize,
    data: &Experience,
    step: &StepIndex,
    #[comptime] actions: usize,
    #[comptime] observer: O,
) {
    if comptime!(O::MASKED) {
        #[unroll]
        for a in 0..actions {
            let at = first + comptime!(a * stride);
            let legal = O::legal(data.words, &step.words, a, observer);
            logits[at] = select(legal, logits[at], comptime!(ILLEGAL));
        }
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

/// The ratio of the minibatch's game `game` in this part.
#[cube]
pub(super) fn load_game_ratio(summary: &[f32], game: usize, batch: &Batch) -> GameRatio {
    let at = batch.sequences + batch.offset + game;
    GameRatio { ratio: summary[at], slope: summary[at + batch.all_games] }
}

/// Leaves the ratio of the minibatch's game `game` in this part.
#[cube]
fn store_game_ratio(summary: &mut [f32], of: &GameRatio, game: usize, batch: &Batch) {
    let at = batch.sequences + batch.offset + game;
    summary[at] = of.ratio;
    summary[at + batch.all_games] = of.slope;
}

/// One cube adds up the lengths of one minibatch's games in a part, to those of the parts before.
///
/// Buffers: the order `[minibatches of the update, games]`; the part of
/// [`RecordingAdvantages::parts`](crate::data::RecordingAdvantages::parts); the summary of the recording; those of the update.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub(super) fn count_kernel(
    order: &[u32],
    advantages: &[f32],
    recorded: &[f32],
    summary: &mut [f32],
    games: usize,
    steps: usize,
    first_env: usize,
    num_envs: usize,
) {
    let unit = UNIT_POS as usize;
    let mut sum = 0.0f32;
    for i in range_stepped(unit, games, comptime!(COUNT_UNITS)) {
        let env = order[CUBE_POS * games + i] as usize;
        if env >= first_env && env < first_env + num_envs {
            sum += advantages[steps * num_envs + env - first_env];
        }
    }
    let mut sums = Shared::<[f32]>::new_slice(COUNT_UNITS);
    sums[unit] = sum;
    sync_cube();
    if unit == 0 {
        let mut total = 0.0f32;
        if first_env > 0 {
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
/// same advantages with room for the log-probabilities, `[2 * steps + 2, num_envs]`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub(super) fn reference_kernel<O: Observer, I: Float>(
    params: &[f32],
    words: &[u32],
    advantages: &[f32],
    extended: &mut [f32],
    steps: usize,
    num_steps: usize,
    num_envs: usize,
    #[comptime] shapes: Shapes,
    #[comptime] observer: O,
    #[define(I)] _input: ElemType,
) {
    let env = ABSOLUTE_POS;
    if env < num_envs {
        let stride = num_steps * num_envs;
        // Of the data a forward pass reads nothing but the words.
        let data = Experience::new(words, advantages, advantages, words);
        let mut room = Room::new(shapes);
        for row in 0..steps + 2 {
            extended[row * num_envs + env] = advantages[row * num_envs + env];
        }
        for t in 0..steps {
            let at = t * num_envs + env;
            let step = StepIndex { env, t, words: StepWords { at, stride } };
            let action = words[comptime!(shapes.last_word) * stride + at] & ACTION;
            let soft = forward::<O, I>(params, &data, &step, action, &mut room, shapes, observer);
            extended[(steps + 2) * num_envs + at] = soft.logprob;
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
    fn new(#[comptime] shapes: Shapes) -> Room {
        Room {
            x: Array::<f32>::new(comptime!(shapes.mlp.features)),
            logits: Array::<f32>::new(comptime!(shapes.mlp.actions)),
        }
    }
}

/// The log-softmax of a step, by one unit.
#[cube]
fn forward<O: Observer, I: Float>(
    params: &[f32],
    data: &Experience,
    step: &StepIndex,
    action: u32,
    room: &mut Room,
    #[comptime] shapes: Shapes,
    #[comptime] observer: O,
) -> Softmax {
    let actions = comptime!(shapes.mlp.actions);
    let all = FeatureSlots {
        first: 0usize.runtime(),
        step: 1usize.runtime(),
        share: 0usize.runtime(),
        shares: 1usize,
    };
    O::observe::<f32>(data.words, &step.words, room.x.as_mut_slice(), &all, observer);
    #[unroll]
    for i in 0..comptime!(shapes.mlp.features) {
        room.x[i] = input::<I>(room.x[i]);
    }
    mlp_logits::<f32, I>(params, &room.x, &mut room.logits, comptime!(shapes.mlp));
    let logits = room.logits.as_mut_slice();
    mask_logits::<O>(logits, 0usize, 1usize, data, step, actions, observer);
    softmax(room.logits.as_slice(), 0usize, action, 1usize, actions)
}

/// One unit sees to one game of a minibatch: its ratio, and how the loss depends on it.
///
/// Buffers: parameters `[num_params]`; those of [`Experience`]; the update's summary, of which it writes
/// the ratios.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub(super) fn sequence_kernel<O: Observer, I: Float>(
    params: &[f32],
    words: &[u32],
    values: &[f32],
    advantages: &[f32],
    order: &[u32],
    summary: &mut [f32],
    batch: Batch,
    by: Coefficients,
    #[comptime] shapes: Shapes,
    #[comptime] observer: O,
    #[define(I)] _input: ElemType,
) {
    let game = ABSOLUTE_POS;
    if game < batch.games {
        let data = Experience::new(words, values, advantages, order);
        let env = step_index(order, game, 0usize, &batch).env;
        let mut room = Room::new(shapes);
        let mut sum = 0.0f32;
        for t in 0..batch.steps {
            let step = step_index(order, game, t, &batch);
            let sample = load_sample(&data, &*summary, &step, &batch, shapes);
            if sample.counts {
                let action = sample.action;
                let soft =
                    forward::<O, I>(params, &data, &step, action, &mut room, shapes, observer);
                sum += soft.logprob - sample.logprob;
            }
        }
        let length = length(advantages, env, &batch);
        let ratio = exp(sum / length);
        let mut slopes = 0.0f32;
        for t in 0..batch.steps {
            let step = step_index(order, game, t, &batch);
            let sample = load_sample(&data, &*summary, &step, &batch, shapes);
            if sample.counts {
                let step = Step { ratio, advantage: sample.advantage, logprob: 0.0f32.runtime() };
                let policy = term(&step, &by, comptime!(shapes.loss.loss_type));
                slopes += policy.slope;
            }
        }
        let weight = weight(advantages, &*summary, env, &batch, comptime!(shapes.loss));
        let of_game = GameRatio { ratio, slope: slopes * weight / length };
        store_game_ratio(summary, &of_game, game, &batch);
    }
}
