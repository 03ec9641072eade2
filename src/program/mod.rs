//! The program: the command line, one file a command.
//!
//! `grove` itself is [`program()`] and nothing else. A program of one's own takes the games and the models
//! of its author as well, and has every command for them:
//!
//! ```no_run
//! # use grove::env::CartPole as Corridor;
//! fn main() -> std::process::ExitCode {
//!     grove::program().game::<Corridor>().run()
//! }
//! ```
//!
//! `examples/own_game.rs` and `examples/own_model.rs` are whole ones.

mod args;
mod bench;
mod check;
mod demo;
mod devices;
mod dry;
mod eval;
mod fit;
mod games;
mod generate;
mod import;
mod interrupt;
mod language;
mod members;
mod models;
mod patience;
mod progress;
mod record;
mod report;
mod run_dir;
mod say;
mod score;
mod settings;
mod source;
mod table;
mod train;
mod watch;

pub use games::Playable;

use crate::checkpoint::Checkpoint;
use crate::config::{ConfigError, Engine, Precision, TrainConfig};
use crate::env::look::Look;
use crate::model::NamedModel;
use crate::task;
use crate::trainer::{Trainer, saved_config};
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

/// The program with Grove's own games; [`Program::run`] runs it.
pub fn program() -> Program {
    Program { games: Games::builtin() }
}

/// A program that trains, evaluates, records, measures and checks the games that it has.
pub struct Program {
    games: Games,
}

impl Program {
    /// Takes Grove's own games out.
    pub fn without_builtin(self) -> Self {
        Self { games: self.games.without_builtin() }
    }

    /// With a game, in place of one that has its name. In pictures, each of its features is a bar.
    pub fn game<G: Playable>(self) -> Self {
        Self { games: self.games.with::<G>() }
    }

    /// With a game that has a look.
    pub fn game_with_look<G: Playable + Look>(self) -> Self {
        Self { games: self.games.with_look::<G>() }
    }

    /// With a model, which `policy.kind` names; it can be trained for every game.
    ///
    /// # Panics
    /// If one of Grove's own has its name.
    pub fn model<M: NamedModel>(self) -> Self {
        Self { games: self.games.with_model::<M>() }
    }

    /// Runs the command that the process was started with, and says what went wrong: all of a `main`.
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os())
    }

    /// Runs the command in these words of a command line, the first of which is the program's name. It
    /// takes the threads and the signals of the whole process, so that there is one a process.
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
                members::fail(&error);
                ExitCode::FAILURE
            }
        }
    }

    /// The command line, whose help names the games.
    fn command_line(&self) -> clap::Command {
        let usual = self.games.usual().unwrap_or("none");
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
            let help = format!("The game, one of: {names}{tasks} [default: {usual}]");
            cli.mut_subcommand(command, |command| command.mut_arg("game", |arg| arg.help(help)))
        })
    }
}

/// Whether several processes work at a command together; of any other, the first does all.
fn shares(command: &Command) -> bool {
    match command {
        Command::Train(_) | Command::Fit(_) => true,
        Command::Bench(args) => args.scaling,
        _ => false,
    }
}

/// Runs a command.
fn run(games: &Games, cli: Cli) -> Result<()> {
    log_to_stderr()?;
    members::start()?;
    if !members::is_first() && !shares(&cli.command) {
        return Ok(());
    }
    match cli.command {
        Command::Train(args) if language::is_asked(&args) => {
            use_threads(args.run.threads)?;
            language::train(games, args)
        }
        Command::Train(args) => train::run(games, args),
        Command::Fit(args) if language::is_text(&args) => {
            use_threads(args.run.threads)?;
            language::fit(games, args)
        }
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

/// The settings in a checkpoint, which whoever has made the file may have chosen.
fn saved<G: Playable>(models: &Models, checkpoint: &Checkpoint) -> Result<(G, TrainConfig)> {
    let (game, config) = saved_config::<G>(checkpoint)?;
    validate(models, &game, &config).context("the checkpoint's settings cannot be used")?;
    Ok((game, config))
}

/// Checks the settings of a game and a run.
fn validate<G: Playable>(models: &Models, game: &G, config: &TrainConfig) -> Result<()> {
    game.validate().map_err(ConfigError::OutOfRange)?;
    config.validate_with(&models.names())?;
    Ok(())
}

/// Warnings of the libraries go to stderr; `GROVE_LOG` sets another level.
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
        // It would panic over a closed pipe.
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// Sets the number of threads of everything that runs on the CPU.
fn use_threads(threads: Option<u32>) -> Result<()> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(threads) = threads.map(|threads| threads as usize).or_else(members::default_threads)
    {
        pool = pool.num_threads(threads);
    }
    pool.build_global().context("the threads do not start")
}

/// Refuses a run that asks for an engine or a precision that it cannot have.
fn check_engine<G: Playable>(trainer: &Trainer<G>) -> Result<()> {
    let config = trainer.config();
    let (asked, obstacle) = match (config.engine, config.precision) {
        (Engine::Fused, _) => ("the engine `fused`".to_string(), trainer.obstacle()),
        (_, Precision::F32) => return Ok(()),
        (_, precision) => (format!("the precision {precision}"), trainer.precision_obstacle()),
    };
    match obstacle {
        Some(obstacle) => bail!("this run cannot have {asked}: {obstacle}"),
        None => Ok(()),
    }
}
