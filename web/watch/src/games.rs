//! The games of a page, without their types.

use crate::kind::{Game, Kind, Loaded, Words};
use grove::checkpoint::Checkpoint;
use grove::env::look::Look;
use grove::env::{Catalog, ConfigurableGame};
use grove::viewer::Scene;
use std::rc::Rc;
use std::sync::OnceLock;

/// The operations of a page on a game, without its type.
pub trait Entry: Send + Sync {
    /// The game with its default parameters.
    fn default_game(&self) -> Rc<dyn Kind>;
    /// The policy in a checkpoint, with its game and settings.
    fn load(&self, checkpoint: &Checkpoint) -> Loaded;
}

impl<G: ConfigurableGame> Entry for Words<G> {
    fn default_game(&self) -> Rc<dyn Kind> {
        Game::shared(*self, G::default())
    }

    fn load(&self, checkpoint: &Checkpoint) -> Loaded {
        Game::load(*self, checkpoint)
    }
}

static GAMES: OnceLock<Catalog<dyn Entry>> = OnceLock::new();

/// The games of this page; none before it is opened.
pub fn all() -> &'static Catalog<dyn Entry> {
    GAMES.get_or_init(Catalog::default)
}

/// The games that a page shows.
#[derive(Default)]
pub struct Page(Catalog<dyn Entry>);

impl Page {
    /// A page with Grove's built-in games.
    pub fn builtin() -> Self {
        macro_rules! with_all {
            ($($Game:ident),*) => { Self::default()$(.game_with_look::<grove::env::$Game>())* };
        }
        grove::for_each_game!(with_all)
    }

    /// Adds a game, drawn as its features, in place of a game of the same name.
    pub fn game<G: ConfigurableGame>(mut self) -> Self {
        self.0.add::<G>(Box::new(Words::<G> {
            scene: Scene::with_bars,
            title: G::NAME,
            rules: "",
            training_time: None,
            idle_action: None,
        }));
        self
    }

    /// Adds a game that has a look, in place of a game of the same name.
    pub fn game_with_look<G: ConfigurableGame + Look>(mut self) -> Self {
        self.0.add::<G>(Box::new(Words::<G> {
            scene: Scene::with_look,
            title: G::TITLE,
            rules: G::RULES_TEXT,
            training_time: G::TRAINING_TIME,
            idle_action: G::IDLE_ACTION,
        }));
        self
    }

    /// Opens the page, once in the life of a module.
    pub fn open(self) {
        let opened = GAMES.set(self.0);
        assert!(opened.is_ok(), "a page is opened once");
    }
}
