//! Rollouts: a policy plays the games and leaves a [`Trajectory`](crate::data::Trajectory).
//!
//! [`NativeRollout`] plays on the CPU's threads; [`StepwiseRollout`] plays on any device, with the
//! rules as a kernel and the policy as any Burn module; `FusedRollout` plays on CubeCL devices, rules and
//! perceptron in one kernel. The same seed gives the same games in all. [`Watched`] games are played for
//! somebody to look at, step by step.
//! [`generate`] makes text.

mod env_lanes;
mod env_state;
mod evaluate;
pub mod generate;
mod masks;
mod native;
#[cfg(feature = "kernels")]
mod on_device;
#[cfg(not(feature = "kernels"))]
#[path = "host_only.rs"]
mod on_device;
mod random;
mod stepwise;
mod watched;

pub use env_state::{EnvStatesError, env_words};
pub use evaluate::{Evaluation, Player, evaluate, play_episodes};
pub use native::NativeRollout;
pub use on_device::*;
pub use random::play_at_random;
pub use stepwise::StepwiseRollout;
pub use watched::{Choice, Watched};

use crate::rng::{Stream, draw, uniform};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The keys that the draws of a run's rollouts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutKeys {
    level: u32,
    action: u32,
    branch: u32,
    /// The number of the first group: where members share a run, each plays some of its groups.
    first_group: u32,
}

impl RolloutKeys {
    /// The keys of the run with this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            level: Stream::TrainLevel.key(seed),
            action: Stream::TrainAction.key(seed),
            branch: Stream::Branch.key(seed),
            first_group: 0,
        }
    }

    /// The same for games that begin with this group of the run.
    pub fn from_group(self, first_group: usize) -> Self {
        Self { first_group: first_group as u32, ..self }
    }

    /// The keys of one iteration.
    fn at(&self, iteration: u32) -> Self {
        Self {
            level: draw(self.level, iteration),
            action: draw(self.action, iteration),
            branch: draw(self.branch, iteration),
            ..*self
        }
    }
}

/// The key of a game's actions in an iteration.
#[cube]
fn action_key(iteration_key: u32, env: u32) -> u32 {
    draw(iteration_key, env)
}

/// The uniform number that decides a game's action at step `t`.
#[cube]
#[inline(always)]
fn action_uniform(action_key: u32, t: u32) -> f32 {
    uniform(draw(action_key, t))
}

/// The step of the episode at which a game of the first iteration starts when the games go on
/// across iterations: spread, so that not all episodes end at once.
#[cube]
fn staggered_time(level: u32, max_steps: u32) -> u32 {
    draw(level, 0xffff_fffd) % max_steps
}

/// The step of an iteration, `1..=learn_steps`, after which a group's next iteration goes on.
#[cube]
fn branch_step(iteration_key: u32, group: u32, learn_steps: u32) -> u32 {
    1 + draw(draw(iteration_key, group), 0) % learn_steps
}

/// The member whose state it goes on from.
#[cube]
fn branch_member(iteration_key: u32, group: u32, group_size: u32) -> u32 {
    draw(draw(iteration_key, group), 1) % group_size
}
