//! Kernels of the stepwise rollout: one unit plays one game.

use super::env_kernels::{
    BranchPoints, BranchPointsLaunch, Groups, GroupsLaunch, Origin, Starts, StartsLaunch,
    load_env_state, load_episode, mask_logits, store_env,
};
use super::{RolloutKeys, action_key, action_uniform, branch_episode, env_words};
use crate::data::Trajectory;
use crate::device::buffers::{Buffer, argument, cube_tensor, probe, uninit};
use crate::env::{Episode, Rules, StepResult, step_with_auto_reset};
use crate::math::softmax::{SampledAction, sample_action};
use crate::model::StepWords;
use crate::settings::{GroupStart, RolloutConfig};
use burn::backend::{Cube, DType};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{Device, Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Rows of the step buffer, each `[num_steps, num_envs]`.
const LOGPROBS: usize = 0;
const REWARDS: usize = 1;
const TERMINATED: usize = 2;
const TRUNCATED: usize = 3;
const SCORES: usize = 4;
/// Number of fixed rows. For games with masks one row per action follows, 1 if legal, else 0.
const NUM_QUANTITIES: usize = 5;

/// Games and their observations.
#[derive(CubeType, CubeLaunch)]
struct Games {
    /// Environments, `[env_words, num_envs]`, then the steps of each one's episode that were played before the
    /// iteration.
    envs: Buffer<u32>,
    /// Observations before each step, `[num_steps, num_envs, num_features]`.
    obs: Buffer<f32>,
    groups: Groups,
    num_steps: usize,
}

#[cube]
impl Games {
    /// Offset of step `t` of game `env` in `[num_steps, num_envs]`, and the size of that matrix.
    fn step_words(&self, env: usize, t: usize) -> StepWords {
        let num_envs = self.groups.num_envs();
        StepWords { first: t * num_envs + env, stride: self.num_steps * num_envs }
    }

    /// Stores game `env` before step `t`, and its observation if `t` is within the iteration.
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
        if t < self.num_steps {
            #[unroll]
            for i in 0..features {
                self.obs[(t * num_envs + env) * features + i] = G::feature(state, i, game);
            }
        }
    }
}

/// Recorded steps.
#[derive(CubeType, CubeLaunch)]
struct StepRecords {
    /// `[num_steps, num_envs]`.
    actions: Buffer<i32>,
    /// `[rows, num_steps, num_envs]`.
    quantities: Buffer<f32>,
}

#[cube]
impl StepRecords {
    /// Records the result of a step.
    fn store(&mut self, step_words: &StepWords, sampled: &SampledAction, result: &StepResult) {
        let (at, stride) = (step_words.first, step_words.stride);
        self.actions[at] = sampled.action as i32;
        self.quantities[comptime!(LOGPROBS) * stride + at] = sampled.logprob;
        self.quantities[comptime!(REWARDS) * stride + at] = result.reward;
        let terminated = select(result.terminated, 1.0f32, 0.0f32);
        self.quantities[comptime!(TERMINATED) * stride + at] = terminated;
        let truncated = select(result.truncated, 1.0f32, 0.0f32);
        self.quantities[comptime!(TRUNCATED) * stride + at] = truncated;
        self.quantities[comptime!(SCORES) * stride + at] = result.episode_score;
    }

    /// Records the legality of an action.
    fn store_legal(&mut self, step_words: &StepWords, #[comptime] action: usize, is_legal: bool) {
        let at = comptime!(NUM_QUANTITIES + action) * step_words.stride + step_words.first;
        self.quantities[at] = select(is_legal, 1.0f32, 0.0f32);
    }
}

/// Initializes the games and observes them; one game per unit.
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
        let group = games.groups.group_of(env);
        let state = starts.state::<G>(&games.groups, group, origin, game);
        let episode = starts.episode::<G>(&games.groups, group, origin, game);
        games.envs[comptime!(env_words(game)) * num_envs + env] =
            starts.elapsed(&games.groups, group, origin);
        games.store::<G>(&state, &episode, env, 0usize, game);
    }
}

/// Samples actions from `logits`, `[num_envs, num_actions]`, by the iteration's key of actions, plays step `t` and
/// observes; one game per unit.
#[cube(launch_unchecked)]
// Keeps compile-time conditions separate from run-time ones.
#[allow(clippy::collapsible_if)]
fn step_kernel<G: Rules>(
    logits: &[f32],
    games: &mut Games,
    records: &mut StepRecords,
    branches: &mut BranchPoints,
    t: usize,
    iteration_action_key: u32,
    #[comptime] stores_branches: bool,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    let num_envs = games.groups.num_envs();
    if env < num_envs {
        let num_actions = comptime!(game.num_actions());
        let own_action_key = action_key(iteration_action_key, games.groups.run_wide_env(env));
        let u = action_uniform(own_action_key, t as u32);
        let mut state = load_env_state::<G>(&games.envs, env, num_envs, game);
        let step_words = games.step_words(env, t);
        let sampled = if comptime!(G::HAS_ILLEGAL_ACTIONS) {
            let mut masked_logits = Array::<f32>::new(num_actions);
            #[unroll]
            for a in 0..num_actions {
                masked_logits[a] = logits[env * num_actions + a];
                records.store_legal(&step_words, a, G::is_legal(&state, a, game));
            }
            mask_logits::<G>(&mut masked_logits, &state, game);
            sample_action(masked_logits.as_slice(), 0usize, u, num_actions)
        } else {
            sample_action(logits, env * num_actions, u, num_actions)
        };
        let mut episode = load_episode(&games.envs, env, num_envs);
        let result = step_with_auto_reset::<G>(&mut state, &mut episode, sampled.action, game);
        games.store::<G>(&state, &episode, env, t + 1, game);
        if comptime!(stores_branches) {
            if branches.is_branch_point(&games.groups, env, t) {
                let elapsed = games.envs[comptime!(env_words(game)) * num_envs + env];
                let point = branch_episode(&episode, elapsed, t as u32 + 1);
                branches.store::<G>(&games.groups, &state, &point, env, game);
            }
        }
        records.store(&step_words, &sampled, &result);
    }
}

/// Number of mask rows.
fn num_mask_rows<G: Rules>(game: G) -> usize {
    if G::HAS_ILLEGAL_ACTIONS { game.num_actions() } else { 0 }
}

/// The size of the largest buffer of an iteration, bytes: observations, recorded quantities or environments.
pub fn largest_stepwise_buffer_bytes<G: Rules>(game: G, config: &RolloutConfig) -> u64 {
    let per_step = game.num_features().max(NUM_QUANTITIES + num_mask_rows::<G>(game)) as u64;
    let per_game = (per_step * config.num_steps as u64).max(env_words(game) as u64 + 1);
    let games = config.num_groups as u64 * config.group_size as u64;
    games * per_game * size_of::<f32>() as u64
}

/// Buffers of an iteration on a device.
pub(in crate::rollout) struct StepwiseBuffers<G: Rules> {
    game: G,
    config: RolloutConfig,
    /// Keys of the iteration.
    keys: RolloutKeys,
    envs: CubeTensor,
    branches: CubeTensor,
    obs: CubeTensor,
    actions: CubeTensor,
    quantities: CubeTensor,
}

impl<G: Rules> StepwiseBuffers<G> {
    /// Allocates the buffers of an iteration on `device`.
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys, device: &Device) -> Self {
        let probe = probe(device);
        let uninit = |shape: &[usize], dtype: DType| uninit(&probe, shape, dtype);
        let (words, features) = (env_words(game), game.num_features());
        let (steps, envs) = (config.num_steps, config.num_envs());
        let rows = NUM_QUANTITIES + num_mask_rows::<G>(game);
        Self {
            envs: uninit(&[words + 1, envs], DType::I32),
            branches: uninit(&[words, config.num_groups], DType::I32),
            obs: uninit(&[steps, envs, features], DType::F32),
            actions: uninit(&[steps, envs], DType::I32),
            quantities: uninit(&[rows, steps, envs], DType::F32),
            game,
            config: config.clone(),
            keys,
        }
    }

    fn games_launch(&self) -> GamesLaunch {
        GamesLaunch::new(
            argument(&self.envs),
            argument(&self.obs),
            GroupsLaunch::from_config(&self.config, self.keys.first_group),
            self.config.num_steps,
        )
    }

    fn grid(&self) -> (CubeCount, CubeDim) {
        let units = self.config.num_envs();
        let dim = CubeDim::new(&self.envs.client, units);
        (cubecl::calculate_cube_count_elemwise(&self.envs.client, units, dim), dim)
    }

    /// Starts every game; `previous_branches` are the branch points of the previous iteration, if the games continue
    /// from them.
    pub fn start(&self, previous_branches: Option<&CubeTensor>) {
        let origin = Origin::new(&self.config, previous_branches.is_some());
        let (count, dim) = self.grid();
        // If games do not continue, the kernel does not read this buffer.
        let previous_branches = previous_branches.unwrap_or(&self.branches);
        // SAFETY: accesses stay below the number of games or groups in every buffer.
        unsafe {
            start_kernel::launch_unchecked::<G>(
                &self.envs.client,
                count,
                dim,
                StartsLaunch::new(argument(previous_branches), self.keys.level),
                self.games_launch(),
                origin,
                self.game,
            );
        }
    }

    /// Plays step `t` with `logits`, `[num_envs, num_actions]`.
    pub fn step(&self, logits: Tensor<2>, t: usize) {
        assert_eq!(
            logits.dims(),
            [self.config.num_envs(), self.game.num_actions()],
            "logits: [num_envs, num_actions]"
        );
        let logits = cube_tensor(logits);
        let learn_steps = self.config.learn_steps as u32;
        let (count, dim) = self.grid();
        // SAFETY: accesses stay below the number of games or groups in every buffer, and `t` below
        // `num_steps`.
        unsafe {
            step_kernel::launch_unchecked::<G>(
                &self.envs.client,
                count,
                dim,
                argument(&logits),
                self.games_launch(),
                StepRecordsLaunch::new(argument(&self.actions), argument(&self.quantities)),
                BranchPointsLaunch::new(argument(&self.branches), learn_steps, self.keys.branch),
                t,
                self.keys.action,
                self.config.start == GroupStart::Branch,
                self.game,
            );
        }
    }

    /// Observations before step `t`, `[num_envs, num_features]`. Later steps leave them as they are.
    pub fn obs(&self, t: usize) -> Tensor<2> {
        Tensor::<3>::from_primitive::<Cube>(self.obs.clone()).narrow(0, t, 1).squeeze_dim(0)
    }

    /// 1 if an episode ended with step `t`, else 0: `[num_envs]`.
    pub fn ends(&self, t: usize) -> Tensor<1> {
        let envs = self.config.num_envs();
        let quantities = Tensor::<3>::from_primitive::<Cube>(self.quantities.clone());
        let rows = TERMINATED..TRUNCATED + 1;
        quantities.slice([rows, t..t + 1, 0..envs]).sum_dim(0).reshape([envs])
    }

    /// Returns the trajectory and the branch points.
    pub fn finish(self) -> (Trajectory, CubeTensor) {
        let (num_steps, num_envs) = (self.config.num_steps, self.config.num_envs());
        let quantities = Tensor::<3>::from_primitive::<Cube>(self.quantities);
        let quantity = |i: usize| {
            quantities.clone().slice([i..i + 1, 0..num_steps, 0..num_envs]).squeeze_dim::<2>(0)
        };
        let words = env_words(self.game);
        let envs = Tensor::<2, Int>::from_primitive::<Cube>(self.envs);
        let elapsed = || envs.slice([words..words + 1, 0..num_envs]).float().reshape([num_envs]);
        let trajectory = Trajectory {
            obs: Tensor::from_primitive::<Cube>(self.obs),
            actions: Tensor::<2, Int>::from_primitive::<Cube>(self.actions),
            logprobs: quantity(LOGPROBS),
            rewards: quantity(REWARDS),
            terminated: quantity(TERMINATED),
            truncated: quantity(TRUNCATED),
            scores: quantity(SCORES),
            memory: None,
            elapsed: (self.config.start == GroupStart::Branch).then(elapsed),
            legal: G::HAS_ILLEGAL_ACTIONS
                .then(|| quantities.clone().slice([NUM_QUANTITIES..]).permute([1, 2, 0])),
        };
        (trajectory, self.branches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Catch, Fruit};

    #[test]
    fn the_largest_buffer_holds_observations_quantities_or_environments() {
        let bytes = |num_steps| {
            let config =
                RolloutConfig { num_groups: 3, group_size: 5, num_steps, ..Default::default() };
            [
                largest_stepwise_buffer_bytes(Fruit::default(), &config),
                largest_stepwise_buffer_bytes(Catch::default(), &config),
            ]
        };
        assert_eq!(bytes(7), [15 * 7 * 16 * 4, 15 * 7 * 5 * 4]);
        assert_eq!(bytes(0)[1], 15 * (4 + 1) * 4);
    }
}
