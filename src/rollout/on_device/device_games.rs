//! Games that are shown where they are played: on a CubeCL device, by the fused rollout.

use super::{FusedRollout, RolloutKeys};
use crate::config::{RolloutConfig, Start};
use crate::env::Rules;
use crate::model::FlatMlp;
use burn::tensor::{Device, Int, Tensor};

/// Games on a device that go on step by step, each as long as it is asked to: what
/// [`Watched`](super::Watched) is on the CPU.
#[derive(Clone, Debug)]
pub struct DeviceGames<G: Rules> {
    rollout: FusedRollout<G>,
    steps: u32,
    now: Option<Tensor<2, Int>>,
}

impl<G: Rules> DeviceGames<G> {
    /// `count` games at different times of their episodes.
    ///
    /// # Panics
    /// If the device is none of CubeCL's ([`crate::device::has_kernels`]).
    pub fn new(game: G, count: usize, seed: u64, device: &Device) -> Self {
        // A group is one game, which goes on from where its only step has led.
        let config = RolloutConfig {
            num_groups: count,
            group_size: 1,
            num_steps: 1,
            learn_steps: 1,
            start: Start::Branch,
            auto_reset: true,
        };
        let rollout = FusedRollout::new(game, &config, RolloutKeys::new(seed), device);
        Self { rollout, steps: 0, now: None }
    }

    /// Plays a step of every game by actions drawn from the policy. Gives the games' envs before and after
    /// it, `[env_words, count]` each ([`super::env_words`]); the first time, those after it twice.
    /// Nothing is read back.
    ///
    /// # Panics
    /// If the policy is of another game.
    pub fn step(&mut self, policy: &FlatMlp) -> [Tensor<2, Int>; 2] {
        self.rollout.collect(policy, self.steps);
        self.steps = self.steps.wrapping_add(1);
        let now = self.rollout.branches().expect("every group goes on");
        let before = self.now.replace(now.clone());
        [before.unwrap_or_else(|| now.clone()), now]
    }
}
