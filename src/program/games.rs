//! The games and models of a program, type-erased.

use super::models::Models;
use super::record::{self, Scene};
use super::table::Table;
use super::{
    BenchArgs, CheckArgs, DemoArgs, EvalArgs, RecordArgs, RunArgs, SettingsArgs, bench, check,
    demo, eval, settings, train,
};
use crate::checkpoint::Checkpoint;
pub use crate::env::Playable;
use crate::env::look::Look;
use crate::env::{Catalog, Env};
use crate::model::NamedModel;
use crate::run::RunFolder;
use crate::settings::{TrainConfig, overlay};
use anyhow::{Context, Result, bail};
use std::sync::Arc;

/// Mean scores of reference players, lowest first.
pub type References = &'static [(&'static str, f64)];

/// The commands for one game, with its type erased. Each method calls the generic function in that
/// command's file.
pub trait Entry: Send + Sync {
    /// Trains a new run.
    fn train(&self, games: &Games, start: &train::Start) -> Result<()>;
    /// Resumes a run from a checkpoint.
    fn resume(
        &self,
        games: &Games,
        args: &RunArgs,
        folder: &RunFolder,
        from: &Checkpoint,
    ) -> Result<()>;
    /// Records demonstrations of a player as a dataset.
    fn demo(&self, models: &Models, args: &DemoArgs) -> Result<()>;
    /// Evaluates a trained policy.
    fn eval(&self, models: &Models, args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()>;
    /// Renders games of a trained policy.
    fn record(&self, models: &Models, args: &RecordArgs, checkpoint: &Checkpoint) -> Result<()>;
    /// Measures the speed of a device.
    fn bench(&self, models: &Models, args: &BenchArgs) -> Result<()>;
    /// Lists the settings of a run.
    fn settings(&self, args: &SettingsArgs) -> Result<()>;
    /// Checks the game for mistakes.
    fn check(&self, args: &CheckArgs) -> Result<()>;
    /// Reference scores for the game's parameters in `settings`.
    fn references(&self, settings: toml::Table) -> Result<References>;
}

/// A game, with the function that creates its scene.
struct Known<G: Playable> {
    scene: fn(G) -> Scene<G>,
}

impl<G: Playable> Entry for Known<G> {
    fn train(&self, games: &Games, start: &train::Start) -> Result<()> {
        train::start::<G>(games, start)
    }

    fn resume(
        &self,
        games: &Games,
        args: &RunArgs,
        folder: &RunFolder,
        from: &Checkpoint,
    ) -> Result<()> {
        train::resume::<G>(games, args, folder, from)
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

    fn references(&self, settings: toml::Table) -> Result<References> {
        let (game, _): (G, TrainConfig) = overlay::split(settings, G::NAME)?;
        Ok(game.references())
    }
}

/// The placeholder game of datasets that were imported from a table.
static TABLE: Known<Table> = Known { scene: Scene::<Table>::features };

/// The games of a program, in order, and its user-defined models. Cloning is cheap: clones share the games.
#[derive(Clone)]
pub struct Games {
    entries: Arc<Catalog<dyn Entry>>,
    models: Models,
}

impl Games {
    /// The built-in games.
    pub fn builtin() -> Self {
        macro_rules! drawn {
            ($($Game:ident),*) => {{
                let mut games = Catalog::<dyn Entry>::default();
                $(games.add::<crate::env::$Game>(Box::new(Known {
                    scene: Scene::<crate::env::$Game>::drawn,
                }));)*
                Self { entries: Arc::new(games), models: Models::default() }
            }};
        }
        crate::for_each_game!(drawn)
    }

    /// Removes the built-in games.
    pub fn without_builtin(self) -> Self {
        self.changed(|games| games.remove(crate::env::NAMES))
    }

    /// Adds a game whose features are drawn as bars.
    pub fn with<G: Playable>(self) -> Self {
        self.with_entry(Known { scene: Scene::<G>::features })
    }

    /// Adds a game that has sprites.
    pub fn with_look<G: Playable + Look>(self) -> Self {
        self.with_entry(Known { scene: Scene::<G>::drawn })
    }

    /// Adds a game, or replaces the one of the same name.
    fn with_entry<G: Playable>(self, game: Known<G>) -> Self {
        self.changed(|games| games.add::<G>(Box::new(game)))
    }

    /// Adds a user-defined model.
    pub fn with_model<M: NamedModel>(self) -> Self {
        Self { models: self.models.with::<M>(), ..self }
    }

    fn changed(self, change: impl FnOnce(&mut Catalog<dyn Entry>)) -> Self {
        let games = Arc::into_inner(self.entries);
        let mut games = games.expect("games are not shared before the program runs");
        change(&mut games);
        Self { entries: Arc::new(games), ..self }
    }

    /// The user-defined models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// The names of the games, comma-separated: `fruit, catch, cartpole`.
    pub fn names(&self) -> String {
        self.entries.names()
    }

    /// Finds a game by name.
    ///
    /// # Errors
    /// If there is no such game, with all names, or if `name` is the placeholder of a table.
    pub fn find(&self, name: &str) -> Result<&dyn Entry> {
        let found = self.entries.find(name);
        if found.is_none() && name == Table::NAME {
            bail!(
                "a labelled table is not a game: it can be learnt by `grove fit`, but not played"
            );
        }
        found.with_context(|| format!("unknown game `{name}`; must be one of: {}", self.names()))
    }

    /// Finds the game of a dataset by name, including the placeholder of a table.
    pub fn source(&self, name: &str) -> Result<&dyn Entry> {
        match self.find(name) {
            Err(_) if name == Table::NAME => Ok(&TABLE),
            found => found,
        }
    }

    /// The name of the default game: the first.
    pub fn default_name(&self) -> Result<&'static str> {
        self.entries.first().context("this program has no game")
    }
}
