//! The one list of Grove's own games, from which the program, the page, the defaults and the tests
//! take theirs.
//!
//! A game is a folder: its rules, its look, and `defaults.toml`, the settings that train it well. To add
//! one, declare the folder here and put its struct in [`for_each_game!`](crate::for_each_game).

// A game's folder says `super::Env`: what `env` has is at hand here.
use super::*;

#[path = "breakout/mod.rs"]
mod breakout;
#[path = "cartpole/mod.rs"]
mod cartpole;
#[path = "catch/mod.rs"]
mod catch;
#[path = "fruit/mod.rs"]
mod fruit;
#[path = "recall/mod.rs"]
mod recall;

pub use breakout::{Breakout, BreakoutActions, BreakoutObservation, BreakoutState};
pub use cartpole::{CartPole, CartPoleState};
pub use catch::{Catch, CatchState, Observation};
pub use fruit::{Fruit, FruitObservation, FruitState};
pub use recall::{Recall, RecallState};

/// Hands the structs of Grove's own games, all in [`grove::env`](crate::env), to a macro:
/// `for_each_game!(list, before)` is `list!(before, Fruit, Catch, ...)`. The first is the game that the
/// program takes where none is named.
#[macro_export]
macro_rules! for_each_game {
    ($callback:ident $(, $before:tt)*) => {
        $callback! { $($before,)* Fruit, Catch, CartPole, Breakout, Recall }
    };
}

/// The names of the games, and what of them does not depend on their types.
macro_rules! registry {
    ($($Game:ident),*) => {
        /// The names of Grove's own games.
        pub const NAMES: &[&str] = &[$(<$Game as Env>::NAME),*];

        /// The settings that train the game of this name well as it is by default, [`Env::defaults`];
        /// none for a game of somebody else's.
        pub fn defaults(name: &str) -> &'static [&'static str] {
            match name {
                $(<$Game as Env>::NAME => <$Game>::default().defaults(),)*
                _ => &[],
            }
        }
    };
}
for_each_game!(registry);
