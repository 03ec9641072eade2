//! A vectorised environment on the host, for scripting: reset, step and observe without a device.

use super::{Episode, Played, Rules, new_game, play};
use crate::rng::{Stream, draw};

/// A batch of environments of one game.
///
/// Meant for exploring a game, for tests and for policies from outside this library. Rollouts
/// ([`crate::rollout`]) play by the same rules and are far faster.
///
/// ```
/// use grove::env::{Catch, VecEnv};
///
/// let mut envs = VecEnv::new(Catch::default(), 4, 7);
/// let observations = envs.observe(); // [4, num_features]
/// assert_eq!(observations.len(), 4 * 4);
/// let steps = envs.step(&[0, 1, 2, 1])?;
/// assert!(steps.iter().all(|step| !step.ended()));
/// # Ok::<(), grove::env::EnvError>(())
/// ```
#[derive(Clone, Debug)]
pub struct VecEnv<G: Rules> {
    game: G,
    envs: Vec<(G::State, Episode)>,
}

/// An invalid action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The number of actions differs from the number of environments.
    #[error("{found} actions were given, but there are {expected} environments: give one for each")]
    Count {
        /// Number of environments.
        expected: usize,
        /// Number of actions passed.
        found: usize,
    },
    /// An action outside the game's range.
    #[error("action {action} of environment {env} is none of {game}'s, which are 0 to {last}")]
    Unknown {
        /// Name of the game.
        game: &'static str,
        /// Index of the environment.
        env: usize,
        /// The invalid action.
        action: i64,
        /// The largest valid action.
        last: usize,
    },
    /// A step of an environment whose episode has ended, without a reset in between.
    #[error("the episode of environment {env} has ended; reset it before its next step")]
    Ended {
        /// Index of the environment.
        env: usize,
    },
    /// An action that is illegal in the current state of its environment.
    #[error("action {action} may not be taken in environment {env} now; see VecEnv::legal")]
    Illegal {
        /// Index of the environment.
        env: usize,
        /// The illegal action.
        action: u32,
    },
}

impl<G: Rules> VecEnv<G> {
    /// Creates `num_envs` environments at the levels that [`VecEnv::reset`] selects for `seed`.
    pub fn new(game: G, num_envs: usize, seed: u64) -> Self {
        let mut this = Self { game, envs: Vec::with_capacity(num_envs) };
        let levels = draw(Stream::Evaluation.key(seed), 0);
        this.envs.extend((0..num_envs as u32).map(|env| start(draw(levels, env), game)));
        this
    }

    /// Resets every environment to a level of its own: the first levels of an evaluation with this
    /// seed, which training never uses.
    pub fn reset(&mut self, seed: u64) {
        *self = Self::new(self.game, self.envs.len(), seed);
    }

    /// Resets one environment to the level with key `level`. Environments at the same level see the
    /// same environment draws, whatever their actions.
    pub fn reset_env(&mut self, env: usize, level: u32) {
        self.envs[env] = start(level, self.game);
    }

    /// Steps every environment, `[num_envs]`. An environment whose episode ended is reset.
    ///
    /// # Errors
    /// If an action is missing, out of range or illegal; no environment is stepped then.
    pub fn step(&mut self, actions: &[u32]) -> Result<Vec<Played>, EnvError> {
        let (expected, found) = (self.envs.len(), actions.len());
        if expected != found {
            return Err(EnvError::Count { expected, found });
        }
        for (env, action) in actions.iter().enumerate() {
            self.check(env, *action)?;
        }
        let envs = self.envs.iter_mut().zip(actions);
        Ok(envs.map(|((state, episode), a)| play::<G>(state, episode, *a, self.game)).collect())
    }

    /// Steps one environment. If its episode ended, it is reset.
    ///
    /// # Errors
    /// If the action is out of range or illegal; the environment is unchanged then.
    pub fn step_env(&mut self, env: usize, action: u32) -> Result<Played, EnvError> {
        self.check(env, action)?;
        let (state, episode) = &mut self.envs[env];
        Ok(play::<G>(state, episode, action, self.game))
    }

    /// Observations of all environments, `[num_envs, num_features]`.
    pub fn observe(&self) -> Vec<f32> {
        (0..self.envs.len()).flat_map(|env| self.observe_env(env)).collect()
    }

    /// Observation of one environment, `[num_features]`.
    pub fn observe_env(&self, env: usize) -> Vec<f32> {
        let features = 0..self.game.num_features();
        features.map(|i| G::feature(&self.envs[env].0, i, self.game)).collect()
    }

    /// Action mask of one environment, `[num_actions]`; true if legal.
    pub fn legal(&self, env: usize) -> Vec<bool> {
        let actions = 0..self.game.num_actions();
        actions.map(|a| !G::MASKED || G::legal(&self.envs[env].0, a, self.game)).collect()
    }

    /// State of one environment.
    pub fn state(&self, env: usize) -> &G::State {
        &self.envs[env].0
    }

    /// Episode progress of one environment.
    pub fn episode(&self, env: usize) -> Episode {
        self.envs[env].1
    }

    /// The game.
    pub fn game(&self) -> G {
        self.game
    }

    /// Number of environments.
    pub fn num_envs(&self) -> usize {
        self.envs.len()
    }

    fn check(&self, env: usize, action: u32) -> Result<(), EnvError> {
        let num_actions = self.game.num_actions();
        if action as usize >= num_actions {
            let last = num_actions - 1;
            return Err(EnvError::Unknown { game: G::NAME, env, action: action.into(), last });
        }
        if G::MASKED && !G::legal(&self.envs[env].0, action as usize, self.game) {
            return Err(EnvError::Illegal { env, action });
        }
        Ok(())
    }
}

/// Returns the initial state of a level with a fresh episode.
fn start<G: Rules>(level: u32, game: G) -> (G::State, Episode) {
    (new_game::<G>(level, game), Episode { level, ..Episode::default() })
}
