//! Policies: networks from observations to action logits, and the distribution over actions.
//!
//! Any Burn module with a [`Policy`] implementation can be trained; [`Mlp`] is the one that comes
//! along, and [`NativeMlp`] its evaluation on the CPU's vector units for rollouts without a device.

mod categorical;
#[cfg(feature = "kernels")]
pub(crate) mod kernels;
mod math;
mod mlp;
mod native;
mod parameters;
pub mod saved;

pub use categorical::{Categorical, Sampled, sample};
#[cfg(feature = "kernels")]
pub use kernels::{FlatMlp, Observer, StoredFeatures};
pub(crate) use math::{any, at_least, exp, ln, mul_add, tanh};
pub use mlp::Mlp;
pub use native::{LANES, Lanes, NativeMlp, Scratch};
pub(crate) use native::{MANY_FEATURES, argmax_lane, sample_lanes};
pub use parameters::{Parameter, flatten, named_parameters, unflatten};

use burn::module::Module;
use burn::tensor::Tensor;

/// A network that gives each action a logit.
pub trait Policy: Module {
    /// Logits `[batch, num_actions]` for observations `[batch, num_features]`.
    fn logits(&self, obs: Tensor<2>) -> Tensor<2>;
}
