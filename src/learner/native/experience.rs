//! Inputs of an update in host memory.

use crate::data::NativeTrajectory;
use std::ops::Range;

/// Steps to learn from. Game `i` uses the first `counts[i]` of its slots, which start at `i * num_steps`.
#[derive(Clone, Copy, Debug)]
pub struct NativeExperience<'a> {
    /// The steps with observations, actions and their log-probabilities under the behaviour policy.
    pub trajectory: &'a NativeTrajectory,
    /// Advantages: `[num_envs * num_steps]`.
    pub advantages: &'a [f32],
    /// Number of counted steps of each game: `[num_envs]`.
    pub counts: &'a [usize],
    /// Maximum number of steps to learn from per game.
    pub learn_steps: usize,
    /// Log-probabilities under the reference policy: `[num_envs * num_steps]`; empty without one.
    pub reference_logprobs: &'a [f32],
}

impl<'a> NativeExperience<'a> {
    /// Creates the experience of a trajectory, without a reference policy.
    ///
    /// # Panics
    /// If lengths are inconsistent.
    pub fn new(
        trajectory: &'a NativeTrajectory,
        advantages: &'a [f32],
        counts: &'a [usize],
        learn_steps: usize,
    ) -> Self {
        let NativeTrajectory { num_envs, num_steps, .. } = *trajectory;
        let (steps, stride) = (num_envs * num_steps, trajectory.obs_stride());
        assert_eq!(trajectory.obs.len(), steps * stride, "obs: [num_envs, num_steps, stride]");
        assert_eq!(trajectory.actions.len(), steps, "actions: [num_envs, num_steps]");
        assert_eq!(trajectory.logprobs.len(), steps, "logprobs: [num_envs, num_steps]");
        let masked = if trajectory.num_masked_actions > 0 { steps } else { 0 };
        assert_eq!(trajectory.legal.len(), masked, "legal: [num_envs, num_steps], or empty");
        assert_eq!(advantages.len(), steps, "advantages: [num_envs, num_steps]");
        assert_eq!(counts.len(), num_envs, "counts: [num_envs]");
        assert!(learn_steps <= num_steps, "no more is learnt than was played");
        assert!(counts.iter().all(|count| *count <= learn_steps), "counts: at most learn_steps");
        Self { trajectory, advantages, counts, learn_steps, reference_logprobs: &[] }
    }

    /// Slots of a game's counted steps.
    pub fn slots(&self, game: i32) -> Range<usize> {
        let first = game as usize * self.trajectory.num_steps;
        first..first + self.counts[game as usize]
    }
}
