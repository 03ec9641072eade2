//! Branch points of stepwise rollouts on a device, and the loop that plays an iteration from them: the rules as
//! kernels, the policy in Burn's tensors.

use super::RolloutKeys;
use super::env_kernels::{download_envs, upload_envs};
use super::stepwise_kernels::StepwiseBuffers;
use crate::data::Trajectory;
use crate::device::has_kernels;
use crate::env::Rules;
use crate::model::Network;
use crate::rollout::memory::GamesMemory;
use crate::settings::{GroupStart, RolloutConfig};
use burn::tensor::Device;
use burn_cubecl::tensor::CubeTensor;

/// Branch points from which the groups continue, on a CubeCL device; none before the first rollout.
#[derive(Clone, Debug)]
pub struct DeviceBranches {
    device: Device,
    envs: Option<Box<CubeTensor>>,
}

impl DeviceBranches {
    /// Creates branch points without states; `None` if the device has no kernels.
    pub fn new(device: &Device) -> Option<Self> {
        has_kernels(device).then(|| Self { device: device.clone(), envs: None })
    }

    /// Plays an iteration and stores the states from which the groups continue.
    pub(in crate::rollout) fn collect<G: Rules>(
        &mut self,
        game: G,
        config: &RolloutConfig,
        keys: RolloutKeys,
        policy: &Network,
        memory: &mut GamesMemory,
    ) -> Trajectory {
        let buffers = StepwiseBuffers::new(game, config, keys, &self.device);
        buffers.start(self.envs.as_deref());
        for t in 0..config.num_steps {
            let logits = memory.compute_logits(policy, buffers.obs(t));
            buffers.step(logits, t);
            memory.finish_step(t, || buffers.ends(t));
        }
        let (trajectory, branches) = buffers.finish();
        self.envs = (config.start == GroupStart::Branch).then(|| Box::new(branches));
        trajectory
    }

    /// The states as words `[env_words, num_groups]`.
    pub async fn export_state(&self) -> Vec<u32> {
        download_envs(self.envs.as_deref()).await
    }

    /// Restores the states from [`DeviceBranches::export_state`].
    pub fn import_state(&mut self, words: &[u32], groups: usize) {
        let upload = || Box::new(upload_envs(words, groups, &self.device));
        self.envs = (!words.is_empty()).then(upload);
    }
}
