//! Batches of built-in games.

use super::buffers::{slice, slice_mut};
use super::{check_memory, value_error};
use grove::env::{self, ConfigurableGame, Env, Rules};
use grove::rollout::{Autoreset, StepBuffers, VecEnv, VecEnvError};
use grove::settings::{ConfigError, TrainConfig, overlay::last_part};
use grove::trainer::new_settings;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::borrow::Cow;

/// A computation for a game of any type.
pub trait Visitor {
    /// The result.
    type Output;

    /// Computes the result for one type of game.
    fn visit<G: ConfigurableGame>(self) -> PyResult<Self::Output>;
}

macro_rules! by_name {
    ($($Game:ident),*) => {
        /// Visits the built-in game of this name.
        ///
        /// # Errors
        /// If there is no such game, and the visitor's errors.
        pub fn visit_game<V: Visitor>(name: &str, visitor: V) -> PyResult<V::Output> {
            match name {
                $(<env::$Game as Env>::NAME => visitor.visit::<env::$Game>(),)*
                _ => {
                    let known = env::NAMES.join(", ");
                    Err(value_error(format!("unknown game `{name}`; must be one of: {known}")))
                }
            }
        }
    };
}
grove::for_each_game!(by_name);

/// The game and the settings of a run, from a JSON object of changes to the defaults.
///
/// # Errors
/// If there is no such setting, or a value is out of range.
pub fn settings<G: ConfigurableGame>(changes: &str) -> PyResult<(G, TrainConfig)> {
    let changes: toml::Table = serde_json::from_str(changes).map_err(value_error)?;
    valid(new_settings::<G>(&changes, &[]).map_err(value_error)?)
}

/// The game with the parameters that a JSON object has in the game's section.
///
/// # Errors
/// If there is no such parameter, or a value is out of range.
fn game_with<G: ConfigurableGame>(changes: &str) -> PyResult<G> {
    let changes: toml::Table = serde_json::from_str(changes).map_err(value_error)?;
    let found = new_settings::<G>(&changes, &[]).map_err(|error| match error {
        ConfigError::UnknownKey { key, .. } => unknown_parameter::<G>(&key),
        error => value_error(error),
    });
    Ok(valid(found?)?.0)
}

/// A Python `ValueError` for a parameter that a game lacks. Unlike for a run, settings of training are not suggested.
fn unknown_parameter<G: ConfigurableGame>(key: &str) -> PyErr {
    let known: Vec<&str> = G::settings().iter().map(|setting| setting.key).collect();
    let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
    let key = last_part(key);
    let hint = if key == "seed" { "; give a seed to `reset`" } else { "" };
    value_error(format!("{} has no parameter `{key}`; its parameters: {known}{hint}", G::NAME))
}

/// Checks the ranges of settings.
fn valid<G: ConfigurableGame>((game, config): (G, TrainConfig)) -> PyResult<(G, TrainConfig)> {
    game.validate().map_err(value_error)?;
    config.validate().map_err(value_error)?;
    Ok((game, config))
}

/// A batch of games without their type.
trait AnyVecEnv: Send + Sync {
    fn reset(&mut self, seed: u64);
    fn reset_env(&mut self, env: usize, seed: u64, episode: u32);
    fn observe(&self, obs: &mut [f32]);
    fn write_legal_actions(&self, mask: &mut [u8]);
    fn step(&mut self, actions: &[i64], to: StepBuffers) -> Result<bool, VecEnvError>;
    fn copy(&self) -> Box<dyn AnyVecEnv>;
    fn export_state(&self) -> Vec<u32>;
    fn import_state(&mut self, words: &[u32]) -> Result<(), VecEnvError>;
}

impl<G: Rules<State: Send + Sync>> AnyVecEnv for VecEnv<G> {
    fn reset(&mut self, seed: u64) {
        self.reset(seed);
    }

    fn reset_env(&mut self, env: usize, seed: u64, episode: u32) {
        self.reset_env(env, seed, episode);
    }

    fn observe(&self, obs: &mut [f32]) {
        self.observe(obs);
    }

    fn write_legal_actions(&self, mask: &mut [u8]) {
        self.write_legal_actions(mask);
    }

    fn step(&mut self, actions: &[i64], to: StepBuffers) -> Result<bool, VecEnvError> {
        self.step(actions, to)
    }

    fn copy(&self) -> Box<dyn AnyVecEnv> {
        Box::new(self.clone())
    }

    fn export_state(&self) -> Vec<u32> {
        self.export_state()
    }

    fn import_state(&mut self, words: &[u32]) -> Result<(), VecEnvError> {
        self.import_state(words)
    }
}

/// The modes of autoreset by Gymnasium's names.
const AUTORESET_MODES: [(&str, Autoreset); 3] = [
    ("NextStep", Autoreset::NextStep),
    ("SameStep", Autoreset::SameStep),
    ("Disabled", Autoreset::Disabled),
];

/// The arguments of the constructor of [`Games`].
type Arguments = (String, usize, &'static str, u64, String);

/// A batch of a built-in game.
#[pyclass(module = "grove_rl._native")]
pub struct Games {
    batch: Box<dyn AnyVecEnv>,
    arguments: Arguments,
    #[pyo3(get)]
    num_envs: usize,
    #[pyo3(get)]
    num_features: usize,
    #[pyo3(get)]
    num_actions: usize,
    #[pyo3(get)]
    max_steps: u32,
    /// Whether some states have illegal actions.
    #[pyo3(get)]
    masked: bool,
    #[pyo3(get)]
    feature_names: Vec<String>,
    #[pyo3(get)]
    action_names: Vec<String>,
    /// Mean scores of reference players.
    #[pyo3(get)]
    references: Vec<(String, f64)>,
    keeps_final_obs: bool,
}

struct NewGames {
    arguments: Arguments,
    autoreset: Autoreset,
}

impl Visitor for NewGames {
    type Output = Games;

    fn visit<G: ConfigurableGame>(self) -> PyResult<Games> {
        let Self { arguments, autoreset } = self;
        let (_, num_envs, _, seed, changes) = &arguments;
        let (num_envs, seed) = (*num_envs, *seed);
        let game = game_with::<G>(changes)?;
        let (num_features, num_actions) = (game.num_features(), game.num_actions());
        // Python's half keeps the arrays of a step besides.
        let of_arrays = num_envs.saturating_mul(4 * num_features + 16);
        let bytes = VecEnv::<G>::max_bytes(num_envs).saturating_add(of_arrays);
        check_memory(
            bytes,
            format_args!("a batch of {num_envs} games of {}", G::NAME),
            "`num_envs`",
        )?;
        let references = game.reference_scores().iter();
        Ok(Games {
            batch: Box::new(VecEnv::new(game, num_envs, autoreset, seed)),
            num_envs,
            num_features,
            num_actions,
            max_steps: game.max_steps(),
            masked: G::HAS_ILLEGAL_ACTIONS,
            feature_names: game.feature_names(),
            action_names: game.action_names(),
            references: references.map(|(name, score)| (name.to_string(), *score)).collect(),
            keeps_final_obs: autoreset == Autoreset::SameStep,
            arguments,
        })
    }
}

/// Borrows the games to change them.
///
/// # Errors
/// If another thread is stepping them, which it does with the GIL released.
fn games_mut<'py>(games: &Bound<'py, Games>) -> PyResult<PyRefMut<'py, Games>> {
    games.try_borrow_mut().map_err(|_| being_stepped())
}

/// Borrows the games to read them.
///
/// # Errors
/// If another thread is stepping them.
fn games_ref<'py>(games: &Bound<'py, Games>) -> PyResult<PyRef<'py, Games>> {
    games.try_borrow().map_err(|_| being_stepped())
}

fn being_stepped() -> PyErr {
    PyRuntimeError::new_err(
        "another thread is stepping these environments: let one at a time use them, or make some for each thread",
    )
}

#[pymethods]
impl Games {
    #[new]
    fn new(
        name: &str,
        num_envs: usize,
        autoreset: &str,
        seed: u64,
        settings: &str,
    ) -> PyResult<Self> {
        let found = AUTORESET_MODES.into_iter().find(|(mode, _)| *mode == autoreset);
        let (mode, autoreset) =
            found.ok_or_else(|| value_error(format!("unknown autoreset mode `{autoreset}`")))?;
        if num_envs == 0 {
            return Err(value_error("num_envs is 0, but must be 1 or more"));
        }
        let arguments = (name.to_string(), num_envs, mode, seed, settings.to_string());
        visit_game(name, NewGames { arguments, autoreset })
    }

    /// Copies the games in their present states, for `copy.deepcopy`.
    fn __deepcopy__(slf: &Bound<Self>, _memo: &Bound<PyAny>) -> PyResult<Self> {
        let own = games_ref(slf)?;
        let (feature_names, action_names) = (own.feature_names.clone(), own.action_names.clone());
        let (batch, references) = (own.batch.copy(), own.references.clone());
        let arguments = own.arguments.clone();
        Ok(Self { batch, arguments, feature_names, action_names, references, ..*own })
    }

    /// Returns the games for `pickle`: the arguments of the constructor, and the games' present states.
    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Arguments, Cow<'static, [u8]>)> {
        let own = games_ref(slf)?;
        let states = own.batch.export_state().into_iter().flat_map(u32::to_le_bytes).collect();
        Ok((slf.get_type(), own.arguments.clone(), Cow::Owned(states)))
    }

    /// Takes the states that [`__reduce__`](Self::__reduce__) has returned.
    fn __setstate__(&mut self, states: &[u8]) -> PyResult<()> {
        let (words, rest) = states.as_chunks();
        if !rest.is_empty() {
            return Err(value_error("the saved states are not a whole number of words"));
        }
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        self.batch.import_state(&words).map_err(value_error)
    }

    /// Resets every game to the levels of `seed`.
    fn reset(slf: &Bound<Self>, seed: u64) -> PyResult<()> {
        games_mut(slf)?.batch.reset(seed);
        Ok(())
    }

    /// Resets one game to a level of `seed`: that of the game with the number `episode` after `reset`.
    fn reset_env(slf: &Bound<Self>, env: usize, seed: u64, episode: u32) -> PyResult<()> {
        let mut own = games_mut(slf)?;
        if env >= own.num_envs {
            return Err(value_error(format!(
                "there is no environment {env} in a batch of {}",
                own.num_envs
            )));
        }
        own.batch.reset_env(env, seed, episode);
        Ok(())
    }

    /// Writes observations, `[num_envs, num_features]`.
    fn observe(slf: &Bound<Self>, obs: PyBuffer<f32>) -> PyResult<()> {
        let own = games_ref(slf)?;
        own.batch.observe(slice_mut(&obs, own.num_envs * own.num_features, "obs")?);
        Ok(())
    }

    /// Writes 1 for each legal action, else 0: `[num_envs, num_actions]`.
    fn legal(slf: &Bound<Self>, mask: PyBuffer<u8>) -> PyResult<()> {
        let own = games_ref(slf)?;
        own.batch.write_legal_actions(slice_mut(&mask, own.num_envs * own.num_actions, "mask")?);
        Ok(())
    }

    /// Takes an action in every game, and writes the results; `ends` are rows of what terminated, was truncated, and
    /// ended. Returns whether an episode ended.
    #[allow(clippy::too_many_arguments, reason = "an array of Python each")]
    fn step(
        slf: &Bound<Self>,
        actions: PyBuffer<i64>,
        obs: PyBuffer<f32>,
        final_obs: PyBuffer<f32>,
        rewards: PyBuffer<f64>,
        ends: PyBuffer<u8>,
        scores: PyBuffer<f32>,
    ) -> PyResult<bool> {
        let mut own = games_mut(slf)?;
        let (envs, rows) = (own.num_envs, own.num_envs * own.num_features);
        let kept = if own.keeps_final_obs { rows } else { 0 };
        let actions = slice(&actions, actions.item_count(), "actions")?;
        let (terminated, others) = slice_mut(&ends, 3 * envs, "ends")?.split_at_mut(envs);
        let (truncated, ended) = others.split_at_mut(envs);
        let to = StepBuffers {
            obs: slice_mut(&obs, rows, "obs")?,
            final_obs: slice_mut(&final_obs, kept, "final_obs")?,
            rewards: slice_mut(&rewards, envs, "rewards")?,
            terminated,
            truncated,
            ended,
            scores: slice_mut(&scores, envs, "scores")?,
        };
        let batch = &mut own.batch;
        slf.py().detach(|| batch.step(actions, to)).map_err(value_error)
    }

    /// Takes an action in a batch of one game and writes the observation. Returns the reward, whether the episode
    /// terminated or was truncated, and its score.
    fn step_one(&mut self, action: i64, obs: PyBuffer<f32>) -> PyResult<(f64, bool, bool, f32)> {
        let (mut rewards, mut scores) = ([0.0], [0.0]);
        let (mut terminated, mut truncated, mut ended) = ([0], [0], [0]);
        let to = StepBuffers {
            obs: slice_mut(&obs, self.num_features, "obs")?,
            final_obs: &mut [],
            rewards: &mut rewards,
            terminated: &mut terminated,
            truncated: &mut truncated,
            ended: &mut ended,
            scores: &mut scores,
        };
        // It is over sooner than the GIL is released.
        self.batch.step(&[action], to).map_err(value_error)?;
        Ok((rewards[0], terminated[0] != 0, truncated[0] != 0, scores[0]))
    }
}
