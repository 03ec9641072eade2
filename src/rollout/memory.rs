//! Memory of a recurrent policy, carried through a rollout of any model on any device.

use super::RolloutKeys;
use super::env_state::{self, BranchPoint};
use crate::device::upload_indices;
use crate::model::{Network, reset};
use crate::settings::{GroupStart, RolloutConfig};
use burn::tensor::{Device, Tensor};

/// Policy memory of the games during an iteration.
pub(super) struct GamesMemory {
    /// Memory at the start of an episode.
    initial: Option<Tensor<2>>,
    /// Current memory.
    pub current: Option<Tensor<2>>,
    /// Memory at the branch points passed so far; `None` if the groups do not branch.
    pub branches: Option<Tensor<2>>,
    points: Vec<BranchPoint>,
    device: Device,
}

impl GamesMemory {
    /// Creates the memory at the start of an iteration, from `branch_memory`, that of the groups' branch points:
    /// `[num_groups, memory_size]`.
    pub fn new(
        policy: &Network,
        config: &RolloutConfig,
        branch_memory: Option<&Tensor<2>>,
        keys: RolloutKeys,
        device: &Device,
    ) -> Self {
        let initial = policy.initial_memory(config.num_envs(), device);
        let points = env_state::draw_branch_points(config, keys);
        let current = match branch_memory {
            Some(rows) => {
                let group = |env: usize| (env / config.group_size) as i32;
                let groups: Vec<i32> = (0..config.num_envs()).map(group).collect();
                Some(rows.clone().select(0, upload_indices(&groups, device)))
            }
            None => initial.clone(),
        };
        let branches = match config.start {
            GroupStart::Branch => policy.initial_memory(config.num_groups, device),
            GroupStart::Level => None,
        };
        Self { initial, current, branches, points, device: device.clone() }
    }

    /// Computes the policy's logits and advances the memory.
    pub fn compute_logits(&mut self, policy: &Network, obs: Tensor<2>) -> Tensor<2> {
        let (logits, next) = policy.step(obs, self.current.clone());
        self.current = next;
        logits
    }

    /// Resets memory where an episode ended with step `t`, as given by `ends`, `[num_envs]`, and
    /// stores the memory of branch points after this step.
    pub fn finish_step(&mut self, t: usize, ends: impl FnOnce() -> Tensor<1>) {
        let (Some(current), Some(initial)) = (self.current.take(), &self.initial) else { return };
        let current = reset(current, initial, ends());
        let is_after_step = |point: &BranchPoint| point.step == t + 1;
        if let Some(branches) = self.branches.take_if(|_| self.points.iter().any(is_after_step)) {
            let envs: Vec<i32> = self.points.iter().map(|point| point.env as i32).collect();
            let envs = upload_indices(&envs, &self.device);
            let mask = self.points.iter().map(|point| f32::from(is_after_step(point)));
            let mask = Tensor::from_floats(mask.collect::<Vec<_>>().as_slice(), &self.device);
            self.branches = Some(reset(branches, &current.clone().select(0, envs), mask));
        }
        self.current = Some(current);
    }
}
