//! Options of `bench`.

use crate::program::args::parsers::{OneOf, count_in, parse_finite};
use crate::settings::{EngineChoice, Precision};
use clap::Args;
use std::path::PathBuf;

/// Options of `bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "The default sizes are the same for all games, so that machines can be compared; --score trains with \
                        the game's defaults."
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
    #[arg(long, value_name = "NAME", value_parser = OneOf(EngineChoice::ALL, EngineChoice::name))]
    pub engine: Option<EngineChoice>,
    /// Precision of matrix products, as for `train`.
    #[arg(long, value_name = "NAME", value_parser = OneOf(Precision::ALL, Precision::name))]
    pub precision: Option<Precision>,
    /// Change a setting, as for `train`; may be repeated.
    ///
    /// An option of the same size takes precedence, except in the runs of --score, which use the game's default
    /// settings with these changes.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Number of parallel games [default: 4096].
    #[arg(long, value_name = "N")]
    pub num_envs: Option<usize>,
    /// Games per group, a divisor of the number of games [default: 8].
    #[arg(long, value_name = "N", value_parser = count_in::<usize>(2..=1 << 30))]
    pub group_size: Option<usize>,
    /// Steps per iteration [default: 100].
    #[arg(long, value_name = "N")]
    pub num_steps: Option<usize>,
    /// Steps that are used for learning [default: all].
    #[arg(long, value_name = "N")]
    pub learn_steps: Option<usize>,
    /// Sizes of the hidden layers, for instance 64 or 64,64 [default: 64].
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub hidden: Option<Vec<usize>>,
    /// Epochs over the data of an iteration [default: 1].
    #[arg(long, value_name = "N")]
    pub update_epochs: Option<usize>,
    /// Minibatches (optimizer steps) per epoch [default: 1].
    #[arg(long, value_name = "N")]
    pub num_minibatches: Option<usize>,
    /// Measurements of each rate, after a warm-up.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = count_in::<usize>(1..=10_000))]
    pub repeats: usize,
    /// Also measure how long the game's default run takes to reach this greedy score.
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = parse_finite)]
    pub score: Option<f64>,
    /// Number of runs for --score, with consecutive seeds.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "score",
        value_parser = count_in::<u64>(1..=1000))]
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
    #[arg(long, value_name = "N", value_parser = count_in::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// Print the results as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
    /// Also write the results to a file, as a JSON object.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

impl BenchArgs {
    /// The first of the given options that are for games alone.
    pub fn game_only_option(&self) -> Option<&'static str> {
        let given = [
            ("--num-envs", self.num_envs.is_some()),
            ("--group-size", self.group_size.is_some()),
            ("--num-steps", self.num_steps.is_some()),
            ("--learn-steps", self.learn_steps.is_some()),
            ("--hidden", self.hidden.is_some()),
            ("--update-epochs", self.update_epochs.is_some()),
            ("--num-minibatches", self.num_minibatches.is_some()),
            ("--score", self.score.is_some()),
            ("--scaling", self.scaling),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
}
