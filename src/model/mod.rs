//! Networks from observations to action logits, with or without memory, and the distribution over actions.
//!
//! A model is a Burn module that implements [`Model`] or [`Memoryless`]; that is enough to train it on every
//! device. Settings name a built-in network (`registry.rs` lists them, a folder each) or a user-defined one
//! ([`NamedModel`]). [`Network`] holds either, without its type.

mod actor;
mod categorical;
mod dense;
mod lanes;
mod layers;
mod memory;
mod native;
mod network;
#[cfg(feature = "kernels")]
mod observer;
mod policy;
pub mod policy_file;
mod registry;
#[cfg(feature = "general")]
mod self_check;
mod sequence_model;
mod sequence_model_actor;
mod tensors;

pub use actor::Actor;
pub use categorical::{Categorical, sample};
pub(crate) use dense::MIN_SPARSE_FEATURES;
pub use dense::MlpScratch;
pub use lanes::{LANES, Lanes};
pub(crate) use lanes::{argmax_lane, sample_lanes, set_lane, splat};
pub use memory::Memory;
pub(crate) use memory::reset;
pub use native::{NativePolicy, NativeScratch};
pub use network::Network;
#[cfg(feature = "kernels")]
pub(crate) use observer::{FeatureSlots, StepWords};
#[cfg(feature = "kernels")]
pub use observer::{HostObserver, Observer, StoredFeatures};
pub use policy::PolicyConfig;
#[cfg(feature = "kernels")]
pub(crate) use registry::mlp::kernel as kernels;
#[cfg(feature = "kernels")]
pub use registry::mlp::kernel::FlatMlp;
pub use registry::{
    BuiltIn, Decoder, DecoderConfig, Gru, KindSettings, Mlp, ModelKind, NativeDecoder, NativeGru,
    NativeMlp, SequenceModelConstructor,
};
pub use sequence_model::new_sequence_model;

pub use crate::nn::arch::LoraConfig;
pub use crate::nn::cpu::{
    DynSequenceModel, PolicySizes, Pool, PooledSequenceModel, Retention, SequenceModel, Sequences,
};
pub(crate) use crate::nn::parameters::to_vec;
pub use crate::nn::{
    DecoderInput, DecoderShape, Parameter, Precision, RopeScaling, flatten, named_parameters,
    unflatten,
};
pub use tensors::TensorActor;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use memory::take_steps;

/// A network that maps an observation, and its memory of the episode, to a logit for each action.
///
/// A network without memory implements [`Memoryless`] instead, which makes it a model.
///
/// A policy acts by single steps and learns from whole sequences, so both must give the same logits. Layers that act
/// differently while they learn break that: a run of games refuses dropout and batch normalization. Parameters are all
/// that is saved; running statistics are not.
pub trait Model: Module + Sync + 'static {
    /// The memory of a batch of games: `()` or a tensor `[batch, memory_size]`.
    type Memory: Memory;

    /// The memory of `batch` games at the start of an episode. All elements of a memory must be finite, since it
    /// is reset by a product with 0.
    fn initial_memory(&self, batch: usize, device: &Device) -> Self::Memory;

    /// One step of every game of a batch, for acting: logits `[batch, num_actions]` for observations
    /// `[batch, num_features]`, and the memory after the step.
    fn step(&self, obs: Tensor<2>, memory: Self::Memory) -> (Tensor<2>, Self::Memory);

    /// Whole sequences, for learning: logits `[num_steps, batch, num_actions]` for observations
    /// `[num_steps, batch, num_features]`, equal to those of single steps.
    ///
    /// `memory` is the memory before the first step. `starts`, `[num_steps, batch]`, is 1 where a step is the
    /// first of an episode, which resets memory, and 0 elsewhere.
    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Self::Memory) -> Tensor<3> {
        let initial = self.initial_memory(obs.dims()[1], &obs.device()).into_rows();
        let step = |obs, before| {
            let (logits, after) = self.step(obs, Memory::from_rows(before));
            (logits, after.into_rows())
        };
        let logits = take_steps(&obs, &starts, initial.as_ref(), memory.into_rows(), step);
        Tensor::stack(logits, 0)
    }

    /// A copy whose matrix products take operands in this precision, on devices that support it, while
    /// parameters, norms and sums stay in f32; `None` for a model that supports f32 alone.
    fn with_precision(&self, _precision: Precision) -> Option<Self> {
        None
    }
}

/// A network that maps an observation alone to a logit for each action.
pub trait Memoryless: Module + Sync + 'static {
    /// Logits `[batch, num_actions]` for observations `[batch, num_features]`.
    fn logits(&self, obs: Tensor<2>) -> Tensor<2>;
}

impl<M: Memoryless> Model for M {
    type Memory = ();

    fn initial_memory(&self, _batch: usize, _device: &Device) {}

    fn step(&self, obs: Tensor<2>, _memory: ()) -> (Tensor<2>, ()) {
        (self.logits(obs), ())
    }

    fn sequence(&self, obs: Tensor<3>, _starts: Tensor<2>, _memory: ()) -> Tensor<3> {
        let [num_steps, batch, num_features] = obs.dims();
        let logits = self.logits(obs.reshape([num_steps * batch, num_features]));
        let num_actions = logits.dims()[1];
        logits.reshape([num_steps, batch, num_actions])
    }
}

/// A user-defined model that settings name: the program makes it for any game from the settings of a run.
pub trait NamedModel: Model {
    /// The name in settings, the value of `policy.kind`.
    const KIND: &'static str;

    /// A model with fresh weights on `device`, the same for the same `key`. Which of the policy's settings it
    /// uses is up to the model. [`Network::user_defined`] calls this for one model at a time, since Burn's
    /// generator (`Device::seed`) belongs to the process.
    fn new(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self;
}
