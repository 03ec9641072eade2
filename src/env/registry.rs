//! The list of built-in games, used by the program, the page, the defaults and the tests.
//!
//! A game is a folder with its rules, its look and `defaults.toml`, its default training settings.
//! To add one, declare the folder here, re-export its types and add its struct to
//! [`for_each_game!`](crate::for_each_game).

// Imported here, since a game's `super` is this module.
use super::*;
use std::any::TypeId;

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
pub use catch::{Catch, CatchObservation, CatchState};
pub use fruit::{Fruit, FruitObservation, FruitState};
pub use recall::{Recall, RecallState};

/// Passes the structs of the built-in games, all in [`grove::env`](crate::env), to a macro:
/// `for_each_game!(list, before)` expands to `list!(before, Fruit, Catch, ...)`. The first one is
/// the default game of the program.
#[macro_export]
macro_rules! for_each_game {
    ($callback:ident $(, $before:tt)*) => {
        $callback! { $($before,)* Fruit, Catch, CartPole, Breakout, Recall }
    };
}

/// Defines the type-independent lookups over all built-in games.
macro_rules! registry {
    ($($Game:ident),*) => {
        /// Names of the built-in games.
        pub const NAMES: &[&str] = &[$(<$Game as Env>::NAME),*];

        /// Default training settings of the built-in game with this name and default parameters
        /// ([`Env::training_defaults`]); empty for a user-defined game.
        pub fn training_defaults(name: &str) -> &'static [&'static str] {
            match name {
                $(<$Game as Env>::NAME => <$Game>::default().training_defaults(),)*
                _ => &[],
            }
        }

        /// Whether a game is a built-in one, and not one of a user with the same name.
        pub(super) fn is_builtin<G: Env>() -> bool {
            [$(TypeId::of::<$Game>()),*].contains(&TypeId::of::<G>())
        }
    };
}
for_each_game!(registry);
