//! Learners: policy updates from trajectories and advantages.
//!
//! [`Learner`] trains any Burn module on any device. [`NativeLearner`] and [`fused`] make the
//! same updates of multi-layer perceptrons on CPU threads and in CubeCL kernels.

mod autodiff;
mod experience;
#[cfg(feature = "kernels")]
pub mod fused;
mod half_moments;
mod loss;
mod means;
mod native;
mod optimizer;
mod order;
mod schedule;
mod sequences;
#[cfg(test)]
mod tests;
pub mod text;
mod update;
mod weights;

pub use autodiff::{Learner, UpdateStats};
pub use means::UpdateMeans;
pub use native::NativeLearner;
pub use optimizer::{AdamW, Moments};
pub use order::{Batches, Minibatch, SHARD_STEPS};
pub use schedule::{entropy_coef, first_update, learning_rate, total_updates};
pub use weights::Weights;
