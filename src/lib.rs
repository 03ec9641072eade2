//! Grove: Group Relative Policy Optimisation (GRPO), vectorised everywhere.
//!
//! Environments, policy and learner run on the same device: any GPU, or the CPU. Data flow through the
//! modules in this order:
//!
//! - [`settings`]: settings, their defaults and limits, declared by [`schema`]; [`device`]: device selection;
//! - [`rng`]: counter-based random numbers;
//! - [`mod@env`]: games, whose rules are written once for CPU and GPU;
//! - [`task`]: language tasks, whose levels are prompts and whose rewards come from verifiers;
//! - [`nn`]: operators and layers of neural networks; [`model`]: policies and the distribution over actions;
//!   [`text`]: language models;
//! - [`rollout`]: plays games with a policy and records a trajectory ([`data`]);
//! - [`advantage`]: group-relative advantages;
//! - [`objective`]: the losses, one file each; [`math`]: scalar formulas shared by all engines;
//! - [`learner`]: gradients and AdamW; [`parallel`]: data-parallel ranks;
//! - [`trainer`]: the training loop; [`checkpoint`]: saved state; [`metrics`]: records;
//!   [`run`]: a run in time and on disk; `track`: its records for other tools; [`export`]: its policy for other tools;
//! - [`viewer`]: rendering of games; `program`: the command line; `plot`: its learning curves.
//!
//! ```
//! use burn::tensor::Device;
//! use grove::settings::TrainConfig;
//! use grove::env::Catch;
//! use grove::rollout::Player;
//! use grove::trainer::Trainer;
//!
//! let game = Catch::default();
//! let config = TrainConfig { iterations: 3, ..TrainConfig::for_game("catch") };
//! let mut trainer = Trainer::new(game, &config, &Device::flex());
//! for _ in 0..config.iterations {
//!     let record = trainer.iterate()?;
//!     println!("{}: score {:?}", record.iteration, record.score);
//! }
//! println!("{:?}", trainer.evaluate_fresh(1000, 0, Player::Greedy)?);
//! # Ok::<(), grove::trainer::TrainError>(())
//! ```

// Builds without some features do not use everything that the whole program uses.
#![cfg_attr(not(all(feature = "program", feature = "kernels")), allow(dead_code, unused_imports))]

pub mod advantage;
pub mod checkpoint;
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
pub mod protobuf;
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
