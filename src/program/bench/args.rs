//! Options of `bench`.

use crate::program::study_args::count;
use crate::settings::{EngineChoice, Precision};
use clap::Args;
use std::path::PathBuf;

/// Options of `bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "The sizes are the same for all games, so that machines can be compared; --score trains with the \
                        game's defaults."
)]
pub struct BenchArgs {
    /// The game or the language task.
    pub game: Option<String>,
    /// The language model, as for `train` [default: tiny].
    ///
    /// The sizes of a language benchmark are set by --set, for instance --set generation.num_prompts=32.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// The device, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub device: String,
    /// The engine, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub engine: EngineChoice,
    /// Precision of matrix products, as for `train`.
    #[arg(long, default_value = "f32", value_name = "NAME")]
    pub precision: Precision,
    /// Change a setting, as for `train`; may be repeated.
    ///
    /// The options for sizes below take precedence, except in the runs of --score, which use the game's default
    /// settings with these changes.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Number of parallel games.
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub num_envs: usize,
    /// Games per group, a divisor of the number of games.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = count::<usize>(2..=1 << 30))]
    pub group_size: usize,
    /// Steps per iteration.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub num_steps: usize,
    /// Steps that are used for learning [default: all].
    #[arg(long, value_name = "N")]
    pub learn_steps: Option<usize>,
    /// Sizes of the hidden layers, for instance 64 or 64,64.
    #[arg(long, default_value = "64", value_delimiter = ',', value_name = "N")]
    pub hidden: Vec<usize>,
    /// Epochs over the data of an iteration.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub update_epochs: usize,
    /// Minibatches (optimiser steps) per epoch.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub num_minibatches: usize,
    /// Measurements of each rate, after a warm-up.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = count::<usize>(1..=10_000))]
    pub repeats: usize,
    /// Also measure how long the game's default run takes to reach this greedy score.
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = finite)]
    pub score: Option<f64>,
    /// Number of runs for --score, with consecutive seeds.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "score",
        value_parser = count::<u64>(1..=1000))]
    pub score_repeats: u64,
    /// Measure strong and weak scaling over 1, 2, 4, ... ranks instead.
    ///
    /// The ranks are the devices listed by --device, MPI processes, or threads of the CPU.
    #[arg(long, conflicts_with_all = ["score", "model"])]
    pub scaling: bool,
    /// Skip the measurement of the device's peak performance, which takes several seconds.
    #[arg(long)]
    pub no_peak: bool,
    /// Number of CPU threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = count::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// Print the results as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
    /// Also write the results to a file, as a JSON object.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Parses a score.
fn finite(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| "must be a finite number".to_string())
}
