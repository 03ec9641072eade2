//! Rollouts and evaluations in environments on the host ([`HostVecEnv`]), with any policy.

use super::{ActionSelection, EpisodeKeys, EpisodeResult, RolloutKeys, action_key};
use crate::data::{EpisodeStatus, GameSums, NativeTrajectory, Trajectory};
use crate::env::{HostEnvError, HostEnvs, HostStepResult, HostVecEnv, MAX_STEP_REWARD, next_level};
use crate::model::{Actor, LANES, Lanes, NativePolicy, Network, set_lane, splat};
use crate::rng::draw;
use crate::settings::RolloutConfig;
use burn::tensor::Device;
use rayon::prelude::*;
use std::ops::Range;

/// Rollouts of a run's environments on the host.
///
/// The environments of a group are reset to the same level. Each iteration starts new episodes.
#[derive(Clone, Debug)]
pub struct HostRollout {
    envs: HostEnvs,
    max_steps: u32,
    config: RolloutConfig,
    keys: RolloutKeys,
}

impl HostRollout {
    /// Creates a rollout. Episodes longer than `max_steps` are truncated.
    pub fn new(envs: HostEnvs, max_steps: u32, config: &RolloutConfig, keys: RolloutKeys) -> Self {
        Self { envs, max_steps, config: config.clone(), keys }
    }

    /// Plays `num_steps` steps of every environment and uploads the trajectory to `device`.
    ///
    /// # Errors
    /// If an environment fails.
    pub fn collect(
        &mut self,
        policy: &Network,
        iteration: u32,
        device: &Device,
    ) -> Result<Trajectory, HostEnvError> {
        let (features, actions) = {
            let envs = self.envs.lock();
            (envs.num_features(), envs.num_actions())
        };
        let policy = NativePolicy::new(policy, features, actions);
        let mut trajectory = NativeTrajectory::default();
        trajectory.resize(self.config.num_envs(), self.config.num_steps, features);
        trajectory.enable_scores();
        self.collect_into(&policy, iteration, &mut trajectory)?;
        Ok(trajectory.to_tensors(device))
    }

    /// Plays `num_steps` steps of every environment, overwriting `trajectory`. Without `auto_reset` an environment
    /// is idle after its episode. Returns the sums over the steps of each environment.
    ///
    /// # Errors
    /// If an environment fails.
    pub fn collect_into<A: Actor>(
        &mut self,
        policy: &A,
        iteration: u32,
        trajectory: &mut NativeTrajectory,
    ) -> Result<Vec<GameSums>, HostEnvError> {
        let mut envs = self.envs.lock();
        let keys = self.keys.for_iteration(iteration);
        let RolloutConfig { group_size, num_steps, auto_reset, .. } = self.config;
        let count = self.config.num_envs();
        trajectory.resize(count, num_steps, policy.num_features());
        trajectory.memory.clear();
        trajectory.elapsed.clear();
        let first = keys.first_group as usize * group_size;
        let level = |env: usize| Some(draw(keys.level, ((first + env) / group_size) as u32));
        let mut episodes =
            Episodes::start(&mut *envs, policy, (0..count).map(level).collect(), self.max_steps)?;
        let action_keys: Vec<u32> =
            (0..count).map(|env| action_key(keys.action, (first + env) as u32)).collect();
        let mut sums = vec![GameSums::default(); count];
        for t in 0..num_steps {
            episodes.choose_actions(policy, &action_keys, t as u32, ActionSelection::Sampling)?;
            episodes.record_actions(trajectory, t);
            episodes.step(&mut *envs)?;
            episodes.record_results(trajectory, t, &mut sums);
            episodes.restart(&mut *envs, policy, auto_reset)?;
        }
        for (env, sums) in sums.iter_mut().enumerate() {
            sums.ended_steps = trajectory.ended_steps(env, auto_reset) as f64;
        }
        Ok(sums)
    }
}

/// Plays some of the episodes of an evaluation on the host and returns their results.
///
/// # Errors
/// If an environment fails.
pub fn play_host_episodes<A: Actor>(
    policy: &A,
    envs: &HostEnvs,
    max_steps: u32,
    episodes: Range<usize>,
    keys: EpisodeKeys,
    selection: ActionSelection,
) -> Result<Vec<EpisodeResult>, HostEnvError> {
    let mut envs = envs.lock();
    let (count, mut episode_results) = (envs.num_envs(), Vec::with_capacity(episodes.len()));
    for first in episodes.clone().step_by(count) {
        let indices = first..first + count;
        let level = |index: usize| episodes.contains(&index).then(|| keys.level(index as u32));
        let action_keys: Vec<u32> = indices.clone().map(|i| keys.action_key(i as u32)).collect();
        let mut batch =
            Episodes::start(&mut *envs, policy, indices.map(level).collect(), max_steps)?;
        let mut results = vec![None; count];
        for t in 0.. {
            if !batch.is_live() {
                break;
            }
            batch.choose_actions(policy, &action_keys, t, selection)?;
            batch.step(&mut *envs)?;
            for (env, result) in results.iter_mut().enumerate() {
                let HostStepResult { terminated, truncated, .. } = batch.results[env];
                if terminated || truncated {
                    let (score, length) = (batch.scores[env], t + 1);
                    *result = Some(EpisodeResult { score, length });
                }
            }
            batch.restart(&mut *envs, policy, false)?;
        }
        episode_results.extend(results.into_iter().flatten());
    }
    Ok(episode_results)
}

/// The error for an environment that returned something unusable.
fn env_error(message: String) -> HostEnvError {
    HostEnvError(message.into())
}

/// Episodes under way in a batch of environments.
struct Episodes {
    /// Level of each environment; `None` for idle ones: `[num_envs]`.
    levels: Vec<Option<u32>>,
    /// Steps of each episode so far: `[num_envs]`.
    times: Vec<u32>,
    /// Sum of the rewards of each episode so far: `[num_envs]`.
    scores: Vec<f64>,
    /// Observations: `[num_envs, num_features]`.
    obs: Vec<f32>,
    /// Actions to take; `None` in idle environments: `[num_envs]`.
    actions: Vec<Option<u32>>,
    /// Log-probabilities of the actions: `[num_envs]`.
    logprobs: Vec<f32>,
    /// Results of the last step, those of idle environments without reward or end: `[num_envs]`.
    results: Vec<HostStepResult>,
    /// Memory of the policy, a block of environments after another, `[memory_size][LANES]` each.
    memory: Vec<Vec<Lanes>>,
    max_steps: u32,
}

impl Episodes {
    /// Resets the environments that have a level.
    fn start(
        envs: &mut dyn HostVecEnv,
        policy: &impl Actor,
        levels: Vec<Option<u32>>,
        max_steps: u32,
    ) -> Result<Self, HostEnvError> {
        let (count, features) = (envs.num_envs(), policy.num_features());
        assert_eq!(levels.len(), count, "levels: [num_envs]");
        let mut obs = vec![0.0; count * features];
        envs.reset(&levels, &mut obs)?;
        let initial_memory = splat(&policy.initial_memory());
        Ok(Self {
            levels,
            times: vec![0; count],
            scores: vec![0.0; count],
            obs,
            actions: vec![None; count],
            logprobs: vec![0.0; count],
            results: vec![HostStepResult::default(); count],
            memory: vec![initial_memory; count.div_ceil(LANES)],
            max_steps,
        })
    }

    /// Whether an episode is under way.
    fn is_live(&self) -> bool {
        self.levels.iter().any(Option::is_some)
    }

    /// Checks that the observations of the episodes under way are finite.
    fn check_obs(&self, num_features: usize) -> Result<(), HostEnvError> {
        for (env, row) in self.obs.chunks_exact(num_features).enumerate() {
            // All numbers of a row are looked at, so that the loop vectorizes.
            let is_finite = row.iter().fold(true, |all, x| all & x.is_finite());
            if self.levels[env].is_some() && !is_finite {
                let wrong = row.iter().position(|x| !x.is_finite()).unwrap_or_default();
                let x = row[wrong];
                return Err(env_error(format!(
                    "environment {env} gave {x} as feature {wrong} of its observation"
                )));
            }
        }
        Ok(())
    }

    /// Chooses the actions of step `t`.
    fn choose_actions<A: Actor>(
        &mut self,
        policy: &A,
        action_keys: &[u32],
        t: u32,
        selection: ActionSelection,
    ) -> Result<(), HostEnvError> {
        let features = policy.num_features();
        self.check_obs(features)?;
        let blocks = self.obs.par_chunks(LANES * features).zip(&mut self.memory);
        let blocks = blocks.zip(self.levels.par_chunks(LANES).zip(action_keys.par_chunks(LANES)));
        let out = self.actions.par_chunks_mut(LANES).zip(self.logprobs.par_chunks_mut(LANES));
        let scratch = || (policy.new_scratch(), vec![[0.0; LANES]; features]);
        blocks.zip(out).for_each_init(scratch, |(scratch, lanes), (block, (actions, logprobs))| {
            let ((obs, memory), (levels, keys)) = block;
            if levels.iter().all(Option::is_none) {
                actions.fill(None);
                return;
            }
            for (lane, row) in obs.chunks_exact(features).enumerate() {
                set_lane(lanes, lane, row);
            }
            let logits = policy.compute_logits(lanes, memory, scratch);
            let keys = std::array::from_fn(|lane| keys.get(lane).copied().unwrap_or(0));
            let chosen = selection.choose(logits, &keys, t);
            for (lane, level) in levels.iter().enumerate() {
                actions[lane] = level.map(|_| chosen.actions[lane]);
                logprobs[lane] = chosen.logprobs[lane];
            }
        });
        Ok(())
    }

    /// Takes the actions.
    fn step(&mut self, envs: &mut dyn HostVecEnv) -> Result<(), HostEnvError> {
        envs.step(&self.actions, &mut self.obs, &mut self.results)?;
        for (env, result) in self.results.iter_mut().enumerate() {
            if self.levels[env].is_none() {
                *result = HostStepResult::default();
                continue;
            }
            self.times[env] += 1;
            let reward = f64::from(result.reward);
            self.scores[env] += reward;
            let numbers = [("a reward of", reward), ("rewards with the sum", self.scores[env])];
            let is_usable = |x: f64| x.abs() <= f64::from(MAX_STEP_REWARD);
            if let Some((what, x)) = numbers.into_iter().find(|(_, x)| !is_usable(*x)) {
                // In the precision of rewards, with few digits.
                let x = x as f32;
                return Err(env_error(format!(
                    "environment {env} gave {what} {x:e}, but it must be a finite number, at most {MAX_STEP_REWARD:e} in size"
                )));
            }
            result.truncated |= self.times[env] >= self.max_steps;
            result.truncated &= !result.terminated;
        }
        Ok(())
    }

    /// Records the observations of step `t`, and the chosen actions with their log-probabilities.
    fn record_actions(&self, trajectory: &mut NativeTrajectory, t: usize) {
        let stride = trajectory.obs_stride();
        for (env, obs) in self.obs.chunks_exact(trajectory.num_features).enumerate() {
            let (slot, action) = (env * trajectory.num_steps + t, self.actions[env]);
            let row = &mut trajectory.obs[slot * stride..][..obs.len()];
            match action {
                Some(_) => row.copy_from_slice(obs),
                // The last observation of an episode need not be finite.
                None => row.fill(0.0),
            }
            trajectory.actions[slot] = action.unwrap_or(0) as i32;
            trajectory.logprobs[slot] = action.map_or(0.0, |_| self.logprobs[env]);
        }
    }

    /// Records the results of step `t`, and adds them to the sums of each environment.
    fn record_results(&self, trajectory: &mut NativeTrajectory, t: usize, sums: &mut [GameSums]) {
        for (env, sums) in sums.iter_mut().enumerate() {
            let HostStepResult { reward, terminated, truncated } = self.results[env];
            let slot = env * trajectory.num_steps + t;
            let status = EpisodeStatus::new(terminated, truncated);
            let score = if status.has_ended() { self.scores[env] } else { 0.0 };
            trajectory.rewards[slot] = reward;
            trajectory.statuses[slot] = status;
            if let Some(recorded) = trajectory.scores.get_mut(slot) {
                *recorded = score as f32;
            }
            sums.scores += score;
            sums.episodes += f64::from(status.has_ended());
            sums.rewards += f64::from(reward);
            sums.steps += f64::from(self.actions[env].is_some());
        }
    }

    /// Starts the next level where an episode ended, or leaves the environment idle.
    fn restart(
        &mut self,
        envs: &mut dyn HostVecEnv,
        policy: &impl Actor,
        auto_reset: bool,
    ) -> Result<(), HostEnvError> {
        let has_ended = |result: &HostStepResult| result.terminated || result.truncated;
        if !self.results.iter().any(has_ended) {
            return Ok(());
        }
        let initial_memory = policy.initial_memory();
        let mut next = vec![None; self.levels.len()];
        for env in (0..self.levels.len()).filter(|env| has_ended(&self.results[*env])) {
            next[env] = self.levels[env].filter(|_| auto_reset).map(next_level);
            self.levels[env] = next[env];
            (self.times[env], self.scores[env]) = (0, 0.0);
            set_lane(&mut self.memory[env / LANES], env % LANES, &initial_memory);
        }
        if auto_reset { envs.reset(&next, &mut self.obs) } else { Ok(()) }
    }
}
