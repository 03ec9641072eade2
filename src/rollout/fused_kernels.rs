//! The kernel of the fused rollout, and its launch: one unit plays one game for many steps.

use super::env_kernels::*;
use super::fused::Buffers;
use super::masks::mask_logits;
use super::{RolloutKeys, action_key, action_uniform};
use crate::config::{Precision, Start};
use crate::data::{TERMINATED, TRUNCATED};
use crate::device::buffers::{argument, element};
use crate::env::{Rules, num_words, play};
use crate::model::kernels::{
    FeatureSlots, MlpShape, Observed, Observer, StepWords, input, mlp_logits,
};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// The most workgroup memory, in bytes, that the weights may take; beyond it fewer cubes would fit
/// on a processor than reading the weights from its cache costs.
const MAX_SHARED_BYTES: usize = 32 * 1024;

/// What the kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Plan {
    /// Where the games come from.
    origin: Origin,
    /// Whether branch points are kept.
    branch: bool,
    /// The policy.
    shape: MlpShape,
    /// Whether the weights are copied to workgroup memory; else they are read where they lie.
    shared: bool,
}

/// The keys of an iteration's draws.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Keys {
    level: u32,
    action: u32,
    branch: u32,
}

/// The sizes of an iteration, and what this launch plays: steps `first_step..end_step` of
/// `games` games from `first_env` on.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    first_step: usize,
    end_step: usize,
    first_env: usize,
    games: usize,
    num_groups: usize,
    group_size: usize,
    num_steps: usize,
    learn_steps: u32,
}

/// Plays the steps of one game, by weights in global or workgroup memory.
#[cube]
#[allow(clippy::too_many_arguments)]
fn play_steps<G: Rules, W: Float, I: Float>(
    weights: &[W],
    origins: &[u32],
    envs: &mut [u32],
    words: &mut [u32],
    values: &mut [f32],
    first_scores: &mut [f32],
    branches: &mut [u32],
    keys: &Keys,
    sizes: &Sizes,
    #[comptime] plan: Plan,
    #[comptime] game: G,
) {
    let row = ABSOLUTE_POS;
    if row < sizes.games {
        let env = sizes.first_env + row;
        let (group, groups) = (env / sizes.group_size, sizes.num_groups);
        let mut state = if comptime!(plan.origin == Origin::Continued) {
            load_env_state::<G>(&*envs, row, sizes.games, game)
        } else {
            first_state::<G>(origins, group, groups, keys.level, comptime!(plan.origin), game)
        };
        let mut episode = if comptime!(plan.origin == Origin::Continued) {
            load_episode(&*envs, row, sizes.games)
        } else {
            first_episode::<G>(origins, group, groups, keys.level, comptime!(plan.origin), game)
        };
        if comptime!(plan.origin != Origin::Continued) {
            first_scores[row] = episode.score;
        }
        let draws = action_key(keys.action, env as u32);
        let num_actions = comptime!(game.num_actions());
        let num_words = comptime!(num_words(game));
        let stride = sizes.num_steps * sizes.games;
        let mut x = Array::<f32>::new(comptime!(game.num_features()));
        let mut logits = Array::<f32>::new(num_actions);
        for t in sizes.first_step..sizes.end_step {
            let at = t * sizes.games + row;
            store_state::<G>(words, &state, 0usize, at, stride, game);
            #[unroll]
            for i in 0..comptime!(game.num_features()) {
                x[i] = input::<I>(G::feature(&state, i, game));
            }
            mlp_logits::<W, I>(weights, &x, &mut logits, comptime!(plan.shape));
            mask_logits::<G>(&mut logits, &state, game);
            let u = action_uniform(draws, t as u32);
            let drawn = draw_action(logits.as_slice(), 0usize, u, num_actions);
            let played = play::<G>(&mut state, &mut episode, drawn.action, game);
            let cut = select(played.truncated, TRUNCATED, 0u32);
            let end = select(played.terminated, TERMINATED, cut);
            words[num_words * stride + at] = drawn.action | end;
            values[at] = drawn.logprob;
            values[stride + at] = played.reward;
            if comptime!(!G::SCORE_IS_REWARD) {
                values[2 * stride + at] = played.score;
            }
            if comptime!(plan.branch) {
                store_branch::<G>(
                    branches,
                    &state,
                    &episode,
                    env,
                    t,
                    keys.branch,
                    groups,
                    sizes.group_size,
                    sizes.learn_steps,
                    game,
                );
            }
        }
        store_env::<G>(envs, &state, &episode, row, sizes.games, game);
    }
}

/// One unit plays steps `first_step..end_step` of one game, its state and episode in registers.
///
/// Buffers: the parameter vector `[num_params]`; `origins`, where the last iteration says to go on,
/// `[env_words, num_groups]`; the envs `[env_words, games]`, which carry the games from launch
/// to launch; words `[num_words + 1, num_steps, games]`, values `[2 or 3, num_steps, games]` and first
/// scores `[games]` of [`crate::data::Part`]; where the groups go on, as `origins`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn play_kernel<G: Rules, I: Float>(
    params: &[f32],
    origins: &[u32],
    envs: &mut [u32],
    words: &mut [u32],
    values: &mut [f32],
    first_scores: &mut [f32],
    branches: &mut [u32],
    keys: Keys,
    sizes: Sizes,
    #[comptime] plan: Plan,
    #[comptime] game: G,
    #[define(I)] _input: ElemType,
) {
    if comptime!(plan.shared) {
        let num_params = comptime!(plan.shape.num_params());
        let mut weights = Shared::<[I]>::new_slice(num_params);
        for i in range_stepped(UNIT_POS as usize, num_params, CUBE_DIM as usize) {
            weights[i] = I::cast_from(params[i]);
        }
        sync_cube();
        play_steps::<G, I, I>(
            &weights,
            origins,
            envs,
            words,
            values,
            first_scores,
            branches,
            &keys,
            &sizes,
            plan,
            game,
        );
    } else {
        play_steps::<G, f32, I>(
            params,
            origins,
            envs,
            words,
            values,
            first_scores,
            branches,
            &keys,
            &sizes,
            plan,
            game,
        );
    }
}

impl<G: Rules> Buffers<'_, G> {
    /// Plays a part of an iteration by a perceptron, `steps_per_launch` steps a launch. `origins`
    /// are the branches of the last iteration, if the games go on from there.
    pub fn play(
        &self,
        params: &CubeTensor,
        shape: MlpShape,
        origins: Option<&CubeTensor>,
        keys: RolloutKeys,
        steps_per_launch: usize,
        precision: Precision,
    ) {
        let config = self.config;
        let client = &params.client;
        let input = element(precision);
        let bytes = shape.num_params() * input.size();
        let limit = client.properties().hardware.max_shared_memory_size;
        let mut plan = Plan {
            origin: Origin::of(config, origins.is_some()),
            branch: config.start == Start::Branch,
            shape,
            shared: bytes <= limit.min(MAX_SHARED_BYTES),
        };
        // Where games do not go on, the kernel reads nothing of the buffer.
        let origins = origins.unwrap_or(params);
        let dim = CubeDim::new_1d(cube_units(self.games.len()));
        let count = cubecl::calculate_cube_count_elemwise(client, self.games.len(), dim);
        for first_step in (0..config.num_steps).step_by(steps_per_launch) {
            let sizes = SizesLaunch::new(
                first_step,
                config.num_steps.min(first_step + steps_per_launch),
                self.games.start,
                self.games.len(),
                config.num_groups,
                config.group_size,
                config.num_steps,
                config.learn_steps as u32,
            );
            // SAFETY: the kernel stays below the number of games, groups and steps in every buffer,
            // and below `num_params` in the first; all units of a cube reach its barrier.
            unsafe {
                play_kernel::launch_unchecked::<G>(
                    client,
                    count.clone(),
                    dim,
                    argument(params),
                    argument(origins),
                    argument(&self.envs),
                    argument(&self.words),
                    argument(&self.values),
                    argument(&self.first_scores),
                    argument(self.branches),
                    KeysLaunch::new(keys.level, keys.action, keys.branch),
                    sizes,
                    plan,
                    self.game,
                    input,
                );
            }
            plan.origin = Origin::Continued;
        }
    }
}

/// The observer of packed states of a game.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedStates<G: Rules>(pub G);

impl<G: Rules> Observed for PackedStates<G> {
    const MASKED: bool = G::MASKED;

    fn num_words(&self) -> usize {
        num_words(self.0)
    }

    fn num_features(&self) -> usize {
        self.0.num_features()
    }
}

#[cube]
impl<G: Rules> Observer for PackedStates<G> {
    fn observe<I: Float>(
        words: &[u32],
        step: &StepWords,
        x: &mut [I],
        to: &FeatureSlots,
        #[comptime] observer: Self,
    ) {
        let game = comptime!(observer.0);
        let state = load_state::<G>(words, 0usize, step.at, step.stride, game);
        let shares = comptime!(to.shares);
        #[unroll]
        for i in 0..comptime!(game.num_features()) {
            if comptime!(i % shares) == to.share {
                x[to.first + i * to.step] = I::cast_from(G::feature(&state, i, game));
            }
        }
    }

    fn legal(
        words: &[u32],
        step: &StepWords,
        #[comptime] action: usize,
        #[comptime] observer: Self,
    ) -> bool {
        let game = comptime!(observer.0);
        let state = load_state::<G>(words, 0usize, step.at, step.stride, game);
        G::legal(&state, action, game)
    }
}
