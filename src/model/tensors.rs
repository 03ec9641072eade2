//! Forward passes of any network in Burn's tensors, for the general engine.

use super::{Actor, LANES, Lanes, Memory, Model, Network, PolicySizes};
use crate::nn::cpu::{to_lanes, to_rows};
use crate::nn::parameters::to_vec;
use burn::tensor::{Device, Tensor, TensorData};

/// The forward passes of a [`Model`], with its memory as rows `[batch, memory_size]`.
pub(super) trait ForwardPasses {
    fn step(&self, obs: Tensor<2>, memory: Option<Tensor<2>>) -> (Tensor<2>, Option<Tensor<2>>);
    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Option<Tensor<2>>) -> Tensor<3>;
    fn to_device(&self, device: &Device) -> Network;
}

impl<M: Model> ForwardPasses for M {
    fn step(&self, obs: Tensor<2>, memory: Option<Tensor<2>>) -> (Tensor<2>, Option<Tensor<2>>) {
        let (logits, memory) = Model::step(self, obs, Memory::from_rows(memory));
        (logits, memory.into_rows())
    }

    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Option<Tensor<2>>) -> Tensor<3> {
        Model::sequence(self, obs, starts, Memory::from_rows(memory))
    }

    fn to_device(&self, device: &Device) -> Network {
        self.clone().to_device(device).into()
    }
}

impl Network {
    /// One step of every game of a batch, for acting: logits `[batch, num_actions]` for observations
    /// `[batch, num_features]`, and the memory after the step.
    pub fn step(
        &self,
        obs: Tensor<2>,
        memory: Option<Tensor<2>>,
    ) -> (Tensor<2>, Option<Tensor<2>>) {
        self.forward_passes().step(obs, memory)
    }

    /// Whole sequences, for learning: logits `[num_steps, batch, num_actions]`; see [`Model::sequence`].
    pub fn sequence(
        &self,
        obs: Tensor<3>,
        starts: Tensor<2>,
        memory: Option<Tensor<2>>,
    ) -> Tensor<3> {
        self.forward_passes().sequence(obs, starts, memory)
    }
}

/// A network that acts by Burn's operations on the CPU.
#[derive(Clone, Debug)]
pub struct TensorActor {
    network: Network,
    sizes: PolicySizes,
    initial_memory: Vec<f32>,
    device: Device,
}

impl TensorActor {
    /// A copy of a network on Burn's CPU backend; on the network's own device in a build without it.
    pub fn new(network: &Network, num_features: usize, num_actions: usize) -> Self {
        #[cfg(feature = "flex")]
        let device = Device::flex();
        #[cfg(not(feature = "flex"))]
        let device = network.device().without_autodiff();
        let network = network.forward_passes().to_device(&device);
        let initial_memory = network.initial_memory(1, &device).map_or_else(Vec::new, to_vec);
        let sizes = PolicySizes { num_features, num_actions, memory_size: initial_memory.len() };
        Self { network, sizes, initial_memory, device }
    }
}

impl Actor for TensorActor {
    type Scratch = Vec<Lanes>;

    fn sizes(&self) -> PolicySizes {
        self.sizes
    }

    fn initial_memory(&self) -> Vec<f32> {
        self.initial_memory.clone()
    }

    fn new_scratch(&self) -> Vec<Lanes> {
        vec![[0.0; LANES]; self.sizes.num_actions]
    }

    fn compute_logits<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut Vec<Lanes>,
    ) -> &'a [Lanes] {
        let to_tensor = |lanes: &[Lanes]| {
            let rows = TensorData::new(to_rows(lanes), [LANES, lanes.len()]);
            Tensor::<2>::from_data(rows, &self.device)
        };
        let memory_before = (!memory.is_empty()).then(|| to_tensor(memory));
        let (logits, memory_after) = self.network.step(to_tensor(obs), memory_before);
        assert_eq!(logits.dims(), [LANES, self.sizes.num_actions], "logits: [batch, num_actions]");
        to_lanes(&to_vec(logits), scratch);
        if let Some(rows) = memory_after {
            to_lanes(&to_vec(rows), memory);
        }
        scratch
    }
}
