//! Rollouts: playing games with a policy to collect a [`Trajectory`](crate::data::Trajectory).
//!
//! [`NativeRollout`] plays on CPU threads. [`StepwiseRollout`] plays on any device, with the rules
//! as a kernel and the policy as any Burn module. `FusedRollout` plays on CubeCL devices with rules
//! and multi-layer perceptron in one kernel. All play the same games for the same seed. [`LiveGames`]
//! advances games step by step for display.

mod action_selection;
mod env_lanes;
mod env_state;
mod evaluate;
mod host;
mod live_games;
mod masks;
mod memory;
mod native;
#[cfg(feature = "kernels")]
mod on_device;
mod random;
mod reference_scores;
mod stepwise;
mod vec_env;

pub use action_selection::ActionSelection;
pub use env_state::{EnvStatesError, env_words};
pub(crate) use evaluate::std_error;
pub use evaluate::{EpisodeKeys, EpisodeResult, Evaluation, evaluate, play_episodes};
pub use host::{HostRollout, play_host_episodes};
pub use live_games::{Choice, LiveGames};
pub use native::NativeRollout;
#[cfg(feature = "kernels")]
pub use on_device::*;
pub use random::play_at_random;
pub use reference_scores::{ReferenceScore, measure_reference_scores};
pub use stepwise::StepwiseRollout;
pub use vec_env::{Autoreset, StepBuffers, VecEnv, VecEnvError};

use crate::env::Episode;
use crate::rng::{Stream, draw, uniform};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Random keys of a run's rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutKeys {
    level: u32,
    action: u32,
    branch: u32,
    /// Run-wide index of this rank's first group.
    first_group: u32,
}

impl RolloutKeys {
    /// Derives the keys from a run's seed.
    pub fn new(seed: u64) -> Self {
        Self {
            level: Stream::TrainLevel.key(seed),
            action: Stream::TrainAction.key(seed),
            branch: Stream::Branch.key(seed),
            first_group: 0,
        }
    }

    /// Returns the keys for a rank whose games start at group `first_group` of the run.
    pub fn with_first_group(self, first_group: usize) -> Self {
        Self { first_group: first_group as u32, ..self }
    }

    /// Derives the keys of one iteration.
    fn for_iteration(&self, iteration: u32) -> Self {
        Self {
            level: draw(self.level, iteration),
            action: draw(self.action, iteration),
            branch: draw(self.branch, iteration),
            ..*self
        }
    }
}

/// Key of a game's actions in an iteration.
#[cube]
fn action_key(iteration_key: u32, env: u32) -> u32 {
    draw(iteration_key, env)
}

/// Uniform number in `[0, 1)` that selects a game's action at step `t`.
#[cube]
#[inline(always)]
fn action_uniform(action_key: u32, t: u32) -> f32 {
    uniform(draw(action_key, t))
}

/// Step of the episode at which a game starts in the first iteration, if games continue across iterations; spread so
/// that episodes do not end simultaneously.
#[cube]
fn staggered_time(level: u32, max_steps: u32) -> u32 {
    draw(level, 0xffff_fffd) % max_steps
}

/// The episode of a branch point. It has no level, since a new one is drawn when the branch is taken.
#[derive(CubeType, Clone, Copy, Debug)]
pub(crate) struct BranchEpisode {
    /// Steps by which the episode's clock started ahead ([`staggered_time`]).
    steps_ahead: u32,
    /// [`Episode::time`].
    time: u32,
    /// [`Episode::score`].
    score: f32,
}

#[cube]
impl BranchEpisode {
    /// Number of steps actually played.
    fn steps_played(&self) -> u32 {
        // No more than the time, unless a checkpoint is damaged.
        self.time - select(self.steps_ahead < self.time, self.steps_ahead, self.time)
    }

    /// The episode that continues from the branch point. `level` is a new one, so that future draws differ from those
    /// that led to the point.
    fn take(&self, level: u32) -> Episode {
        Episode { level, time: self.time, score: self.score }
    }
}

/// Converts an episode to that of a branch point after `steps` steps of the iteration. `elapsed` steps were played
/// before the iteration; an episode that began since then has a smaller time.
#[cube]
fn branch_episode(episode: &Episode, elapsed: u32, steps: u32) -> BranchEpisode {
    let played = elapsed + steps;
    let steps_ahead = select(episode.time > played, episode.time, played) - played;
    BranchEpisode { steps_ahead, time: episode.time, score: episode.score }
}

/// Step of an iteration, `1..=learn_steps`, after which a group branches for the next iteration.
#[cube]
fn branch_step(iteration_key: u32, group: u32, learn_steps: u32) -> u32 {
    1 + draw(draw(iteration_key, group), 0) % learn_steps
}

/// Index within its group of the game from which the group branches.
#[cube]
fn branch_member(iteration_key: u32, group: u32, group_size: u32) -> u32 {
    draw(draw(iteration_key, group), 1) % group_size
}
