//! The command line: subcommands, and the options of each in the file of its kind.

mod models;
pub(super) mod parsers;
mod runs;
mod tools;
mod train;
mod verifier;

pub use models::{EvalArgs, ExportArgs, ExportFormat, GenerateArgs, RecordArgs, RenderOptions};
pub use parsers::{Seeds, name_of, parse_seeds};
pub use runs::{Axis, PlotArgs, RunsArgs, SweepArgs, WatchArgs};
pub use tools::{CheckArgs, DemoArgs, DevicesArgs, ImportArgs, SettingsArgs};
pub use train::{FitArgs, RunArgs, TrainArgs, agree_on_subject};
pub use verifier::{VerifierArgs, VerifyArgs};

use super::bench::BenchArgs;
use super::manual::{CompletionsArgs, ManArgs};
use clap::{Parser, Subcommand};

/// Default address of the live page.
pub const DEFAULT_HOST: &str = "127.0.0.1";
/// Default port of the live page.
pub const DEFAULT_PORT: u16 = 8642;

/// Train game policies and small language models by Group Relative Policy Optimization (GRPO).
#[derive(Parser, Debug)]
#[command(name = "grove", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands, one file each.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Train a policy for a game, or a language model for a task.
    Train(TrainArgs),
    /// Fine-tune a policy or a language model on a dataset (behaviour cloning, SFT).
    Fit(FitArgs),
    /// Evaluate a trained policy or language model.
    Eval(EvalArgs),
    /// Generate text with a language model.
    Generate(GenerateArgs),
    /// Record demonstrations of a player or a policy as a dataset.
    Demo(DemoArgs),
    /// Build a dataset from a labelled time series (CSV) or from games saved on the page.
    Import(ImportArgs),
    /// List the devices that this build can use on this machine.
    Devices(DevicesArgs),
    /// Measure the speed of simulation and training on a device.
    Bench(BenchArgs),
    /// Check a game for mistakes: its rules on the CPU, and its kernels against them.
    Check(CheckArgs),
    /// List all settings of a run with their defaults, ranges and meanings.
    Settings(SettingsArgs),
    /// Check that a task's verifier rewards solutions, and not worthless answers.
    Verify(VerifyArgs),
    /// Show a running or finished run in the browser.
    Watch(WatchArgs),
    /// Search settings for the best score: grid, random, halving or TPE.
    Sweep(SweepArgs),
    /// Write a trained policy as ONNX, safetensors or JSON, or a language model as GGUF or a Hugging Face folder.
    Export(ExportArgs),
    /// List runs: settings that differ from the defaults, best score, time and state.
    #[command(visible_aliases = ["list", "ls"])]
    Runs(RunsArgs),
    /// Draw learning curves of runs, those of several seeds as one line with an interval.
    Plot(PlotArgs),
    /// Render games of a trained policy to a picture, an animation or a video.
    Record(RecordArgs),
    /// Print a script that completes commands and options in a shell.
    Completions(CompletionsArgs),
    /// Write man pages.
    Man(ManArgs),
}
