//! Grove: Group Relative Policy Optimization (GRPO) for games and small language models.
//!
//! Environments, policy and learner of a built-in game run on the same device, a GPU or the CPU. The modules, in the
//! order in which data flow through them:
//!
//! - [`mod@settings`]: settings of a run, whose names, defaults and ranges [`schema`] declares
//! - [`device`]: devices by name, and transfers between them and the host
//! - [`rng`]: counter-based random numbers, the same on every device
//! - [`mod@env`]: games, whose rules are written once for CPU and GPU
//! - [`task`]: language tasks: prompts, and verifiers that compute rewards
//! - [`nn`]: operators of neural networks, and decoders as data; [`model`]: policies of games; [`text`]: language
//!   models
//! - [`rollout`]: games played with a policy; [`data`]: the trajectories that it records, and datasets
//! - [`advantage`]: group-relative advantages
//! - [`objective`]: the losses; [`math`]: scalar formulas shared by all engines
//! - [`learner`]: gradients and AdamW; [`parallel`]: ranks that share a run
//! - [`trainer`]: the training loop; [`checkpoint`]: saved state; [`metrics`]: records of a run
//! - [`run`]: a run on disk; `track`: copies of its records for TensorBoard and as CSV; [`export`]: policies as ONNX
//! - [`viewer`]: pictures of games; `program`: the command line; `plot`: learning curves
//!
//! ```
//! use burn::tensor::Device;
//! use grove::settings::TrainConfig;
//! use grove::env::Catch;
//! use grove::rollout::ActionSelection;
//! use grove::trainer::Trainer;
//!
//! let game = Catch::default();
//! let config = TrainConfig { iterations: 3, ..TrainConfig::for_game("catch") };
//! let mut trainer = Trainer::new(game, &config, &Device::flex());
//! while trainer.iterations_done() < config.iterations {
//!     let record = trainer.iterate()?;
//!     println!("{}: score {:?}", record.iteration, record.score);
//! }
//! println!("{:?}", trainer.evaluate_fresh(1000, 0, ActionSelection::Greedy)?);
//! # Ok::<(), grove::trainer::TrainError>(())
//! ```

// Builds without some features do not use everything that the whole program uses.
#![cfg_attr(not(all(feature = "program", feature = "kernels")), allow(dead_code, unused_imports))]

pub mod advantage;
pub mod checkpoint;
mod clock;
pub mod data;
pub mod device;
mod disk;
pub mod env;
pub mod export;
pub mod learner;
pub mod math;
pub mod metrics;
pub mod model;
pub mod nn;
pub mod objective;
pub mod parallel;
#[cfg(feature = "program")]
pub mod plot;
#[cfg(feature = "program")]
pub mod program;
mod protobuf;
pub mod rng;
pub mod rollout;
pub mod run;
pub mod schema;
pub mod settings;
pub mod task;
pub mod text;
#[cfg(on_disk)]
pub mod track;
pub mod trainer;
pub mod viewer;

#[cfg(feature = "program")]
pub use program::program;
