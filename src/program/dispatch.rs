//! The dispatcher: calls the file of each command, for a game of any type.

use super::args::{CheckArgs, Cli, Command, DemoArgs, EvalArgs, RecordArgs, SettingsArgs};
use super::bench::BenchArgs;
use super::games::{GameCommands, Games, NewRun, Playable, References, SavedRun};
use super::models::Models;
use super::study_args::ExportArgs;
use super::table::Table;
use super::{
    bench, check, demo, devices, eval, export, fit, generate, import, manual, plot, ranks, record,
    runs, settings, sweep, train, verify, watch,
};
use crate::checkpoint::Checkpoint;
use crate::env::look::Look;
use crate::settings::{TrainConfig, overlay};
use crate::trainer::{config_toml, new_settings};
use crate::viewer::Scene;
use anyhow::Result;
use clap::CommandFactory;

/// A game, with the function that creates its scene.
struct Entry<G: Playable> {
    scene: fn(G) -> Scene<G>,
}

impl<G: Playable> GameCommands for Entry<G> {
    fn train(&self, games: &Games, run: &NewRun) -> Result<()> {
        train::start::<G>(games, run)
    }

    fn resume(&self, games: &Games, run: &SavedRun) -> Result<()> {
        train::resume::<G>(games, run)
    }

    fn demo(&self, models: &Models, args: &DemoArgs) -> Result<()> {
        demo::demonstrate::<G>(models, args)
    }

    fn eval(&self, models: &Models, args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()> {
        eval::evaluate::<G>(models, args, checkpoint)
    }

    fn record(&self, models: &Models, args: &RecordArgs, checkpoint: &Checkpoint) -> Result<()> {
        record::record::<G>(models, args, checkpoint, self.scene)
    }

    fn bench(&self, models: &Models, args: &BenchArgs) -> Result<()> {
        bench::bench::<G>(models, args)
    }

    fn settings(&self, args: &SettingsArgs) -> Result<()> {
        settings::list::<G>(args)
    }

    fn check(&self, args: &CheckArgs) -> Result<()> {
        check::check::<G>(args)
    }

    fn export(&self, models: &Models, args: &ExportArgs, checkpoint: &Checkpoint) -> Result<()> {
        export::write::<G>(models, args, checkpoint)
    }

    fn defaults(&self) -> Result<toml::Table> {
        let (game, config) = new_settings::<G>(&toml::Table::new(), &[])?;
        Ok(config_toml(&game, &config).parse()?)
    }

    fn references(&self, settings: toml::Table) -> Result<References> {
        let (game, _): (G, TrainConfig) = overlay::split(settings, G::NAME)?;
        Ok(game.references())
    }
}

/// The built-in games, and the placeholder game of datasets that were imported from a table.
pub fn builtin() -> Games {
    macro_rules! drawn {
        ($($Game:ident),*) => {{
            let mut games = Games::new(features::<Table>());
            $(games.add::<crate::env::$Game>(drawn::<crate::env::$Game>());)*
            games
        }};
    }
    crate::for_each_game!(drawn)
}

/// The commands of a game whose features are drawn as bars.
pub fn features<G: Playable>() -> Box<dyn GameCommands> {
    Box::new(Entry { scene: Scene::<G>::features })
}

/// The commands of a game that has sprites.
pub fn drawn<G: Playable + Look>() -> Box<dyn GameCommands> {
    Box::new(Entry { scene: Scene::<G>::drawn })
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
        Command::Verify(args) => verify::run(args),
        Command::Watch(args) => watch::run(games, args),
        Command::Export(args) => export::run(games, args),
        Command::Sweep(args) => sweep::run(games, args),
        Command::Runs(args) => runs::run(games, args),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
        Command::Man(args) => manual::man(&args, Cli::command()),
        Command::Plot(args) => plot::run(games, args),
        Command::Record(args) => record::run(games, args),
    }
}
