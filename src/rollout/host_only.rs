//! Takes the place of `on_device` in a build without kernels, where no device plays games.

use super::RolloutKeys;
use super::remembered::Remembered;
use crate::data::Trajectory;
use crate::env::Rules;
use crate::model::Network;
use crate::settings::RolloutConfig;
use burn::tensor::{Device, Tensor};

/// States on a device, of which there are none.
#[derive(Clone, Debug)]
pub enum DeviceBranches {}

impl DeviceBranches {
    /// No device has kernels.
    pub fn on(_device: &Device) -> Option<Self> {
        None
    }

    pub(super) fn collect<G: Rules>(
        &mut self,
        _game: G,
        _config: &RolloutConfig,
        _keys: RolloutKeys,
        _policy: &Network,
        _remembered: &mut Remembered,
    ) -> Trajectory {
        match *self {}
    }

    pub async fn export(&self) -> Vec<u32> {
        match *self {}
    }

    pub fn import(&mut self, _words: &[u32], _groups: usize) {
        match *self {}
    }
}

/// No device plays at random.
pub(super) fn play_at_random_on_device<G: Rules>(
    _game: G,
    _num_envs: usize,
    _num_steps: usize,
    _keys: RolloutKeys,
    _device: &Device,
) -> Option<Tensor<1>> {
    None
}
