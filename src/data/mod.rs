//! What a rollout gives and an update takes.

mod host;
mod recording;

pub(crate) use host::by_game;
pub use host::{HostTrajectory, OBS_MULTIPLE, Totals};
pub use recording::{ENDED, FACTS, Judged, Part, Recording};

use burn::tensor::{Int, Tensor};

/// The steps of `num_envs` games, `num_steps` each, on one device.
///
/// Game `i` is member `i % group_size` of group `i / group_size`. All tensors are time-major.
#[derive(Clone, Debug)]
pub struct Trajectory {
    /// Observations before each step: `[num_steps, num_envs, num_features]`.
    pub obs: Tensor<3>,
    /// Actions taken: `[num_steps, num_envs]`.
    pub actions: Tensor<2, Int>,
    /// Log-probabilities of the actions under the policy that took them: `[num_steps, num_envs]`.
    pub logprobs: Tensor<2>,
    /// Rewards of the steps: `[num_steps, num_envs]`.
    pub rewards: Tensor<2>,
    /// 1 where the episode ended with the step, else 0: `[num_steps, num_envs]`.
    pub ends: Tensor<2>,
    /// The score of the episode that ended with the step, else 0: `[num_steps, num_envs]`.
    pub scores: Tensor<2>,
    /// What the policy remembered before the first step, where it remembers anything:
    /// `[num_envs, memory_size]`.
    pub memory: Option<Tensor<2>>,
}

impl Trajectory {
    /// `[num_steps, num_envs, num_features]`.
    ///
    /// # Panics
    /// If the tensors' shapes do not belong together.
    pub fn dims(&self) -> [usize; 3] {
        let [num_steps, num_envs, num_features] = self.obs.dims();
        let expected = [num_steps, num_envs];
        assert_eq!(self.actions.dims(), expected, "actions: [num_steps, num_envs]");
        assert_eq!(self.logprobs.dims(), expected, "logprobs: [num_steps, num_envs]");
        assert_eq!(self.rewards.dims(), expected, "rewards: [num_steps, num_envs]");
        assert_eq!(self.ends.dims(), expected, "ends: [num_steps, num_envs]");
        assert_eq!(self.scores.dims(), expected, "scores: [num_steps, num_envs]");
        [num_steps, num_envs, num_features]
    }

    /// 1 where a step counts, else 0: `[num_steps, num_envs]`. With `auto_reset` all do; otherwise
    /// those up to and including the first end of an episode.
    pub fn mask(&self, auto_reset: bool) -> Tensor<2> {
        if auto_reset {
            return self.ends.ones_like();
        }
        let ended_before = self.ends.clone().cumsum(0) - self.ends.clone();
        ended_before.lower_equal_elem(0.5).float()
    }

    /// 1 where an episode begins with a step, so that the policy's memory starts anew, else 0:
    /// `[num_steps, num_envs]`. Before the first step it is as [`Trajectory::memory`] says.
    pub fn starts(&self) -> Tensor<2> {
        let [num_steps, num_envs, _] = self.dims();
        let before = self.ends.clone().narrow(0, 0, num_steps - 1);
        let first = Tensor::zeros([1, num_envs], &self.ends.device());
        Tensor::cat(vec![first, before], 0)
    }

    /// The first `num_steps` steps.
    pub fn first_steps(&self, num_steps: usize) -> Self {
        let [_, num_envs, num_features] = self.dims();
        let rows = |tensor: &Tensor<2>| tensor.clone().slice([0..num_steps, 0..num_envs]);
        Self {
            obs: self.obs.clone().slice([0..num_steps, 0..num_envs, 0..num_features]),
            actions: self.actions.clone().slice([0..num_steps, 0..num_envs]),
            logprobs: rows(&self.logprobs),
            rewards: rows(&self.rewards),
            ends: rows(&self.ends),
            scores: rows(&self.scores),
            memory: self.memory.clone(),
        }
    }
}
