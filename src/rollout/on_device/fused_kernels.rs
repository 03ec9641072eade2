//! The kernel of the fused rollout: one unit plays many steps of one game. Units of a cube share the hidden layers of
//! networks with two of them.

use super::env_kernels::{
    BranchPoints, BranchPointsLaunch, Groups, GroupsLaunch, MAX_LOOP_ITERATIONS, Origin, Starts,
    StartsLaunch, StepRange, StepRangeLaunch, games_per_cube, load_env_state, load_episode,
    load_state, mask_logits, store_env, store_state,
};
use super::fused_layers::{Workgroup, compute_hidden_layers, compute_last_layer};
use super::{RolloutKeys, action_key, action_uniform, branch_episode};
use crate::data::{TERMINATED, TRUNCATED};
use crate::device::buffers::{Buffer, argument, element_type, grid};
use crate::device::items_per_launch;
use crate::env::{Rules, StepResult, num_words, step_with_auto_reset};
use crate::math::softmax::{SampledAction, sample_action};
use crate::model::kernels::{MlpShape, mlp_logits, round_to};
use crate::model::{FeatureSlots, HostObserver, Observer, StepWords};
use crate::settings::{GroupStart, Precision, RolloutConfig};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;
use std::ops::Range;

/// Maximum workgroup memory of a cube, in bytes, for its weights or its activations. More would reduce occupancy more
/// than reading weights from the cache costs.
const MAX_WORKGROUP_BYTES: usize = 32 * 1024;

/// Limits of the size of launches.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchLimits {
    /// Factor on the usual size.
    pub scale: f64,
    /// Maximum steps of each game.
    pub max_steps: usize,
}

impl LaunchLimits {
    /// Steps of each game per launch.
    fn steps_per_launch(&self, games: usize, shape: &MlpShape, workgroup: &Workgroup) -> usize {
        let budget = items_per_launch(shape.forward_flops() * games as f64, self.scale);
        let max = (MAX_LOOP_ITERATIONS / (1 + workgroup.loop_iterations(shape))).max(1);
        self.max_steps.min(budget).min(max)
    }
}

/// The rollout of a part of an iteration, and the buffers that it fills.
pub(super) struct PartRollout<'a, G: Rules> {
    pub game: G,
    pub config: &'a RolloutConfig,
    /// The part's games within the iteration.
    pub games: Range<usize>,
    /// Environments, `[env_words, games]`.
    pub envs: CubeTensor,
    /// Words of [`RecordingPart`](crate::data::RecordingPart), `[num_words + 1, num_steps, games]`.
    pub words: CubeTensor,
    /// Values of the part, `[2 or 3, num_steps, games]`.
    pub values: CubeTensor,
    /// Scores and steps of the current episodes before the first step, `[2, games]`.
    pub initial_episodes: CubeTensor,
    /// Branch points of the whole iteration, `[env_words, num_groups]`.
    pub branches: &'a CubeTensor,
}

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PlayVariant<G> {
    game: G,
    origin: Origin,
    stores_branches: bool,
    shape: MlpShape,
    /// Games and units of a cube.
    workgroup: Workgroup,
    /// Whether weights are copied to workgroup memory; otherwise they are read from global memory.
    has_workgroup_weights: bool,
}

/// Games of a part of an iteration: environments and recorded steps.
#[derive(CubeType, CubeLaunch)]
struct Games {
    /// Environments, `[env_words, count]`, which carry the games from launch to launch.
    envs: Buffer<u32>,
    /// Words of [`RecordingPart`](crate::data::RecordingPart), `[num_words + 1, num_steps, count]`.
    words: Buffer<u32>,
    /// Values of the part, `[2 or 3, num_steps, count]`.
    values: Buffer<f32>,
    /// Scores and steps of the current episodes before the first step, `[2, count]`.
    initial_episodes: Buffer<f32>,
    groups: Groups,
    /// Index of the part's first game within the iteration.
    first_env: usize,
    count: usize,
    num_steps: usize,
    action_key: u32,
}

#[cube]
impl Games {
    /// Records the result of a step.
    fn record<G: Rules>(
        &mut self,
        step_words: &StepWords,
        sampled: &SampledAction,
        result: &StepResult,
        #[comptime] game: G,
    ) {
        let (at, stride) = (step_words.first, step_words.stride);
        let truncated = select(result.truncated, TRUNCATED, 0u32);
        let status = select(result.terminated, TERMINATED, truncated);
        self.words[comptime!(num_words(game)) * stride + at] = sampled.action | status;
        self.values[at] = sampled.logprob;
        self.values[stride + at] = result.reward;
        if comptime!(!G::SCORE_IS_REWARD) {
            self.values[2 * stride + at] = result.episode_score;
        }
    }
}

/// Plays the steps of a cube's games, one game per unit, with weights in global or workgroup memory.
#[cube]
// Keeps compile-time conditions separate from run-time ones.
#[allow(clippy::collapsible_if)]
fn play_steps<G: Rules, W: Float, I: Float>(
    weights: &[W],
    starts: &Starts,
    games: &mut Games,
    branches: &mut BranchPoints,
    steps: &StepRange,
    #[comptime] variant: PlayVariant<G>,
) {
    let (game, origin, shape) = comptime!((variant.game, variant.origin, variant.shape));
    let (games_per_cube, has_shared_layers) =
        comptime!((variant.workgroup.games, variant.workgroup.has_shared_layers()));
    let unit = UNIT_POS as usize;
    let row = CUBE_POS * games_per_cube + unit;
    let has_game = unit < games_per_cube && row < games.count;
    // Units without a game read the first one's, and write nothing.
    let row = select(has_game, row, 0usize);
    let env = games.first_env + row;
    let group = games.groups.group_of(env);
    let mut state = if comptime!(origin == Origin::Continued) {
        load_env_state::<G>(&games.envs, row, games.count, game)
    } else {
        starts.state::<G>(&games.groups, group, origin, game)
    };
    let mut episode = if comptime!(origin == Origin::Continued) {
        load_episode(&games.envs, row, games.count)
    } else {
        starts.episode::<G>(&games.groups, group, origin, game)
    };
    if comptime!(origin != Origin::Continued) {
        if has_game {
            games.initial_episodes[row] = episode.score;
            games.initial_episodes[games.count + row] =
                starts.elapsed(&games.groups, group, origin) as f32;
        }
    }
    let own_action_key = action_key(games.action_key, games.groups.run_wide_env(env));
    let num_actions = comptime!(game.num_actions());
    let stride = games.num_steps * games.count;
    let mut activations =
        Shared::<[f32]>::new_aligned_slice(comptime!(variant.workgroup.num_activations()), 16usize);
    let mut x = Array::<f32>::new(comptime!(game.num_features()));
    let mut logits = Array::<f32>::new(num_actions);
    for t in steps.first..steps.end {
        let step_words = StepWords { first: t * games.count + row, stride };
        if has_game {
            store_state::<G>(&mut games.words, &state, 0usize, step_words.first, stride, game);
            #[unroll]
            for i in 0..comptime!(game.num_features()) {
                let feature = round_to::<I>(G::feature(&state, i, game));
                if comptime!(has_shared_layers) {
                    activations[comptime!(i * games_per_cube) + unit] = feature;
                } else {
                    x[i] = feature;
                }
            }
        }
        if comptime!(has_shared_layers) {
            sync_cube();
            compute_hidden_layers::<W, I>(weights, &mut activations, games_per_cube, shape);
        }
        if has_game {
            if comptime!(has_shared_layers) {
                compute_last_layer::<W, I>(
                    weights,
                    &activations,
                    &mut logits,
                    unit,
                    games_per_cube,
                    shape,
                );
            } else {
                mlp_logits::<W, I>(weights, &x, &mut logits, shape);
            }
            mask_logits::<G>(&mut logits, &state, game);
            let u = action_uniform(own_action_key, t as u32);
            let sampled = sample_action(logits.as_slice(), 0usize, u, num_actions);
            let result = step_with_auto_reset::<G>(&mut state, &mut episode, sampled.action, game);
            games.record::<G>(&step_words, &sampled, &result, game);
            if comptime!(variant.stores_branches) {
                if branches.is_branch_point(&games.groups, env, t) {
                    let elapsed = games.initial_episodes[games.count + row] as u32;
                    let point = branch_episode(&episode, elapsed, t as u32 + 1);
                    branches.store::<G>(&games.groups, &state, &point, env, game);
                }
            }
        }
    }
    if has_game {
        store_env::<G>(&mut games.envs, &state, &episode, row, games.count, game);
    }
}

/// Plays some steps of one game per unit, with state and episode in registers.
///
/// Buffers: the parameter vector `[num_params]`; those of [`Starts`], [`Games`] and
/// [`BranchPoints`].
#[cube(launch_unchecked)]
fn play_kernel<G: Rules, I: Float>(
    params: &[f32],
    starts: &Starts,
    games: &mut Games,
    branches: &mut BranchPoints,
    steps: StepRange,
    #[comptime] variant: PlayVariant<G>,
    #[define(I)] _input_type: ElemType,
) {
    if comptime!(variant.has_workgroup_weights) {
        let num_params = comptime!(variant.shape.num_params());
        let mut weights = Shared::<[I]>::new_aligned_slice(num_params, 16usize);
        for i in range_stepped(UNIT_POS as usize, num_params, CUBE_DIM as usize) {
            weights[i] = I::cast_from(params[i]);
        }
        sync_cube();
        play_steps::<G, I, I>(&weights, starts, games, branches, &steps, variant);
    } else {
        play_steps::<G, f32, I>(params, starts, games, branches, &steps, variant);
    }
}

impl<G: Rules> PartRollout<'_, G> {
    /// Plays a part of an iteration. `previous_branches` are the branch points of the previous iteration, if the games
    /// continue from them.
    pub fn play(
        &self,
        params: &CubeTensor,
        shape: MlpShape,
        previous_branches: Option<&CubeTensor>,
        keys: RolloutKeys,
        limits: LaunchLimits,
        precision: Precision,
    ) {
        let config = self.config;
        let client = &params.client;
        let input_type = element_type(precision);
        let workgroup_bytes =
            client.properties().hardware.max_shared_memory_size.min(MAX_WORKGROUP_BYTES);
        let max_games = games_per_cube(self.games.len()) as usize;
        let workgroup = Workgroup::new(&shape, max_games, workgroup_bytes);
        let mut variant = PlayVariant {
            game: self.game,
            origin: Origin::new(config, previous_branches.is_some()),
            stores_branches: config.start == GroupStart::Branch,
            shape,
            workgroup,
            has_workgroup_weights: !workgroup.has_shared_layers()
                && shape.num_params() * input_type.size() <= workgroup_bytes,
        };
        // If games do not continue, the kernel does not read this buffer.
        let previous_branches = previous_branches.unwrap_or(params);
        let dim = CubeDim::new_1d(workgroup.units as u32);
        let count = grid(params, self.games.len().div_ceil(workgroup.games));
        let steps_per_launch = limits.steps_per_launch(self.games.len(), &shape, &workgroup);
        for first_step in (0..config.num_steps).step_by(steps_per_launch) {
            let branches = argument(self.branches);
            let branches =
                BranchPointsLaunch::new(branches, config.learn_steps as u32, keys.branch);
            let end_step = config.num_steps.min(first_step + steps_per_launch);
            // SAFETY: accesses stay below the numbers of games, groups and steps in every buffer,
            // and below `num_params` in the first; all units of a cube reach its barriers.
            unsafe {
                play_kernel::launch_unchecked::<G>(
                    client,
                    count.clone(),
                    dim,
                    argument(params),
                    StartsLaunch::new(argument(previous_branches), keys.level),
                    self.games_launch(&keys),
                    branches,
                    StepRangeLaunch::new(first_step, end_step),
                    variant,
                    input_type,
                );
            }
            variant.origin = Origin::Continued;
        }
    }

    fn games_launch(&self, keys: &RolloutKeys) -> GamesLaunch {
        GamesLaunch::new(
            argument(&self.envs),
            argument(&self.words),
            argument(&self.values),
            argument(&self.initial_episodes),
            GroupsLaunch::from_config(self.config, keys.first_group),
            self.games.start,
            self.games.len(),
            self.config.num_steps,
            keys.action,
        )
    }
}

/// Observer that computes features from packed states of a game.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedStates<G: Rules>(pub G);

impl<G: Rules> HostObserver for PackedStates<G> {
    const HAS_ILLEGAL_ACTIONS: bool = G::HAS_ILLEGAL_ACTIONS;

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
        let state = load_state::<G>(words, 0usize, step.first, step.stride, game);
        let num_workers = comptime!(to.num_workers);
        #[unroll]
        for i in 0..comptime!(game.num_features()) {
            if comptime!(i % num_workers) == to.worker {
                x[to.first + i * to.stride] = I::cast_from(G::feature(&state, i, game));
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
        let state = load_state::<G>(words, 0usize, step.first, step.stride, game);
        G::is_legal(&state, action, game)
    }
}
