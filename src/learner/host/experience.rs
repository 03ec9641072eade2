//! Inputs of an update in host memory.

use crate::data::{End, HostTrajectory};

/// Steps to learn from. Game `i` uses the first `counts[i]` of its slots, which start at `i *
/// slots`.
#[derive(Clone, Copy, Debug)]
pub struct Experience<'a> {
    /// Slots per game.
    pub slots: usize,
    /// Maximum number of steps to learn from per game.
    pub learn_steps: usize,
    /// Number of counted steps of each game: `[num_envs]`.
    pub counts: &'a [usize],
    /// Features of an observation.
    pub features: usize,
    /// Distance between observations, in numbers.
    pub obs_stride: usize,
    /// Observations: `[num_envs * slots, obs_stride]`.
    pub obs: &'a [f32],
    /// Memory of the policy before the first step, `[num_envs, memory_size]`; empty for networks without memory.
    pub memory: &'a [f32],
    /// Episode status after each step: `[num_envs * slots]`.
    pub ends: &'a [End],
    /// Actions: `[num_envs * slots]`.
    pub actions: &'a [i32],
    /// Log-probabilities under the behaviour policy: `[num_envs * slots]`.
    pub old_logprobs: &'a [f32],
    /// Advantages: `[num_envs * slots]`.
    pub advantages: &'a [f32],
    /// Log-probabilities under the reference policy: `[num_envs * slots]`; empty without one.
    pub reference_logprobs: &'a [f32],
    /// Action masks as in the trajectory: `[num_envs * slots]`; empty if all actions are always
    /// legal.
    pub legal: &'a [u32],
}

impl<'a> Experience<'a> {
    /// Creates the experience of a trajectory, without a reference policy.
    ///
    /// # Panics
    /// If lengths are inconsistent.
    pub fn new(
        trajectory: &'a HostTrajectory,
        advantages: &'a [f32],
        counts: &'a [usize],
        learn_steps: usize,
    ) -> Self {
        let HostTrajectory { num_envs, num_steps, .. } = *trajectory;
        let (steps, obs_stride) = (num_envs * num_steps, trajectory.obs_stride());
        assert_eq!(trajectory.obs.len(), steps * obs_stride, "obs: [num_envs, num_steps, stride]");
        assert_eq!(trajectory.actions.len(), steps, "actions: [num_envs, num_steps]");
        assert_eq!(trajectory.logprobs.len(), steps, "logprobs: [num_envs, num_steps]");
        let masked = if trajectory.masked_actions > 0 { steps } else { 0 };
        assert_eq!(trajectory.legal.len(), masked, "legal: [num_envs, num_steps], or empty");
        assert_eq!(advantages.len(), steps, "advantages: [num_envs, num_steps]");
        assert_eq!(counts.len(), num_envs, "counts: [num_envs]");
        assert!(learn_steps <= num_steps, "no more is learnt than was played");
        assert!(counts.iter().all(|count| *count <= learn_steps), "counts: at most learn_steps");
        Self {
            slots: num_steps,
            learn_steps,
            counts,
            features: trajectory.num_features,
            obs_stride,
            obs: &trajectory.obs,
            memory: &trajectory.memory,
            ends: &trajectory.ends,
            actions: &trajectory.actions,
            old_logprobs: &trajectory.logprobs,
            advantages,
            reference_logprobs: &[],
            legal: &trajectory.legal,
        }
    }

    /// Slots of a game's counted steps.
    pub fn slots(&self, game: i32) -> std::ops::Range<usize> {
        let first = game as usize * self.slots;
        first..first + self.counts[game as usize]
    }
}
