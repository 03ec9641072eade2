//! `grove train` for games: new and resumed runs.

use super::args::{RunArgs, TrainArgs, agree_on_subject};
use super::games::{ConfigurableGame, Games, NewRun, SavedRun};
use super::output::eprint_line;
use super::paths::resume_arguments;
use super::progress_note::{with_note, with_note_if};
use super::ranks::{self, Rank};
use super::recorded_run::{RecordedRun, RunStatus};
use super::seeds;
use super::session::{self, Origin, Session};
use super::settings::add_comments;
use super::text;
use super::training_data::{TrainingData, names_iterations, note_iterations_of_epochs};
use super::validation::{read_valid_settings, validate};
use crate::device::{self, ChosenDevice};
use crate::model::Network;
use crate::parallel::{DEFAULT_TIMEOUT, Team};
use crate::run::{FoundCheckpoint, GameRun, RunFolder, is_of_language_model};
use crate::settings::{TrainConfig, change_saved_settings, overlay};
use crate::trainer::text::read_settings;
use crate::trainer::{config_to_toml, layer_settings, load_weights, read_config, read_game_name};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::time::Instant;

/// Settings of a run that starts from a policy. The first steps of AdamW have full size even if gradients are
/// small, and would undo much of the policy's training.
const FROM_DEFAULTS: &str = "optimizer.warmup_ratio = 0.1";

/// Message shown while a dataset is read.
const READING_DATA: &str = "Reading the dataset.";

/// Trains a new run, one for each of several seeds, or resumes one.
pub fn run(games: &Games, args: TrainArgs) -> Result<()> {
    if let Some(seeds) = &args.seeds {
        ensure!(ranks::are_threads(), "--seeds starts processes by itself, and does without MPI");
        return seeds::run(games, &args, seeds);
    }
    ranks::start_thread_pool(args.run.threads)?;
    if args.run.resume {
        return resume_any(games, args);
    }
    if text::is_requested(&args) {
        return text::train(games, args);
    }
    let TrainArgs { game, from, run, verifier, .. } = args;
    verifier.refuse_for_games()?;
    let file = run.read_settings()?;
    let game = games.find_beside_tasks(game_name(game.as_deref(), &file)?)?;
    let layers = match from {
        Some(_) => vec![overlay::parse("the defaults of --from", FROM_DEFAULTS)?, file],
        None => vec![file],
    };
    (game.train)(games, &NewRun { args: &run, layers, from: from.as_deref() })
}

/// Resumes a run, by default on its previous device.
fn resume_any(games: &Games, mut args: TrainArgs) -> Result<()> {
    let folder = find_folder_to_resume(games, &args)?;
    let lock = session::lock_folder(&folder)?;
    // The ranks of a CPU give the same bytes as one.
    let mut devices = folder.devices();
    devices.dedup();
    let is_usable = !devices.is_empty() && devices.iter().all(|device| is_device_present(device));
    if args.run.device == "auto" && is_usable && (devices.len() == 1 || ranks::are_threads()) {
        args.run.device = devices.join(",");
    }
    let TrainArgs { game: name, run, .. } = &args;
    let name = name.as_deref().filter(|name| !names_folder(&args, name));
    let FoundCheckpoint { checkpoint, warnings } = folder.load_latest()?;
    session::warn(&warnings);
    let saved = SavedRun { folder: &folder, lock: &lock, checkpoint: &checkpoint };
    let path = folder.path().display();
    let check_name = |saved: &str, name: Option<&str>| match name.filter(|name| *name != saved) {
        Some(name) => bail!("the run in {path} is of `{saved}`, not `{name}`"),
        None => Ok(()),
    };
    if is_of_language_model(&checkpoint) {
        if args.data.is_some() {
            bail!(
                "--data is for a run of a dataset; --task-data names the prompts of a language model"
            );
        }
        let settings = read_settings(&checkpoint)?;
        check_name(overlay::text_at(&settings, "task"), name.filter(|_| run.run_dir.is_some()))?;
        return text::resume(games, &args, saved);
    }
    if args.task_data.is_some() || args.verifier.is_given() || args.model.is_some() {
        bail!("the run in {path} is of a game, which has no prompts and no language model");
    }
    let saved_name = read_game_name(&checkpoint)?;
    check_name(&saved_name, name)?;
    (games.find_with_table(&saved_name)?.resume)(games, &args, saved)
}

/// Finds the run that the command line names by run directory, game or task.
fn find_folder_to_resume(games: &Games, args: &TrainArgs) -> Result<RunFolder> {
    let name = args.game.as_deref();
    let path = name.filter(|name| names_folder(args, name)).map(Path::new);
    match (path.or(args.run.run_dir.as_deref()), name) {
        (Some(path), _) => Ok(RunFolder::find(path)?),
        (None, None) => find_unfinished_run(games, &args.run),
        (None, name) => Ok(RunFolder::newest(name)?),
    }
}

/// Whether the command line names a run directory instead of a game.
fn names_folder(args: &TrainArgs, name: &str) -> bool {
    args.run.run_dir.is_none() && Path::new(name).is_dir()
}

/// Whether a device of this name is available. Drivers are not queried for the CPU.
fn is_device_present(name: &str) -> bool {
    name == "cpu" || device::list().iter().any(|device| device.name == name)
}

/// Finds the latest run in `runs` that can be resumed or, if there is none, the latest of all, which `args` may extend.
///
/// # Errors
/// If there is no run, or the latest is finished and `args` does not extend it.
fn find_unfinished_run(games: &Games, args: &RunArgs) -> Result<RunFolder> {
    if let Some(run) = find_resumable(games, RunFolder::list_by_last_write()) {
        return Ok(run);
    }
    let mut newest = RunFolder::newest(None)?;
    let needs_python =
        |run: &RunFolder| RecordedRun::read(run.path()).is_ok_and(|run| run.needs_python(games));
    if needs_python(&newest) {
        // If there is no other, resuming it fails with the reason.
        let Some(other) = RunFolder::list_by_last_write().find(|run| !needs_python(run)) else {
            return Ok(newest);
        };
        newest = other;
    }
    let is_over = newest.has_final_evaluation()
        && RecordedRun::read(newest.path()).is_ok_and(|run| run.status() == RunStatus::Finished);
    if is_over && args.iterations.is_none() && args.set.is_empty() {
        bail!(
            "no run in runs is unfinished; `grove train {} --iterations N` prolongs the latest",
            resume_arguments(newest.path())
        );
    }
    Ok(newest)
}

/// Finds the first of some runs that is interrupted and can be resumed. Warns of runs that are left out because they
/// need a Python process.
fn find_resumable(games: &Games, mut runs: impl Iterator<Item = RunFolder>) -> Option<RunFolder> {
    runs.find(|run| {
        let Ok(recorded) = RecordedRun::read(run.path()) else { return false };
        if recorded.status() != RunStatus::Interrupted {
            return false;
        }
        if recorded.needs_python(games) {
            let path = run.path().display();
            eprint_line!(
                "warning: {path} is left out: what it learns from is in the Python process that began it"
            );
            return false;
        }
        run.load_latest().is_ok()
    })
}

/// Returns the name of the game, on the command line or in the settings file.
fn game_name<'a>(requested: Option<&'a str>, file: &'a toml::Table) -> Result<Option<&'a str>> {
    let in_file = match file.get("env") {
        Some(toml::Value::String(name)) => Some(name.as_str()),
        Some(other) => bail!("`env` is {other}, but must be the name of a game"),
        None => None,
    };
    agree_on_subject(requested, in_file)
}

pub fn train_new<G: ConfigurableGame>(games: &Games, run: &NewRun) -> Result<()> {
    ranks::run(run.args, DEFAULT_TIMEOUT, |rank| train_new_rank::<G>(games, run, rank))
}

fn train_new_rank<G: ConfigurableGame>(games: &Games, run: &NewRun, rank: Rank) -> Result<()> {
    let started = Instant::now();
    let NewRun { args, layers, from } = run;
    let (game, mut config) = layer_settings::<G>(layers, &args.set)?;
    config.engine = args.engine.unwrap_or(config.engine);
    config.precision = args.precision.unwrap_or(config.precision);
    config.seed = args.seed.unwrap_or(config.seed);
    validate(&games.models, &game, &config)?;
    let is_root = rank.team.is_root();
    let data = with_note_if(is_root, READING_DATA, || TrainingData::open_new(game, &mut config))?;
    match (&data, args.iterations) {
        (_, Some(iterations)) => config.iterations = iterations,
        (Some(data), None)
            if !layers.last().is_some_and(|file| names_iterations(file, &args.set)) =>
        {
            let in_file = config.iterations;
            data.set_iterations_of_epochs(&mut config);
            if let Some(file) = layers.last().filter(|_| is_root) {
                note_iterations_of_epochs(file, in_file, config.iterations);
            }
        }
        _ => {}
    }
    refuse_data_settings::<G>(&data, &config)?;
    validate(&games.models, &game, &config)?;
    let warning = data.as_ref().and_then(|data| data.warning_about_memory(&config));
    if let Some(warning) = warning.filter(|_| is_root) {
        eprint_line!("warning: {warning}");
    }
    let is_default = args.set.is_empty() && args.config.is_none();
    let can_improve_by_play = config.data.is_on()
        && G::PLAYABLE
        && is_default
        && overlay::to_table(&game) == overlay::to_table(&G::default());
    let iterations_of_epochs =
        data.as_ref().map(|data| data.iterations_of_epochs(&config, config.data.epochs));
    let origin = Origin::New(G::NAME);
    let session = Session { args, games, origin, iterations_of_epochs, started };
    let next =
        if can_improve_by_play { format!("train {} --from", G::NAME) } else { "watch".to_string() };
    let next_command = |folder: &str| format!("grove {next} {folder}");
    train_rank(&session, rank, game, &config, data, *from, next_command)
}

/// Checks that a run without a dataset has no settings for one.
fn refuse_data_settings<G: ConfigurableGame>(
    data: &Option<TrainingData>,
    config: &TrainConfig,
) -> Result<()> {
    ensure!(
        data.is_some() || config.data == TrainConfig::with_defaults_of(&G::default())?.data,
        "the settings in [data] are for datasets (`grove fit`), but this run plays `{}`",
        G::NAME
    );
    Ok(())
}

pub fn resume<G: ConfigurableGame>(games: &Games, args: &TrainArgs, saved: SavedRun) -> Result<()> {
    ranks::run(&args.run, DEFAULT_TIMEOUT, |rank| resume_rank::<G>(games, args, saved, rank))
}

fn resume_rank<G: ConfigurableGame>(
    games: &Games,
    args: &TrainArgs,
    run: SavedRun,
    rank: Rank,
) -> Result<()> {
    let started = Instant::now();
    let (game, config) = read_valid_settings::<G>(&games.models, run.checkpoint)?;
    let mut table = overlay::parse("the run's settings", &config_to_toml(&game, &config))?;
    change_saved_settings(&mut table, &args.run.set)?;
    let (game, mut config) = overlay::split_game::<G>(table, G::NAME)?;
    config.iterations = args.run.iterations.unwrap_or(config.iterations);
    validate(&games.models, &game, &config)?;
    let open = || TrainingData::open_saved(game, &mut config, args.data.as_deref());
    let data = with_note_if(rank.team.is_root(), READING_DATA, open)?;
    refuse_data_settings::<G>(&data, &config)?;
    let iterations_of_epochs =
        data.as_ref().map(|data| data.iterations_of_epochs(&config, config.data.epochs));
    let origin = Origin::Saved(run);
    let session = Session { args: &args.run, games, origin, iterations_of_epochs, started };
    let next_command = |folder: &str| format!("grove watch {folder}");
    train_rank(&session, rank, game, &config, data, None, next_command)
}

/// Trains one rank of a run, new or resumed, that plays unless it has `data`. A new one may start `from` the best
/// policy of another run. `next_command` gives the command to suggest at the end, from the folder.
fn train_rank<G: ConfigurableGame>(
    session: &Session,
    rank: Rank,
    game: G,
    config: &TrainConfig,
    data: Option<TrainingData>,
    from: Option<&Path>,
    next_command: impl FnOnce(&str) -> String,
) -> Result<()> {
    let create_network =
        |chosen: &ChosenDevice| session.games.models.new_network(game, config, &chosen.device);
    let try_rollout = |chosen: &ChosenDevice| {
        with_note(&format!("Trying a rollout on {}.", chosen.info.name), || {
            let alone = Team::alone();
            let trial =
                ranks::create_trainer(game, create_network(chosen), config, chosen, None, alone);
            trial.map(|mut trial| trial.measure_rollout_seconds())
        })
    };
    let (chosen, team) = match (&data, &session.origin) {
        (None, Origin::New(_)) => rank.choose_faster_device(try_rollout)?,
        _ => rank.choose_device()?,
    };
    let note = "Initializing the policy's weights.";
    let network = with_note_if(team.is_root(), note, || create_network(&chosen));
    let network = match from {
        Some(run) => load_initial_weights::<G>(network, run)
            .with_context(|| format!("cannot start from the policy in {}", run.display()))?,
        None => network,
    };
    let settings = config_to_toml(&game, config);
    if let Some(data) = &data {
        // Checked before the settings, whose digest of the dataset would give a less helpful error.
        ranks::check_same_data(&team, &data.files)?;
    }
    team.check_identical("setting", &settings)?;
    session.check_same_iteration(&team)?;
    // Games have no epochs, but evaluations.
    let leak_check_interval = data
        .as_ref()
        .map_or(config.checkpoint.eval_every, |data| data.iterations_of_epochs(config, 1));
    let (demonstrations, names) = data.map(|data| (data.demonstrations, data.action_names)).unzip();
    let names = names.filter(|names: &Vec<String>| !names.is_empty());
    let action_names = names.unwrap_or_else(|| game.action_names());
    let mut trainer = ranks::create_trainer(game, network, config, &chosen, demonstrations, team)?;
    if let Some(checkpoint) = session.checkpoint() {
        trainer.restore(checkpoint)?;
    }
    if let Some(missing) = trainer.unsupported_reason() {
        bail!(missing);
    }
    let run = GameRun::new(trainer, leak_check_interval, action_names);
    session.train(&chosen, run, &add_comments(&settings.parse()?, G::settings()), next_command)
}

/// Gives the network the weights of the best policy of a run with the same game and network.
fn load_initial_weights<G: ConfigurableGame>(network: Network, run: &Path) -> Result<Network> {
    let checkpoint = session::load_policy_checkpoint(run)?;
    read_config::<G>(&checkpoint)?;
    Ok(load_weights(network, &checkpoint)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Checkpoint, Store};
    use crate::env::{Catch, Env, HostGame};
    use crate::settings::LanguageConfig;
    use crate::task::PYTHON;
    use crate::trainer::text::{TINY, join_language_settings};
    use std::fs;

    #[test]
    fn the_run_to_resume_is_none_of_python() {
        let folder = tempfile::TempDir::new().unwrap();
        let run = |name: &str, settings: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(crate::run::CONFIG), settings).unwrap();
            let checkpoint = Checkpoint { iteration: 1, sections: Vec::new() };
            Store::new(path.join("checkpoints")).save(&checkpoint).unwrap();
            RunFolder::find(&path).unwrap()
        };
        let language = LanguageConfig::for_model(TINY);
        let language = join_language_settings(PYTHON, &toml::Table::new(), &language).to_string();
        let host = config_to_toml(&HostGame::default(), &TrainConfig::default());
        let catch = config_to_toml(&Catch::default(), &TrainConfig::for_game(Catch::NAME));
        let runs = [("texts", &language), ("host", &host), ("catch", &catch), ("old", &catch)];
        let runs = runs.map(|(name, settings)| run(name, settings));
        let games = crate::program::dispatch::builtin_games();
        let found = |runs: &[RunFolder]| {
            let found = find_resumable(&games, runs.iter().cloned());
            found.map(|run| run.path().file_name().unwrap().to_os_string())
        };
        assert_eq!(found(&runs).unwrap(), "catch");
        assert_eq!(found(&runs[..2]), None);
    }
}
