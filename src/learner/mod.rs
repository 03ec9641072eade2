//! Learners: policy updates from trajectories and advantages.
//!
//! [`AutodiffLearner`] trains any Burn module on any device. A [`NativeLearner`] makes the same updates of built-in
//! networks on CPU threads, and [`fused`] those of multi-layer perceptrons in CubeCL kernels.

mod autodiff;
mod context;
mod counted_steps;
mod eight_bit;
mod experience;
#[cfg(feature = "kernels")]
pub mod fused;
mod means;
mod moment;
mod native;
mod optimizer;
mod order;
mod schedule;
pub mod text;
mod train_state;
mod update;

pub use autodiff::{AutodiffLearner, MIN_AUTODIFF_SHARD_STEPS};
pub use context::LearnerContext;
pub use means::UpdateMeans;
pub use native::{
    NativeExperience, NativeLearner, PerceptronLearner, RolloutPolicy, SequenceLearner,
    native_learner,
};
pub use optimizer::{Moments, TensorMoments};
pub use order::{Batches, MIN_SHARD_STEPS, Minibatch};
pub use schedule::{entropy_coef, first_optimizer_step, learning_rate, total_optimizer_steps};
pub use train_state::TrainState;
