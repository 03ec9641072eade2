//! Learners: a trajectory and its advantages -> better weights.

mod autodiff;
pub mod loss;
mod native;
mod optimizer;
mod schedule;

pub(crate) use autodiff::total_updates;
pub use autodiff::{Learner, UpdateStats};
pub use native::{HostTrajectory, NativeLearner, UpdateMeans};
pub use optimizer::{AdamW, Moments};
pub use schedule::{learning_rate, linear};
