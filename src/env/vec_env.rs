//! Environments one can hold in one's hand: reset, step and observe on the host, without a device.

use super::{Episode, Played, Rules, new_game, play};
use crate::rng::{Stream, draw};

/// Some environments of one game, in plain Rust.
///
/// They are for looking at a game, for tests, and for players that are not a policy of this library;
/// rollouts play far faster ([`crate::rollout`]), by the same rules.
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

/// Actions that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// Another number of actions than of environments.
    #[error("{found} actions were given, but there are {expected} environments: give one for each")]
    Count {
        /// Environments.
        expected: usize,
        /// Actions.
        found: usize,
    },
    /// An action that the game does not have.
    #[error("action {action} of environment {env} is none of {game}'s, which are 0 to {last}")]
    Unknown {
        /// The game's name.
        game: &'static str,
        /// The environment.
        env: usize,
        /// What was to be done.
        action: u32,
        /// The last action that there is.
        last: usize,
    },
    /// An action that may not be taken in the state that its environment is in.
    #[error("action {action} may not be taken in environment {env} now; see VecEnv::legal")]
    Illegal {
        /// The environment.
        env: usize,
        /// What was to be done.
        action: u32,
    },
}

impl<G: Rules> VecEnv<G> {
    /// `num_envs` environments at the start of the levels that [`VecEnv::reset`] names.
    pub fn new(game: G, num_envs: usize, seed: u64) -> Self {
        let mut this = Self { game, envs: Vec::with_capacity(num_envs) };
        let levels = draw(Stream::Evaluation.key(seed), 0);
        this.envs.extend((0..num_envs as u32).map(|env| start(draw(levels, env), game)));
        this
    }

    /// Starts every environment anew, each on a level of its own: the levels that an evaluation with
    /// this seed plays first, which no training sees.
    pub fn reset(&mut self, seed: u64) {
        *self = Self::new(self.game, self.envs.len(), seed);
    }

    /// Starts one environment anew, on the level whose key is `level`. Environments on the same level
    /// meet the same future, whatever is done in them.
    pub fn reset_env(&mut self, env: usize, level: u32) {
        self.envs[env] = start(level, self.game);
    }

    /// Plays a step of every environment, `[num_envs]`. Where an episode ended, the next one has begun.
    ///
    /// # Errors
    /// If an action is missing, unknown or illegal; nothing has been played then.
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

    /// Plays a step of one environment. Where its episode ended, the next one has begun.
    ///
    /// # Errors
    /// If the action is unknown or illegal; nothing has been played then.
    pub fn step_env(&mut self, env: usize, action: u32) -> Result<Played, EnvError> {
        self.check(env, action)?;
        let (state, episode) = &mut self.envs[env];
        Ok(play::<G>(state, episode, action, self.game))
    }

    /// What a policy sees of every environment, `[num_envs, num_features]`.
    pub fn observe(&self) -> Vec<f32> {
        (0..self.envs.len()).flat_map(|env| self.observe_env(env)).collect()
    }

    /// What a policy sees of one environment, `[num_features]`.
    pub fn observe_env(&self, env: usize) -> Vec<f32> {
        let features = 0..self.game.num_features();
        features.map(|i| G::feature(&self.envs[env].0, i, self.game)).collect()
    }

    /// Which actions may be taken in one environment, `[num_actions]`.
    pub fn legal(&self, env: usize) -> Vec<bool> {
        let actions = 0..self.game.num_actions();
        actions.map(|a| !G::MASKED || G::legal(&self.envs[env].0, a, self.game)).collect()
    }

    /// The state of one environment.
    pub fn state(&self, env: usize) -> &G::State {
        &self.envs[env].0
    }

    /// Where one environment stands in its episode.
    pub fn episode(&self, env: usize) -> Episode {
        self.envs[env].1
    }

    /// The game.
    pub fn game(&self) -> G {
        self.game
    }

    /// How many environments there are.
    pub fn num_envs(&self) -> usize {
        self.envs.len()
    }

    fn check(&self, env: usize, action: u32) -> Result<(), EnvError> {
        let num_actions = self.game.num_actions();
        if action as usize >= num_actions {
            let last = num_actions - 1;
            return Err(EnvError::Unknown { game: G::NAME, env, action, last });
        }
        if G::MASKED && !G::legal(&self.envs[env].0, action as usize, self.game) {
            return Err(EnvError::Illegal { env, action });
        }
        Ok(())
    }
}

/// The start of a level.
fn start<G: Rules>(level: u32, game: G) -> (G::State, Episode) {
    (new_game::<G>(level, game), Episode { level, ..Episode::default() })
}
