//! Environments: games whose rules are written once for every device.
//!
//! A game is a small plain struct of parameters ([`Fruit`], [`Catch`], [`CartPole`],
//! [`Breakout`], [`Recall`], or your own) with two traits: [`Env`] says what the host needs to know about it, and [`Rules`] holds the
//! rules as `#[cube]` functions over plain scalars. CubeCL keeps the original Rust function beside
//! its GPU expansion, so the same source runs natively and inside kernels.
//!
//! A rule sees no time and no generator. The caller hands it a key for every step
//! ([`crate::rng`]), and [`play()`] counts the steps, ends the episode and starts the next one.

pub mod bits;
mod catalog;
mod cells;
mod check;
mod episode;
pub mod look;
mod registry;
mod scripted;
mod state;
mod vec_env;

pub use catalog::{Catalog, Playable};
pub use cells::Cells;
pub use check::{CheckOptions, Checked, Finding, Subject, check};
pub use episode::{Episode, Played, advance, new_game, play, start_next};
pub use registry::*;
pub use scripted::Scripted;
#[doc(hidden)]
pub use state::{__all_words, __no_words, __place, __words_of};
pub use state::{Bits, Field, MAX_WORDS, PackedState};
pub use vec_env::{EnvError, VecEnv};

use burn::cubecl;
#[doc(hidden)]
pub use burn::cubecl as __cubecl;
use burn::cubecl::prelude::*;
use std::fmt::Debug;
use std::hash::Hash;

/// What the host knows of a game: its name, sizes, names and reference scores.
///
/// The struct that implements it *is* the game's parameters; kernels take it as a compile-time
/// value, hence the bounds.
pub trait Env: Copy + Eq + Hash + Debug + Send + Sync + 'static {
    /// The name used on the command line and in checkpoints.
    const NAME: &'static str;

    /// Parameters for which native code is compiled with their numbers in it, as kernels always are:
    /// worth it where rules divide by parameters or loop over them.
    const COMMON: Option<Self> = None;

    /// Whether [`Outcome::score`] equals [`Outcome::reward`] in every step. Fused rollouts then add
    /// scores up from rewards, and need not write them down. Saying so of a game where it does not
    /// hold makes the reported scores wrong.
    const SCORE_IS_REWARD: bool = false;

    /// Whether [`Rules::legal`] is asked: whether there are states in which not every action may be
    /// taken. Such a game has at most [`MAX_MASKED_ACTIONS`] actions.
    const MASKED: bool = false;

    /// Whether it can be played. What stands in for a game where only data are learnt from cannot.
    const PLAYABLE: bool = true;

    /// The settings that train the game with these parameters well: pieces of TOML, each laid over those
    /// before, the first over the general defaults ([`crate::config`]).
    fn defaults(&self) -> &'static [&'static str] {
        &[]
    }

    /// Players that follow a plan of their own, to learn from (`grove demo`).
    fn players(&self) -> Vec<Scripted> {
        Vec::new()
    }

    /// Features of an observation, each scaled to about [-1, 1].
    fn num_features(&self) -> usize;

    /// Actions are `0..num_actions`.
    fn num_actions(&self) -> usize;

    /// Words of a packed state that are in use with these parameters: the first ones, all others being
    /// 0. Devices then keep those alone. All are in use where nothing else is said.
    fn used_words(&self) -> usize {
        MAX_WORDS
    }

    /// The step at which an episode is truncated at the latest.
    fn max_steps(&self) -> u32;

    /// Checks the parameters.
    ///
    /// # Errors
    /// One sentence that names the parameter, its value and its range.
    fn validate(&self) -> Result<(), String>;

    /// Mean scores of known players for these parameters, as `(player, score)`, worst first. Empty
    /// where none are known.
    fn references(&self) -> &'static [(&'static str, f64)] {
        &[]
    }

    /// What feature `i` is, in a few words for people.
    fn feature_name(&self, i: usize) -> String {
        format!("feature {i}")
    }

    /// What action `a` does, in a few words for people.
    fn action_name(&self, a: usize) -> String {
        format!("action {a}")
    }
}

/// The most actions of a game some of whose actions are illegal at times: a bit of a word each.
pub const MAX_MASKED_ACTIONS: usize = 32;

/// What one step gave.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct Outcome {
    /// What is learnt from.
    pub reward: f32,
    /// What is reported: an episode's score is the sum over its steps.
    pub score: f32,
    /// Whether the game came to an end of its own (termination, not truncation).
    pub terminated: bool,
}

/// The rules of a game, in functions that run natively and in kernels: `#[cube] impl Rules for ...`
/// writes both.
///
/// Keep to scalars, [`Cells`] for arrays, and `if`; no products of `u32` that may overflow
/// ([`crate::rng::wrapping_mul()`]), `x as f32` for conversions. The number `i` of a feature and the
/// `game` are known when a kernel is compiled.
///
/// Natively, the CPU's vector units play many games side by side where all that a step calls is
/// `#[inline(always)]`, and has no loop whose length the compiler cannot know; else it is one game
/// after the other, with the same results.
//
// What `#[cube]` would make of this trait, written out: it knows no functions with a default.
#[allow(missing_docs)]
pub trait Rules: Env {
    /// A game's state: [`packed_state!`](crate::packed_state) declares it, and how it is packed.
    type State: PackedState;

    /// Puts the start of the level that `key` names in place of `state`; every draw of it comes
    /// from `key`.
    fn reset(state: &mut Self::State, key: u32, game: Self);

    /// Plays one step; every draw of the step comes from `key`.
    fn step(state: &mut Self::State, action: u32, key: u32, game: Self) -> Outcome;

    /// Feature `i` of the observation, for `i < num_features`.
    fn feature(state: &Self::State, i: usize, game: Self) -> f32;

    /// Whether `action` may be taken; of every state's actions at least one may. It is asked where
    /// [`Env::MASKED`] says so. No rollout takes an action that may not be taken, and no learner gives it
    /// a probability.
    fn legal(_state: &Self::State, _action: usize, _game: Self) -> bool {
        true
    }

    #[doc(hidden)]
    fn __expand_reset(
        scope: &Scope,
        state: &mut Expanded<Self::State>,
        key: Expanded<u32>,
        game: Self,
    );

    #[doc(hidden)]
    fn __expand_step(
        scope: &Scope,
        state: &mut Expanded<Self::State>,
        action: Expanded<u32>,
        key: Expanded<u32>,
        game: Self,
    ) -> Expanded<Outcome>;

    #[doc(hidden)]
    fn __expand_feature(
        scope: &Scope,
        state: &Expanded<Self::State>,
        i: usize,
        game: Self,
    ) -> Expanded<f32>;

    #[doc(hidden)]
    fn __expand_legal(
        scope: &Scope,
        _state: &Expanded<Self::State>,
        _action: usize,
        _game: Self,
    ) -> Expanded<bool> {
        always::expand(scope)
    }
}

/// Words of a packed state of `game` that are in use ([`Env::used_words`]).
pub fn num_words<G: Rules>(game: G) -> usize {
    G::State::WORDS.min(game.used_words())
}

/// What a type is within a kernel.
type Expanded<T> = <T as CubeType>::ExpandType;

#[cube]
fn always() -> bool {
    true.runtime()
}
