//! The command-line program, one file per command.
//!
//! `grove` itself is just [`program()`]. Your own program can add games and models, and has all commands
//! for them:
//!
//! ```no_run
//! # use grove::env::CartPole as Corridor;
//! fn main() -> std::process::ExitCode {
//!     grove::program().game::<Corridor>().run()
//! }
//! ```
//!
//! See `examples/own_game.rs` and `examples/own_model.rs` for complete programs.

mod args;
mod bench;
mod check;
mod demo;
mod devices;
mod eval;
mod fit;
mod games;
mod generate;
mod import;
mod interrupt;
mod models;
mod patience;
mod progress;
mod ranks;
mod record;
mod say;
mod session;
mod settings;
mod source;
mod table;
mod text;
mod train;
mod watch;

pub use games::Playable;

use crate::checkpoint::Checkpoint;
use crate::env::look::Look;
use crate::model::NamedModel;
use crate::settings::{ConfigError, Engine, Precision, TrainConfig};
use crate::task;
use crate::trainer::{GameTrainer, saved_config};
use anyhow::{Context, Result, bail};
use args::{
    BenchArgs, CheckArgs, Cli, Command, DemoArgs, DevicesArgs, EvalArgs, FitArgs, GenerateArgs,
    ImportArgs, RecordArgs, RunArgs, SettingsArgs, TrainArgs, WatchArgs,
};
use clap::{CommandFactory, FromArgMatches};
use games::Games;
use models::Models;
use std::ffi::OsString;
use std::process::ExitCode;
use std::str::FromStr;

/// Creates the program with the built-in games; [`Program::run`] runs it.
pub fn program() -> Program {
    Program { games: Games::builtin() }
}

/// A program with all of Grove's commands for a set of games and models.
pub struct Program {
    games: Games,
}

impl Program {
    /// Removes the built-in games.
    pub fn without_builtin(self) -> Self {
        Self { games: self.games.without_builtin() }
    }

    /// Adds a game, or replaces the one of the same name. Pictures show its features as bars.
    pub fn game<G: Playable>(self) -> Self {
        Self { games: self.games.with::<G>() }
    }

    /// Adds a game that has sprites, or replaces the one of the same name.
    pub fn game_with_look<G: Playable + Look>(self) -> Self {
        Self { games: self.games.with_look::<G>() }
    }

    /// Adds a model, which can be selected by `policy.kind` for any game.
    ///
    /// # Panics
    /// If a built-in model has the same name.
    pub fn model<M: NamedModel>(self) -> Self {
        Self { games: self.games.with_model::<M>() }
    }

    /// Runs the command given on the process's command line and prints any error: a complete `main`.
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os())
    }

    /// Runs the command given by `words`, the first of which is the program's name. It configures the
    /// process's global thread pool and signal handlers, so call it once per process.
    pub fn run_with(self, words: impl IntoIterator<Item = OsString>) -> ExitCode {
        let matches = self.command_line().get_matches_from(words);
        let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        match run(&self.games, cli) {
            Ok(()) => {
                #[cfg(feature = "mpi")]
                crate::parallel::mpi::finish();
                ExitCode::SUCCESS
            }
            Err(error) => {
                ranks::fail(&error);
                ExitCode::FAILURE
            }
        }
    }

    /// The command-line parser, with the names of games and tasks in its help.
    fn command_line(&self) -> clap::Command {
        let default = self.games.default_name().unwrap_or("none");
        let names = self.games.names();
        let tasks = format!(", or a language model's task: {}", task::names());
        [
            ("train", &tasks[..]),
            ("bench", &tasks),
            ("settings", &tasks),
            ("check", ""),
            ("demo", ""),
        ]
        .into_iter()
        .fold(Cli::command(), |cli, (command, tasks)| {
            let help = format!("The game, one of: {names}{tasks} [default: {default}]");
            cli.mut_subcommand(command, |command| command.mut_arg("game", |arg| arg.help(help)))
        })
    }
}

/// Whether several MPI processes share a command; rank 0 runs all other commands alone.
fn is_shared(command: &Command) -> bool {
    match command {
        Command::Train(_) | Command::Fit(_) => true,
        Command::Bench(args) => args.scaling,
        _ => false,
    }
}

/// Runs a command.
fn run(games: &Games, cli: Cli) -> Result<()> {
    log_to_stderr()?;
    ranks::start()?;
    if !ranks::is_first() && !is_shared(&cli.command) {
        return Ok(());
    }
    match cli.command {
        Command::Train(args) => train::run(games, args),
        Command::Fit(args) => fit::run(games, args),
        Command::Eval(args) => eval::run(games, args),
        Command::Demo(args) => demo::run(games, args),
        Command::Generate(args) => generate::run(args),
        Command::Import(args) => import::run(games, args),
        Command::Devices(args) => devices::run(args),
        Command::Bench(args) => bench::run(games, args),
        Command::Check(args) => check::run(games, args),
        Command::Settings(args) => settings::run(games, args),
        Command::Watch(args) => watch::run(games, args),
        Command::Record(args) => record::run(games, args),
    }
}

/// Reads the settings of a checkpoint and validates them, since a file may hold anything.
fn saved<G: Playable>(models: &Models, checkpoint: &Checkpoint) -> Result<(G, TrainConfig)> {
    let (game, config) = saved_config::<G>(checkpoint)?;
    validate(models, &game, &config).context("the checkpoint's settings cannot be used")?;
    Ok((game, config))
}

/// Validates the settings of a game and a run.
fn validate<G: Playable>(models: &Models, game: &G, config: &TrainConfig) -> Result<()> {
    game.validate().map_err(ConfigError::OutOfRange)?;
    config.validate_with(&models.names())?;
    Ok(())
}

/// Sends log messages to stderr: errors, or the level set by `GROVE_LOG`.
fn log_to_stderr() -> Result<()> {
    let level = match std::env::var("GROVE_LOG") {
        Ok(level) => tracing::Level::from_str(&level).map_err(|_| {
            anyhow::anyhow!("GROVE_LOG is `{level}`, but must be error, warn, info, debug or trace")
        })?,
        Err(_) => tracing::Level::ERROR,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        // Reporting them would panic if stderr is closed.
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// Sets the size of the global thread pool.
fn use_threads(threads: Option<u32>) -> Result<()> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(threads) = threads.map(|threads| threads as usize).or_else(ranks::default_threads) {
        pool = pool.num_threads(threads);
    }
    pool.build_global().context("cannot start the thread pool")
}

/// Checks that the requested engine and precision are available for a run.
fn check_engine<G: Playable>(trainer: &GameTrainer<G>) -> Result<()> {
    let config = trainer.config();
    let (requested, obstacle) = match (config.engine, config.precision) {
        (Engine::Fused, _) => ("the engine `fused`".to_string(), trainer.obstacle()),
        (_, Precision::F32) => return Ok(()),
        (_, precision) => (format!("the precision {precision}"), trainer.precision_obstacle()),
    };
    match obstacle {
        Some(obstacle) => bail!("{requested} is not available for this run: {obstacle}"),
        None => Ok(()),
    }
}
