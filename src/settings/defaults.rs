//! Defaults of a run that trains a policy: general ones, with the game's own laid over them.

use super::overlay;
use super::{ConfigError, TrainConfig};
use crate::env::{self, Env};

/// Settings that imitation needs and reinforcement does not: TOML, laid over a game's defaults.
pub const IMITATION_DEFAULTS: &str = include_str!("imitation.toml");

impl TrainConfig {
    /// The defaults for Grove's own game of this name; the general ones for another.
    pub fn for_game(name: &str) -> Self {
        Self::with_defaults(name, env::training_defaults(name))
            .expect("a test reads the defaults of every game")
    }

    /// The defaults for a game, which brings its own ([`Env::training_defaults`]).
    ///
    /// # Errors
    /// If those are not valid TOML, or name a setting that does not exist.
    pub fn with_defaults_of<G: Env>(game: &G) -> Result<Self, ConfigError> {
        Self::with_defaults(G::NAME, game.training_defaults())
    }

    /// The general defaults with those of a game laid over them.
    fn with_defaults(game: &str, defaults: &[&str]) -> Result<Self, ConfigError> {
        let mut table = overlay::to_table(&Self::default());
        for piece in defaults {
            let changes = overlay::parse(&format!("the defaults of {game}"), piece)?;
            overlay::lay_over(&mut table, changes)?;
        }
        overlay::from_table(table)
    }
}
