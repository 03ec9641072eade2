//! Environments: games whose rules are written once and run on every device.
//!
//! A game is a small struct of parameters ([`Fruit`], [`Catch`], [`CartPole`], [`Breakout`],
//! [`Recall`], or a user's own) that implements two traits. [`Env`] gives the host sizes, names and
//! defaults; [`Rules`] holds the rules as `#[cube]` functions over scalars. CubeCL keeps the
//! original Rust function beside its GPU expansion, so the same source runs natively and in
//! kernels.
//!
//! Rules have access to neither time nor a generator. The caller passes a random key to every step
//! ([`crate::rng`]); [`step_with_auto_reset()`] counts steps, ends episodes and starts the next
//! one.

pub mod bits;
mod catalog;
mod cells;
mod check;
mod episode;
mod host;
pub mod look;
mod registry;
mod scripted;
mod state;

pub use catalog::{Catalog, ConfigurableGame};
pub use cells::Cells;
pub use check::{Aspect, CheckOptions, CheckReport, Finding, check};
pub use episode::{
    Episode, StepResult, initial_state, next_level, start_next_level, step_episode,
    step_with_auto_reset,
};
pub use host::{
    HostEnv, HostEnvError, HostEnvs, HostGame, HostState, HostStepResult, HostVecEnv, ThreadedEnvs,
};
pub(crate) use host::{MAX_STEP_REWARD, impl_placeholder_rules};
pub use registry::*;
pub use scripted::ScriptedPlayer;
#[doc(hidden)]
pub use state::{__finish_words, __num_words, __place_field};
pub use state::{Bits, Field, MAX_WORDS, PackedState};

use crate::schema::{Setting, Settings};
use burn::cubecl;
#[doc(hidden)]
pub use burn::cubecl as __cubecl;
use burn::cubecl::prelude::*;
use state::KernelForm;
use std::fmt::Debug;
use std::hash::Hash;

/// Description of a game: name, sizes, defaults and reference scores. The game itself, with `reset` and `step`, is
/// [`Rules`]; an environment in plain Rust, such as one in the style of Gymnasium, is a [`HostEnv`] instead.
///
/// The implementing struct is the game's parameters. Kernels take it as a compile-time value, which
/// explains the trait bounds.
pub trait Env: Copy + Eq + Hash + Debug + Send + Sync + 'static {
    /// Name on the command line, in settings and in checkpoints: ASCII letters, digits, `-` and `_`, a letter first.
    const NAME: &'static str;

    /// Parameters for which native code is specialized at compile time, as kernels always are.
    /// Worth setting if the rules divide by parameters or loop over them.
    const COMMON_PARAMETERS: Option<Self> = None;

    /// Whether [`Outcome::score`] equals [`Outcome::reward`] in every step. Fused rollouts then sum
    /// rewards and do not store scores. Setting it for a game in which they differ makes reported
    /// scores wrong.
    const SCORE_IS_REWARD: bool = false;

    /// Whether some states have illegal actions, so that [`Rules::is_legal`] is consulted. Such a game
    /// has at most [`MAX_MASKED_ACTIONS`] actions.
    const HAS_ILLEGAL_ACTIONS: bool = false;

    /// Whether the game can be played. False for a placeholder that only describes the features and
    /// actions of a dataset, or of environments on the host.
    const IS_PLAYABLE: bool = true;

    /// Default training settings for these parameters: TOML fragments applied in order on top of
    /// the general defaults ([`mod@crate::settings`]).
    fn training_defaults(&self) -> &'static [&'static str] {
        &[]
    }

    /// Declarations of the parameters, for listings and editors; empty if they are not declared.
    fn settings() -> &'static [Setting] {
        &[]
    }

    /// Scripted players that can record demonstrations (`grove demo`).
    fn players(&self) -> Vec<ScriptedPlayer> {
        Vec::new()
    }

    /// Number of observation features, each scaled to about [-1, 1].
    fn num_features(&self) -> usize;

    /// Number of actions; actions are `0..num_actions`.
    fn num_actions(&self) -> usize;

    /// Number of leading state words in use with these parameters; the others are always 0 and are
    /// not stored on devices. Defaults to all.
    fn used_words(&self) -> usize {
        MAX_WORDS
    }

    /// Maximum length of an episode in steps; longer episodes are truncated.
    fn max_steps(&self) -> u32;

    /// Validates the parameters.
    ///
    /// # Errors
    /// A sentence with the parameter, its value and its valid range.
    fn validate(&self) -> Result<(), String>;

    /// Mean scores of reference players for these parameters as `(player, score)`, worst first;
    /// empty if unknown.
    fn reference_scores(&self) -> &'static [(&'static str, f64)] {
        &[]
    }

    /// Human-readable name of feature `i`.
    fn feature_name(&self, i: usize) -> String {
        format!("feature {i}")
    }

    /// Human-readable name of action `a`.
    fn action_name(&self, a: usize) -> String {
        format!("action {a}")
    }

    /// Names of all features.
    fn feature_names(&self) -> Vec<String> {
        (0..self.num_features()).map(|i| self.feature_name(i)).collect()
    }

    /// Names of all actions.
    fn action_names(&self) -> Vec<String> {
        (0..self.num_actions()).map(|a| self.action_name(a)).collect()
    }
}

/// Validates the parameters and the sizes of a game.
///
/// # Errors
/// A sentence with the number that is out of range.
pub fn validate<G: Env>(game: &G) -> Result<(), String> {
    game.validate()?;
    validate_sizes(game)
}

/// Validates the sizes of a game with valid parameters.
fn validate_sizes<G: Env>(game: &G) -> Result<(), String> {
    let (features, actions, steps) = (game.num_features(), game.num_actions(), game.max_steps());
    if features == 0 || actions == 0 || steps == 0 {
        return Err(format!(
            "num_features is {features}, num_actions {actions} and max_steps {steps}, but each must be 1 or more"
        ));
    }
    if G::HAS_ILLEGAL_ACTIONS && actions > MAX_MASKED_ACTIONS {
        return Err(format!(
            "num_actions is {actions}, but a game with masks has at most {MAX_MASKED_ACTIONS}"
        ));
    }
    Ok(())
}

/// Draws a legal action by random bits, each equally likely; `None` if no action is legal.
pub fn draw_legal_action<G: Rules>(state: &G::State, bits: u32, game: G) -> Option<u32> {
    let actions = 0..game.num_actions() as u32;
    let mut legal = actions
        .filter(|action| !G::HAS_ILLEGAL_ACTIONS || G::is_legal(state, *action as usize, game));
    let count = legal.clone().count() as u64;
    legal.nth(((u64::from(bits) * count) >> 32) as usize)
}

/// Checks declared parameters against their ranges.
#[doc(hidden)]
pub fn check_ranges<G: Env + Settings>(game: &G) -> Result<(), String> {
    Settings::validate(game).map_err(|error| error.with_section(G::NAME).to_string())
}

/// Implements the functions of [`Env`](crate::env::Env) that follow from the declaration of the parameters by
/// [`settings!`](crate::schema::settings!).
#[macro_export]
macro_rules! impl_settings {
    () => {
        fn settings() -> &'static [$crate::schema::Setting] {
            <Self as $crate::schema::Settings>::SETTINGS
        }

        fn validate(&self) -> Result<(), String> {
            $crate::env::check_ranges(self)
        }
    };
}
pub use impl_settings;

/// Maximum number of actions of a game with illegal actions: a mask is one word, one bit per
/// action.
pub const MAX_MASKED_ACTIONS: usize = 32;

/// Result of one step of a game's rules.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct Outcome {
    /// The training signal.
    pub reward: f32,
    /// The reported metric; an episode's score is the sum over its steps.
    pub score: f32,
    /// Whether the game ended by its own rules (termination, as opposed to truncation).
    pub terminated: bool,
}

/// The rules of a game as functions that run natively and in kernels; `#[cube] impl Rules for ...`
/// generates both forms.
///
/// Use scalars, [`Cells`] for arrays, and `if`. Use [`crate::rng::wrapping_mul()`] for `u32`
/// products that may overflow and `x as f32` for conversions. Feature index `i` and `game` are
/// compile-time values in kernels.
///
/// The CPU steps many games at once in SIMD lanes if everything that a step calls is
/// `#[inline(always)]` and has no loop of unknown length. Otherwise it steps one game after
/// another, with the same results.
// Written out, because `#[cube]` does not support default methods in traits.
#[allow(missing_docs)]
pub trait Rules: Env {
    /// Packed state of a game, declared by [`packed_state!`](crate::packed_state).
    type State: PackedState;

    /// Overwrites `state` with the start of a level. All randomness derives from `key`.
    fn reset(state: &mut Self::State, key: u32, game: Self);

    /// Plays one step. All randomness derives from `key`.
    fn step(state: &mut Self::State, action: u32, key: u32, game: Self) -> Outcome;

    /// Returns observation feature `i`, for `i < num_features`.
    fn feature(state: &Self::State, i: usize, game: Self) -> f32;

    /// Whether `action` is legal. At least one action must be legal in every state. Only consulted
    /// if [`Env::HAS_ILLEGAL_ACTIONS`]. Rollouts never take an illegal action, and learners assign it
    /// probability 0.
    fn is_legal(_state: &Self::State, _action: usize, _game: Self) -> bool {
        true
    }

    #[doc(hidden)]
    fn __expand_reset(
        scope: &Scope,
        state: &mut KernelForm<Self::State>,
        key: KernelForm<u32>,
        game: Self,
    );

    #[doc(hidden)]
    fn __expand_step(
        scope: &Scope,
        state: &mut KernelForm<Self::State>,
        action: KernelForm<u32>,
        key: KernelForm<u32>,
        game: Self,
    ) -> KernelForm<Outcome>;

    #[doc(hidden)]
    fn __expand_feature(
        scope: &Scope,
        state: &KernelForm<Self::State>,
        i: usize,
        game: Self,
    ) -> KernelForm<f32>;

    #[doc(hidden)]
    fn __expand_is_legal(
        scope: &Scope,
        _state: &KernelForm<Self::State>,
        _action: usize,
        _game: Self,
    ) -> KernelForm<bool> {
        runtime_true::expand(scope)
    }
}

/// Number of words of a packed state in use by `game` ([`Env::used_words`]).
pub fn num_words<G: Rules>(game: G) -> usize {
    G::State::WORDS.min(game.used_words())
}

#[cube]
fn runtime_true() -> bool {
    true.runtime()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::draw;

    #[test]
    fn any_of_many_actions_is_taken_at_random() {
        let game = HostGame { num_actions: 300, ..HostGame::default() };
        let state = initial_state::<HostGame>(1, game);
        let mut taken = [0; 300];
        for i in 0..30_000 {
            taken[draw_legal_action(&state, draw(5, i), game).unwrap() as usize] += 1;
        }
        assert!(taken.iter().all(|count| (50..150).contains(count)), "{taken:?}");
        assert_eq!(draw_legal_action(&state, u32::MAX, game), Some(299));
    }
}
