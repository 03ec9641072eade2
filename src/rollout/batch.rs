//! Games stepped side by side into buffers of the caller: the vectorised environment for other languages.

use super::env_lanes::{EnvLanes, PlayedLanes};
use super::env_state::EnvState;
use crate::env::Rules;
use crate::model::{LANES, Lanes};
use crate::rng::{Stream, draw};
use multiversion::multiversion;
use rayon::prelude::*;

/// Features and games below which a step is faster on one thread than spread over all of them.
const PARALLEL: usize = 1 << 16;

/// Handling of an ended episode in a batch, by Gymnasium's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autoreset {
    /// The next step ignores its action and starts the next level.
    NextStep,
    /// Starts the next level in the step that ends an episode, and keeps the last observation apart.
    SameStep,
    /// The caller resets the environment before its next step.
    Disabled,
}

/// A batch of games of one kind in SIMD lanes, stepped by all threads.
///
/// Environment `i` of a seed starts at the level of episode `i` of an [`evaluate`](super::evaluate()) with [`Stream::Evaluation`]
/// and that seed, which training never uses.
#[derive(Clone, Debug)]
pub struct Batch<G: Rules> {
    game: G,
    num_envs: usize,
    autoreset: Autoreset,
    blocks: Vec<Block<G>>,
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
    #[error("action {action} may not be taken in environment {env} now: see its action mask")]
    Illegal {
        /// Index of the environment.
        env: usize,
        /// The illegal action.
        action: u32,
    },
}

/// A block of up to [`LANES`] games.
#[derive(Clone, Debug)]
struct Block<G: Rules> {
    lanes: EnvLanes<G>,
    /// Games whose episode has ended and that have not been reset since.
    ended: [bool; LANES],
}

/// Buffers that a step of a [`Batch`] writes.
#[derive(Debug)]
pub struct StepBuffers<'a> {
    /// Observations after the step, or after the reset: `[num_envs, num_features]`.
    pub obs: &'a mut [f32],
    /// Last observations of the episodes that ended, for [`Autoreset::SameStep`]: `[num_envs, num_features]`.
    /// Empty in the other modes.
    pub final_obs: &'a mut [f32],
    /// Rewards: `[num_envs]`.
    pub rewards: &'a mut [f64],
    /// 1 if the game ended by its own rules: `[num_envs]`.
    pub terminated: &'a mut [u8],
    /// 1 if the episode was cut off: `[num_envs]`.
    pub truncated: &'a mut [u8],
    /// 1 if the episode ended, by termination or truncation: `[num_envs]`.
    pub ended: &'a mut [u8],
    /// Scores of the episodes that ended with the step, else 0: `[num_envs]`.
    pub scores: &'a mut [f32],
}

impl<G: Rules> Batch<G> {
    /// Creates `num_envs` games at the levels that [`Batch::reset`] selects for `seed`.
    ///
    /// # Panics
    /// If `num_envs` is 0.
    pub fn new(game: G, num_envs: usize, autoreset: Autoreset, seed: u64) -> Self {
        assert!(num_envs > 0, "a batch has one game or more");
        let mut batch = Self { game, num_envs, autoreset, blocks: Vec::new() };
        batch.reset(seed);
        batch
    }

    /// Number of games.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// The game.
    pub fn game(&self) -> G {
        self.game
    }

    /// Resets every game to a level of its own: the first levels of an evaluation with this seed.
    pub fn reset(&mut self, seed: u64) {
        let levels = draw(Stream::Evaluation.key(seed), 0);
        let envs: Vec<EnvState<G>> = (0..self.num_envs as u32)
            .map(|env| EnvState::new(draw(levels, env), self.game))
            .collect();
        let block =
            |envs: &[EnvState<G>]| Block { lanes: EnvLanes::new(envs), ended: [false; LANES] };
        self.blocks = envs.chunks(LANES).map(block).collect();
    }

    /// Resets game `env` to the level that game `episode` of a batch has after [`Batch::reset`] with this seed.
    ///
    /// # Panics
    /// If there is no such game.
    pub fn reset_env(&mut self, env: usize, seed: u64, episode: u32) {
        assert!(env < self.num_envs, "game {env} of {}", self.num_envs);
        let level = draw(draw(Stream::Evaluation.key(seed), 0), episode);
        let block = &mut self.blocks[env / LANES];
        block.lanes.set(env % LANES, &EnvState::new(level, self.game));
        block.ended[env % LANES] = false;
    }

    /// Writes the observations of all games, `[num_envs, num_features]`.
    pub fn observe(&self, obs: &mut [f32]) {
        let features = self.game.num_features();
        let mut scratch = vec![[0.0; LANES]; features];
        for (block, rows) in self.blocks.iter().zip(obs.chunks_mut(LANES * features)) {
            block.observe(self.game, rows, &mut scratch);
        }
    }

    /// Writes 1 for each legal action of each game, else 0: `[num_envs, num_actions]`.
    pub fn legal(&self, mask: &mut [u8]) {
        let actions = self.game.num_actions();
        let mut bits = [u32::MAX; LANES];
        for (block, rows) in self.blocks.iter().zip(mask.chunks_mut(LANES * actions)) {
            if G::MASKED {
                block.lanes.legal(self.game, &mut bits);
            }
            for (row, bits) in rows.chunks_exact_mut(actions).zip(bits) {
                let legal = |a: usize| !G::MASKED || bits >> a & 1 == 1;
                row.iter_mut().enumerate().for_each(|(a, x)| *x = u8::from(legal(a)));
            }
        }
    }

    /// Takes an action in every game, `[num_envs]`. Returns whether an episode ended.
    ///
    /// # Errors
    /// If an action is out of range or illegal, or a game has ended and was not reset where
    /// [`Autoreset::Disabled`] asks for it; no game is stepped then.
    ///
    /// # Panics
    /// If a buffer has another size than documented.
    pub fn step(&mut self, actions: &[i64], to: StepBuffers) -> Result<bool, EnvError> {
        self.check(actions)?;
        let StepBuffers { obs, final_obs, rewards, terminated, truncated, ended, scores } = to;
        let (game, autoreset, features) = (self.game, self.autoreset, self.game.num_features());
        let rows = self.num_envs * features;
        let kept = if autoreset == Autoreset::SameStep { rows } else { 0 };
        assert_eq!([obs.len(), final_obs.len()], [rows, kept], "obs: [num_envs, num_features]");
        for len in [&terminated, &truncated, &ended].map(|ends| ends.len()) {
            assert_eq!(len, self.num_envs, "ends: [num_envs]");
        }
        for len in [rewards.len(), scores.len()] {
            assert_eq!(len, self.num_envs, "results: [num_envs]");
        }
        let mut kept = final_obs.chunks_mut(LANES * features);
        let blocks = (self.blocks.iter_mut())
            .zip(actions.chunks(LANES))
            .zip(obs.chunks_mut(LANES * features))
            .zip(rewards.chunks_mut(LANES).zip(scores.chunks_mut(LANES)))
            .zip(terminated.chunks_mut(LANES).zip(truncated.chunks_mut(LANES)))
            .zip(ended.chunks_mut(LANES))
            .map(|(((((block, actions), obs), numbers), ends), ended)| {
                let final_obs = kept.next().unwrap_or_default();
                let ((rewards, scores), (terminated, truncated)) = (numbers, ends);
                let to =
                    StepBuffers { obs, final_obs, rewards, terminated, truncated, ended, scores };
                (block, actions, to)
            });
        let scratch = || vec![[0.0; LANES]; features];
        let step = |scratch: &mut Vec<Lanes>, (block, actions, to): (&mut Block<G>, &[i64], _)| {
            step_block(block, game, autoreset, actions, to, scratch);
        };
        if rows < PARALLEL {
            let mut scratch = scratch();
            blocks.for_each(|block| step(&mut scratch, block));
        } else {
            let blocks: Vec<_> = blocks.collect();
            blocks.into_par_iter().with_min_len(8).for_each_init(scratch, step);
        }
        Ok(ended.contains(&1))
    }

    fn check(&self, actions: &[i64]) -> Result<(), EnvError> {
        let (expected, found) = (self.num_envs, actions.len());
        if expected != found {
            return Err(EnvError::Count { expected, found });
        }
        let num_actions = self.game.num_actions();
        if let Some(env) = first_unknown(actions, num_actions) {
            let (action, last) = (actions[env], num_actions - 1);
            return Err(EnvError::Unknown { game: G::NAME, env, action, last });
        }
        let mut blocks = self.blocks.iter().zip(actions.chunks(LANES)).enumerate();
        blocks.try_for_each(|(number, (block, actions))| {
            block.check(self.game, self.autoreset, number * LANES, actions)
        })
    }
}

impl<G: Rules> Block<G> {
    /// Checks the actions of a block whose first game is number `first`.
    fn check(
        &self,
        game: G,
        autoreset: Autoreset,
        first: usize,
        actions: &[i64],
    ) -> Result<(), EnvError> {
        let is_live = |lane: &usize| !self.ended[*lane];
        if autoreset == Autoreset::Disabled
            && let Some(lane) = (0..actions.len()).find(|lane| !is_live(lane))
        {
            return Err(EnvError::Ended { env: first + lane });
        }
        if G::MASKED {
            let mut bits = [0; LANES];
            self.lanes.legal(game, &mut bits);
            let is_illegal = |lane: &usize| bits[*lane] >> actions[*lane] & 1 == 0;
            if let Some(lane) = (0..actions.len()).filter(is_live).find(is_illegal) {
                return Err(EnvError::Illegal { env: first + lane, action: actions[lane] as u32 });
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn step(
        &mut self,
        game: G,
        autoreset: Autoreset,
        actions: &[i64],
        to: StepBuffers,
        scratch: &mut [Lanes],
    ) {
        let mut chosen = [0; LANES];
        chosen.iter_mut().zip(actions).for_each(|(to, action)| *to = *action as u32);
        let restarts = std::mem::take(&mut self.ended);
        let mut played = PlayedLanes::default();
        self.lanes.advance_inlined(game, &chosen, &mut played);
        if restarts.contains(&true) {
            // These games ignore the action and start their next level.
            self.lanes.start_next_inlined(game, &restarts);
            played.clear(&restarts);
        }
        self.ended = played.ended();
        let mut rewards = [0.0; LANES];
        rewards.iter_mut().zip(&played.rewards).for_each(|(to, reward)| *to = f64::from(*reward));
        write(to.rewards, &rewards);
        write(to.terminated, &played.ended_by(1));
        write(to.truncated, &played.ended_by(2));
        let mut ended = [0; LANES];
        ended.iter_mut().zip(&self.ended).for_each(|(to, ended)| *to = u8::from(*ended));
        write(to.ended, &ended);
        write(to.scores, &played.scores);
        if autoreset == Autoreset::SameStep && self.ended.contains(&true) {
            self.lanes.observe_inlined(game, scratch);
            transpose(scratch, to.final_obs);
            self.lanes.start_next_inlined(game, &std::mem::take(&mut self.ended));
        }
        self.lanes.observe_inlined(game, scratch);
        transpose(scratch, to.obs);
    }

    /// Writes the observations of the block's games, `[games, num_features]`.
    fn observe(&self, game: G, rows: &mut [f32], scratch: &mut [Lanes]) {
        self.lanes.observe(game, scratch);
        transpose(scratch, rows);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn step_block<G: Rules>(
    block: &mut Block<G>,
    game: G,
    autoreset: Autoreset,
    actions: &[i64],
    to: StepBuffers,
    scratch: &mut [Lanes],
) {
    block.step(game, autoreset, actions, to, scratch);
}

/// The first action that is not below `num_actions`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn first_unknown(actions: &[i64], num_actions: usize) -> Option<usize> {
    let is_unknown = |action: &i64| *action as u64 >= num_actions as u64;
    // Without an early end, so that it compiles to vector code.
    if !actions.iter().fold(false, |any, action| any | is_unknown(action)) {
        return None;
    }
    actions.iter().position(is_unknown)
}

/// Writes features in lanes, `[features][LANES]`, as rows of the first games, `[games, features]`.
#[inline(always)]
fn transpose(lanes: &[Lanes], rows: &mut [f32]) {
    // Constant sizes, for which it compiles to shuffles of vectors.
    if let (Ok(lanes), Ok(rows)) = (lanes.try_into(), rows.as_chunks_mut().0.try_into()) {
        let (lanes, rows): (&[Lanes; 4], &mut [[f32; 4]; LANES]) = (lanes, rows);
        for (lane, row) in rows.iter_mut().enumerate() {
            *row = [lanes[0][lane], lanes[1][lane], lanes[2][lane], lanes[3][lane]];
        }
        return;
    }
    let (quads, rest) = lanes.as_chunks::<4>();
    for (lane, row) in rows.chunks_exact_mut(lanes.len()).enumerate().take(LANES) {
        let (to, last) = row.as_chunks_mut::<4>();
        for (to, from) in to.iter_mut().zip(quads) {
            *to = [from[0][lane], from[1][lane], from[2][lane], from[3][lane]];
        }
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = from[lane]);
    }
}

/// Writes the lanes of a block's games; a full block as one array, without a loop.
#[inline(always)]
fn write<T: Copy>(to: &mut [T], values: &[T; LANES]) {
    match <&mut [T; LANES]>::try_from(&mut *to) {
        Ok(to) => *to = *values,
        Err(_) => to.copy_from_slice(&values[..to.len()]),
    }
}
