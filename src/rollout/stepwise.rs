//! Rollouts of any model on any device, one forward pass per step.
//!
//! On CubeCL devices the rules run as kernels and nothing is read back. On Burn's CPU backends,
//! which have no kernels, the rules run natively between forward passes.

use super::env_lanes::EnvLanes;
use super::env_state::{self, BranchEnv, EnvState, legal_bits};
use super::masks::mask_logit;
use super::memory::GamesMemory;
#[cfg(feature = "kernels")]
use super::on_device::{DeviceBranches, StepwiseBuffers, largest_stepwise_buffer_bytes};
use super::{EnvStatesError, RolloutKeys, action_key, action_uniform};
use crate::data::{EpisodeStatus, NativeTrajectory, Trajectory};
use crate::device;
use crate::env::Rules;
use crate::model::{LANES, Network, sample, to_vec};
use crate::settings::RolloutConfig;
use burn::tensor::{Device, Tensor, TensorData};

/// Rollouts of a run's games on one device.
#[derive(Clone, Debug)]
pub struct StepwiseRollout<G: Rules> {
    game: G,
    config: RolloutConfig,
    keys: RolloutKeys,
    device: Device,
    branches: StepwiseBranches<G>,
    /// Memory of the policy at the branch points, `[num_groups, memory_size]`; `None` without
    /// memory.
    memory: Option<Tensor<2>>,
}

/// Branch points, in host memory or on the device.
#[derive(Clone, Debug)]
enum StepwiseBranches<G: Rules> {
    Native(Vec<BranchEnv<G>>),
    #[cfg(feature = "kernels")]
    Device(DeviceBranches),
}

impl<G: Rules> StepwiseBranches<G> {
    /// Creates an empty list of branch points, on `device` if it has kernels.
    #[cfg_attr(
        not(feature = "kernels"),
        expect(unused_variables, reason = "all are in host memory")
    )]
    fn new(device: &Device) -> Self {
        #[cfg(feature = "kernels")]
        if device::has_kernels(device) {
            return Self::Device(DeviceBranches::default());
        }
        Self::Native(Vec::new())
    }
}

impl<G: Rules> StepwiseRollout<G> {
    /// Creates a rollout; games start with the first iteration.
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let branches = StepwiseBranches::new(&device);
        Self { game, config: config.clone(), keys, device, branches, memory: None }
    }

    /// The size of the largest buffer of a rollout on a device, bytes; 0 on the CPU.
    pub fn largest_buffer_bytes(&self) -> u64 {
        match self.branches {
            StepwiseBranches::Native(_) => 0,
            #[cfg(feature = "kernels")]
            StepwiseBranches::Device(_) => largest_stepwise_buffer_bytes(self.game, &self.config),
        }
    }

    /// Plays `num_steps` steps of every game.
    pub fn collect(&mut self, policy: &Network, iteration: u32) -> Trajectory {
        let keys = self.keys.for_iteration(iteration);
        let mut memory =
            GamesMemory::new(policy, &self.config, self.memory.as_ref(), keys, &self.device);
        let initial_memory = memory.current.clone();
        let (mut trajectory, branches) = match &self.branches {
            #[cfg(feature = "kernels")]
            StepwiseBranches::Device(branches) => {
                let (trajectory, branches) =
                    self.collect_on_device(policy, keys, branches, &mut memory);
                (trajectory, StepwiseBranches::Device(branches))
            }
            StepwiseBranches::Native(branches) => {
                let (trajectory, branches) =
                    self.collect_natively(policy, keys, branches, &mut memory);
                (trajectory, StepwiseBranches::Native(branches))
            }
        };
        self.branches = branches;
        self.memory = memory.branches;
        trajectory.memory = initial_memory;
        trajectory
    }

    /// Exports the branch points as words `[env_words, num_groups]`; empty before the first
    /// iteration or if games start at levels. On a device it reads back.
    pub async fn export_branches_async(&self) -> Vec<u32> {
        match &self.branches {
            StepwiseBranches::Native(envs) => env_state::pack_envs(self.game, envs),
            #[cfg(feature = "kernels")]
            StepwiseBranches::Device(envs) => envs.download().await,
        }
    }

    /// Restores branch points from [`StepwiseRollout::export_branches_async`].
    ///
    /// # Errors
    /// If the number of words is wrong.
    pub fn import_branches(&mut self, words: &[u32]) -> Result<(), EnvStatesError> {
        let groups = self.config.num_groups;
        match &mut self.branches {
            StepwiseBranches::Native(envs) => {
                *envs = env_state::unpack_envs(self.game, groups, words)?
            }
            #[cfg(feature = "kernels")]
            StepwiseBranches::Device(envs) => {
                *envs = DeviceBranches::upload(self.game, groups, words, &self.device)?
            }
        }
        Ok(())
    }

    /// Exports the policy's memory at the branch points, `[num_groups, memory_size]`; empty without
    /// memory. On a device it reads back.
    pub async fn export_memory_async(&self) -> Vec<f32> {
        let Some(memory) = &self.memory else { return Vec::new() };
        let [groups, size] = memory.dims();
        device::read_async(memory.clone().reshape([groups * size])).await
    }

    /// Restores memory from [`StepwiseRollout::export_memory_async`].
    ///
    /// # Panics
    /// If the length is not a multiple of the number of groups.
    pub fn import_memory(&mut self, memory: &[f32]) {
        let groups = self.config.num_groups;
        assert!(memory.len().is_multiple_of(groups), "memory: [num_groups, memory_size]");
        let shape = [groups, memory.len() / groups];
        let rows = || Tensor::from_data(TensorData::new(memory.to_vec(), shape), &self.device);
        self.memory = (!memory.is_empty()).then(rows);
    }

    /// Plays an iteration with the rules on the CPU, from the given branch points. Returns the trajectory and the next
    /// branch points.
    fn collect_natively(
        &self,
        policy: &Network,
        keys: RolloutKeys,
        branches: &[BranchEnv<G>],
        memory: &mut GamesMemory,
    ) -> (Trajectory, Vec<BranchEnv<G>>) {
        let mut envs = env_state::start_envs(self.game, &self.config, keys, branches);
        let points = env_state::draw_branch_points(&self.config, keys);
        let elapsed = env_state::elapsed_steps(&self.config, branches);
        let mut branches: Vec<_> =
            points.iter().map(|point| envs[point.env].branch(0, 0)).collect();
        let (steps, num_envs) = (self.config.num_steps, self.config.num_envs());
        let (features, num_actions) = (self.game.num_features(), self.game.num_actions());
        let mut trajectory = NativeTrajectory::default();
        trajectory.resize(num_envs, steps, features);
        trajectory.enable_scores();
        trajectory.enable_masks(if G::HAS_ILLEGAL_ACTIONS { num_actions } else { 0 });
        let stride = trajectory.obs_stride();
        for t in 0..steps {
            let obs = observe(self.game, &envs);
            for (env, row) in obs.chunks_exact(features).enumerate() {
                trajectory.obs[(env * steps + t) * stride..][..features].copy_from_slice(row);
            }
            let obs = TensorData::new(obs, [num_envs, features]);
            let logits =
                to_vec(memory.compute_logits(policy, Tensor::from_data(obs, &self.device)));
            let ends = self.act_and_record(t, &logits, keys, &mut envs, &mut trajectory);
            memory.finish_step(t, || {
                Tensor::from_data(TensorData::new(ends, [num_envs]), &self.device)
            });
            for (branch, point) in branches.iter_mut().zip(&points) {
                if point.step == t + 1 {
                    let elapsed = elapsed.get(point.env).copied().unwrap_or(0);
                    *branch = envs[point.env].branch(elapsed, point.step);
                }
            }
        }
        trajectory.elapsed = elapsed;
        (trajectory.to_tensors(&self.device), branches)
    }

    /// Plays an iteration with the rules in kernels, from the given branch points. Returns the trajectory and the next
    /// branch points.
    #[cfg(feature = "kernels")]
    fn collect_on_device(
        &self,
        policy: &Network,
        keys: RolloutKeys,
        branches: &DeviceBranches,
        memory: &mut GamesMemory,
    ) -> (Trajectory, DeviceBranches) {
        let buffers = StepwiseBuffers::new(self.game, &self.config, keys, &self.device);
        buffers.start(branches.envs());
        for t in 0..self.config.num_steps {
            let logits = memory.compute_logits(policy, buffers.obs(t));
            buffers.step(logits, t);
            memory.finish_step(t, || buffers.ends(t));
        }
        let (trajectory, branches) = buffers.finish();
        (trajectory, DeviceBranches::new(&self.config, branches))
    }

    /// Samples an action in every environment, takes it, and records step `t`. Returns 1 for each environment whose
    /// episode ended, else 0.
    fn act_and_record(
        &self,
        t: usize,
        logits: &[f32],
        keys: RolloutKeys,
        envs: &mut [EnvState<G>],
        trajectory: &mut NativeTrajectory,
    ) -> Vec<f32> {
        let first_env = keys.first_group * self.config.group_size as u32;
        let rows = logits.chunks_exact(self.game.num_actions());
        let mut ends = Vec::with_capacity(envs.len());
        for (i, (env, row)) in envs.iter_mut().zip(rows).enumerate() {
            let slot = i * trajectory.num_steps + t;
            let u = action_uniform(action_key(keys.action, first_env + i as u32), t as u32);
            let sampled = if G::HAS_ILLEGAL_ACTIONS {
                let bits = legal_bits(&env.state, self.game);
                trajectory.legal[slot] = bits;
                let masked = row.iter().enumerate().map(|(a, logit)| mask_logit(bits, a, *logit));
                sample(&masked.collect::<Vec<_>>(), u)
            } else {
                sample(row, u)
            };
            let result = env.step_with_auto_reset(sampled.action, self.game);
            trajectory.actions[slot] = sampled.action as i32;
            trajectory.logprobs[slot] = sampled.logprob;
            trajectory.rewards[slot] = result.reward;
            trajectory.statuses[slot] = EpisodeStatus::new(result.terminated, result.truncated);
            trajectory.scores[slot] = result.episode_score;
            ends.push(f32::from(result.has_ended()));
        }
        ends
    }
}

/// Computes the observations of all games, `[num_envs, num_features]`.
fn observe<G: Rules>(game: G, envs: &[EnvState<G>]) -> Vec<f32> {
    let features = game.num_features();
    let mut lanes = vec![[0.0; LANES]; features];
    let mut obs = Vec::with_capacity(envs.len() * features);
    for block in envs.chunks(LANES) {
        EnvLanes::new(block).observe(game, &mut lanes);
        for lane in 0..block.len() {
            obs.extend(lanes.iter().map(|feature| feature[lane]));
        }
    }
    obs
}
