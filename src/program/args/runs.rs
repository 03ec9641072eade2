//! Options of the commands that show or compare runs.

use super::parsers::count_in;
use super::{DEFAULT_HOST, DEFAULT_PORT};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct WatchArgs {
    /// A run, by its folder or its game [default: the latest in runs/].
    pub run: Option<PathBuf>,
    /// Port of the page; 0 for any free one.
    #[arg(long, default_value_t = DEFAULT_PORT, value_name = "N")]
    pub port: u16,
    /// Address to bind to; 0.0.0.0 makes the page available to other machines.
    #[arg(long, default_value = DEFAULT_HOST, value_name = "ADDRESS")]
    pub host: String,
    /// Open the page in the browser.
    #[arg(long)]
    pub open: bool,
    /// Print the page's address as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RunsArgs {
    /// The folder of runs, or a run.
    #[arg(default_value = "runs", value_name = "DIR")]
    pub folder: PathBuf,
    /// Print the list as a JSON array on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct PlotArgs {
    /// Run directories, or folders of runs.
    ///
    /// Runs with the same settings but for the seed become one line, the mean, with its 95 % bootstrap interval.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// The horizontal axis.
    #[arg(long, default_value = "env_steps", value_name = "NAME")]
    pub x: Axis,
    /// The vertical axis: `score` (of training episodes), `greedy` (of evaluations), or a recorded metric.
    ///
    /// Metrics have TensorBoard's names, for instance losses/entropy or eval/held_out_loss, or those of the fields of
    /// metrics.jsonl, for instance entropy or seconds.total.
    #[arg(long, default_value = "score", value_name = "NAME")]
    pub y: String,
    /// Also draw the curves into this .svg or .png file.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the table as a JSON array on stdout.
    #[arg(long)]
    pub json: bool,
}

/// A horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Axis {
    /// Environment steps; tokens for language models.
    EnvSteps,
    /// Seconds of training, without evaluations.
    Seconds,
    /// Iterations.
    Iterations,
}

#[derive(Args, Debug, Default)]
pub struct SweepArgs {
    /// The file of the sweep (TOML); see docs/runs.md.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The folder of the sweep [default: the file's name without its ending].
    ///
    /// A sweep that was interrupted continues by the command that began it.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The device, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub device: String,
    /// Number of CPU threads, shared by the runs side by side [default: one per core].
    #[arg(long, value_name = "N", value_parser = count_in::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// Run the verifier that the file names, even if you have not approved it before.
    #[arg(long)]
    pub trust: bool,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}
