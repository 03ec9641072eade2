//! Models: networks from observations to action logits, with or without memory, and the distribution
//! over actions.
//!
//! A model is a Burn module that implements [`Model`], or [`Memoryless`], which is one function; that is
//! enough to be trained on every device. [`Network`] is what settings name: one of those that come along
//! (`registry.rs` lists them, a folder each), or a user's own (`own.rs`).

mod actor;
mod categorical;
mod dense;
mod lanes;
pub mod language;
mod memory;
mod native;
mod network;
#[cfg(feature = "general")]
mod own;
mod policy;
mod registry;
pub mod saved;

pub use actor::Actor;
#[cfg(feature = "general")]
pub use actor::TensorActor;
pub use categorical::{Categorical, sample};
pub use lanes::{LANES, Lanes};
pub(crate) use lanes::{argmax_lane, sample_lanes};
pub use memory::Memory;
pub use native::{NativePolicy, NativeScratch};
pub use network::{FastForm, Network};
#[cfg(feature = "general")]
pub use own::{NamedModel, OwnModel};
pub use policy::PolicyConfig;
pub(crate) use policy::limit;
pub(crate) use registry::mlp::MANY_FEATURES;
#[cfg(feature = "kernels")]
pub(crate) use registry::mlp::kernel as kernels;
#[cfg(feature = "kernels")]
pub use registry::mlp::kernel::{FlatMlp, Observed, Observer, StoredFeatures};
pub use registry::{
    BuiltIn, Decoder, DecoderConfig, FromRows, Gru, Mlp, ModelKind, NativeDecoder, NativeGru,
    NativeMlp, OwnSettings, Scratch,
};

pub use crate::nn::rows::{SequenceLearner, Sequences};
pub use crate::nn::{
    DecoderShape, Parameter, Precision, RopeScaling, flatten, named_parameters, unflatten,
};

use burn::module::Module;
use burn::tensor::{Device, Tensor};

/// A network that gives each action a logit, and may remember what it has seen of an episode.
///
/// One without memory implements [`Memoryless`] instead, which makes it a model.
pub trait Model: Module + Sync {
    /// What it remembers of the games of a batch: `()` or a tensor `[batch, memory_size]`.
    type Memory: Memory;

    /// What it remembers of `batch` games whose episodes begin.
    fn initial_memory(&self, batch: usize, device: &Device) -> Self::Memory;

    /// One step of every game of a batch, for acting: logits `[batch, num_actions]` for observations
    /// `[batch, num_features]`, and what it remembers from then on.
    fn step(&self, obs: Tensor<2>, memory: Self::Memory) -> (Tensor<2>, Self::Memory);

    /// Whole sequences, for learning: logits `[num_steps, batch, num_actions]` for observations
    /// `[num_steps, batch, num_features]`, the same as step by step.
    ///
    /// `memory` is what it remembers before the first step. Where `starts`, `[num_steps, batch]`, is 1,
    /// an episode begins with the step, and memory with it; elsewhere it is 0.
    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Self::Memory) -> Tensor<3> {
        let [num_steps, batch, _] = obs.dims();
        let fresh = self.initial_memory(batch, &obs.device());
        let mut memory = memory;
        let mut logits = Vec::with_capacity(num_steps);
        for t in 0..num_steps {
            let starts = starts.clone().narrow(0, t, 1).reshape([batch]);
            let obs = obs.clone().narrow(0, t, 1).squeeze_dim::<2>(0);
            let (step, next) = self.step(obs, memory.anew(&fresh, starts));
            logits.push(step);
            memory = next;
        }
        Tensor::stack(logits, 0)
    }

    /// The network of ours that it is, if it is one and its parameters are that one's, in its order: the
    /// fast engines serve those.
    fn fast_form(&self) -> Option<FastForm<'_>> {
        None
    }

    /// A model like this whose products take numbers in this precision, on devices that have it, while parameters,
    /// norms and sums stay in single precision; `None` if it knows no other than single precision.
    fn with_precision(&self, _precision: Precision) -> Option<Self> {
        None
    }
}

/// A network that gives each action a logit by what it sees now.
pub trait Memoryless: Module + Sync {
    /// Logits `[batch, num_actions]` for observations `[batch, num_features]`.
    fn logits(&self, obs: Tensor<2>) -> Tensor<2>;

    /// As [`Model::fast_form`].
    fn fast_form(&self) -> Option<FastForm<'_>> {
        None
    }
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

    fn fast_form(&self) -> Option<FastForm<'_>> {
        Memoryless::fast_form(self)
    }
}
