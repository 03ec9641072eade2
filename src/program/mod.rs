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
mod dashboard;
mod demo;
mod devices;
mod dispatch;
mod eval;
mod export;
mod export_model;
mod fit;
mod games;
mod generate;
mod hints;
mod import;
mod interrupt;
mod jobs;
mod manual;
mod model_card;
mod models;
mod output;
mod paths;
mod plot;
mod progress;
mod progress_note;
mod ranks;
mod record;
mod recorded_run;
mod runs;
mod seeds;
mod session;
mod settings;
mod sweep;
mod table_game;
mod terminal;
#[cfg(test)]
mod tests;
mod text;
mod text_table;
mod train;
mod training_data;
mod trust;
mod validation;
mod verify;
mod watch;

pub use games::ConfigurableGame;
pub use session::PolicyAtEnd;

use crate::env::look::Look;
use crate::model::NamedModel;
use crate::parallel::mpi;
use crate::run::{Run, RunFiles, catch_device_panics, silence_panics};
use crate::task;
use anyhow::Result;
use args::Cli;
use clap::{CommandFactory, FromArgMatches};
use games::Games;
use std::ffi::OsString;
use std::process::ExitCode;
use std::str::FromStr;

/// Creates the program with the built-in games; [`Program::run`] runs it.
pub fn program() -> Program {
    Program { games: dispatch::builtin_games() }
}

/// A program with all of Grove's commands for a set of games and models.
pub struct Program {
    games: Games,
}

impl Program {
    /// Removes the built-in games.
    pub fn without_builtin(mut self) -> Self {
        self.games.remove_builtin();
        self
    }

    /// Adds a game, or replaces the one of the same name. Pictures show its features as bars.
    ///
    /// # Panics
    /// If its name has other characters than [`Env::NAME`](crate::env::Env::NAME) permits, or is that of a task, or of
    /// a setting or a section of runs.
    pub fn game<G: ConfigurableGame>(mut self) -> Self {
        self.games.add::<G>(dispatch::commands_with_bars::<G>());
        self
    }

    /// Adds a game with a look of its own, or replaces the one of the same name.
    ///
    /// # Panics
    /// If its name has other characters than [`Env::NAME`](crate::env::Env::NAME) permits, or is that of a task, or of
    /// a setting or a section of runs.
    pub fn game_with_look<G: ConfigurableGame + Look>(mut self) -> Self {
        self.games.add::<G>(dispatch::commands_with_look::<G>());
        self
    }

    /// Adds a model, which can be selected by `policy.kind` for any game.
    ///
    /// # Panics
    /// If a built-in model has the same name.
    pub fn model<M: NamedModel>(mut self) -> Self {
        self.games.models.add::<M>();
        self
    }

    /// Publishes the trained policy of a run: a language model by its model card, with the scores of the final
    /// evaluation, and a game's best policy by an animation, if trackers take one and the program has the game. Returns
    /// warnings for the user.
    ///
    /// # Errors
    /// If the run's files cannot be read, or the model card cannot be written.
    pub fn publish_policy(
        &self,
        run: &dyn Run,
        files: &mut RunFiles,
        policy: PolicyAtEnd,
    ) -> Result<Vec<String>> {
        session::publish_policy(&self.games, run, files, policy)
    }

    /// Sets the command line that starts this program again, without a subcommand, for runs side by side. By default it
    /// is the executable of this process, which is another program if a library contains this one.
    pub fn with_start_command(mut self, argv: Vec<OsString>) -> Self {
        self.games.start_command = argv;
        self
    }

    /// Runs the command given on the process's command line and prints any error: a complete `main`, but for
    /// [`set_runtime_dir`].
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os()).into()
    }

    /// Runs the command given by `argv`, the first of which is the program's name, and prints any error. Returns the
    /// exit status: 0, 1 if the command fails, or 2 if the command line is invalid.
    ///
    /// It configures the process's global thread pool and signal handlers, so call it once per process. A second Ctrl-C
    /// ends the process, and so does a panic after which it cannot continue.
    pub fn run_with(self, argv: impl IntoIterator<Item = OsString>) -> u8 {
        let cli = match self.parse(argv.into_iter().collect()) {
            Ok(cli) => cli,
            Err(answer) => {
                // A closed output is not an error.
                let _ = answer.print();
                return answer.exit_code() as u8;
            }
        };
        silence_panics(|panic| ranks::report_failure(&panic.clone().into()));
        match catch_device_panics(|| run(&self.games, cli))
            .unwrap_or_else(|panic| Err(panic.into()))
        {
            Ok(()) => {
                mpi::finish();
                0
            }
            Err(error) => {
                ranks::report_failure(&error);
                1
            }
        }
    }

    /// Parses a command line.
    ///
    /// # Errors
    /// If it is invalid, with a hint, or requests help or the version, which the error prints.
    fn parse(&self, mut argv: Vec<OsString>) -> Result<Cli, clap::Error> {
        loop {
            match self.build_parser().try_get_matches_from(&argv) {
                Ok(matches) => return Cli::from_arg_matches(&matches),
                Err(error) => match hints::rewrite_setting(&error, &argv) {
                    Some(rewritten) => argv = rewritten,
                    None => return Err(hints::add_hint(error, &argv)),
                },
            }
        }
    }

    /// Builds the command-line parser, with the names of games and tasks in its help.
    fn build_parser(&self) -> clap::Command {
        let default = self.games.default_name().unwrap_or("none");
        let names = self.games.joined_names();
        let tasks = format!(", or a language model's task: {}", task::joined_names());
        ["train", "bench", "settings", "check", "demo"].into_iter().fold(
            Cli::command(),
            |cli, command| {
                let tasks = if manual::TASK_COMMANDS.contains(&command) { &*tasks } else { "" };
                let own_data =
                    if command == "settings" { "; `data` for prompts of your own" } else { "" };
                let help =
                    format!("The game, one of: {names}{tasks}{own_data} [default: {default}]");
                cli.mut_subcommand(command, |command| command.mut_arg("game", |arg| arg.help(help)))
            },
        )
    }
}

/// Prepares the process, and runs a command.
fn run(games: &Games, cli: Cli) -> Result<()> {
    log_to_stderr()?;
    ignore_file_size_signal();
    ranks::connect()?;
    dispatch::run(games, cli)
}

/// Makes a file above the limit of `ulimit -f` an error instead of the end of the process.
fn ignore_file_size_signal() {
    #[cfg(unix)]
    // SAFETY: ignoring a signal has no preconditions.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Sets `XDG_RUNTIME_DIR` if it is not set, for the start of a `main`: without it, a layer of Mesa's Vulkan drivers
/// that looks for a Wayland server complains on stderr.
///
/// # Safety
/// No other thread may exist, since it could read the environment meanwhile.
pub unsafe fn set_runtime_dir() {
    #[cfg(unix)]
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // To this folder, this user alone writes, or root: the layer connects to a server whose socket it finds.
        let folder = task::cache::folder().unwrap_or_else(|| "/".into());
        // SAFETY: there is no other thread.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", folder) };
    }
}

/// Sends log messages to stderr: errors, or the level set by `GROVE_LOG`. A program that has a subscriber keeps its
/// own.
fn log_to_stderr() -> Result<()> {
    let level = match std::env::var("GROVE_LOG") {
        Ok(level) => tracing::Level::from_str(&level).map_err(|_| {
            anyhow::anyhow!("GROVE_LOG is `{level}`, but must be error, warn, info, debug or trace")
        })?,
        Err(_) => tracing::Level::ERROR,
    };
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(console::colors_enabled_stderr())
        // Reporting them would panic if stderr is closed.
        .log_internal_errors(false)
        .try_init();
    Ok(())
}
