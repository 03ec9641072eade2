//! What an update learns from, game by game.

use super::chunk::BLOCK;
use rayon::prelude::*;

/// What an update takes, in the host's memory; all time-major and without gaps.
#[derive(Clone, Copy, Debug)]
pub struct HostTrajectory<'a> {
    /// Steps of each game.
    pub num_steps: usize,
    /// Games.
    pub num_envs: usize,
    /// Features of an observation.
    pub num_features: usize,
    /// Observations before each step: `[num_steps, num_envs, num_features]`.
    pub obs: &'a [f32],
    /// Actions taken: `[num_steps, num_envs]`.
    pub actions: &'a [i32],
    /// Log-probabilities under the policy that took them: `[num_steps, num_envs]`.
    pub old_logprobs: &'a [f32],
    /// Advantages: `[num_steps, num_envs]`.
    pub advantages: &'a [f32],
    /// 1 where a step counts, else 0: `[num_steps, num_envs]`.
    pub mask: &'a [f32],
}

impl HostTrajectory<'_> {
    /// # Panics
    /// If the lengths do not belong together.
    pub(super) fn check(&self) {
        let steps = self.num_steps * self.num_envs;
        assert_eq!(
            self.obs.len(),
            steps * self.num_features,
            "obs: [num_steps, num_envs, num_features]"
        );
        assert_eq!(self.actions.len(), steps, "actions: [num_steps, num_envs]");
        for (name, values) in [
            ("old_logprobs", self.old_logprobs),
            ("advantages", self.advantages),
            ("mask", self.mask),
        ] {
            assert_eq!(values.len(), steps, "{name}: [num_steps, num_envs]");
        }
    }
}

/// The steps that count, those of a game next to each other: minibatches take whole games in any
/// order, which would otherwise fetch every number from another place.
///
/// Game `i` has the `counts[i]` slots from `i * num_steps` on.
#[derive(Clone, Debug, Default)]
pub struct Experience {
    /// Slots of a game.
    pub num_steps: usize,
    /// Numbers from observation to observation in `obs`.
    pub obs_stride: usize,
    /// Steps of each game that count: `[num_envs]`.
    pub counts: Vec<usize>,
    /// Observations: `[num_envs * num_steps, obs_stride]`.
    pub obs: Vec<f32>,
    /// The rest: `[num_envs * num_steps]`.
    pub steps: Vec<Step>,
    /// Log-probabilities under the reference policy, if there is one: `[num_envs * num_steps]`.
    pub reference_logprobs: Vec<f32>,
}

/// A step that was taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// What was done.
    pub action: i32,
    /// Its log-probability then.
    pub old_logprob: f32,
    /// How good it was.
    pub advantage: f32,
}

impl Experience {
    /// Takes over a trajectory, into the memory of the last one.
    pub fn load(&mut self, data: &HostTrajectory, obs_stride: usize) {
        let (num_steps, features) = (data.num_steps, data.num_features);
        let slots = data.num_envs * num_steps;
        self.num_steps = num_steps;
        self.obs_stride = obs_stride;
        self.counts.clear();
        self.counts.resize(data.num_envs, 0);
        self.obs.resize(slots * obs_stride, 0.0);
        self.steps.resize(slots, Step::default());
        self.counts
            .par_chunks_mut(BLOCK)
            .zip(self.obs.par_chunks_mut(BLOCK * num_steps * obs_stride))
            .zip(self.steps.par_chunks_mut(BLOCK * num_steps))
            .enumerate()
            .for_each(|(block, ((counts, obs), steps))| {
                for t in 0..num_steps {
                    for (game, count) in counts.iter_mut().enumerate() {
                        let from = t * data.num_envs + block * BLOCK + game;
                        if data.mask[from] == 0.0 {
                            continue;
                        }
                        let slot = game * num_steps + *count;
                        *count += 1;
                        obs[slot * obs_stride..][..features]
                            .copy_from_slice(&data.obs[from * features..][..features]);
                        steps[slot] = Step {
                            action: data.actions[from],
                            old_logprob: data.old_logprobs[from],
                            advantage: data.advantages[from],
                        };
                    }
                }
            });
    }

    /// The slots of a game's steps that count.
    pub fn slots(&self, game: i32) -> std::ops::Range<usize> {
        let first = game as usize * self.num_steps;
        first..first + self.counts[game as usize]
    }
}
