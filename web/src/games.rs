//! The games of a page, without their types, and the macro that makes a page of them.

use grove::env::Rules;
use grove::env::look::Look;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// A game with all that a page asks of it: its parameters have defaults, and are read from settings and
/// written to them. Whatever has that is one.
pub trait Playable: Rules + Default + Serialize + DeserializeOwned {}
impl<G: Rules + Default + Serialize + DeserializeOwned> Playable for G {}

/// A game of the page, and how it is shown and drawn.
pub struct Known<G: Playable> {
    #[cfg(any(clippy, not(feature = "train")))]
    pub(crate) watch: crate::kind::Words<G>,
    #[cfg(feature = "train")]
    pub(crate) wall: crate::wall::Open<G>,
}

// A look is known by functions alone, whatever the game.
impl<G: Playable> Clone for Known<G> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<G: Playable> Copy for Known<G> {}

/// What the page does with a game, without its type.
pub trait Entry: Send + Sync {
    /// The game's name in settings and checkpoints.
    fn name(&self) -> &'static str;
    /// The game with its usual parameters.
    #[cfg(any(clippy, not(feature = "train")))]
    fn usual(&self) -> std::rc::Rc<dyn crate::kind::Kind>;
    /// What a policy file holds.
    #[cfg(any(clippy, not(feature = "train")))]
    fn load(&self, checkpoint: &grove::checkpoint::Checkpoint) -> crate::kind::Loaded;
    /// A run at its start.
    #[cfg(feature = "train")]
    fn begin(
        &self,
        asked: &str,
        source: crate::train::Source,
        device: &burn::tensor::Device,
    ) -> crate::train::Begun;
    /// A run that goes on from a checkpoint.
    #[cfg(feature = "train")]
    fn go_on(
        &self,
        from: &grove::checkpoint::Checkpoint,
        source: crate::train::Source,
        device: &burn::tensor::Device,
    ) -> crate::train::Begun;
}

impl<G: Playable> Entry for Known<G> {
    fn name(&self) -> &'static str {
        G::NAME
    }

    #[cfg(any(clippy, not(feature = "train")))]
    fn usual(&self) -> std::rc::Rc<dyn crate::kind::Kind> {
        crate::kind::of(*self, G::default())
    }

    #[cfg(any(clippy, not(feature = "train")))]
    fn load(&self, checkpoint: &grove::checkpoint::Checkpoint) -> crate::kind::Loaded {
        crate::kind::load(*self, checkpoint)
    }

    #[cfg(feature = "train")]
    fn begin(
        &self,
        asked: &str,
        source: crate::train::Source,
        device: &burn::tensor::Device,
    ) -> crate::train::Begun {
        crate::train::begin(*self, asked, source, device)
    }

    #[cfg(feature = "train")]
    fn go_on(
        &self,
        from: &grove::checkpoint::Checkpoint,
        source: crate::train::Source,
        device: &burn::tensor::Device,
    ) -> crate::train::Begun {
        crate::train::go_on(*self, from, source, device)
    }
}

/// The type of a game, from which [`Drawn`] makes an entry if the game has a look, and else [`Bare`].
pub struct Of<G>(PhantomData<G>);

impl<G> Of<G> {
    /// Of this game.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

/// An entry of a game that has a look.
pub trait Drawn {
    /// The entry.
    fn entry(&self) -> Box<dyn Entry>;
}

/// An entry of a game that has none: its features are drawn. A call finds [`Drawn`] first, which is one
/// reference nearer.
pub trait Bare {
    /// The entry.
    fn entry(&self) -> Box<dyn Entry>;
}

impl<G: Playable + Look> Drawn for Of<G> {
    fn entry(&self) -> Box<dyn Entry> {
        Box::new(Known::<G> {
            #[cfg(any(clippy, not(feature = "train")))]
            watch: crate::kind::Words {
                scene: grove::viewer::Scene::drawn,
                title: G::title,
                rules: G::rules,
                idle: G::idle,
            },
            #[cfg(feature = "train")]
            wall: crate::wall::open,
        })
    }
}

impl<G: Playable> Bare for &Of<G> {
    fn entry(&self) -> Box<dyn Entry> {
        Box::new(Known::<G> {
            #[cfg(any(clippy, not(feature = "train")))]
            watch: crate::kind::Words {
                scene: grove::viewer::Scene::features,
                title: |_| G::NAME,
                rules: |_| "",
                idle: |_| None,
            },
            #[cfg(feature = "train")]
            wall: crate::wall::none,
        })
    }
}

static GAMES: OnceLock<Vec<Box<dyn Entry>>> = OnceLock::new();

/// The games of this page.
pub(crate) fn all() -> &'static [Box<dyn Entry>] {
    GAMES.get().map_or(&[], Vec::as_slice)
}

/// The game of this name.
pub(crate) fn find(name: &str) -> Option<&'static dyn Entry> {
    all().iter().find(|game| game.name() == name).map(AsRef::as_ref)
}

/// Their names, as a sentence has them.
pub(crate) fn names() -> String {
    all().iter().map(|game| game.name()).collect::<Vec<_>>().join(", ")
}

/// Grove's own games.
pub fn builtin() -> Vec<Box<dyn Entry>> {
    macro_rules! entries {
        ($($Game:ident),*) => { vec![$(Of::<grove::env::$Game>::new().entry()),*] };
    }
    grove::for_each_game!(entries)
}

/// Starts a page: what [`page!`](crate::page) calls. A game takes the place of one before it that has its
/// name.
pub fn open(games: Vec<Box<dyn Entry>>) {
    let mut kept: Vec<Box<dyn Entry>> = Vec::new();
    for game in games {
        kept.retain(|other| other.name() != game.name());
        kept.push(game);
    }
    // A module is started once.
    let _ = GAMES.set(kept);
}

/// Makes a page of a crate: `grove_web::page!(Corridor);` beside Grove's own games,
/// `grove_web::page!(only Corridor);` instead of them. A game that has a look
/// ([`Look`](grove::env::look::Look)) is drawn so, any other as its features.
#[macro_export]
macro_rules! page {
    (@ $games:expr, $($Game:ty),*) => {
        #[doc(hidden)]
        #[$crate::wasm_bindgen::prelude::wasm_bindgen(
            start, wasm_bindgen = $crate::wasm_bindgen
        )]
        pub fn start_page() {
            #[allow(unused_imports)]
            use $crate::games::{Bare as _, Drawn as _, Of};
            #[allow(unused_mut)]
            let mut games = $games;
            $(games.push((&Of::<$Game>::new()).entry());)*
            $crate::games::open(games);
        }
    };
    (only $($Game:ty),+ $(,)?) => {
        $crate::page!(@ ::std::vec::Vec::new(), $($Game),+);
    };
    ($($Game:ty),* $(,)?) => {
        $crate::page!(@ $crate::games::builtin(), $($Game),*);
    };
}
