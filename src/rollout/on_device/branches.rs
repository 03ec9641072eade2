//! Branch points on a device.

use super::{EnvStatesError, env_state};
use crate::device::buffers::probe;
use crate::env::Rules;
use crate::settings::{GroupStart, RolloutConfig};
use burn::backend::{DType, Shape};
use burn::tensor::Device;
use burn_cubecl::tensor::CubeTensor;

/// Branch points from which the groups continue, on a CubeCL device; empty before the first iteration or if games start
/// at levels.
#[derive(Clone, Debug, Default)]
pub struct DeviceBranches(Option<Box<CubeTensor>>);

impl DeviceBranches {
    /// Keeps `envs`, `[env_words, num_groups]`, if groups branch.
    pub(in crate::rollout) fn new(config: &RolloutConfig, envs: CubeTensor) -> Self {
        Self((config.start == GroupStart::Branch).then(|| Box::new(envs)))
    }

    /// The environments at the branch points, `[env_words, num_groups]`.
    pub(in crate::rollout) fn envs(&self) -> Option<&CubeTensor> {
        self.0.as_deref()
    }

    /// Downloads the environments as words `[env_words, num_groups]`; empty if there are none.
    pub(in crate::rollout) async fn download(&self) -> Vec<u32> {
        let Some(envs) = self.envs() else { return Vec::new() };
        let read = envs.client.read_async(vec![envs.handle.clone()]).await;
        let buffers = read.unwrap_or_else(|error| panic!("the device failed: {error}"));
        bytemuck::pod_collect_to_vec(&buffers[0])
    }

    /// Uploads words from [`DeviceBranches::download`].
    ///
    /// # Errors
    /// If the number of words is wrong.
    pub(in crate::rollout) fn upload<G: Rules>(
        game: G,
        num_groups: usize,
        words: &[u32],
        device: &Device,
    ) -> Result<Self, EnvStatesError> {
        env_state::check_num_words(game, num_groups, words)?;
        let upload = || {
            let probe = probe(device);
            let handle = probe.client.create_from_slice(bytemuck::cast_slice(words));
            let shape = Shape::from(vec![words.len() / num_groups, num_groups]);
            CubeTensor::new_contiguous(probe.client, probe.device, shape, handle, DType::I32)
        };
        Ok(Self((!words.is_empty()).then(|| Box::new(upload()))))
    }
}
