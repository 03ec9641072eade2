//! Environments: games whose rules are written once for every device.
//!
//! A game is a small plain struct of parameters ([`Fruit`], [`Catch`], [`CartPole`],
//! [`Breakout`], [`Recall`], or your own)
//! with two traits: [`Env`] says what the host needs to know about it, and [`Rules`] holds the
//! rules as `#[cube]` functions over plain scalars. CubeCL keeps the original Rust function beside
//! its GPU expansion, so the same source runs natively and inside kernels.
//!
//! A rule sees no time and no generator. The caller hands it a key for every step
//! ([`crate::rng`]), and [`play()`] counts the steps, ends the episode and starts the next one.

pub mod bits;
mod check;
mod episode;
pub mod look;
mod registry;
mod vec_env;

pub use check::{CheckOptions, Finding, Subject, check};
pub use episode::{Episode, Played, advance, new_game, play, start_next};
pub use registry::*;
pub use vec_env::{EnvError, VecEnv};

use burn::cubecl;
use burn::cubecl::prelude::*;
use std::fmt::Debug;
use std::hash::Hash;

/// The most 32-bit words that a game's state may take.
pub const MAX_WORDS: usize = 8;

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
    /// The settings that train the game well, as TOML that is laid over the general defaults
    /// ([`crate::config`]).
    const DEFAULTS: &'static str = "";

    /// Features of an observation, each scaled to about [-1, 1].
    fn num_features(&self) -> usize;

    /// Actions are `0..num_actions`.
    fn num_actions(&self) -> usize;

    /// 32-bit words of a packed state, at most [`MAX_WORDS`].
    fn num_words(&self) -> usize;

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

/// A packed state: [`Env::num_words`] words, the rest zero.
#[derive(CubeType, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Words {
    pub w0: u32,
    pub w1: u32,
    pub w2: u32,
    pub w3: u32,
    pub w4: u32,
    pub w5: u32,
    pub w6: u32,
    pub w7: u32,
}

impl Words {
    /// Word `w`, for `w < MAX_WORDS`.
    pub fn word(&self, w: usize) -> u32 {
        let Words { w0, w1, w2, w3, w4, w5, w6, w7 } = *self;
        [w0, w1, w2, w3, w4, w5, w6, w7][w]
    }

    /// Word `w` is `word(w)` for `w < num_words`, and zero beyond.
    pub(crate) fn gather(num_words: usize, word: impl Fn(usize) -> u32) -> Words {
        let at = |w: usize| if w < num_words { word(w) } else { 0 };
        Words {
            w0: at(0),
            w1: at(1),
            w2: at(2),
            w3: at(3),
            w4: at(4),
            w5: at(5),
            w6: at(6),
            w7: at(7),
        }
    }
}

#[cube]
impl Words {
    /// All words zero.
    pub fn zero() -> Words {
        Words {
            w0: 0u32.runtime(),
            w1: 0u32.runtime(),
            w2: 0u32.runtime(),
            w3: 0u32.runtime(),
            w4: 0u32.runtime(),
            w5: 0u32.runtime(),
            w6: 0u32.runtime(),
            w7: 0u32.runtime(),
        }
    }
}

/// The rules of a game, in functions that run natively and in kernels: `#[cube] impl Rules for ...`
/// writes both.
///
/// Keep to scalars and `if`; no arrays, no products of `u32` that may overflow
/// ([`crate::rng::wrapping_mul()`]), `x as f32` for conversions. The word index `i` and the `game` are
/// known when a kernel is compiled.
///
/// Natively, the CPU's vector units play many games side by side where all that a step calls is
/// `#[inline(always)]`, and has no loop whose length the compiler cannot know; else it is one game
/// after the other, with the same results.
//
// What `#[cube]` would make of this trait, written out: it knows no functions with a default.
#[allow(missing_docs)]
pub trait Rules: Env {
    /// A game's state, a struct of scalars.
    type State: CubeType + Copy + Debug + Send + Sync;

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

    /// The state as words.
    fn pack(state: &Self::State, game: Self) -> Words;

    /// The state that [`Rules::pack`] gave these words.
    fn unpack(words: &Words, game: Self) -> Self::State;

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

    #[doc(hidden)]
    fn __expand_pack(scope: &Scope, state: &Expanded<Self::State>, game: Self) -> Expanded<Words>;

    #[doc(hidden)]
    fn __expand_unpack(scope: &Scope, words: &Expanded<Words>, game: Self)
    -> Expanded<Self::State>;
}

/// What a type is within a kernel.
type Expanded<T> = <T as CubeType>::ExpandType;

#[cube]
fn always() -> bool {
    true.runtime()
}
