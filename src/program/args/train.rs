//! Options of the commands that train.

use super::parsers::{OneOf, Seeds, count_in, parse_seed, parse_seeds};
use super::verifier::VerifierArgs;
use crate::disk::input;
use crate::settings::{EngineChoice, Precision, overlay};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  grove train fruit --watch
  grove train sort --set learning_rate=1e-4
  grove train --resume runs/fruit-1 --iterations 600")]
pub struct TrainArgs {
    /// The game or the language task.
    pub game: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
    /// Initialize the weights from another run's best policy or model, or from a policy file.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["resume", "model"])]
    pub from: Option<PathBuf>,
    /// Train once for each of these seeds, for instance 1..5 (both included) or 1,2,8: side by side on the CPU's
    /// threads.
    ///
    /// Prints the mean and the interquartile mean of the scores, with a 95 % bootstrap interval. With --run-dir, the
    /// runs are the folders seed-N in it.
    #[arg(long, value_name = "SEEDS", value_parser = parse_seeds,
        conflicts_with_all = ["seed", "resume", "dry_run", "watch"])]
    pub seeds: Option<Seeds>,
    /// With --resume, the place of the dataset that the run learns from, if it has moved.
    #[arg(long, value_name = "DIR", requires = "resume")]
    pub data: Option<PathBuf>,
    /// The language model: a Hugging Face folder, a GGUF file, or `tiny` [default: tiny].
    ///
    /// `tiny` is a small transformer with fresh weights, whose tokens are the task's characters. Models are not
    /// downloaded. With --resume, the place of the model that the run's adapters are for, if it has moved.
    #[arg(long, help_heading = "Language models", value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// A file of prompts: a task of your own for a language model.
    ///
    /// Each line is a JSON object with a `prompt` and any fields that the verifier needs; see docs/tasks.md.
    /// With --resume, the place of the run's file, if it has moved.
    #[arg(long, help_heading = "Language models", value_name = "FILE")]
    pub task_data: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Language models")]
    pub verifier: VerifierArgs,
}

#[derive(Args, Debug)]
// `grove train` resumes the runs of `fit`.
#[command(mut_arg("resume", |arg| arg.hide(true)))]
pub struct FitArgs {
    /// The dataset: a folder written by `grove demo` or `grove import`, a file of texts, or a task.
    ///
    /// A language model learns from a file with one JSON object per line, with a `prompt` and its `completion`, or
    /// from the solutions of a task.
    pub data: PathBuf,
    #[command(flatten)]
    pub run: RunArgs,
    /// The language model: a Hugging Face folder, a GGUF file, or `tiny` [default: tiny].
    ///
    /// `tiny` is a small transformer with fresh weights, whose tokens are the characters of the data. Models are
    /// not downloaded.
    #[arg(long, help_heading = "Language models", value_name = "PATH")]
    pub model: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Language models")]
    pub verifier: VerifierArgs,
}

/// Options of all commands that train.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Change a setting, for instance learning_rate=1e-3 or fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// A TOML file of settings; `grove settings` prints a complete one.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Number of iterations; learning-rate and other schedules span them.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count_in::<u32>(1..=u64::from(u32::MAX)))]
    pub iterations: Option<u32>,
    /// Random seed [default: 1].
    #[arg(long, value_name = "N", value_parser = parse_seed::<u64>, allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// The device: auto, cpu, ndarray, wgpu[:N], vulkan[:N], metal[:N], cuda[:N] or rocm[:N].
    ///
    /// `auto` selects the best GPU, or the CPU if there is none; if the GPU is part of the processor, whichever of the
    /// two plays a rollout faster. Language models run on the CPU. A resumed run continues on its own device. Several
    /// devices, separated by commas, share the run. Under MPI, each process takes the next device on its machine.
    /// `grove devices` lists those of this build and machine.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub device: String,
    /// The engine; `auto` is the fastest that supports the settings.
    #[arg(long, value_name = "NAME", value_parser = OneOf(EngineChoice::ALL, EngineChoice::name))]
    pub engine: Option<EngineChoice>,
    /// Precision of matrix products, where supported.
    #[arg(long, value_name = "NAME", value_parser = OneOf(Precision::ALL, Precision::name))]
    pub precision: Option<Precision>,
    /// Number of CPU threads; does not affect the result [default: one per core].
    #[arg(long, value_name = "N", value_parser = count_in::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// Seconds that a rank waits for another one before it fails [default: 60; 600 for language models].
    #[arg(long, value_name = "SECONDS", value_parser = count_in::<u64>(1..=86_400))]
    pub timeout: Option<u64>,
    /// The run directory [default: the next free runs/NAME-N, where NAME is the game, the task or the file of prompts].
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Resume a run from its last checkpoint.
    ///
    /// Takes a run's folder in place of a game: `grove train --resume runs/fruit-1`. With a game, resumes its latest
    /// run in runs/, and without either the latest run that is not finished. --set may change iterations,
    /// learning_rate, checkpoint.save_every, stop.*, tracking.*, launch_size and some more; the error about any other
    /// setting lists them all.
    #[arg(long, conflicts_with_all = ["config", "seed", "engine", "precision"])]
    pub resume: bool,
    /// Estimate time and memory by trying a few iterations, without saving anything.
    #[arg(long, conflicts_with_all = ["resume", "watch", "run_dir"])]
    pub dry_run: bool,
    /// Show the run in the browser, until Ctrl-C; see `grove watch`.
    #[arg(long)]
    pub watch: bool,
    /// Port of the page; 0 for any free one [default: 8642].
    #[arg(long, value_name = "N", requires = "watch")]
    pub port: Option<u16>,
    /// Show a one-line progress bar instead of the full-screen dashboard.
    #[arg(long)]
    pub plain: bool,
    /// Show no progress; notes, warnings and the result are printed.
    #[arg(long, short, conflicts_with = "plain")]
    pub quiet: bool,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
    /// Save and stop at the end of stdin, which the process that starts several runs holds open.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

impl RunArgs {
    /// Reads the settings in the file that the command line names.
    pub fn read_settings(&self) -> Result<toml::Table> {
        let Some(path) = &self.config else { return Ok(toml::Table::new()) };
        let text = input::read_description(path)
            .with_context(|| format!("cannot read the settings file {}", path.display()))?;
        Ok(overlay::parse(&path.display().to_string(), &text)?)
    }
}

/// The name of the game or task of a run, on the command line or in the settings file.
///
/// # Errors
/// If the two differ.
pub fn agree_on_subject<'a>(
    requested: Option<&'a str>,
    in_file: Option<&'a str>,
) -> Result<Option<&'a str>> {
    match (requested, in_file) {
        (Some(requested), Some(in_file)) if requested != in_file => {
            bail!("the settings file is for `{in_file}`, not `{requested}`")
        }
        _ => Ok(requested.or(in_file)),
    }
}
