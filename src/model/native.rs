//! A policy of any network on the CPU: on vector units for built-in networks, else by Burn's operations.

use super::sequence_model_actor::SequenceModelActor;
use super::{Actor, DynSequenceModel, Lanes, Network, PolicySizes, TensorActor};
use crate::nn::parameters;
use burn::cubecl::future::block_on;
use burn::tensor::Tensor;
use std::any::Any;
use std::fmt::Debug;

/// A policy on the CPU, with the type of its network erased.
#[derive(Debug)]
pub struct NativePolicy {
    actor: Box<dyn AnyActor>,
    /// The result of [`Actor::sizes`].
    sizes: PolicySizes,
    /// The memory at the start of an episode, `[memory_size]`.
    initial_memory: Vec<f32>,
}

/// Buffers of one thread for a [`NativePolicy`].
pub type NativeScratch = Box<dyn Any + Send>;

/// The functions of an [`Actor`] with buffers of any type.
trait AnyActor: Debug + Send + Sync {
    fn new_boxed_scratch(&self) -> NativeScratch;
    fn compute_logits_with<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut NativeScratch,
    ) -> &'a [Lanes];
}

impl<A: Actor<Scratch: Send + 'static> + Debug + Send> AnyActor for A {
    fn new_boxed_scratch(&self) -> NativeScratch {
        Box::new(self.new_scratch())
    }

    fn compute_logits_with<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut NativeScratch,
    ) -> &'a [Lanes] {
        let scratch = scratch.downcast_mut().expect("the scratch of this policy");
        self.compute_logits(obs, memory, scratch)
    }
}

impl NativePolicy {
    /// A policy that acts by `actor`.
    pub(super) fn from_actor(
        actor: impl Actor<Scratch: Send + 'static> + Debug + Send + 'static,
    ) -> Self {
        Self {
            sizes: actor.sizes(),
            initial_memory: actor.initial_memory(),
            actor: Box::new(actor),
        }
    }

    /// Copies the weights of a network for games of these sizes. On a device this reads them back and waits.
    pub fn new(network: &Network, num_features: usize, num_actions: usize) -> Self {
        block_on(Self::new_async(network, num_features, num_actions))
    }

    /// The asynchronous form of [`NativePolicy::new`], for where a thread must not block.
    ///
    /// # Panics
    /// If the device fails, or the network is user-defined in a build without the feature `general`.
    pub async fn new_async(network: &Network, num_features: usize, num_actions: usize) -> Self {
        if network.kind().is_none() {
            return Self::from_actor(TensorActor::new(network, num_features, num_actions));
        }
        let params = parameters::to_vec_async(network.flatten()).await;
        Self::from_built_in(network, &params).expect("a built-in network")
    }

    /// A policy that acts by the forward pass of `model`, so that learning has the same logits to the last bit.
    pub(crate) fn from_sequence_model(model: Box<dyn DynSequenceModel>) -> Self {
        Self::from_actor(SequenceModelActor(model))
    }
}

impl Network {
    /// Widths of observations, logits and memory. Those of logits and memory of a user-defined network are found by one
    /// step on `num_features` zeros.
    ///
    /// # Panics
    /// If a user-defined network does not take this number of features, or in a build without the feature `general`.
    pub(crate) fn sizes(&self, num_features: usize) -> PolicySizes {
        // The values of the parameters, which may be on a device, do not matter.
        let zeros = vec![0.0; self.num_params()];
        if let Some(policy) = NativePolicy::from_built_in(self, &zeros) {
            return policy.sizes;
        }
        let device = self.device();
        let initial_memory = self.initial_memory(1, &device);
        let memory_size = initial_memory.as_ref().map_or(0, |rows| rows.dims()[1]);
        let (logits, _) = self.step(Tensor::zeros([1, num_features], &device), initial_memory);
        PolicySizes { num_features, num_actions: logits.dims()[1], memory_size }
    }
}

impl Actor for NativePolicy {
    type Scratch = NativeScratch;

    fn sizes(&self) -> PolicySizes {
        self.sizes
    }

    fn initial_memory(&self) -> Vec<f32> {
        self.initial_memory.clone()
    }

    fn new_scratch(&self) -> NativeScratch {
        self.actor.new_boxed_scratch()
    }

    fn compute_logits<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut NativeScratch,
    ) -> &'a [Lanes] {
        self.actor.compute_logits_with(obs, memory, scratch)
    }
}
