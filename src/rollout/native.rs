//! Rollouts on CPU threads with native rules and policies.
//!
//! Each block of [`LANES`] games is played from the first step to the last by one thread without
//! synchronization; the assignment of blocks to threads does not affect the result.

use super::action_selection::{ActionLanes, LanePolicy};
use super::env_lanes::{EnvLanes, StepResultLanes, SumLanes};
use super::env_state::{self, BranchEnv, BranchPoint, EnvState};
use super::{ActionSelection, EnvStatesError, RolloutKeys, action_key};
use crate::data::native::ended_steps;
use crate::data::{EpisodeStatus, GameSums, NativeTrajectory, OBS_MULTIPLE, Trajectory};
use crate::env::Rules;
use crate::model::{Actor, LANES, set_lane, splat};
use crate::settings::RolloutConfig;
use burn::tensor::Device;
use rayon::prelude::*;

/// Native rollouts of a run's games.
#[derive(Clone, Debug)]
pub struct NativeRollout<G: Rules> {
    game: G,
    config: RolloutConfig,
    keys: RolloutKeys,
    branches: Vec<BranchEnv<G>>,
    /// Memory of the policy at the branch points: `[num_groups, memory_size]`.
    memory: Vec<f32>,
}

/// A block of games with its output buffers: `[games, num_steps]` each, for observations `[games,
/// num_steps, obs_stride]`.
struct Block<'a, G: Rules> {
    /// Index of the first game.
    first: usize,
    envs: &'a [EnvState<G>],
    /// Steps played of each game's episode before the first step; empty if all games start episodes.
    elapsed: &'a [u32],
    /// Memory of the policy before the first step, `[games, memory_size]`; empty if it is the initial one.
    memory: &'a [f32],
    obs: &'a mut [f32],
    actions: &'a mut [i32],
    logprobs: &'a mut [f32],
    rewards: &'a mut [f32],
    statuses: &'a mut [EpisodeStatus],
    /// Empty if scores are not recorded.
    scores: &'a mut [f32],
    /// Empty if the game has no masks.
    legal: &'a mut [u32],
}

/// Cuts a trajectory of these games into blocks.
fn split_into_blocks<'a, G: Rules>(
    envs: &'a [EnvState<G>],
    trajectory: &'a mut NativeTrajectory,
) -> Vec<Block<'a, G>> {
    let (rows, stride) = (LANES * trajectory.num_steps, trajectory.obs_stride());
    let memory_len = LANES * trajectory.memory.len() / trajectory.num_envs;
    let mut elapsed = trajectory.elapsed.chunks(LANES);
    let mut memory = trajectory.memory.chunks(memory_len.max(1));
    let mut obs = trajectory.obs.chunks_mut(rows * stride);
    let mut actions = trajectory.actions.chunks_mut(rows);
    let mut logprobs = trajectory.logprobs.chunks_mut(rows);
    let mut rewards = trajectory.rewards.chunks_mut(rows);
    let mut statuses = trajectory.statuses.chunks_mut(rows);
    let mut scores = trajectory.scores.chunks_mut(rows);
    let mut legal = trajectory.legal.chunks_mut(rows);
    // Each block of an empty buffer is empty.
    let block = |(index, envs): (usize, &'a [EnvState<G>])| Block {
        first: index * LANES,
        envs,
        elapsed: elapsed.next().unwrap_or_default(),
        memory: memory.next().unwrap_or_default(),
        obs: obs.next().unwrap_or_default(),
        actions: actions.next().unwrap_or_default(),
        logprobs: logprobs.next().unwrap_or_default(),
        rewards: rewards.next().unwrap_or_default(),
        statuses: statuses.next().unwrap_or_default(),
        scores: scores.next().unwrap_or_default(),
        legal: legal.next().unwrap_or_default(),
    };
    envs.chunks(LANES).enumerate().map(block).collect()
}

/// Branch point of a group with its environment.
struct Branch<G: Rules> {
    group: usize,
    env: BranchEnv<G>,
    /// Memory of the policy: `[memory_size]`.
    memory: Vec<f32>,
}

impl<G: Rules> NativeRollout<G> {
    /// Creates a rollout; games start with the first iteration.
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys) -> Self {
        Self { game, config: config.clone(), keys, branches: Vec::new(), memory: Vec::new() }
    }

    /// Plays `num_steps` steps of every game and uploads the trajectory to `device`.
    pub fn collect<A: Actor>(&mut self, policy: &A, iteration: u32, device: &Device) -> Trajectory {
        let mut trajectory = NativeTrajectory::default();
        let (steps, features) = (self.config.num_steps, self.game.num_features());
        trajectory.resize(self.config.num_envs(), steps, features);
        trajectory.enable_scores();
        self.collect_into(policy, iteration, &mut trajectory);
        trajectory.to_tensors(device)
    }

    /// Plays `num_steps` steps of every game, overwriting `trajectory`. Returns the sums over the
    /// steps of each game.
    pub fn collect_into<A: Actor>(
        &mut self,
        policy: &A,
        iteration: u32,
        trajectory: &mut NativeTrajectory,
    ) -> Vec<GameSums> {
        let keys = self.keys.for_iteration(iteration);
        let envs = env_state::start_envs(self.game, &self.config, keys, &self.branches);
        let points = env_state::draw_branch_points(&self.config, keys);
        self.prepare(trajectory);
        let (branches, sums): (Vec<_>, Vec<_>) = split_into_blocks(&envs, trajectory)
            .into_par_iter()
            .map(|block| self.play_block(policy, keys, &points, block))
            .unzip();
        let mut branches: Vec<Branch<G>> = branches.into_iter().flatten().collect();
        branches.sort_by_key(|branch| branch.group);
        self.branches = branches.iter().map(|branch| branch.env).collect();
        self.memory = branches.iter().flat_map(|branch| &branch.memory).copied().collect();
        sums.concat()
    }

    /// Makes room in a trajectory, and records how its games continue those of the last iteration.
    fn prepare(&self, trajectory: &mut NativeTrajectory) {
        let RolloutConfig { num_groups, group_size, num_steps, .. } = self.config;
        trajectory.resize(self.config.num_envs(), num_steps, self.game.num_features());
        trajectory.enable_masks(if G::HAS_ILLEGAL_ACTIONS { self.game.num_actions() } else { 0 });
        trajectory.elapsed = env_state::elapsed_steps(&self.config, &self.branches);
        trajectory.memory.clear();
        if !self.memory.is_empty() {
            let rows = self.memory.chunks_exact(self.memory.len() / num_groups);
            trajectory.memory.extend(rows.flat_map(|row| row.repeat(group_size)));
        }
    }

    /// Exports the branch points as words `[env_words, num_groups]`; empty before the first
    /// iteration or if games start at levels.
    pub fn export_branches(&self) -> Vec<u32> {
        env_state::pack_envs(self.game, &self.branches)
    }

    /// Restores branch points from [`NativeRollout::export_branches`].
    ///
    /// # Errors
    /// If the number of words is wrong.
    pub fn import_branches(&mut self, words: &[u32]) -> Result<(), EnvStatesError> {
        self.branches = env_state::unpack_envs(self.game, self.config.num_groups, words)?;
        Ok(())
    }

    /// Memory of the policy at the branch points, `[num_groups, memory_size]`; empty without memory.
    pub fn export_memory(&self) -> &[f32] {
        &self.memory
    }

    /// Restores memory from [`NativeRollout::export_memory`].
    ///
    /// # Panics
    /// If the length is not a multiple of the number of groups.
    pub fn import_memory(&mut self, memory: &[f32]) {
        let groups = self.config.num_groups;
        assert!(memory.len().is_multiple_of(groups), "memory: [num_groups, memory_size]");
        self.memory = memory.to_vec();
    }

    /// Plays a block of games. Returns the branch points among them, and the sums over the steps of each.
    fn play_block<A: Actor>(
        &self,
        policy: &A,
        keys: RolloutKeys,
        points: &[BranchPoint],
        mut block: Block<G>,
    ) -> (Vec<Branch<G>>, Vec<GameSums>) {
        let Block { first, envs, elapsed, .. } = block;
        let RolloutConfig { num_steps, group_size, auto_reset, .. } = self.config;
        let elapsed = |lane: usize| elapsed.get(lane).copied().unwrap_or(0);
        let initial_memory = policy.initial_memory();
        let mut memory = splat(&initial_memory);
        for (lane, row) in block.memory.chunks_exact(initial_memory.len().max(1)).enumerate() {
            set_lane(&mut memory, lane, row);
        }
        let first_index = keys.first_group as usize * group_size + first;
        let action_keys: [u32; LANES] =
            std::array::from_fn(|lane| action_key(keys.action, (first_index + lane) as u32));
        let mut policy = LanePolicy::new(policy, self.game);
        let mut lanes = EnvLanes::new(envs);
        let (mut results, mut sums) = (StepResultLanes::default(), SumLanes::default());
        // Groups with games in this block may branch from them.
        let games = first..first + envs.len();
        let groups = points.iter().enumerate().take(games.end.div_ceil(group_size));
        let own_points =
            groups.skip(first / group_size).filter(|(_, point)| games.contains(&point.env));
        let mut branches = Vec::new();
        for t in 0..num_steps {
            let logits = policy.compute_logits(self.game, &lanes, &mut memory);
            let chosen = ActionSelection::Sampling.choose(logits, &action_keys, t as u32);
            lanes.step_with_auto_reset(self.game, &chosen.actions, &mut results);
            sums.add(&results, auto_reset);
            block.record(t, num_steps, &policy, &chosen, &results);
            if !initial_memory.is_empty() {
                for lane in (0..envs.len()).filter(|lane| results.status(*lane).has_ended()) {
                    set_lane(&mut memory, lane, &initial_memory);
                }
            }
            for (group, point) in own_points.clone().filter(|(_, point)| point.step == t + 1) {
                let lane = point.env - first;
                let memory = memory.iter().map(|lanes| lanes[lane]).collect();
                let env = lanes.env(lane).branch(elapsed(lane), point.step);
                branches.push(Branch { group, env, memory });
            }
        }
        let game_sums = |(lane, statuses): (usize, &[EpisodeStatus])| GameSums {
            scores: sums.scores[lane].into(),
            episodes: sums.episodes[lane].into(),
            ended_steps: ended_steps(statuses, elapsed(lane), auto_reset) as f64,
            rewards: sums.rewards[lane].into(),
            steps: if auto_reset { num_steps as f64 } else { sums.steps[lane].into() },
        };
        let sums = block.statuses.chunks_exact(num_steps).enumerate().map(game_sums).collect();
        (branches, sums)
    }
}

impl<G: Rules> Block<'_, G> {
    /// Records step `t` of `num_steps`: observations, chosen actions with their log-probabilities, and results.
    #[inline(always)]
    fn record<A: Actor>(
        &mut self,
        t: usize,
        num_steps: usize,
        policy: &LanePolicy<A>,
        chosen: &ActionLanes,
        results: &StepResultLanes,
    ) {
        let obs = &policy.obs;
        let stride = obs.len().next_multiple_of(OBS_MULTIPLE);
        for lane in 0..self.envs.len() {
            let slot = lane * num_steps + t;
            let row = &mut self.obs[slot * stride..][..obs.len()];
            prefetch(row.as_ptr().wrapping_add(PREFETCH_STEPS * stride));
            match policy.active_features() {
                None => row.iter_mut().zip(obs).for_each(|(x, feature)| *x = feature[lane]),
                Some(active) => {
                    row.fill(0.0);
                    active.iter().for_each(|i| row[*i] = obs[*i][lane]);
                }
            }
            self.actions[slot] = chosen.actions[lane] as i32;
            self.logprobs[slot] = chosen.logprobs[lane];
            self.rewards[slot] = results.rewards[lane];
            self.statuses[slot] = results.status(lane);
            if G::HAS_ILLEGAL_ACTIONS {
                self.legal[slot] = policy.legal[lane];
            }
            if let Some(score) = self.scores.get_mut(slot) {
                *score = results.scores[lane];
            }
        }
    }
}

/// Distance of the prefetch, in steps.
const PREFETCH_STEPS: usize = 2;

/// Prefetches a cache line for writing; the address may lie past the end of a buffer.
#[inline(always)]
fn prefetch(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory, so any address is valid.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
