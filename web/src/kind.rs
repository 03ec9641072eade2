//! A game with its parameters, whichever it is, and its words on the page.

use grove::config::{ConfigError, TrainConfig};
use grove::env::look::Setting;
use grove::env::{self, Env};

/// What there is for each game of the registry.
macro_rules! kinds {
    ($d:tt, $($Game:ident),*) => {
        /// A game with its parameters.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Kind {
            $(#[allow(missing_docs)] $Game(env::$Game),)*
        }

        $(
            impl From<env::$Game> for Kind {
                fn from(game: env::$Game) -> Self {
                    Self::$Game(game)
                }
            }
        )*

        impl Kind {
            /// All games, with their usual parameters.
            pub fn all() -> Vec<Self> {
                vec![$(Self::$Game(env::$Game::default())),*]
            }
        }

        /// Runs the same for whichever game it is.
        macro_rules! with_kind {
            ($d kind:expr, $d game:ident => $d run:expr) => {
                match $d kind {
                    $($crate::kind::Kind::$Game($d game) => $d run,)*
                }
            };
        }
        pub(crate) use with_kind;
    };
}
grove::for_each_game!(kinds, $);

impl Kind {
    /// The name in settings and checkpoints.
    pub fn name(&self) -> &'static str {
        fn name<G: Env>(_game: &G) -> &'static str {
            G::NAME
        }
        with_kind!(self, game => name(game))
    }

    /// The name for people.
    pub fn title(&self) -> &'static str {
        with_kind!(self, game => game.title())
    }

    /// The actions, in their order.
    pub fn actions(&self) -> Vec<String> {
        with_kind!(self, game => (0..game.num_actions()).map(|a| game.action_name(a)).collect())
    }

    /// What a person does who does nothing; none where something must be done.
    pub fn idle(&self) -> Option<u32> {
        with_kind!(self, game => game.idle())
    }

    /// What each number of an observation is.
    pub fn features(&self) -> Vec<String> {
        with_kind!(self, game => (0..game.num_features()).map(|i| game.feature_name(i)).collect())
    }

    /// Mean scores of known players, worst first.
    pub fn references(&self) -> &'static [(&'static str, f64)] {
        with_kind!(self, game => game.references())
    }

    /// The step at which an episode is truncated at the latest.
    pub fn max_steps(&self) -> u32 {
        with_kind!(self, game => game.max_steps())
    }

    /// The settings of a run of this game, as TOML.
    pub fn settings(&self, config: &TrainConfig) -> String {
        with_kind!(self, game => grove::trainer::config_toml(game, config))
    }

    /// Checks the game's parameters and a run's settings.
    ///
    /// # Errors
    /// One sentence.
    pub fn check(&self, config: &TrainConfig) -> Result<(), ConfigError> {
        with_kind!(self, game => game.validate()).map_err(ConfigError::OutOfRange)?;
        config.validate()
    }
}
