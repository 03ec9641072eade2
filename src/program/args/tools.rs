//! Options of the commands about data, games, settings and devices.

use super::parsers::{count_in, parse_seed};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct DemoArgs {
    /// The game.
    pub game: Option<String>,
    /// The player: `random`, one of the game's scripted players, or a run or a policy file (greedy actions).
    #[arg(long, value_name = "NAME|RUN")]
    pub player: PathBuf,
    /// Number of episodes, each on a different level.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = count_in::<u32>(1..=100_000_000))]
    pub episodes: u32,
    /// The folder of the dataset, which must be new or empty.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Random seed of the episodes.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = parse_seed::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
    /// Change a setting of the game, for instance fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ImportArgs {
    /// A time series as a CSV file, or a file of games saved on the page.
    ///
    /// The first line of a CSV file names the columns; each further line is a row, in order of time. The options
    /// --label, --window, --time, --time-format and --validation apply to CSV files only.
    pub file: PathBuf,
    /// The CSV column with the labels; empty cells are unlabelled rows.
    #[arg(long, value_name = "COLUMN", requires = "window")]
    pub label: Option<String>,
    /// Number of CSV rows, up to and including the labelled one, from which a label is predicted.
    #[arg(long, value_name = "N", requires = "label", value_parser = count_in::<usize>(1..=4096))]
    pub window: Option<usize>,
    /// The CSV column with the time, which is not used as a feature.
    #[arg(long, value_name = "COLUMN", requires = "label")]
    pub time: Option<String>,
    /// Format of the times as strftime has it, for instance %d.%m.%Y [default: numbers, or dates of ISO 8601].
    #[arg(long, value_name = "FORMAT", requires = "time")]
    pub time_format: Option<String>,
    /// Fraction of the CSV rows, taken from the end, to hold out for validation.
    #[arg(long, default_value_t = 0.2, value_name = "X", requires = "label")]
    pub validation: f64,
    /// The folder of the dataset, which must be new or empty.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DevicesArgs {
    /// Print the list as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The game.
    pub game: Option<String>,
    /// Number of episodes with random actions, each on a different level.
    #[arg(long, default_value_t = 64, value_name = "N",
        value_parser = count_in::<u32>(1..=1_000_000))]
    pub episodes: u32,
    /// Random seed of the episodes.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = parse_seed::<u32>, allow_negative_numbers = true)]
    pub seed: u32,
    /// Change a setting of the game, for instance fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The device on which the game's kernels are compared with its native rules, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub device: String,
    /// Print the findings as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct SettingsArgs {
    /// The game, the language task, or `data` for prompts of your own.
    pub game: Option<String>,
    /// Print the settings as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
    /// Print a JSON Schema of settings files, from which editors complete and check TOML.
    #[arg(long, conflicts_with = "json")]
    pub schema: bool,
}
