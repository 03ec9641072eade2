//! Environments in plain Rust or in another language, for simulators that cannot be written as kernels.
//!
//! A game's [`Rules`] run on every device, and their states can be copied. An environment on the host is opaque:
//! it can be reset to a level and stepped, and nothing else. Groups therefore start from a level, never from the
//! middle of an episode.

use super::{Bits, Env, Outcome, Rules, impl_settings};
use crate::schema::settings;
use burn::cubecl;
use burn::cubecl::prelude::*;
use rayon::prelude::*;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// An environment in plain Rust.
///
/// A panic unwinds out of the call that trains or evaluates. An environment that can fail implements [`HostVecEnv`],
/// whose errors end a run with a message.
///
/// ```
/// use grove::env::{HostEnv, HostStepResult};
///
/// /// Leave a corridor by its right end.
/// struct Corridor {
///     cell: f32,
/// }
///
/// impl HostEnv for Corridor {
///     fn num_features(&self) -> usize {
///         1
///     }
///
///     fn num_actions(&self) -> usize {
///         2
///     }
///
///     fn reset(&mut self, level: u32, obs: &mut [f32]) {
///         self.cell = (level % 5) as f32;
///         obs[0] = self.cell / 10.0;
///     }
///
///     fn step(&mut self, action: u32, obs: &mut [f32]) -> HostStepResult {
///         self.cell += if action == 1 { 1.0 } else { -1.0 };
///         obs[0] = self.cell / 10.0;
///         HostStepResult { reward: -1.0, terminated: self.cell >= 10.0, truncated: false }
///     }
/// }
/// ```
pub trait HostEnv: Send {
    /// Number of observation features, each finite and scaled to about [-1, 1].
    fn num_features(&self) -> usize;

    /// Number of actions; actions are `0..num_actions`.
    fn num_actions(&self) -> usize;

    /// Starts an episode and writes its first observation, `[num_features]`. The episode's randomness derives from
    /// `level` alone, so that the environments of a group, which share a level, face the same situation.
    fn reset(&mut self, level: u32, obs: &mut [f32]);

    /// Takes an action and writes the observation after it, `[num_features]`.
    fn step(&mut self, action: u32, obs: &mut [f32]) -> HostStepResult;
}

/// Largest absolute value of a reward, and of the sum of the rewards of an episode. Squares of much larger ones
/// overflow 32 bits, so that nothing would be learnt.
pub(crate) const MAX_STEP_REWARD: f32 = 1e15;

/// Result of one step of an environment on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostStepResult {
    /// Reward of the step. An episode's score is their sum. Neither may be beyond 1e15 in size.
    pub reward: f32,
    /// Whether the episode ended by the environment's own rules.
    pub terminated: bool,
    /// Whether the episode was cut off.
    pub truncated: bool,
}

/// A batch of environments that are stepped together.
///
/// A run calls these methods on the thread that calls [`Trainer::iterate`](crate::trainer::Trainer::iterate) and
/// [`Trainer::validate`](crate::trainer::Trainer::validate), so that environments may belong to a thread, as those with
/// a window do.
pub trait HostVecEnv: Send {
    /// Number of environments.
    fn num_envs(&self) -> usize;

    /// Number of observation features.
    fn num_features(&self) -> usize;

    /// Number of actions.
    fn num_actions(&self) -> usize;

    /// Starts an episode in each environment that has a level in `levels`, `[num_envs]`, and writes its
    /// observation to its row of `obs`, `[num_envs, num_features]`. The other rows stay as they are.
    ///
    /// # Errors
    /// If an environment fails.
    fn reset(&mut self, levels: &[Option<u32>], obs: &mut [f32]) -> Result<(), HostEnvError>;

    /// Takes an action in each environment for which `actions`, `[num_envs]`, has one; writes the environment's
    /// observation to its row of `obs`, `[num_envs, num_features]`, and its result to `results`, `[num_envs]`.
    ///
    /// # Errors
    /// If an environment fails.
    fn step(
        &mut self,
        actions: &[Option<u32>],
        obs: &mut [f32],
        results: &mut [HostStepResult],
    ) -> Result<(), HostEnvError>;
}

/// The failure of an environment on the host. Its message contains that of the environment's error.
#[derive(Debug)]
pub struct HostEnvError(pub Box<dyn Error + Send + Sync>);

impl fmt::Display for HostEnvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an environment failed: {}", self.0)
    }
}

impl Error for HostEnvError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Environments in plain Rust, stepped by all threads.
#[derive(Clone, Debug)]
pub struct ThreadedEnvs<E>(Vec<E>);

impl<E: HostEnv> ThreadedEnvs<E> {
    /// Creates `num_envs` environments with `create`.
    ///
    /// # Panics
    /// If `num_envs` is 0.
    pub fn new(num_envs: usize, create: impl FnMut() -> E) -> Self {
        assert!(num_envs > 0, "a batch has one environment or more");
        Self(std::iter::repeat_with(create).take(num_envs).collect())
    }
}

impl<E: HostEnv> HostVecEnv for ThreadedEnvs<E> {
    fn num_envs(&self) -> usize {
        self.0.len()
    }

    fn num_features(&self) -> usize {
        self.0[0].num_features()
    }

    fn num_actions(&self) -> usize {
        self.0[0].num_actions()
    }

    fn reset(&mut self, levels: &[Option<u32>], obs: &mut [f32]) -> Result<(), HostEnvError> {
        let num_features = self.num_features();
        let rows = self.0.par_iter_mut().zip(levels).zip(obs.par_chunks_exact_mut(num_features));
        rows.for_each(|((env, level), obs)| {
            if let Some(level) = level {
                env.reset(*level, obs);
            }
        });
        Ok(())
    }

    fn step(
        &mut self,
        actions: &[Option<u32>],
        obs: &mut [f32],
        results: &mut [HostStepResult],
    ) -> Result<(), HostEnvError> {
        let num_features = self.num_features();
        let rows = self.0.par_iter_mut().zip(actions).zip(obs.par_chunks_exact_mut(num_features));
        rows.zip(results).for_each(|(((env, action), obs), result)| {
            if let Some(action) = action {
                *result = env.step(*action, obs);
            }
        });
        Ok(())
    }
}

/// Environments on the host that rollouts and evaluations of a run share. Cloning is shallow: runs that have clones
/// take turns, a rollout or an evaluation each.
#[derive(Clone)]
pub struct HostEnvs(Arc<Mutex<dyn HostVecEnv>>);

impl HostEnvs {
    /// Shares a batch of environments.
    pub fn new(envs: impl HostVecEnv + 'static) -> Self {
        Self(Arc::new(Mutex::new(envs)))
    }

    /// Takes the batch for as long as the guard lives, once no other guard does.
    ///
    /// # Panics
    /// On a thread of a rayon pool, if another guard lives. To wait there could take forever, since the holder of that
    /// guard may wait for this thread to do a part of its work.
    pub fn lock(&self) -> MutexGuard<'_, dyn HostVecEnv + 'static> {
        if rayon::current_thread_index().is_none() {
            return self.0.lock().unwrap_or_else(PoisonError::into_inner);
        }
        match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => panic!(
                "the environments are in use, and a thread of a rayon pool cannot wait for them: give each run \
                 environments of its own, or train it outside of the pool"
            ),
        }
    }
}

impl fmt::Debug for HostEnvs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostEnvs").finish_non_exhaustive()
    }
}

settings! {
    /// Sizes of an environment on the host, in the place of a game's parameters.
    pub struct HostGame: Copy, Eq, Hash {
        /// Number of observation features.
        num_features: u32 = 1, in integer(1..=1 << 20);
        /// Number of actions.
        num_actions: u32 = 2, in integer(2..=1 << 16);
        /// Maximum length of an episode in steps; longer episodes are truncated.
        max_steps: u32 = 500, in integer(1..=1 << 30);
    }
}

impl Env for HostGame {
    const NAME: &'static str = "host";
    const IS_PLAYABLE: bool = false;

    fn training_defaults(&self) -> &'static [&'static str] {
        &[include_str!("host.toml")]
    }

    impl_settings!();

    fn num_features(&self) -> usize {
        self.num_features as usize
    }

    fn num_actions(&self) -> usize {
        self.num_actions as usize
    }

    fn max_steps(&self) -> u32 {
        self.max_steps
    }
}

/// Implements the rules of a placeholder, whose episodes have one step and no content.
macro_rules! impl_placeholder_rules {
    ($Game:ident, $State:ident) => {
        $crate::packed_state! {
            /// The empty state of a placeholder.
            pub struct $State {
                unused: Bits<1>,
            }
        }

        #[cube]
        impl Rules for $Game {
            type State = $State;

            fn reset(state: &mut $State, _key: u32, #[comptime] _game: Self) {
                state.unused = 0;
            }

            fn step(
                _state: &mut $State,
                _action: u32,
                _key: u32,
                #[comptime] _game: Self,
            ) -> Outcome {
                let reward = 0.0f32.runtime();
                Outcome { reward, score: reward, terminated: true.runtime() }
            }

            fn feature(_state: &$State, #[comptime] _i: usize, #[comptime] _game: Self) -> f32 {
                0.0f32.runtime()
            }
        }
    };
}
pub(crate) use impl_placeholder_rules;

impl_placeholder_rules!(HostGame, HostState);
