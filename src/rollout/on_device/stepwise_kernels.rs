//! The kernels of the stepwise rollout, and their launch: one unit plays one game.

use super::env_kernels::*;
use super::{RolloutKeys, action_key, action_uniform};
use crate::config::{RolloutConfig, Start};
use crate::data::Trajectory;
use crate::device::buffers::{Buffer, argument, cube_tensor, probe, uninit};
use crate::env::{Episode, Played, Rules, play};
use crate::model::kernels::StepWords;
use burn::backend::{Cube, DType};
use burn::cubecl;
use burn::cubecl::client::Client;
use burn::cubecl::prelude::*;
use burn::tensor::{Device, Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Quantities of a step that one buffer holds, each `[num_steps, num_envs]`.
const LOGPROBS: usize = 0;
const REWARDS: usize = 1;
const TERMINATED: usize = 2;
const TRUNCATED: usize = 3;
const SCORES: usize = 4;
/// Their number. Behind them, where the game has masks, comes whether each of its actions is legal.
const QUANTITIES: usize = 5;

/// The games: where they stand, and what a policy sees of them.
#[derive(CubeType, CubeLaunch)]
struct Games {
    /// The environments, `[env_words, num_envs]`.
    envs: Buffer<u32>,
    /// What is seen now, `[num_envs, num_features]`.
    obs: Buffer<f32>,
    /// What was seen before each step, `[num_steps, num_envs, num_features]`.
    history: Buffer<f32>,
    groups: Groups,
    num_steps: usize,
}

#[cube]
impl Games {
    /// Where step `t` of game `env` lies in `[num_steps, num_envs]`, and the size of that.
    fn place(&self, env: usize, t: usize) -> StepWords {
        let num_envs = self.groups.num_envs();
        StepWords { at: t * num_envs + env, stride: self.num_steps * num_envs }
    }

    /// Leaves game `env` before step `t`, with what is seen of it; in the history too if it has that step.
    fn store<G: Rules>(
        &mut self,
        state: &G::State,
        episode: &Episode,
        env: usize,
        t: usize,
        #[comptime] game: G,
    ) {
        let num_envs = self.groups.num_envs();
        store_env::<G>(&mut self.envs, state, episode, env, num_envs, game);
        let features = comptime!(game.num_features());
        #[unroll]
        for i in 0..features {
            let x = G::feature(state, i, game);
            self.obs[env * features + i] = x;
            if t < self.num_steps {
                self.history[(t * num_envs + env) * features + i] = x;
            }
        }
    }
}

/// What is recorded of the games' steps.
#[derive(CubeType, CubeLaunch)]
struct Record {
    /// `[num_steps, num_envs]`.
    actions: Buffer<i32>,
    /// `[quantities, num_steps, num_envs]`.
    quantities: Buffer<f32>,
}

#[cube]
impl Record {
    /// Records a step.
    fn store(&mut self, place: &StepWords, drawn: &Drawn, played: &Played) {
        let (at, stride) = (place.at, place.stride);
        self.actions[at] = drawn.action as i32;
        self.quantities[comptime!(LOGPROBS) * stride + at] = drawn.logprob;
        self.quantities[comptime!(REWARDS) * stride + at] = played.reward;
        let terminated = select(played.terminated, 1.0f32, 0.0f32);
        self.quantities[comptime!(TERMINATED) * stride + at] = terminated;
        let truncated = select(played.truncated, 1.0f32, 0.0f32);
        self.quantities[comptime!(TRUNCATED) * stride + at] = truncated;
        self.quantities[comptime!(SCORES) * stride + at] = played.score;
    }

    /// Records whether an action was legal in a step.
    fn store_legal(&mut self, place: &StepWords, #[comptime] action: usize, legal: bool) {
        let at = comptime!(QUANTITIES + action) * place.stride + place.at;
        self.quantities[at] = select(legal, 1.0f32, 0.0f32);
    }
}

/// The step of all games that a launch plays.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Turn {
    t: usize,
    /// What the iteration's actions are drawn by.
    action_key: u32,
}

/// Starts the games and observes them.
#[cube(launch_unchecked)]
fn start_kernel<G: Rules>(
    starts: &Starts,
    games: &mut Games,
    #[comptime] origin: Origin,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    let num_envs = games.groups.num_envs();
    if env < num_envs {
        let group = games.groups.of(env);
        let state = starts.state::<G>(&games.groups, group, origin, game);
        let episode = starts.episode::<G>(&games.groups, group, origin, game);
        games.store::<G>(&state, &episode, env, 0usize, game);
    }
}

/// Draws the actions by `logits`, `[num_envs, num_actions]`, plays a step, observes.
#[cube(launch_unchecked)]
fn step_kernel<G: Rules>(
    logits: &[f32],
    games: &mut Games,
    record: &mut Record,
    branches: &mut BranchPoints,
    turn: Turn,
    #[comptime] branch: bool,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    let num_envs = games.groups.num_envs();
    if env < num_envs {
        let num_actions = comptime!(game.num_actions());
        let u = action_uniform(
            action_key(turn.action_key, games.groups.env_number(env)),
            turn.t as u32,
        );
        let mut state = load_env_state::<G>(&games.envs, env, num_envs, game);
        let place = games.place(env, turn.t);
        let drawn = if comptime!(G::MASKED) {
            let mut masked = Array::<f32>::new(num_actions);
            #[unroll]
            for a in 0..num_actions {
                masked[a] = logits[env * num_actions + a];
                record.store_legal(&place, a, G::legal(&state, a, game));
            }
            mask_logits::<G>(&mut masked, &state, game);
            draw_action(masked.as_slice(), 0usize, u, num_actions)
        } else {
            draw_action(logits, env * num_actions, u, num_actions)
        };
        let mut episode = load_episode(&games.envs, env, num_envs);
        let played = play::<G>(&mut state, &mut episode, drawn.action, game);
        games.store::<G>(&state, &episode, env, turn.t + 1, game);
        if comptime!(branch) {
            branches.store::<G>(&games.groups, &state, &episode, env, turn.t, game);
        }
        record.store(&place, &drawn, &played);
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
    /// Of the iteration.
    keys: RolloutKeys,
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
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys, device: &Device) -> Self {
        let probe = probe(device);
        let uninit = |shape: &[usize], dtype: DType| uninit(&probe, shape, dtype);
        let (words, features) = (super::env_words(game), game.num_features());
        let (steps, envs) = (config.num_steps, config.num_envs());
        Self {
            envs: uninit(&[words, envs], DType::I32),
            branches: uninit(&[words, config.num_groups], DType::I32),
            obs: uninit(&[envs, features], DType::F32),
            history: uninit(&[steps, envs, features], DType::F32),
            actions: uninit(&[steps, envs], DType::I32),
            quantities: uninit(&[QUANTITIES + masks::<G>(game), steps, envs], DType::F32),
            game,
            config: config.clone(),
            keys,
            client: probe.client.clone(),
        }
    }

    fn games(&self) -> GamesLaunch {
        GamesLaunch::new(
            argument(&self.envs),
            argument(&self.obs),
            argument(&self.history),
            GroupsLaunch::of(&self.config, self.keys.first_group),
            self.config.num_steps,
        )
    }

    fn grid(&self) -> (CubeCount, CubeDim) {
        let units = self.config.num_envs();
        let dim = CubeDim::new(&self.client, units);
        (cubecl::calculate_cube_count_elemwise(&self.client, units, dim), dim)
    }

    /// Starts every game; `branches` are those of the last iteration, if the games go on from there.
    pub fn start(&self, branches: Option<&CubeTensor>) {
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
                StartsLaunch::new(argument(branches), self.keys.level),
                self.games(),
                origin,
                self.game,
            );
        }
    }

    /// Plays step `t` by `logits`, `[num_envs, num_actions]`.
    pub fn step(&self, logits: Tensor<2>, t: usize) {
        assert_eq!(
            logits.dims(),
            [self.config.num_envs(), self.game.num_actions()],
            "logits: [num_envs, num_actions]"
        );
        let logits = cube_tensor(logits);
        let learn_steps = self.config.learn_steps as u32;
        let (count, dim) = self.grid();
        // SAFETY: the kernel stays below the number of games or groups in every buffer, and `t`
        // below `num_steps`.
        unsafe {
            step_kernel::launch_unchecked::<G>(
                &self.client,
                count,
                dim,
                argument(&logits),
                self.games(),
                RecordLaunch::new(argument(&self.actions), argument(&self.quantities)),
                BranchPointsLaunch::new(argument(&self.branches), learn_steps, self.keys.branch),
                TurnLaunch::new(t, self.keys.action),
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
