//! The games that a program has, whatever their types, and the models that may play them.

use super::models::Models;
use super::record::{self, Scene};
use super::run_dir::RunDir;
use super::table::Table;
use super::{
    BenchArgs, CheckArgs, DemoArgs, EvalArgs, RecordArgs, RunArgs, SettingsArgs, bench, check,
    demo, eval, settings, train,
};
use crate::checkpoint::Checkpoint;
use crate::config::{TrainConfig, overlay};
use crate::env::Rules;
use crate::env::look::Look;
use crate::model::NamedModel;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// A game with all that the command line asks of it: its parameters have defaults, and are read from
/// settings and written to them. Whatever has that is one.
pub trait Playable: Rules + Default + Serialize + DeserializeOwned {}
impl<G: Rules + Default + Serialize + DeserializeOwned> Playable for G {}

/// Mean scores of known players, worst first.
pub type References = &'static [(&'static str, f64)];

/// What the commands do with a game, without its type: each is the generic function of that command's
/// file.
pub trait Entry: Send + Sync {
    /// The game's name on the command line, in settings and in checkpoints.
    fn name(&self) -> &'static str;
    /// Trains a new run.
    fn train(&self, games: &Games, start: &train::Start) -> Result<()>;
    /// Goes on with a run from a checkpoint.
    fn resume(&self, games: &Games, args: &RunArgs, dir: &RunDir, from: &Checkpoint) -> Result<()>;
    /// Keeps what a player does as a dataset.
    fn demo(&self, models: &Models, args: &DemoArgs) -> Result<()>;
    /// Plays fresh episodes with a trained policy.
    fn eval(&self, models: &Models, args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()>;
    /// Makes a picture or an animation of a trained policy.
    fn record(&self, models: &Models, args: &RecordArgs, checkpoint: &Checkpoint) -> Result<()>;
    /// Measures how fast a device plays and trains.
    fn bench(&self, models: &Models, args: &BenchArgs) -> Result<()>;
    /// Lists the settings of a run.
    fn settings(&self, args: &SettingsArgs) -> Result<()>;
    /// Tells what is wrong with the game.
    fn check(&self, args: &CheckArgs) -> Result<()>;
    /// The scores to compare with, for the game's parameters in these settings.
    fn references(&self, settings: toml::Table) -> Result<References>;
}

/// A game of a program, and how it is drawn.
struct Known<G: Playable> {
    scene: fn(G) -> Scene<G>,
}

impl<G: Playable> Entry for Known<G> {
    fn name(&self) -> &'static str {
        G::NAME
    }

    fn train(&self, games: &Games, start: &train::Start) -> Result<()> {
        train::start::<G>(games, start)
    }

    fn resume(&self, games: &Games, args: &RunArgs, dir: &RunDir, from: &Checkpoint) -> Result<()> {
        train::resume::<G>(games, args, dir, from)
    }

    fn demo(&self, models: &Models, args: &DemoArgs) -> Result<()> {
        demo::demonstrate::<G>(models, args)
    }

    fn eval(&self, models: &Models, args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()> {
        eval::play::<G>(models, args, checkpoint)
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

    fn references(&self, settings: toml::Table) -> Result<References> {
        let (game, _): (G, TrainConfig) = overlay::split(settings, G::NAME)?;
        Ok(game.references())
    }
}

/// What stands in for the game of a table.
static TABLE: Known<Table> = Known { scene: Scene::<Table>::features };

/// The games of a program, in their order, and its models; shared with the threads that show a run.
#[derive(Clone)]
pub struct Games {
    entries: Arc<Vec<Box<dyn Entry>>>,
    models: Models,
}

impl Games {
    /// Grove's own.
    pub fn builtin() -> Self {
        macro_rules! drawn {
            ($($Game:ident),*) => {{
                let games: Vec<Box<dyn Entry>> =
                    vec![$(Box::new(Known { scene: Scene::<crate::env::$Game>::drawn })),*];
                Self { entries: Arc::new(games), models: Models::default() }
            }};
        }
        crate::for_each_game!(drawn)
    }

    /// Without Grove's own.
    pub fn without_builtin(self) -> Self {
        self.changed(|games| games.retain(|game| !crate::env::NAMES.contains(&game.name())))
    }

    /// With a game that is drawn as its features.
    pub fn with<G: Playable>(self) -> Self {
        self.and(Known { scene: Scene::<G>::features })
    }

    /// With a game that has a look.
    pub fn with_look<G: Playable + Look>(self) -> Self {
        self.and(Known { scene: Scene::<G>::drawn })
    }

    /// A game takes the place of one that has its name.
    fn and<G: Playable>(self, game: Known<G>) -> Self {
        self.changed(|games| {
            games.retain(|other| other.name() != G::NAME);
            games.push(Box::new(game));
        })
    }

    /// With a model.
    pub fn with_model<M: NamedModel>(self) -> Self {
        Self { models: self.models.with::<M>(), ..self }
    }

    fn changed(self, change: impl FnOnce(&mut Vec<Box<dyn Entry>>)) -> Self {
        let games = Arc::into_inner(self.entries);
        let mut games = games.expect("nobody shares the games before the program runs");
        change(&mut games);
        Self { entries: Arc::new(games), ..self }
    }

    /// The models besides Grove's own.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// Their names, as a sentence has them: `fruit, catch, cartpole`.
    pub fn names(&self) -> String {
        self.entries.iter().map(|game| game.name()).collect::<Vec<_>>().join(", ")
    }

    /// The game of this name.
    pub fn find(&self, name: &str) -> Result<&dyn Entry> {
        let found = self.entries.iter().find(|game| game.name() == name);
        if found.is_none() && name == TABLE.name() {
            bail!("the labels of a table are learnt (`grove fit`), and there is no game to play");
        }
        let found =
            found.with_context(|| format!("unknown game `{name}`; there are: {}", self.names()));
        Ok(found?.as_ref())
    }

    /// What is learnt from under this name: a game, or what stands in for one where data are.
    pub fn source(&self, name: &str) -> Result<&dyn Entry> {
        match self.find(name) {
            Err(_) if name == TABLE.name() => Ok(&TABLE),
            found => found,
        }
    }

    /// The name of the game that is meant where none is named: the first.
    pub fn usual(&self) -> Result<&'static str> {
        Ok(self.entries.first().context("this program has no game")?.name())
    }
}
