//! A training run of a game, without its type.

use crate::team::Place;
use crate::wall::{Open, Wall};
use burn::tensor::Device;
use grove::checkpoint::Checkpoint;
use grove::data::{Steps, WindowOptions, WindowSet, deserialize_games};
use grove::env::ConfigurableGame;
use grove::metrics::{EvaluationRecord, IterationRecord};
use grove::model::{FlatMlp, Network};
use grove::parallel::{Team, TeamError};
use grove::rng::Stream;
use grove::rollout::ActionSelection;
use grove::run::Schedule;
use grove::settings::{ConfigError, IMITATION_DEFAULTS, TrainConfig, overlay};
use grove::trainer::{Demonstrations, GameTrainer, TrainError, Trainer, new_settings, read_config};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use web_sys::OffscreenCanvas;

/// A future of this thread, which waits for the device.
type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Episodes of the evaluations before the first one that is due: a small part of an iteration's time, so that a visitor
/// sees the score from the first weights on.
const FEW: usize = 64;

/// A training run, without the type of its game.
pub trait Run {
    /// The schedule of evaluations, and the end of the run.
    fn schedule(&self) -> Schedule;
    /// Whether it is over.
    fn is_over(&self) -> bool;
    /// Evaluates the current policy on few episodes, without the other workers.
    fn evaluate_quickly(&self) -> LocalFuture<'_, Result<EvaluationRecord, TrainError>>;
    /// Runs one iteration, and evaluates if an evaluation is due; on few episodes before the first that is due.
    fn iterate(&mut self) -> LocalFuture<'_, Result<IterationRecord, TrainError>>;
    /// A checkpoint.
    fn snapshot(&self) -> LocalFuture<'_, Result<Checkpoint, TeamError>>;
    /// The workers that share the run.
    fn team(&self) -> &Team;
    /// The current policy as a file.
    fn policy(&self) -> LocalFuture<'_, Vec<u8>>;
    /// Opens a wall of `games` games on a canvas.
    fn show(&mut self, canvas: OffscreenCanvas, games: usize) -> Result<(), JsError>;
    /// Plays a step of the games on the wall.
    fn step(&mut self) -> Result<(), JsError>;
    /// Draws the wall after `progress`, 0 to 1, of the motion of that step.
    fn draw(&mut self, progress: f32) -> Result<(), JsError>;
}

/// A training run of a game, and the wall that shows it.
struct Session<G: ConfigurableGame> {
    trainer: GameTrainer<G>,
    device: Device,
    open: Open<G>,
    wall: Option<Box<dyn Wall>>,
}

impl<G: ConfigurableGame> Run for Session<G> {
    fn schedule(&self) -> Schedule {
        self.trainer.config().into()
    }

    fn is_over(&self) -> bool {
        self.schedule().end_reason(self.trainer.iterations_done(), self.trainer.best()).is_some()
    }

    fn evaluate_quickly(&self) -> LocalFuture<'_, Result<EvaluationRecord, TrainError>> {
        Box::pin(async {
            Ok(self
                .trainer
                .evaluate_on_validation_async(FEW, ActionSelection::Greedy)
                .await?
                .into())
        })
    }

    fn iterate(&mut self) -> LocalFuture<'_, Result<IterationRecord, TrainError>> {
        Box::pin(async {
            let mut record = self.trainer.iterate_async().await?;
            let schedule = self.schedule();
            if schedule.due_work(record.iteration, false).evaluate {
                record.evaluation = Some(self.trainer.validate_async().await?.evaluation);
            } else if record.iteration < schedule.eval_every && self.team().rank() == 0 {
                record.evaluation = Some(self.evaluate_quickly().await?);
            }
            Ok(record)
        })
    }

    fn snapshot(&self) -> LocalFuture<'_, Result<Checkpoint, TeamError>> {
        Box::pin(self.trainer.snapshot_async())
    }

    fn team(&self) -> &Team {
        self.trainer.team()
    }

    fn policy(&self) -> LocalFuture<'_, Vec<u8>> {
        Box::pin(self.trainer.encode_policy_file_async())
    }

    fn show(&mut self, canvas: OffscreenCanvas, games: usize) -> Result<(), JsError> {
        let seed = self.trainer.config().seed;
        self.wall = Some((self.open)(self.trainer.game(), games, seed, &self.device, canvas)?);
        Ok(())
    }

    fn step(&mut self) -> Result<(), JsError> {
        let policy = self.trainer.model().get().and_then(FlatMlp::from_mlp);
        self.wall()?.step(&policy.expect("the fused engine trains perceptrons"));
        Ok(())
    }

    fn draw(&mut self, progress: f32) -> Result<(), JsError> {
        self.wall()?.draw(progress);
        Ok(())
    }
}

impl<G: ConfigurableGame> Session<G> {
    fn wall(&mut self) -> Result<&mut dyn Wall, JsError> {
        match &mut self.wall {
            Some(wall) => Ok(&mut **wall),
            None => Err(JsError::new("no wall is open")),
        }
    }
}

/// The settings of a game: its defaults, those of imitation if it learns from games, and the changes.
fn settings<G: ConfigurableGame>(
    changes: &str,
    imitate: bool,
) -> Result<(G, TrainConfig), ConfigError> {
    let mut table = overlay::parse("the settings", changes)?;
    if imitate {
        let defaults = overlay::parse("the defaults of imitation", IMITATION_DEFAULTS)?;
        table = overlay::merge(defaults, table);
    }
    new_settings::<G>(&table, &[])
}

/// The games of a file as demonstrations. None are held out: this build cannot measure a held-out loss.
fn demonstrations<G: ConfigurableGame>(game: G, file: Vec<u8>) -> Result<Demonstrations, JsError> {
    let (manifest, steps) = deserialize_games(PathBuf::from("your games"), file)?;
    let (features, actions) = (game.num_features(), game.num_actions());
    if manifest.env != G::NAME || steps.num_features() != features {
        return Err(JsError::new(&format!("the recorded games are not of {}", G::NAME)));
    }
    let episodes = steps.episodes();
    let window_set = WindowSet::new(Arc::new(steps), &episodes, WindowOptions::new(1, actions));
    Ok(Demonstrations { train: window_set.clone(), validation: window_set })
}

/// A run; `None` if the run has too few shards for this worker.
pub type MaybeRun = Result<Option<Box<dyn Run>>, JsError>;

/// The data of a run, and its place among workers.
pub struct Source {
    /// A file of games to learn from, instead of playing.
    pub games: Option<Vec<u8>>,
    /// This worker's place among the workers that share the run.
    pub place: Option<Place>,
}

/// Validates the settings; an error if the fused engines do not take them.
fn check<G: ConfigurableGame>(
    game: G,
    config: &TrainConfig,
    device: &Device,
) -> Result<(), JsError> {
    game.validate().map_err(ConfigError::OutOfRange)?;
    config.validate()?;
    match Trainer::fallback_reason_for(game, config, device) {
        None => Ok(()),
        Some(reason) => Err(JsError::new(&format!("a page has only the fused engines: {reason}"))),
    }
}

/// Starts a run with these settings, TOML, from games or from a file of them.
pub fn start<G: ConfigurableGame>(
    open: Open<G>,
    changes: &str,
    source: Source,
    device: &Device,
) -> MaybeRun {
    let (game, config) = settings::<G>(changes, source.games.is_some())?;
    check(game, &config, device)?;
    let trainer = trainer(game, &config, source, device)?;
    Ok(trainer.map(|trainer| session(open, trainer, device)))
}

/// Resumes a run from a checkpoint.
pub fn resume<G: ConfigurableGame>(
    open: Open<G>,
    from: &Checkpoint,
    source: Source,
    device: &Device,
) -> MaybeRun {
    let (game, config) = read_config::<G>(from)?;
    check(game, &config, device)?;
    let trainer = trainer(game, &config, source, device)?;
    let trainer = trainer.map(|trainer| trainer.with_checkpoint(from)).transpose()?;
    Ok(trainer.map(|trainer| session(open, trainer, device)))
}

fn session<G: ConfigurableGame>(
    open: Open<G>,
    trainer: GameTrainer<G>,
    device: &Device,
) -> Box<dyn Run> {
    Box::new(Session { trainer, device: device.clone(), open, wall: None })
}

/// A trainer with these settings; `None` if the run has too few shards for this worker.
fn trainer<G: ConfigurableGame>(
    game: G,
    config: &TrainConfig,
    source: Source,
    device: &Device,
) -> Result<Option<GameTrainer<G>>, JsError> {
    let Source { games, place } = source;
    let data = games.map(|games| demonstrations(game, games)).transpose()?;
    if config.data.is_on() != data.is_some() {
        let what =
            "data.path is for a run that learns from recorded games, and such a run needs it";
        return Err(JsError::new(what));
    }
    let (features, actions) = (game.num_features(), game.num_actions());
    let key = Stream::Weights.key(config.seed);
    let network = Network::new(features, actions, &config.policy, key, device);
    let with = |team| Trainer::with_team(game, network.clone(), config, device, data.clone(), team);
    let alone = with(Team::alone())?;
    let Some(place) = place else { return Ok(Some(alone)) };
    let Some(team) = place.team(alone.shards().count()) else { return Ok(None) };
    drop(alone);
    Ok(Some(with(team)?))
}
