//! The dispatcher: calls the file of each command, for a game of any type.

use super::args::{Cli, Command, RecordArgs};
use super::games::{ConfigurableGame, GameCommands, Games};
use super::models::Models;
use super::table_game::TableGame;
use super::{
    bench, check, demo, devices, eval, export, fit, generate, import, manual, plot, ranks, record,
    runs, settings, sweep, train, validation, verify, watch,
};
use crate::checkpoint::Checkpoint;
use crate::env::look::Look;
use crate::settings::overlay;
use crate::track::Animation;
use crate::trainer::{config_to_toml, new_settings};
use crate::viewer::Scene;
use anyhow::Result;
use clap::CommandFactory;

/// The commands of a game whose pictures `record` and `render_animation` render.
fn commands<G: ConfigurableGame>(
    record: fn(&Models, &RecordArgs, &Checkpoint) -> Result<()>,
    render_animation: fn(&Models, &Checkpoint) -> Result<Animation>,
) -> GameCommands {
    GameCommands {
        train: train::train_new::<G>,
        resume: train::resume::<G>,
        demo: demo::demonstrate::<G>,
        eval: eval::evaluate::<G>,
        record,
        render_animation,
        bench: bench::bench::<G>,
        settings: settings::list::<G>,
        check: check::check::<G>,
        export: export::write::<G>,
        defaults: || {
            let (game, config) = new_settings::<G>(&toml::Table::new(), &[])?;
            Ok(config_to_toml(&game, &config).parse()?)
        },
        validate: |models, assignments| {
            let (game, config) = new_settings::<G>(&toml::Table::new(), assignments)?;
            validation::validate(models, &game, &config)
        },
        reference_scores: |settings| {
            Ok(overlay::split_game::<G>(settings, G::NAME)?.0.reference_scores())
        },
    }
}

/// The built-in games, and the placeholder game of datasets that were imported from a table.
pub fn builtin_games() -> Games {
    macro_rules! with_look {
        ($($Game:ident),*) => {{
            let mut games = Games::new(commands_with_bars::<TableGame>());
            $(games.add::<crate::env::$Game>(commands_with_look::<crate::env::$Game>());)*
            games
        }};
    }
    crate::for_each_game!(with_look)
}

/// The commands of a game whose features are drawn as bars.
pub fn commands_with_bars<G: ConfigurableGame>() -> GameCommands {
    commands::<G>(
        |models, args, checkpoint| record::record(models, args, checkpoint, Scene::<G>::with_bars),
        |models, checkpoint| record::render_animation(models, checkpoint, Scene::<G>::with_bars),
    )
}

/// The commands of a game with a look of its own.
pub fn commands_with_look<G: ConfigurableGame + Look>() -> GameCommands {
    commands::<G>(
        |models, args, checkpoint| record::record(models, args, checkpoint, Scene::<G>::with_look),
        |models, checkpoint| record::render_animation(models, checkpoint, Scene::<G>::with_look),
    )
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
pub fn run(games: &Games, cli: Cli) -> Result<()> {
    if !ranks::is_root_process() && !is_shared(&cli.command) {
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
        Command::Verify(args) => verify::run(args),
        Command::Watch(args) => watch::run(games, args),
        Command::Export(args) => export::run(games, args),
        Command::Sweep(args) => sweep::run(games, args),
        Command::Runs(args) => runs::run(games, args),
        Command::Completions(args) => {
            let names: Vec<_> = games.names().collect();
            manual::print_completions(&names, &args, &Cli::command())
        }
        Command::Man(args) => manual::write_man_pages(&args, Cli::command()),
        Command::Plot(args) => plot::run(games, args),
        Command::Record(args) => record::run(games, args),
    }
}
