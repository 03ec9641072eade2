//! The command line: each command with what it takes.

use super::watch;
use crate::config::{Engine, Precision};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Train small policies by Group Relative Policy Optimisation, on any GPU or the CPU.
#[derive(Parser, Debug)]
#[command(name = "grove", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Train a policy for a game, or a language model for a task.
    Train(TrainArgs),
    /// Train a policy to do what a dataset shows: imitation, before or instead of reinforcement.
    Fit(FitArgs),
    /// Play a trained policy and report its score.
    Eval(EvalArgs),
    /// Let a language model go on with a text.
    Generate(GenerateArgs),
    /// Keep what a player or a policy does in a game as a dataset.
    Demo(DemoArgs),
    /// Make a dataset of a table of numbers by time, some of whose rows somebody has labelled, or of the
    /// games that somebody has played in the page.
    Import(ImportArgs),
    /// List the devices of this machine that this build can use.
    Devices(DevicesArgs),
    /// Measure how fast a device plays and trains.
    Bench(BenchArgs),
    /// Tell what is wrong with a game, for those who write one.
    Check(CheckArgs),
    /// List every setting of a run: its default, what it may be and what it does.
    Settings(SettingsArgs),
    /// Show a run in the browser, while it is trained or after.
    Watch(WatchArgs),
    /// Play a trained policy by its most likely actions, and keep it as a picture or an animation.
    Record(RecordArgs),
}

#[derive(Args, Debug)]
pub struct TrainArgs {
    /// The game, or the task of a language model: sort, reverse, add, countdown or ocaml.
    pub game: Option<String>,
    /// A task of your own for a language model: a file with a JSON object a line, which has a `prompt` and
    /// whatever its verifier needs to know; see docs/tasks.md.
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    pub task_data: Option<PathBuf>,
    /// The command that says what completions of --task-data are worth [default: 1 where one is the prompt's
    /// `solution`].
    #[arg(long, value_name = "CMD", requires = "task_data")]
    pub verifier: Option<String>,
    /// The language model that learns a task: a Hugging Face folder, a GGUF file, or `tiny`, a fresh one
    /// over the task's characters [default of a task: tiny].
    #[arg(long, value_name = "PATH", conflicts_with = "resume")]
    pub model: Option<PathBuf>,
    /// Start from the best policy of another run, or of a policy's file, instead of fresh weights.
    #[arg(long, value_name = "RUN", conflicts_with = "resume")]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// What `fit` takes.
#[derive(Args, Debug)]
pub struct FitArgs {
    /// The folder of a dataset; `grove demo` and `grove import` make one. For a language model, a file with a
    /// JSON object a line, which has a `prompt` and its `completion`, or a task.
    pub data: PathBuf,
    /// The language model that is fitted: a Hugging Face folder, a GGUF file, or `tiny`, a fresh one over the
    /// characters of the texts [default of texts: tiny].
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// What every command takes that trains.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// A TOML file of settings; `grove settings` prints one that shows them all.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to compute: auto, cpu, ndarray, wgpu[:N], vulkan[:N], metal[:N], cuda[:N], rocm[:N]. Several, with
    /// commas between them, share the run; of processes under MPI, each takes the next on its machine. `auto` is
    /// the best GPU or else the CPU, and for language models the CPU.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub device: String,
    /// Which engine plays and learns: auto (fused where that applies), fused or general.
    #[arg(long, value_name = "NAME")]
    pub engine: Option<Engine>,
    /// What a device computes products with, where it has that: f32, f16 or bf16.
    #[arg(long, value_name = "NAME")]
    pub precision: Option<Precision>,
    /// Seed of the run [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: Option<u64>,
    /// Iterations of the run; the schedules end with it.
    #[arg(long, value_name = "N")]
    pub iterations: Option<u32>,
    /// Threads of the CPU [default: one a core]. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Seconds that one member of a run waits for another before it gives up [default: 60; 600 for language models].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: Option<u64>,
    /// Change a setting, for instance learning_rate=1e-3 or fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Where the run is kept [default: the next free runs/GAME-N].
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Go on with the run in --run-dir from its last checkpoint [default: the newest of the game; without
    /// one, the run in runs that was written to last].
    #[arg(long, conflicts_with_all = ["config", "set", "seed", "engine", "precision"])]
    pub resume: bool,
    /// Only say what would be trained, for how long and in how much memory, by trying some iterations.
    #[arg(long, conflicts_with_all = ["resume", "watch", "run_dir"])]
    pub dry_run: bool,
    /// Show the run in the browser meanwhile, and after its end until Ctrl-C; see `grove watch`.
    #[arg(long)]
    pub watch: bool,
    /// The port of the page [default: 8642]; 0 takes any that is free.
    #[arg(long, value_name = "N", requires = "watch")]
    pub port: Option<u16>,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct EvalArgs {
    /// A run directory (its best policy is taken), a checkpoint, or a policy that the page has saved.
    pub run: PathBuf,
    /// Fresh episodes to play by the policy's most likely actions, and again by drawn ones.
    #[arg(long, default_value_t = 10_000, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100_000_000))]
    pub episodes: usize,
    /// Completions of each prompt, of a language model: the k of pass@k.
    #[arg(long, default_value_t = 8, value_name = "K",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub k: usize,
    /// Seed of the episodes.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Threads of the CPU [default: one a core]. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// A Hugging Face folder of Qwen2's, Qwen3's or Llama's shape, or a GGUF file of one.
    pub model: PathBuf,
    /// What the model is asked; one with a chat template takes it as a user's message.
    pub prompt: String,
    /// Go on from the prompt as it is, without the chat template.
    #[arg(long)]
    pub raw: bool,
    /// Tokens to add at most.
    #[arg(long, default_value_t = 256, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub max_new_tokens: usize,
    /// What logits are divided by; 0 takes the most likely token each time.
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = at_least_zero)]
    pub temperature: f32,
    /// Draw from as many of the likeliest tokens; 0 for all.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub top_k: usize,
    /// Draw from the likeliest tokens that have this share of the probability together; 1 for all.
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = share)]
    pub top_p: f32,
    /// Draw no token of less than this share of the likeliest one's probability.
    #[arg(long, default_value_t = 0.0, value_name = "X", value_parser = share)]
    pub min_p: f32,
    /// End where this text appears; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Completions of the prompt.
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub completions: usize,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Threads of the CPU [default: one a core]. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Print the result as one JSON object on stdout, with each token's log-probability.
    #[arg(long)]
    pub json: bool,
}

/// A number that is not negative.
fn at_least_zero(text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "it is no number".to_string())?;
    let is_right = number >= 0.0 && number.is_finite();
    is_right.then_some(number).ok_or_else(|| "it must be 0 or more".to_string())
}

/// A number from 0 to 1.
fn share(text: &str) -> Result<f32, String> {
    let number = at_least_zero(text)?;
    (number <= 1.0).then_some(number).ok_or_else(|| "it must be 0 to 1".to_string())
}

#[derive(Args, Debug)]
pub struct DemoArgs {
    /// The game.
    pub game: Option<String>,
    /// Who plays: `random`, a player that the game has, or a run (its best policy, by its most likely
    /// actions).
    #[arg(long, value_name = "NAME|RUN")]
    pub player: String,
    /// Episodes to play, each of its own level.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub episodes: u32,
    /// The folder of the dataset, which must not have anything in it.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Seed of the episodes.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Change a setting of the game, for instance fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct ImportArgs {
    /// The file. Of a table: values with commas between them, a line for each row in the order of time; the
    /// first line names the columns. Of games: what the page has saved, without any of the options of a
    /// table.
    pub file: PathBuf,
    /// Of a table: the column of the labels, empty where nobody has marked anything.
    #[arg(long, value_name = "COLUMN", requires = "window")]
    pub label: Option<String>,
    /// Of a table: rows, up to the one with the label, that a label is about.
    #[arg(long, value_name = "N", requires = "label", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub window: Option<usize>,
    /// Of a table: the column that says when a row was, if there is one. It is not learnt from.
    #[arg(long, value_name = "COLUMN", requires = "label")]
    pub time: Option<String>,
    /// Of a table: share of the rows, the last ones, that is held out to measure what is learnt.
    #[arg(long, default_value_t = 0.2, value_name = "SHARE")]
    pub validation: f64,
    /// The folder of the dataset, which must not have anything in it.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct DevicesArgs {
    /// Print the list as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// The game, or the language task.
    pub game: Option<String>,
    /// Of a language task: the model, as for `train` [default: tiny]. The sizes are settings then, for instance
    /// `--set generation.num_prompts=32`.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// The game, as scripts of old name it.
    #[arg(long, value_name = "GAME", hide = true, conflicts_with = "game")]
    pub env: Option<String>,
    /// Where to compute, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub device: String,
    /// Which engine plays and learns, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub engine: Engine,
    /// What a device computes products with, as for `train`.
    #[arg(long, default_value = "f32", value_name = "NAME")]
    pub precision: Precision,
    /// Change a setting, as for `train`. The sizes below come after, except for --score, which takes
    /// the game's default run with these changes.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Games played in parallel.
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub num_envs: usize,
    /// Members of a group, a divisor of the number of games.
    #[arg(long, default_value_t = 8, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..))]
    pub group_size: usize,
    /// Steps of an iteration.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub num_steps: usize,
    /// Steps that are learnt from [default: all].
    #[arg(long, value_name = "N")]
    pub learn_steps: Option<usize>,
    /// Units of the hidden layers, for instance 64 or 64,64.
    #[arg(long, default_value = "64", value_delimiter = ',', value_name = "N")]
    pub hidden: Vec<usize>,
    /// Passes over the data of an iteration.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub update_epochs: usize,
    /// Optimiser steps a pass.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub num_minibatches: usize,
    /// Measurements of each rate, after a warm-up.
    #[arg(long, default_value_t = 10, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub repeats: usize,
    /// Also measure the time of the game's default run to this greedy score.
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true)]
    pub score: Option<f64>,
    /// Runs to that score, each with the next seed.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "score",
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub score_repeats: u64,
    /// Measure how the speed grows with the members of a run instead: the devices listed by --device, the
    /// processes that MPI has started, or threads of the CPU, 1, 2, 4, ... of them.
    #[arg(long, conflicts_with_all = ["score", "model"])]
    pub scaling: bool,
    /// Do not measure the device's peak, which takes seconds the first time.
    #[arg(long)]
    pub no_peak: bool,
    /// Threads of the CPU [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Print the figures as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
    /// Also write the figures to a file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    /// The game.
    pub game: Option<String>,
    /// Episodes to play, each of its own level, by random actions.
    #[arg(long, default_value_t = 64, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub episodes: u32,
    /// Seed of the episodes.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u32,
    /// Change a parameter of the game, for instance fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Where the game's kernels are compared with its native rules, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub device: String,
    /// Print what was found as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct SettingsArgs {
    /// The game, or the task of a language model.
    pub game: Option<String>,
    /// Print the list as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct WatchArgs {
    /// A run directory [default: the one in runs that was written to last].
    pub run: Option<PathBuf>,
    /// The port of the page; 0 takes any that is free.
    #[arg(long, default_value_t = watch::PORT, value_name = "N")]
    pub port: u16,
    /// The address to serve at; 0.0.0.0 lets other machines in.
    #[arg(long, default_value = watch::HOST, value_name = "ADDRESS")]
    pub host: String,
    /// Open the page in the browser.
    #[arg(long)]
    pub open: bool,
    /// Print where the page is as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct RecordArgs {
    /// A run directory (its best policy is taken), a checkpoint, or a policy that the page has saved.
    pub run: PathBuf,
    /// The file to write: .gif and .webp are animations, .mp4 too where ffmpeg is, .png is a still of the
    /// last step.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Write the score of its episode so far onto each game.
    #[arg(long)]
    pub score: bool,
    /// Games side by side; each plays the next of the seed's levels.
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub games: usize,
    /// Steps to play; a game that ends goes on with another level.
    #[arg(long, default_value_t = 100, value_name = "T",
        value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub steps: u32,
    /// Pixels of a cell's side; 16 and multiples of it are sharpest [default: so that the picture fits
    /// in 800 x 600].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub scale: Option<u32>,
    /// Seed of the levels.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// What draws: cpu, wgpu[:N], vulkan[:N], metal[:N], or auto for the best real GPU. The picture is
    /// the same.
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    pub device: String,
    /// Print what was written as one JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}
