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
use super::training_data::{TrainingData, has_given_iterations, note_iterations_for_epochs};
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
    let name = name.as_deref().filter(|name| !is_run_folder(&args, name));
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
    let path = name.filter(|name| is_run_folder(args, name)).map(Path::new);
    match (path.or(args.run.run_dir.as_deref()), name) {
        (Some(path), _) => Ok(RunFolder::find(path)?),
        (None, None) => find_unfinished_run(games, &args.run),
        (None, name) => Ok(RunFolder::newest(name)?),
    }
}

/// Whether the command line names a run directory instead of a game.
fn is_run_folder(args: &TrainArgs, name: &str) -> bool {
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
    resolve_iterations(&mut config, data.as_ref(), args, layers.last(), is_root);
    refuse_data_settings::<G>(&data, &config)?;
    validate(&games.models, &game, &config)?;
    let warning = data.as_ref().and_then(|data| data.warning_about_memory(&config));
    if let Some(warning) = warning.filter(|_| is_root) {
        eprint_line!("warning: {warning}");
    }
    let is_default = args.set.is_empty() && args.config.is_none();
    let can_improve_by_play = config.data.is_on()
        && G::IS_PLAYABLE
        && is_default
        && overlay::to_table(&game) == overlay::to_table(&G::default());
    let next =
        if can_improve_by_play { format!("train {} --from", G::NAME) } else { "watch".to_string() };
    let next_command = |folder: &str| format!("grove {next} {folder}");
    let spec = GameRunSpec { game, config, data, from: *from };
    let session = spec.session(args, games, Origin::New(G::NAME), started);
    train_rank(&session, rank, spec, next_command)
}

/// Sets the number of iterations of a new run: by `--iterations`, else by the epochs of its data unless `file` or
/// `--set` gives it.
fn resolve_iterations(
    config: &mut TrainConfig,
    data: Option<&TrainingData>,
    args: &RunArgs,
    file: Option<&toml::Table>,
    is_root: bool,
) {
    if let Some(iterations) = args.iterations {
        config.iterations = iterations;
        return;
    }
    let Some(data) = data else { return };
    if file.is_some_and(|file| has_given_iterations(file, &args.set)) {
        return;
    }
    let in_file = config.iterations;
    data.fit_iterations_to_epochs(config);
    if let Some(file) = file.filter(|_| is_root) {
        note_iterations_for_epochs(file, in_file, config.iterations);
    }
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
    let next_command = |folder: &str| format!("grove watch {folder}");
    let spec = GameRunSpec { game, config, data, from: None };
    let session = spec.session(&args.run, games, Origin::Saved(run), started);
    train_rank(&session, rank, spec, next_command)
}

/// A run of a game, new or resumed, that plays unless it has data.
struct GameRunSpec<'a, G> {
    game: G,
    config: TrainConfig,
    data: Option<TrainingData>,
    /// Run or policy file whose best policy provides the initial weights; `None` for fresh ones.
    from: Option<&'a Path>,
}

impl<G: ConfigurableGame> GameRunSpec<'_, G> {
    fn session<'s>(
        &self,
        args: &'s RunArgs,
        games: &'s Games,
        origin: Origin<'s>,
        started: Instant,
    ) -> Session<'s> {
        let iterations_for_epochs = self
            .data
            .as_ref()
            .map(|data| data.iterations_for_epochs(&self.config, self.config.data.epochs));
        let dataset = self.data.as_ref().map(|data| data.description.clone());
        Session { args, games, origin, iterations_for_epochs, dataset, started }
    }

    /// Starts the rank's device; for a new run that plays, `auto` chooses the faster one.
    fn start_device(&self, session: &Session, rank: Rank) -> Result<(ChosenDevice, Team)> {
        let (None, Origin::New(_)) = (&self.data, &session.origin) else {
            return rank.start_device();
        };
        rank.start_faster_device(|chosen| {
            with_note(&format!("Trying a rollout on {}.", chosen.info.name), || {
                let network = self.fresh_network(session, chosen);
                let alone = Team::alone();
                let trial =
                    ranks::create_trainer(self.game, network, &self.config, chosen, None, alone);
                trial.map(|mut trial| trial.measure_rollout_seconds())
            })
        })
    }

    /// Creates a network with fresh weights.
    fn fresh_network(&self, session: &Session, chosen: &ChosenDevice) -> Network {
        session.games.models.new_network(self.game, &self.config, &chosen.device)
    }

    /// Creates the network with its initial weights.
    fn initial_network(
        &self,
        session: &Session,
        chosen: &ChosenDevice,
        is_root: bool,
    ) -> Result<Network> {
        let note = "Initializing the policy's weights.";
        let network = with_note_if(is_root, note, || self.fresh_network(session, chosen));
        match self.from {
            Some(run) => load_initial_weights::<G>(network, run)
                .with_context(|| format!("cannot start from the policy in {}", run.display())),
            None => Ok(network),
        }
    }

    /// Checks that all ranks train the same run.
    fn check_ranks(&self, session: &Session, team: &Team, settings: &str) -> Result<()> {
        if let Some(data) = &self.data {
            // Checked before the settings, whose digest of the dataset would give a less helpful error.
            ranks::check_same_data(team, &data.files)?;
        }
        team.check_identical("setting", settings)?;
        session.check_same_iteration(team)
    }
}

/// Trains one rank of a run. `next_command` gives the command to suggest at the end, from the folder.
fn train_rank<G: ConfigurableGame>(
    session: &Session,
    rank: Rank,
    spec: GameRunSpec<G>,
    next_command: impl FnOnce(&str) -> String,
) -> Result<()> {
    let (chosen, team) = spec.start_device(session, rank)?;
    let network = spec.initial_network(session, &chosen, team.is_root())?;
    let settings = config_to_toml(&spec.game, &spec.config);
    spec.check_ranks(session, &team, &settings)?;
    let GameRunSpec { game, config, data, .. } = spec;
    // Games have no epochs, but evaluations.
    let leak_check_interval = data
        .as_ref()
        .map_or(config.checkpoint.eval_every, |data| data.iterations_for_epochs(&config, 1));
    let (demonstrations, names) = data.map(|data| (data.demonstrations, data.action_names)).unzip();
    let names = names.filter(|names: &Vec<String>| !names.is_empty());
    let action_names = names.unwrap_or_else(|| game.action_names());
    let mut trainer = ranks::create_trainer(game, network, &config, &chosen, demonstrations, team)?;
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
