//! Branch points on a device, and the loop that plays an iteration of a stepwise rollout from them: the rules as
//! kernels, the policy in Burn's tensors.

use super::stepwise_kernels::StepwiseBuffers;
use super::{EnvStatesError, RolloutKeys, env_state};
use crate::data::Trajectory;
use crate::device::buffers::probe;
use crate::env::Rules;
use crate::model::Network;
use crate::rollout::memory::GamesMemory;
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
    pub(super) fn new(config: &RolloutConfig, envs: CubeTensor) -> Self {
        Self((config.start == GroupStart::Branch).then(|| Box::new(envs)))
    }

    /// The environments at the branch points, `[env_words, num_groups]`.
    pub(super) fn envs(&self) -> Option<&CubeTensor> {
        self.0.as_deref()
    }

    /// Plays an iteration stepwise and replaces the branch points.
    pub(in crate::rollout) fn collect<G: Rules>(
        &mut self,
        game: G,
        config: &RolloutConfig,
        keys: RolloutKeys,
        policy: &Network,
        memory: &mut GamesMemory,
        device: &Device,
    ) -> Trajectory {
        let buffers = StepwiseBuffers::new(game, config, keys, device);
        buffers.start(self.envs());
        for t in 0..config.num_steps {
            let logits = memory.compute_logits(policy, buffers.obs(t));
            buffers.step(logits, t);
            memory.finish_step(t, || buffers.ends(t));
        }
        let (trajectory, branches) = buffers.finish();
        *self = Self::new(config, branches);
        trajectory
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
