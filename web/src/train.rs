//! Training, in a worker.

use crate::games::{self, Known, Playable};
use crate::together::Place;
use crate::wall::{Open, Wall};
use burn::tensor::Device;
use grove::checkpoint::Checkpoint;
use grove::config::{ConfigError, IMITATION, TrainConfig, overlay};
use grove::data::{Cut, Pieces, Steps, read_games};
use grove::device::{self, DeviceInfo};
use grove::metrics::IterationRecord;
use grove::model::{FlatMlp, Network};
use grove::parallel::{Team, TeamError};
use grove::rng::Stream;
use grove::run::Schedule;
use grove::trainer::{
    Demonstrations, TrainError, Trainer, config_toml, new_settings, saved_config, saved_game_name,
};
use grove_web_base::Saved;
use serde::Serialize;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use web_sys::OffscreenCanvas;

/// The most games that are shown at once.
const MOST_SHOWN: usize = 16_384;

/// What will be there when the device has answered.
type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A run of whatever game.
pub trait Run {
    /// Iterations done.
    fn iteration(&self) -> u32;
    /// When the run is evaluated and over.
    fn schedule(&self) -> Schedule;
    /// One more, with an evaluation where it is due.
    fn iterate(&mut self) -> Soon<'_, Result<IterationRecord, TrainError>>;
    /// All that it needs to go on.
    fn snapshot(&self) -> Soon<'_, Result<Checkpoint, TeamError>>;
    /// The members that share it.
    fn team(&self) -> &Team;
    /// A policy file.
    fn policy(&self) -> Soon<'_, Vec<u8>>;
    /// All settings, as TOML.
    fn settings(&self) -> String;
    /// How is played and learnt, in words.
    fn describe(&self) -> String;
    /// Shows so many games on a canvas.
    fn show(&mut self, canvas: OffscreenCanvas, games: usize) -> Result<(), JsError>;
    /// Plays a step of the games that are shown.
    fn step(&mut self) -> Result<(), JsError>;
    /// Draws them, where `part` of the motion of that step has been made.
    fn draw(&mut self, part: f32) -> Result<(), JsError>;
}

/// The run of a game, and the games that are shown.
struct Session<G: Playable> {
    trainer: Trainer<G>,
    device: Device,
    open: Open<G>,
    wall: Option<Box<dyn Wall>>,
}

impl<G: Playable> Run for Session<G> {
    fn iteration(&self) -> u32 {
        self.trainer.iteration()
    }

    fn schedule(&self) -> Schedule {
        self.trainer.config().into()
    }

    fn iterate(&mut self) -> Soon<'_, Result<IterationRecord, TrainError>> {
        Box::pin(async {
            let mut record = self.trainer.iterate_async().await?;
            if self.schedule().due(record.iteration, false).evaluation {
                record.evaluation = Some(self.trainer.measure_async().await?.0);
            }
            Ok(record)
        })
    }

    fn snapshot(&self) -> Soon<'_, Result<Checkpoint, TeamError>> {
        Box::pin(self.trainer.snapshot_async())
    }

    fn team(&self) -> &Team {
        self.trainer.team()
    }

    fn policy(&self) -> Soon<'_, Vec<u8>> {
        Box::pin(self.trainer.policy_file_async())
    }

    fn settings(&self) -> String {
        config_toml(&self.trainer.game(), self.trainer.config())
    }

    fn describe(&self) -> String {
        self.trainer.describe()
    }

    fn show(&mut self, canvas: OffscreenCanvas, games: usize) -> Result<(), JsError> {
        let seed = self.trainer.config().seed;
        self.wall = Some((self.open)(self.trainer.game(), games, seed, &self.device, canvas)?);
        Ok(())
    }

    fn step(&mut self) -> Result<(), JsError> {
        let policy = self.trainer.model().mlp().and_then(FlatMlp::of);
        self.shown()?.step(&policy.expect("what the kernels train, they play"));
        Ok(())
    }

    fn draw(&mut self, part: f32) -> Result<(), JsError> {
        self.shown()?.draw(part);
        Ok(())
    }
}

impl<G: Playable> Session<G> {
    fn shown(&mut self) -> Result<&mut dyn Wall, JsError> {
        match &mut self.wall {
            Some(wall) => Ok(&mut **wall),
            None => Err(JsError::new("no games are shown")),
        }
    }
}

/// The settings of a game: its defaults, those of imitation where it learns from games, and what is asked for
/// laid over them.
fn settings<G: Playable>(asked: &str, imitate: bool) -> Result<(G, TrainConfig), ConfigError> {
    let mut table = overlay::parse("the settings", asked)?;
    if imitate {
        let defaults = overlay::parse("the defaults of imitation", IMITATION)?;
        table = overlay::merged(defaults, table);
    }
    new_settings::<G>(&table, &[])
}

/// The games of a file as what is learnt from. None are held out: a page leaves out what they would be
/// measured by.
fn demonstrations<G: Playable>(game: G, file: Vec<u8>) -> Result<Demonstrations, JsError> {
    let (manifest, steps) = read_games(PathBuf::from("your games"), file)?;
    let (features, actions) = (game.num_features(), game.num_actions());
    if manifest.env != G::NAME || steps.num_features() != features {
        return Err(JsError::new(&format!("your games are not of {}", G::NAME)));
    }
    let episodes = steps.episodes();
    let pieces = Pieces::new(Arc::new(steps), &episodes, Cut::plain(1, actions));
    Ok(Demonstrations { learnt: pieces.clone(), held_out: pieces })
}

/// A run, or why there is none; `None` where there are members enough without this one.
pub type Begun = Result<Option<Box<dyn Run>>, JsError>;

/// What a run learns from and with whom, besides its settings.
pub struct Source {
    /// A file of games to learn from, instead of playing.
    games: Option<Vec<u8>>,
    /// This worker's place among those that share the run.
    place: Option<Place>,
}

/// Checks settings; an error if a page cannot train by them.
fn check<G: Playable>(game: G, config: &TrainConfig, device: &Device) -> Result<(), JsError> {
    game.validate().map_err(ConfigError::OutOfRange)?;
    config.validate()?;
    match Trainer::obstacle_to(game, config, device) {
        None => Ok(()),
        Some(obstacle) => {
            Err(JsError::new(&format!("a page trains with the fast engines only: {obstacle}")))
        }
    }
}

/// A run at its start, which learns from the games of a file if there is one.
pub fn begin<G: Playable>(known: Known<G>, asked: &str, source: Source, device: &Device) -> Begun {
    let (game, config) = settings::<G>(asked, source.games.is_some())?;
    check(game, &config, device)?;
    let trainer = trainer(game, &config, source, device)?;
    Ok(trainer.map(|trainer| session(known, trainer, device)))
}

/// A run that goes on from a checkpoint.
pub fn go_on<G: Playable>(
    known: Known<G>,
    from: &Checkpoint,
    source: Source,
    device: &Device,
) -> Begun {
    let (game, config) = saved_config::<G>(from)?;
    check(game, &config, device)?;
    let trainer = trainer(game, &config, source, device)?;
    let trainer = trainer.map(|trainer| trainer.restored(from)).transpose()?;
    Ok(trainer.map(|trainer| session(known, trainer, device)))
}

fn session<G: Playable>(known: Known<G>, trainer: Trainer<G>, device: &Device) -> Box<dyn Run> {
    Box::new(Session { trainer, device: device.clone(), open: known.wall, wall: None })
}

/// A run of these settings; `None` where it has too few shards for this member.
fn trainer<G: Playable>(
    game: G,
    config: &TrainConfig,
    source: Source,
    device: &Device,
) -> Result<Option<Trainer<G>>, JsError> {
    let Source { games, place } = source;
    let data = games.map(|games| demonstrations(game, games)).transpose()?;
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

/// The game of this name.
fn named(name: &str) -> Result<&'static dyn games::Entry, JsError> {
    games::find(name).ok_or_else(|| {
        JsError::new(&format!("`env` must name the game, one of: {}", games::names()))
    })
}

/// The CPU, or WebGPU.
async fn device(gpu: bool) -> Result<device::Chosen, JsError> {
    Ok(if gpu { device::start_in_browser().await? } else { device::choose("cpu")? })
}

/// What trains, for people.
#[derive(Serialize)]
struct About {
    device: String,
    api: String,
    way: String,
    software: bool,
    members: usize,
    version: &'static str,
}

/// A training run.
#[wasm_bindgen]
pub struct Training {
    run: Box<dyn Run>,
    device: DeviceInfo,
}

#[wasm_bindgen]
impl Training {
    /// A run at its start, by `settings`: TOML with `env`, the name of a game, and whatever differs from
    /// that game's defaults. On WebGPU, or else on the CPU; from a file of games, if one is given, always there.
    /// With a place among workers that share it, the part of this one; nothing where it is not needed.
    pub async fn create(
        settings: String,
        gpu: bool,
        games: Option<Vec<u8>>,
        place: Option<Place>,
    ) -> Result<Option<Training>, JsError> {
        let changes = overlay::parse("the settings", &settings)?;
        let game = named(changes.get("env").and_then(|name| name.as_str()).unwrap_or_default())?;
        let chosen = device(gpu && games.is_none()).await?;
        let run = game.begin(&settings, Source { games, place }, &chosen.device)?;
        Ok(run.map(|run| Self { run, device: chosen.info }))
    }

    /// A run that goes on from what [`Training::save`] gave, to the byte as if it had never been left; the rest as
    /// of [`Training::create`].
    pub async fn resume(
        saved: Saved,
        gpu: bool,
        games: Option<Vec<u8>>,
        place: Option<Place>,
    ) -> Result<Option<Training>, JsError> {
        let game = named(&saved_game_name(&saved.0)?)?;
        let chosen = device(gpu && games.is_none()).await?;
        let run = game.go_on(&saved.0, Source { games, place }, &chosen.device)?;
        Ok(run.map(|run| Self { run, device: chosen.info }))
    }

    /// Which of the workers that share the run this is, from 0: the first one leads.
    pub fn rank(&self) -> usize {
        self.run.team().rank()
    }

    /// What all workers that share the run do next: what the first of them says, a number of the caller's own.
    pub fn next(&self, say: u8) -> Result<u8, JsError> {
        Ok(self.run.team().broadcast(&[say])?[0])
    }

    /// All that the run needs to go on.
    pub async fn save(&self) -> Result<Saved, JsError> {
        Ok(Saved(self.run.snapshot().await?))
    }

    /// Iterations done, and those of the whole run.
    pub fn progress(&self) -> Vec<u32> {
        vec![self.run.iteration(), self.run.schedule().iterations]
    }

    /// One iteration; gives its record as JSON, a line of `metrics.jsonl`, with an evaluation where one
    /// is due.
    pub async fn iterate(&mut self) -> Result<String, JsError> {
        let all = self.run.schedule().iterations;
        if self.run.iteration() >= all {
            return Err(JsError::new(&format!("this run has done all its {all} iterations")));
        }
        let record = self.run.iterate().await?;
        Ok(serde_json::to_string(&record)?)
    }

    /// From now on, [`Training::draw`] shows so many games on a canvas, as large as that is: on WebGPU, where
    /// they are played by [`Training::step`], too.
    pub fn show(&mut self, canvas: OffscreenCanvas, games: usize) -> Result<(), JsError> {
        self.run.show(canvas, games.clamp(1, MOST_SHOWN))
    }

    /// Plays a step of the games that are shown, by the policy as it is. It waits for nothing.
    pub fn step(&mut self) -> Result<(), JsError> {
        self.run.step()
    }

    /// Draws the games that are shown, where `part` of the motion of their last step, from 0 to 1, has been
    /// made. It waits for nothing.
    pub fn draw(&mut self, part: f32) -> Result<(), JsError> {
        self.run.draw(part)
    }

    /// The policy as it is, as a file.
    pub async fn policy(&self) -> Vec<u8> {
        self.run.policy().await
    }

    /// All settings, as TOML.
    pub fn settings(&self) -> String {
        self.run.settings()
    }

    /// The device, its interface and the way taken, as JSON.
    pub fn about(&self) -> Result<String, JsError> {
        let about = About {
            device: self.device.description.clone(),
            api: self.device.api.clone(),
            way: self.run.describe(),
            software: self.device.software,
            members: self.run.team().size(),
            version: env!("CARGO_PKG_VERSION"),
        };
        Ok(serde_json::to_string(&about)?)
    }
}
