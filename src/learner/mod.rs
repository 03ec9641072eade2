//! Learners: a trajectory and its advantages -> better weights.

mod autodiff;
pub mod loss;
mod optimizer;
mod schedule;

pub(crate) use autodiff::total_updates;
pub use autodiff::{Learner, UpdateStats};
pub use optimizer::AdamW;
pub use schedule::{learning_rate, linear};
