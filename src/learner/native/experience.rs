//! What an update learns from, game by game.

use crate::data::HostTrajectory;

/// The steps that count. Game `i` has the `counts[i]` slots from `i * slots` on.
#[derive(Clone, Copy, Debug)]
pub struct Experience<'a> {
    /// Slots of a game.
    pub slots: usize,
    /// Steps of a game that are learnt from at most.
    pub learn_steps: usize,
    /// Steps of each game that count: `[num_envs]`.
    pub counts: &'a [usize],
    /// Observations: `[num_envs * slots, obs_stride]`, as in the trajectory.
    pub obs: &'a [f32],
    /// What was done: `[num_envs * slots]`.
    pub actions: &'a [i32],
    /// Its log-probabilities then: `[num_envs * slots]`.
    pub old_logprobs: &'a [f32],
    /// How good it was: `[num_envs * slots]`.
    pub advantages: &'a [f32],
    /// Log-probabilities under the reference policy, if there is one: `[num_envs * slots]`.
    pub reference_logprobs: &'a [f32],
    /// The actions that might have been taken, as in the trajectory: `[num_envs * slots]`; empty where
    /// all may be, always.
    pub legal: &'a [u32],
}

impl<'a> Experience<'a> {
    /// The experience of a trajectory, without a reference policy yet.
    ///
    /// # Panics
    /// If lengths do not belong together.
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

    /// Steps of some games that count.
    pub fn steps(&self, games: &[i32]) -> usize {
        games.iter().map(|game| self.counts[*game as usize]).sum()
    }

    /// The slots of a game's steps that count.
    pub fn slots(&self, game: i32) -> std::ops::Range<usize> {
        let first = game as usize * self.slots;
        first..first + self.counts[game as usize]
    }
}

/// Moves the steps of each game whose `mask`, `[num_envs, num_steps]`, is not 0 to its front, with
/// their advantages; gives their numbers, `[num_envs]`.
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
