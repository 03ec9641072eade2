//! Inputs of an update in host memory.

use crate::data::HostTrajectory;

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
    /// Observations in the layout of the trajectory: `[num_envs * slots, obs_stride]`.
    pub obs: &'a [f32],
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
            obs: &trajectory.obs,
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

/// Compacts each game to the steps whose `mask`, `[num_envs, num_steps]`, is not 0, together with
/// their advantages. Returns the number of remaining steps, `[num_envs]`.
pub fn squeeze(
    trajectory: &mut HostTrajectory,
    advantages: &mut [f32],
    mask: &[f32],
) -> Vec<usize> {
    let (steps, stride) = (trajectory.num_steps, trajectory.obs_stride());
    let games = mask.chunks_exact(steps).enumerate().map(|(game, mask)| {
        let mut count = 0;
        for t in (0..steps).filter(|t| mask[*t] != 0.0) {
            let (from, to) = (game * steps + t, game * steps + count);
            trajectory.obs.copy_within(from * stride..(from + 1) * stride, to * stride);
            trajectory.actions[to] = trajectory.actions[from];
            trajectory.logprobs[to] = trajectory.logprobs[from];
            advantages[to] = advantages[from];
            if trajectory.masked_actions > 0 {
                trajectory.legal[to] = trajectory.legal[from];
            }
            count += 1;
        }
        count
    });
    games.collect()
}
