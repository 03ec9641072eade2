//! The kernel of the fused rollout, and its launch: one unit plays one game for many steps.

use super::kernels::Buffers;
use super::seat_kernels::*;
use super::{RolloutKeys, action_key, action_uniform};
use crate::config::Start;
use crate::env::{Rules, play};
use crate::policy::kernels::{MlpShape, argument, mlp_logits};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// The most workgroup memory, in bytes, that the weights may take; beyond it fewer cubes would fit
/// on a processor than reading the weights from its cache costs.
const MAX_SHARED_BYTES: usize = 32 * 1024;

/// Games that a cube plays: few where there are few, so that they reach all of a GPU's processors.
fn cube_units(num_envs: usize) -> u32 {
    if num_envs < 32 * 1024 { 32 } else { 64 }
}

/// What the kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Plan {
    /// Where the games come from.
    deal: Deal,
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

/// The sizes of an iteration, and the steps of this launch: `first_step..end_step`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    first_step: usize,
    end_step: usize,
    num_groups: usize,
    group_size: usize,
    num_steps: usize,
    learn_steps: u32,
}

/// Plays the steps of one game, by weights in global or workgroup memory.
#[cube]
#[allow(clippy::too_many_arguments)]
fn play_steps<G: Rules>(
    weights: &[f32],
    origins: &[u32],
    seats: &mut [u32],
    history: &mut [f32],
    actions: &mut [i32],
    quantities: &mut [f32],
    branches: &mut [u32],
    keys: &Keys,
    sizes: &Sizes,
    #[comptime] plan: Plan,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    let num_envs = sizes.num_groups * sizes.group_size;
    if env < num_envs {
        let group = env / sizes.group_size;
        let groups = sizes.num_groups;
        let mut state = if comptime!(plan.deal == Deal::Seats) {
            load_state::<G>(&*seats, env, num_envs, game)
        } else {
            dealt_state::<G>(origins, group, groups, keys.level, comptime!(plan.deal), game)
        };
        let mut episode = if comptime!(plan.deal == Deal::Seats) {
            load_episode(&*seats, env, num_envs)
        } else {
            dealt_episode::<G>(origins, group, groups, keys.level, comptime!(plan.deal), game)
        };
        let draws = action_key(keys.action, env as u32);
        let features = comptime!(game.num_features());
        let num_actions = comptime!(game.num_actions());
        let mut x = Array::<f32>::new(features);
        let mut logits = Array::<f32>::new(num_actions);
        for t in sizes.first_step..sizes.end_step {
            let at = t * num_envs + env;
            #[unroll]
            for i in 0..features {
                x[i] = G::feature(&state, i, game);
                history[at * features + i] = x[i];
            }
            mlp_logits(weights, &x, &mut logits, comptime!(plan.shape));
            let u = action_uniform(draws, t as u32);
            let drawn = draw_action(logits.as_slice(), 0usize, u, num_actions);
            let played = play::<G>(&mut state, &mut episode, drawn.action, game);
            store_step(actions, quantities, &drawn, &played, at, sizes.num_steps * num_envs);
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
        store::<G>(seats, &state, &episode, env, num_envs, game);
    }
}

/// One unit plays steps `first_step..end_step` of one game, its state and episode in registers.
///
/// Buffers: the parameter vector `[num_params]`; `origins`, where the last iteration says to go on,
/// `[seat_words, num_groups]`; the seats `[seat_words, num_envs]`, which carry the games from launch
/// to launch; observations `[num_steps, num_envs, num_features]`; actions `[num_steps, num_envs]`;
/// quantities `[QUANTITIES, num_steps, num_envs]`; where the groups go on, as `origins`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn play_kernel<G: Rules>(
    params: &[f32],
    origins: &[u32],
    seats: &mut [u32],
    history: &mut [f32],
    actions: &mut [i32],
    quantities: &mut [f32],
    branches: &mut [u32],
    keys: Keys,
    sizes: Sizes,
    #[comptime] plan: Plan,
    #[comptime] game: G,
) {
    if comptime!(plan.shared) {
        let num_params = comptime!(plan.shape.num_params());
        let mut weights = Shared::<[f32]>::new_slice(num_params);
        for i in range_stepped(UNIT_POS as usize, num_params, CUBE_DIM as usize) {
            weights[i] = params[i];
        }
        sync_cube();
        play_steps::<G>(
            &weights, origins, seats, history, actions, quantities, branches, &keys, &sizes, plan,
            game,
        );
    } else {
        play_steps::<G>(
            params, origins, seats, history, actions, quantities, branches, &keys, &sizes, plan,
            game,
        );
    }
}

impl<G: Rules> Buffers<G> {
    /// Plays the whole iteration by a perceptron, `steps_per_launch` steps a launch. `origins` are
    /// the branches of the last iteration, if the games go on from there.
    pub fn play(
        &self,
        params: &CubeTensor,
        shape: MlpShape,
        origins: Option<&CubeTensor>,
        keys: RolloutKeys,
        steps_per_launch: usize,
    ) {
        assert_eq!(params.meta.num_elements(), shape.num_params(), "params: [num_params]");
        assert_eq!(shape.features, self.game.num_features(), "the policy's features");
        assert_eq!(shape.actions, self.game.num_actions(), "the policy's actions");
        let config = &self.config;
        let limit = self.client.properties().hardware.max_shared_memory_size;
        let bytes = shape.num_params() * size_of::<f32>();
        let mut plan = Plan {
            deal: Deal::of(config, origins.is_some()),
            branch: config.start == Start::Branch,
            shape,
            shared: bytes <= limit.min(MAX_SHARED_BYTES),
        };
        // Where games do not go on, the kernel reads nothing of the buffer; `obs` is not used here.
        let origins = origins.unwrap_or(&self.obs);
        let dim = CubeDim::new_1d(cube_units(config.num_envs()));
        let count = cubecl::calculate_cube_count_elemwise(&self.client, config.num_envs(), dim);
        for first_step in (0..config.num_steps).step_by(steps_per_launch) {
            let sizes = SizesLaunch::new(
                first_step,
                config.num_steps.min(first_step + steps_per_launch),
                config.num_groups,
                config.group_size,
                config.num_steps,
                config.learn_steps as u32,
            );
            // SAFETY: the kernel stays below the number of games, groups and steps in every buffer,
            // and below `num_params` in the first; all units of a cube reach its barrier.
            unsafe {
                play_kernel::launch_unchecked::<G>(
                    &self.client,
                    count.clone(),
                    dim,
                    argument(params),
                    argument(origins),
                    argument(&self.seats),
                    argument(&self.history),
                    argument(&self.actions),
                    argument(&self.quantities),
                    argument(&self.branches),
                    KeysLaunch::new(keys.level, keys.action, keys.branch),
                    sizes,
                    plan,
                    self.game,
                );
            }
            plan.deal = Deal::Seats;
        }
    }
}
