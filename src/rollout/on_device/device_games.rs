//! Live games on a CubeCL device, for display without a copy to the host.

use super::{FusedRollout, RolloutKeys};
use crate::env::Rules;
use crate::model::FlatMlp;
use crate::settings::{GroupStart, RolloutConfig};
use burn::tensor::{Device, Int, Tensor};

/// Games on a device that advance step by step indefinitely; the counterpart of
/// [`LiveGames`](crate::rollout::LiveGames) on the CPU.
#[derive(Clone, Debug)]
pub struct DeviceGames<G: Rules> {
    rollout: FusedRollout<G>,
    steps: u32,
    /// The environments after the last step; `None` before the first.
    current: Option<Tensor<2, Int>>,
}

impl<G: Rules> DeviceGames<G> {
    /// Creates `count` games at different times of their episodes.
    ///
    /// # Panics
    /// If the device does not run CubeCL kernels ([`crate::device::has_kernels`]).
    pub fn new(game: G, count: usize, seed: u64, device: &Device) -> Self {
        // Each group is a single game that continues from its previous step.
        let config = RolloutConfig {
            num_groups: count,
            group_size: 1,
            num_steps: 1,
            learn_steps: 1,
            start: GroupStart::Branch,
            auto_reset: true,
        };
        let rollout = FusedRollout::new(game, &config, RolloutKeys::new(seed), device);
        Self { rollout, steps: 0, current: None }
    }

    /// Steps every game with actions sampled from the policy. Returns the environments before and
    /// after the step, `[env_words, count]` each ([`super::env_words`]); on the first call both are
    /// those after the step. Nothing is read back.
    ///
    /// # Panics
    /// If the policy does not match the game.
    pub fn step(&mut self, policy: &FlatMlp) -> [Tensor<2, Int>; 2] {
        self.rollout.collect(policy, self.steps);
        self.steps = self.steps.wrapping_add(1);
        let current = self.rollout.branches().expect("every group goes on");
        let previous = self.current.replace(current.clone());
        [previous.unwrap_or_else(|| current.clone()), current]
    }
}
