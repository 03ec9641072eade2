//! The kernels of the stepwise rollout, and their launch: one unit plays one game.

use super::env_kernels::*;
use super::masks::mask_logits;
use super::{action_key, action_uniform};
use crate::config::{RolloutConfig, Start};
use crate::data::Trajectory;
use crate::device::buffers::{argument, cube_tensor, probe, room};
use crate::env::{Rules, play};
use burn::backend::{Cube, DType};
use burn::cubecl;
use burn::cubecl::client::Client;
use burn::cubecl::prelude::*;
use burn::tensor::{Device, Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Writes the features of a game to `obs` and to step `t` of `history`, where that exists.
#[cube]
fn observe<G: Rules>(
    state: &G::State,
    obs: &mut [f32],
    history: &mut [f32],
    env: usize,
    t: usize,
    num_envs: usize,
    num_steps: usize,
    #[comptime] game: G,
) {
    let features = comptime!(game.num_features());
    #[unroll]
    for i in 0..features {
        let x = G::feature(state, i, game);
        obs[env * features + i] = x;
        if t < num_steps {
            history[(t * num_envs + env) * features + i] = x;
        }
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn start_kernel<G: Rules>(
    branches: &[u32],
    envs: &mut [u32],
    obs: &mut [f32],
    history: &mut [f32],
    level_key: u32,
    num_groups: usize,
    group_size: usize,
    num_steps: usize,
    #[comptime] origin: Origin,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    let num_envs = num_groups * group_size;
    if env < num_envs {
        let group = env / group_size;
        let state = first_state::<G>(branches, group, num_groups, level_key, origin, game);
        let episode = first_episode::<G>(branches, group, num_groups, level_key, origin, game);
        store_env::<G>(envs, &state, &episode, env, num_envs, game);
        observe::<G>(&state, obs, history, env, 0usize, num_envs, num_steps, game);
    }
}

/// Draws the actions, plays step `t`, observes.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn step_kernel<G: Rules>(
    logits: &[f32],
    envs: &mut [u32],
    obs: &mut [f32],
    history: &mut [f32],
    actions: &mut [i32],
    quantities: &mut [f32],
    branches: &mut [u32],
    iteration_key: u32,
    branch_key: u32,
    t: usize,
    num_groups: usize,
    group_size: usize,
    num_steps: usize,
    learn_steps: u32,
    #[comptime] branch: bool,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    let num_envs = num_groups * group_size;
    if env < num_envs {
        let num_actions = comptime!(game.num_actions());
        let u = action_uniform(action_key(iteration_key, env as u32), t as u32);
        let mut state = load_env_state::<G>(&*envs, env, num_envs, game);
        let (at, stride) = (t * num_envs + env, num_steps * num_envs);
        let drawn = if comptime!(G::MASKED) {
            let mut masked = Array::<f32>::new(num_actions);
            #[unroll]
            for a in 0..num_actions {
                masked[a] = logits[env * num_actions + a];
                let legal = select(G::legal(&state, a, game), 1.0f32, 0.0f32);
                quantities[comptime!(QUANTITIES + a) * stride + at] = legal;
            }
            mask_logits::<G>(&mut masked, &state, game);
            draw_action(masked.as_slice(), 0usize, u, num_actions)
        } else {
            draw_action(logits, env * num_actions, u, num_actions)
        };
        let mut episode = load_episode(&*envs, env, num_envs);
        let played = play::<G>(&mut state, &mut episode, drawn.action, game);
        store_env::<G>(envs, &state, &episode, env, num_envs, game);
        observe::<G>(&state, obs, history, env, t + 1, num_envs, num_steps, game);
        if branch {
            store_branch::<G>(
                branches,
                &state,
                &episode,
                env,
                t,
                branch_key,
                num_groups,
                group_size,
                learn_steps,
                game,
            );
        }
        store_step(actions, quantities, &drawn, &played, at, stride);
    }
}

/// The actions whose legality is written down.
fn masks<G: Rules>(game: G) -> usize {
    if G::MASKED { game.num_actions() } else { 0 }
}

/// The buffers of an iteration on a device.
pub(super) struct Buffers<G: Rules> {
    game: G,
    config: RolloutConfig,
    client: Client,
    envs: CubeTensor,
    branches: CubeTensor,
    obs: CubeTensor,
    history: CubeTensor,
    actions: CubeTensor,
    quantities: CubeTensor,
}

impl<G: Rules> Buffers<G> {
    /// Room for the games of an iteration on `device`.
    pub fn new(game: G, config: &RolloutConfig, device: &Device) -> Self {
        let probe = probe(device);
        let room = |shape: &[usize], dtype: DType| room(&probe, shape, dtype);
        let (words, features) = (super::env_words(game), game.num_features());
        let (steps, envs) = (config.num_steps, config.num_envs());
        Self {
            envs: room(&[words, envs], DType::I32),
            branches: room(&[words, config.num_groups], DType::I32),
            obs: room(&[envs, features], DType::F32),
            history: room(&[steps, envs, features], DType::F32),
            actions: room(&[steps, envs], DType::I32),
            quantities: room(&[QUANTITIES + masks::<G>(game), steps, envs], DType::F32),
            game,
            config: config.clone(),
            client: probe.client.clone(),
        }
    }

    fn grid(&self) -> (CubeCount, CubeDim) {
        let units = self.config.num_envs();
        let dim = CubeDim::new(&self.client, units);
        (cubecl::calculate_cube_count_elemwise(&self.client, units, dim), dim)
    }

    /// Starts every game; `branches` are those of the last iteration, if the games go on from there.
    pub fn start(&self, branches: Option<&CubeTensor>, level_key: u32) {
        let origin = Origin::of(&self.config, branches.is_some());
        let (count, dim) = self.grid();
        // Where games do not go on, the kernel reads nothing of the first buffer.
        let branches = branches.unwrap_or(&self.branches);
        // SAFETY: the kernel stays below the number of games or groups in every buffer.
        unsafe {
            start_kernel::launch_unchecked::<G>(
                &self.client,
                count,
                dim,
                argument(branches),
                argument(&self.envs),
                argument(&self.obs),
                argument(&self.history),
                level_key,
                self.config.num_groups,
                self.config.group_size,
                self.config.num_steps,
                origin,
                self.game,
            );
        }
    }

    /// Plays step `t` by `logits`, `[num_envs, num_actions]`.
    pub fn step(&self, logits: Tensor<2>, t: usize, iteration_key: u32, branch_key: u32) {
        assert_eq!(
            logits.dims(),
            [self.config.num_envs(), self.game.num_actions()],
            "logits: [num_envs, num_actions]"
        );
        let logits = cube_tensor(logits);
        let (count, dim) = self.grid();
        // SAFETY: the kernel stays below the number of games or groups in every buffer, and `t`
        // below `num_steps`.
        unsafe {
            step_kernel::launch_unchecked::<G>(
                &self.client,
                count,
                dim,
                argument(&logits),
                argument(&self.envs),
                argument(&self.obs),
                argument(&self.history),
                argument(&self.actions),
                argument(&self.quantities),
                argument(&self.branches),
                iteration_key,
                branch_key,
                t,
                self.config.num_groups,
                self.config.group_size,
                self.config.num_steps,
                self.config.learn_steps as u32,
                self.config.start == Start::Branch,
                self.game,
            );
        }
    }

    /// The current observations `[num_envs, num_features]`.
    ///
    /// The tensor shares the buffer that the next step writes to: use it before.
    pub fn obs(&self) -> Tensor<2> {
        Tensor::from_primitive::<Cube>(self.obs.clone())
    }

    /// 1 where an episode ended with step `t`, else 0: `[num_envs]`.
    pub fn ends(&self, t: usize) -> Tensor<1> {
        let envs = self.config.num_envs();
        let quantities = Tensor::<3>::from_primitive::<Cube>(self.quantities.clone());
        let rows = TERMINATED..TRUNCATED + 1;
        quantities.slice([rows, t..t + 1, 0..envs]).sum_dim(0).reshape([envs])
    }

    /// The trajectory, and where the groups go on.
    pub fn finish(self) -> (Trajectory, CubeTensor) {
        let (num_steps, num_envs) = (self.config.num_steps, self.config.num_envs());
        let quantities = Tensor::<3>::from_primitive::<Cube>(self.quantities);
        let quantity = |i: usize| {
            quantities.clone().slice([i..i + 1, 0..num_steps, 0..num_envs]).squeeze_dim::<2>(0)
        };
        let trajectory = Trajectory {
            obs: Tensor::from_primitive::<Cube>(self.history),
            actions: Tensor::<2, Int>::from_primitive::<Cube>(self.actions),
            logprobs: quantity(LOGPROBS),
            rewards: quantity(REWARDS),
            terminated: quantity(TERMINATED),
            truncated: quantity(TRUNCATED),
            scores: quantity(SCORES),
            memory: None,
            legal: G::MASKED.then(|| quantities.clone().slice([QUANTITIES..]).permute([1, 2, 0])),
        };
        (trajectory, self.branches)
    }
}
