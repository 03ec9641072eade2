//! The games of a page, without their types.

use crate::session::{self, MaybeRun, Source};
use crate::wall::{self, Open};
use burn::tensor::Device;
use grove::checkpoint::Checkpoint;
use grove::env::look::Look;
use grove::env::{Catalog, ConfigurableGame};
use std::sync::OnceLock;
use wasm_bindgen::prelude::*;

/// The operations of a page on a game, without its type.
pub trait Entry: Send + Sync {
    /// Starts a run with these settings, TOML.
    fn start(&self, settings: &str, source: Source, device: &Device) -> MaybeRun;
    /// Resumes a run from a checkpoint.
    fn resume(&self, from: &Checkpoint, source: Source, device: &Device) -> MaybeRun;
}

/// A game, and the function that opens a wall of such games.
struct Known<G: ConfigurableGame>(Open<G>);

impl<G: ConfigurableGame> Entry for Known<G> {
    fn start(&self, settings: &str, source: Source, device: &Device) -> MaybeRun {
        session::start(self.0, settings, source, device)
    }

    fn resume(&self, from: &Checkpoint, source: Source, device: &Device) -> MaybeRun {
        session::resume(self.0, from, source, device)
    }
}

static GAMES: OnceLock<Catalog<dyn Entry>> = OnceLock::new();

/// The games of this page; none before it is opened.
pub fn all() -> &'static Catalog<dyn Entry> {
    GAMES.get_or_init(Catalog::default)
}

/// The games that a page trains.
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

    /// Adds a game that is not drawn while it is trained, in place of a game of the same name.
    pub fn game<G: ConfigurableGame>(mut self) -> Self {
        self.0.add::<G>(Box::new(Known::<G>(|_, _, _, _, _| {
            Err(JsError::new("a game without a look cannot be drawn while it is trained"))
        })));
        self
    }

    /// Adds a game that has a look, in place of a game of the same name.
    pub fn game_with_look<G: ConfigurableGame + Look>(mut self) -> Self {
        self.0.add::<G>(Box::new(Known::<G>(wall::open)));
        self
    }

    /// Opens the page, once in the life of a module.
    pub fn open(self) {
        grove_web_base::constructors();
        let opened = GAMES.set(self.0);
        assert!(opened.is_ok(), "a page is opened once");
    }
}
