//! Rollouts of a perceptron on a CubeCL device, fused: rules, policy and draws in one kernel.
//!
//! One unit plays one game; between its steps nothing but the trajectory is written to memory.

use super::kernels::Buffers;
use super::seat_kernels::{download_seats, upload_seats};
use super::{RolloutKeys, SeatsError, seats};
use crate::config::{RolloutConfig, Start};
use crate::env::Rules;
use crate::policy::kernels::{MlpShape, cube_tensor};
use crate::policy::{Mlp, flatten};
use crate::trajectory::Trajectory;
use burn::tensor::Device;
use burn_cubecl::tensor::CubeTensor;

/// The games of a run on one CubeCL device.
#[derive(Debug)]
pub struct FusedRollout<G: Rules> {
    game: G,
    config: RolloutConfig,
    keys: RolloutKeys,
    device: Device,
    steps_per_launch: usize,
    branches: Option<Box<CubeTensor>>,
}

impl<G: Rules> FusedRollout<G> {
    /// No game is started before the first rollout. A launch plays `steps_per_launch` steps, so that
    /// none takes longer than a driver allows; the result does not depend on it.
    ///
    /// # Panics
    /// If the device is none of CubeCL's ([`crate::device::has_kernels`]), or `steps_per_launch` is 0.
    pub fn new(
        game: G,
        config: &RolloutConfig,
        keys: RolloutKeys,
        device: &Device,
        steps_per_launch: usize,
    ) -> Self {
        assert!(crate::device::has_kernels(device), "the fused rollout needs a CubeCL device");
        assert!(steps_per_launch > 0, "a launch plays a step or more");
        let device = device.clone().without_autodiff();
        Self { game, config: config.clone(), keys, device, steps_per_launch, branches: None }
    }

    /// Plays `num_steps` steps of every game. Nothing is read back.
    ///
    /// # Panics
    /// If the policy has not one or two hidden layers, or is of another game.
    pub fn collect(&mut self, policy: &Mlp, iteration: u32) -> Trajectory {
        let keys = self.keys.at(iteration);
        let shape = MlpShape::of(policy).expect("one or two hidden layers");
        let params = cube_tensor(flatten(policy).without_autodiff());
        let buffers = Buffers::new(self.game, &self.config, &self.device);
        buffers.play(&params, shape, self.branches.as_deref(), keys, self.steps_per_launch);
        let (trajectory, branches) = buffers.finish();
        self.branches = (self.config.start == Start::Branch).then(|| Box::new(branches));
        trajectory
    }

    /// Where the groups go on, as words `[seat_words, num_groups]`; none before the first iteration
    /// or where games start at levels. This reads back.
    pub fn export(&self) -> Vec<u32> {
        self.branches.as_deref().map(download_seats).unwrap_or_default()
    }

    /// Goes on with what [`FusedRollout::export`] gave.
    ///
    /// # Errors
    /// If the number of words does not fit.
    pub fn import(&mut self, words: &[u32]) -> Result<(), SeatsError> {
        let groups = self.config.num_groups;
        seats::check_len(self.game, groups, words)?;
        self.branches =
            (!words.is_empty()).then(|| Box::new(upload_seats(words, groups, &self.device)));
        Ok(())
    }
}
