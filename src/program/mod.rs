//! The program: the command line, one file a command.

mod bench;
mod devices;
mod eval;
mod interrupt;
mod progress;
mod record;
mod run_dir;
mod train;
mod watch;

use crate::config::{ConfigError, Engine, Precision, TrainConfig, overlay};
use crate::env::Rules;
use crate::trainer::{Trainer, config_toml};
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

/// Train small policies by Group Relative Policy Optimisation, on any GPU or the CPU.
#[derive(Parser, Debug)]
#[command(name = "grove", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Train a policy for a game.
    Train(TrainArgs),
    /// Play a trained policy and report its score.
    Eval(EvalArgs),
    /// List the devices of this machine that this build can use.
    Devices(DevicesArgs),
    /// Measure how fast a device plays and trains.
    Bench(BenchArgs),
    /// Show a run in the browser, while it is trained or after.
    Watch(WatchArgs),
    /// Play a trained policy by its most likely actions, and keep it as a picture or an animation.
    Record(RecordArgs),
}

#[derive(Args, Debug)]
struct TrainArgs {
    /// The game: fruit, catch or cartpole [default: fruit].
    game: Option<String>,
    /// A TOML file of settings; the run directory holds one that shows them all.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to compute: auto, cpu, ndarray, wgpu[:N], vulkan[:N], metal[:N], cuda[:N], rocm[:N].
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Which way plays and learns: auto (fused where that applies), fused or general.
    #[arg(long, value_name = "NAME")]
    engine: Option<Engine>,
    /// What the fused kernels' networks compute with: f32, f16 or bf16, where the device has it.
    #[arg(long, value_name = "NAME")]
    precision: Option<Precision>,
    /// Seed of the run [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Iterations of the run; the schedules end with it.
    #[arg(long, value_name = "N")]
    iterations: Option<u32>,
    /// Threads of the CPU [default: one a core]. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Change a setting, for instance learning_rate=1e-3 or fruit.width=12; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where the run is kept [default: the next free runs/GAME-N].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Go on with the run in --run-dir [default: the newest of the game] from its last checkpoint.
    #[arg(long, conflicts_with_all = ["config", "set", "seed", "engine", "precision"])]
    resume: bool,
    /// Show the run in the browser meanwhile, and after its end until Ctrl-C; see `grove watch`.
    #[arg(long)]
    watch: bool,
    /// The port of the page [default: 8642]; 0 takes any that is free.
    #[arg(long, value_name = "N", requires = "watch")]
    port: Option<u16>,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct EvalArgs {
    /// A run directory (its best policy is taken), a checkpoint, or a policy that the page has saved.
    run: PathBuf,
    /// Fresh episodes to play.
    #[arg(long, default_value_t = 10_000, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100_000_000))]
    episodes: usize,
    /// Take the most likely action instead of drawing one.
    #[arg(long)]
    greedy: bool,
    /// Seed of the episodes.
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Threads of the CPU [default: one a core]. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Print the result as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct DevicesArgs {
    /// Print the list as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct BenchArgs {
    /// The game: fruit, catch or cartpole.
    #[arg(long, default_value = "fruit", value_name = "GAME")]
    env: String,
    /// Where to compute, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Which way plays and learns, as for `train`.
    #[arg(long, default_value = "auto", value_name = "NAME")]
    engine: Engine,
    /// What the fused kernels' networks compute with, as for `train`.
    #[arg(long, default_value = "f32", value_name = "NAME")]
    precision: Precision,
    /// Change a setting, as for `train`. The sizes below come after, except for --score, which takes
    /// the game's default run with these changes.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Games played in parallel.
    #[arg(long, default_value_t = 4096, value_name = "N")]
    num_envs: usize,
    /// Members of a group, a divisor of the number of games.
    #[arg(long, default_value_t = 8, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..))]
    group_size: usize,
    /// Steps of an iteration.
    #[arg(long, default_value_t = 100, value_name = "N")]
    num_steps: usize,
    /// Steps that are learnt from [default: all].
    #[arg(long, value_name = "N")]
    learn_steps: Option<usize>,
    /// Units of the hidden layers, for instance 64 or 64,64.
    #[arg(long, default_value = "64", value_delimiter = ',', value_name = "N")]
    hidden: Vec<usize>,
    /// Passes over the data of an iteration.
    #[arg(long, default_value_t = 1, value_name = "N")]
    update_epochs: usize,
    /// Optimiser steps a pass.
    #[arg(long, default_value_t = 1, value_name = "N")]
    num_minibatches: usize,
    /// Measurements of each rate, after a warm-up.
    #[arg(long, default_value_t = 10, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    repeats: usize,
    /// Also measure the time of the game's default run to this greedy score.
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true)]
    score: Option<f64>,
    /// Runs to that score, each with the next seed.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "score",
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    score_repeats: u64,
    /// Do not measure the device's peak, which takes seconds the first time.
    #[arg(long)]
    no_peak: bool,
    /// Threads of the CPU [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Also write the figures to a file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct WatchArgs {
    /// A run directory [default: the one in runs that was written to last].
    run: Option<PathBuf>,
    /// The port of the page; 0 takes any that is free.
    #[arg(long, default_value_t = watch::PORT, value_name = "N")]
    port: u16,
    /// The address to serve at; 0.0.0.0 lets other machines in.
    #[arg(long, default_value = watch::HOST, value_name = "ADDRESS")]
    host: String,
    /// Open the page in the browser.
    #[arg(long)]
    open: bool,
}

#[derive(Args, Debug)]
struct RecordArgs {
    /// A run directory (its best policy is taken), a checkpoint, or a policy that the page has saved.
    run: PathBuf,
    /// The file to write: .gif and .webp are animations, .png is a still of the last step.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Games side by side; each plays the next of the seed's levels.
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    games: usize,
    /// Steps to play; a game that ends goes on with another level.
    #[arg(long, default_value_t = 100, value_name = "T",
        value_parser = clap::value_parser!(u32).range(0..=100_000))]
    steps: u32,
    /// Pixels of a cell's side; 16 and multiples of it are sharpest [default: so that the picture fits
    /// in 800 x 600].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=256))]
    scale: Option<u32>,
    /// Seed of the levels.
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// What draws: cpu, wgpu[:N], vulkan[:N], metal[:N], or auto for the best real GPU. The picture is
    /// the same.
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    device: String,
}

/// Parses the command line, runs its command, and prints what went wrong.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command.
fn run(cli: Cli) -> Result<()> {
    log_to_stderr()?;
    match cli.command {
        Command::Train(args) => train::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Record(args) => record::run(args),
    }
}

/// The settings of a game: its defaults, then those of a file, then `--set`.
fn settings<G: Playable>(file: toml::Table, set: &[String]) -> Result<(G, TrainConfig)> {
    let defaults = config_toml(&G::default(), &TrainConfig::for_game(G::NAME));
    let mut table = overlay::parse("the defaults", &defaults)?;
    overlay::lay_over(&mut table, file)?;
    overlay::apply(&mut table, set)?;
    Ok(overlay::split(table, G::NAME)?)
}

/// Checks the settings of a game and a run.
fn check<G: Playable>(game: &G, config: &TrainConfig) -> Result<()> {
    game.validate().map_err(ConfigError::OutOfRange)?;
    config.validate()?;
    Ok(())
}

/// A game with all that the command line asks of it.
trait Playable: Rules + Default + Serialize + DeserializeOwned {}
impl<G: Rules + Default + Serialize + DeserializeOwned> Playable for G {}

/// Warnings of the libraries go to stderr; `GROVE_LOG` sets another level.
fn log_to_stderr() -> Result<()> {
    let level = match std::env::var("GROVE_LOG") {
        Ok(level) => tracing::Level::from_str(&level).map_err(|_| {
            anyhow::anyhow!("GROVE_LOG is `{level}`, but must be error, warn, info, debug or trace")
        })?,
        Err(_) => tracing::Level::ERROR,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
    Ok(())
}

/// Sets the number of threads of everything that runs on the CPU.
fn use_threads(threads: Option<u32>) -> Result<()> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(threads) = threads {
        pool = pool.num_threads(threads as usize);
    }
    pool.build_global().context("the threads do not start")
}

/// Calls a generic function with the game of this name.
macro_rules! with_game {
    ($name:expr, $function:ident($($argument:expr),*)) => {
        match $name {
            <crate::env::Fruit as crate::env::Game>::NAME => $function::<crate::env::Fruit>($($argument),*),
            <crate::env::Catch as crate::env::Game>::NAME => $function::<crate::env::Catch>($($argument),*),
            <crate::env::CartPole as crate::env::Game>::NAME => $function::<crate::env::CartPole>($($argument),*),
            <crate::env::Breakout as crate::env::Game>::NAME => $function::<crate::env::Breakout>($($argument),*),
            <crate::env::Recall as crate::env::Game>::NAME => $function::<crate::env::Recall>($($argument),*),
            other => $crate::program::unknown_game(other),
        }
    };
}
use with_game;

fn unknown_game<T>(name: &str) -> Result<T> {
    bail!("unknown game `{name}`; there are: fruit, catch, cartpole, breakout, recall")
}

/// Refuses a run that asks for what only the fast way has where there is none.
fn check_engine<G: Playable>(trainer: &Trainer<G>) -> Result<()> {
    let config = trainer.config();
    let asked = match (config.engine, config.precision) {
        (Engine::Fused, _) => "the engine `fused`".to_string(),
        (_, Precision::F32) => return Ok(()),
        (_, precision) => format!("the precision {precision}"),
    };
    match trainer.obstacle() {
        Some(obstacle) => bail!("this run cannot have {asked}: {obstacle}"),
        None => Ok(()),
    }
}
