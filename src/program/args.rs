//! The command line: subcommands and their options.

use super::bench::BenchArgs;
use super::choices::one_of;
use super::manual::{CompletionsArgs, ManArgs};
use super::study_args::{ExportArgs, PlotArgs, RunsArgs, Seeds, SweepArgs, count, seeds};
use super::verifier::{VerifierArgs, VerifyArgs};
use crate::disk::input;
use crate::schema::{Settings, Shape, shape_at};
use crate::settings::{EngineChoice, GenerationConfig, Precision, overlay};
use anyhow::{Context, Result};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Default address of the live page.
pub const HOST: &str = "127.0.0.1";
/// Default port of the live page.
pub const PORT: u16 = 8642;

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

/// Options of `train`.
#[derive(Args, Debug, Default)]
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
    /// Train once for each of these seeds, for instance 1..5 (both included) or 1,2,8: side by side on the CPU's threads.
    ///
    /// Prints the mean and the interquartile mean of the scores, with a 95 % bootstrap interval. With --run-dir, the
    /// runs are the folders seed-N in it.
    #[arg(long, value_name = "SEEDS", value_parser = seeds,
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

/// Options of `fit`.
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
#[derive(Args, Debug, Default)]
pub struct RunArgs {
    /// Change a setting, for instance learning_rate=1e-3 or fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// A TOML file of settings; `grove settings` prints a complete one.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Number of iterations; learning-rate and other schedules span them.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count::<u32>(1..=u64::from(u32::MAX)))]
    pub iterations: Option<u32>,
    /// Random seed [default: 1].
    #[arg(long, value_name = "N", value_parser = seed::<u64>, allow_negative_numbers = true)]
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
    #[arg(long, value_name = "NAME", value_parser = one_of(EngineChoice::ALL, EngineChoice::name))]
    pub engine: Option<EngineChoice>,
    /// Precision of matrix products, where supported.
    #[arg(long, value_name = "NAME", value_parser = one_of(Precision::ALL, Precision::name))]
    pub precision: Option<Precision>,
    /// Number of CPU threads; does not affect the result [default: one per core].
    #[arg(long, value_name = "N", value_parser = count::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// Seconds that a rank waits for another one before it fails [default: 60; 600 for language models].
    #[arg(long, value_name = "SECONDS", value_parser = count::<u64>(1..=86_400))]
    pub timeout: Option<u64>,
    /// The run directory [default: the next free runs/NAME-N, where NAME is the game, the task or the file of prompts].
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Resume a run from its last checkpoint.
    ///
    /// Takes a run's folder in place of a game: `grove train --resume runs/fruit-1`. With a game, resumes its latest
    /// run in runs/, and without either the latest run that is not finished. --set may change iterations, learning_rate,
    /// checkpoint.save_every, stop.*, tracking.*, launch_size and some more; the error about any other setting lists
    /// them all.
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
    /// The settings in the file that the command line names.
    pub fn settings(&self) -> Result<toml::Table> {
        let Some(path) = &self.config else { return Ok(toml::Table::new()) };
        let text = input::read_description(path)
            .with_context(|| format!("cannot read the settings file {}", path.display()))?;
        Ok(overlay::parse(&path.display().to_string(), &text)?)
    }
}

/// Options of `eval`.
#[derive(Args, Debug)]
pub struct EvalArgs {
    /// A run, by its folder or its game (its best policy is used), a checkpoint, or a policy file (`.safetensors`).
    pub run: PathBuf,
    /// Number of episodes, played once with greedy and once with sampled actions; of a language model, of prompts.
    ///
    /// The scores at the end of a game's run come from the default episodes and seed; a language model's greedy score
    /// there comes from 1000 prompts with --seed 1 (the run's).
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = count::<usize>(1..=100_000_000))]
    pub episodes: usize,
    /// Completions per prompt for a language model: the k of pass@k [default: 8].
    #[arg(long, value_name = "K", value_parser = count::<usize>(1..=4096))]
    pub k: Option<usize>,
    /// Random seed of the episodes.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = seed::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
    /// Number of CPU threads; does not affect the result [default: one per core].
    #[arg(long, value_name = "N", value_parser = count::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// The place of the file of prompts that a language model's run was given, if it has moved.
    #[arg(long, value_name = "FILE")]
    pub task_data: Option<PathBuf>,
    /// The place of the model that a run's adapters are for, if it has moved.
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub verifier: VerifierArgs,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Options of `generate`.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// The model: a run (its best model), a checkpoint, a Hugging Face folder, or a GGUF file.
    pub model: PathBuf,
    /// The prompt; a model with a chat template receives it as a user message [default for a run over characters: a
    /// held-out prompt of its task].
    pub prompt: Option<String>,
    /// Continue the prompt directly, without the chat template.
    #[arg(long)]
    pub raw: bool,
    /// Maximum number of new tokens.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = count::<usize>(1..=1_000_000))]
    pub max_new_tokens: usize,
    /// Sampling temperature; 0 for greedy decoding.
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true, value_parser = temperature)]
    pub temperature: f32,
    /// Sample from the K most likely tokens only; 0 for no limit.
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub top_k: usize,
    /// Sample from the smallest set of tokens whose probability reaches this; 1 for no limit.
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = |text: &str| sampling("top_p", text))]
    pub top_p: f32,
    /// Exclude tokens below this fraction of the most likely token's probability.
    #[arg(long, default_value_t = 0.0, value_name = "X", value_parser = |text: &str| sampling("min_p", text))]
    pub min_p: f32,
    /// Stop when this text is generated; may be repeated.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// Number of completions.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count::<usize>(1..=4096))]
    pub completions: usize,
    /// Precision of matrix products.
    #[arg(long, default_value = "f32", value_name = "NAME",
        value_parser = one_of(&[Precision::F32, Precision::Bf16], Precision::name))]
    pub precision: Precision,
    /// Random seed of sampling.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = seed::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
    /// Number of CPU threads; does not affect the result [default: one per core].
    #[arg(long, value_name = "N", value_parser = count::<u32>(1..=1024))]
    pub threads: Option<u32>,
    /// Print the result as a JSON object on stdout, with the log-probability of each token.
    #[arg(long)]
    pub json: bool,
}

/// Parses a seed: a whole number that a settings file can hold as well.
fn seed<T: TryFrom<i64>>(text: &str) -> std::result::Result<T, String> {
    let seed = text.parse::<i64>().ok().and_then(|seed| T::try_from(seed).ok());
    let max_seed = if size_of::<T>() == 4 { i64::from(u32::MAX) } else { i64::MAX };
    seed.ok_or_else(|| format!("a seed is a whole number from 0 to {max_seed}"))
}

/// Parses a temperature: one that training takes, or 0.
fn temperature(text: &str) -> std::result::Result<f32, String> {
    match text.parse() {
        Ok(0.0) => Ok(0.0),
        _ => sampling("temperature", text).map_err(|error| error.replace("be ", "be 0, or ")),
    }
}

/// Parses a number that training takes for this setting of generation.
fn sampling(key: &str, text: &str) -> std::result::Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "not a number".to_string())?;
    match shape_at(GenerationConfig::SETTINGS, key) {
        Some(Shape::Number(range)) if !range.contains(number.into()) => {
            Err(format!("must be {}", range.in_words(number.into())))
        }
        _ => Ok(number),
    }
}

/// Options of `demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// The game.
    pub game: Option<String>,
    /// The player: `random`, one of the game's scripted players, or a run or a policy file (greedy actions).
    #[arg(long, value_name = "NAME|RUN")]
    pub player: String,
    /// Number of episodes, each on a different level.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = count::<u32>(1..=100_000_000))]
    pub episodes: u32,
    /// The folder of the dataset, which must be new or empty.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Random seed of the episodes.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = seed::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
    /// Change a setting of the game, for instance fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Options of `import`.
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
    #[arg(long, value_name = "N", requires = "label", value_parser = count::<usize>(1..=4096))]
    pub window: Option<usize>,
    /// The CSV column with the time, which is not used as a feature.
    #[arg(long, value_name = "COLUMN", requires = "label")]
    pub time: Option<String>,
    /// Format of the times as strftime has it, for instance %d.%m.%Y [default: numbers, or dates of ISO 8601].
    #[arg(long, value_name = "FORMAT", requires = "time")]
    pub time_format: Option<String>,
    /// Fraction of the CSV rows, taken from the end, to hold out for validation.
    #[arg(long, default_value_t = 0.2, value_name = "X")]
    pub validation: f64,
    /// The folder of the dataset, which must be new or empty.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Print the result as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Options of `devices`.
#[derive(Args, Debug)]
pub struct DevicesArgs {
    /// Print the list as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Options of `check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The game.
    pub game: Option<String>,
    /// Number of episodes with random actions, each on a different level.
    #[arg(long, default_value_t = 64, value_name = "N",
        value_parser = count::<u32>(1..=1_000_000))]
    pub episodes: u32,
    /// Random seed of the episodes.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = seed::<u32>, allow_negative_numbers = true)]
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

/// Options of `settings`.
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

/// Options of `watch`.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// A run, by its folder or its game [default: the latest in runs/].
    pub run: Option<PathBuf>,
    /// Port of the page; 0 for any free one.
    #[arg(long, default_value_t = PORT, value_name = "N")]
    pub port: u16,
    /// Address to bind to; 0.0.0.0 makes the page available to other machines.
    #[arg(long, default_value = HOST, value_name = "ADDRESS")]
    pub host: String,
    /// Open the page in the browser.
    #[arg(long)]
    pub open: bool,
    /// Print the page's address as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Options of `record`.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// A run, by its folder or its game (its best policy is used), a checkpoint, or a policy file (`.safetensors`).
    pub run: PathBuf,
    /// The output file: an animation (.gif, .webp), a video (.mp4, needs ffmpeg) or a still (.png).
    ///
    /// A still shows the games after the last step.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub render: RenderOptions,
    /// The device that renders: cpu, wgpu[:N], vulkan[:N], metal[:N] or auto.
    ///
    /// All devices produce the same picture.
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    pub device: String,
    /// Print a description of the file as a JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// What `record` renders.
#[derive(Args, Debug)]
pub struct RenderOptions {
    /// Show each game's score.
    #[arg(long)]
    pub score: bool,
    /// Number of games side by side, each on a different level.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count::<usize>(1..=1024))]
    pub games: usize,
    /// Number of steps; a game that ends is followed by another level.
    #[arg(long, default_value_t = 100, value_name = "N",
        value_parser = count::<u32>(0..=100_000))]
    pub steps: u32,
    /// Size of a cell in pixels [default: the largest that fits 800 x 600].
    ///
    /// Multiples of 16 are sharpest.
    #[arg(long, value_name = "N", value_parser = count::<u32>(1..=256))]
    pub scale: Option<u32>,
    /// Random seed of the levels.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = seed::<u64>, allow_negative_numbers = true)]
    pub seed: u64,
}
