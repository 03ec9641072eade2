//! Games stepped side by side into buffers of the caller: the vectorized environment for other languages.

use super::EpisodeKeys;
use super::env_lanes::{EnvLanes, StepResultLanes};
use super::env_state::{EnvState, env_words, pack_envs, unpack_envs};
use crate::data::EpisodeStatus;
use crate::env::Rules;
use crate::model::{LANES, Lanes};
use crate::rng::Stream;
use multiversion::multiversion;
use rayon::prelude::*;

/// Features of all games below which a step is faster on one thread than spread over all of them.
const MIN_PARALLEL_FEATURES: usize = 1 << 16;

/// Blocks that a thread steps at a time.
const BLOCKS_PER_PART: usize = 8;

/// Handling of an ended episode in a batch, under Gymnasium's names.
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
/// Environment `i` of a seed starts at the level of episode `i` of an [`evaluate`](super::evaluate()) with
/// [`Stream::Evaluation`] and that seed, which training never uses.
#[derive(Clone, Debug)]
pub struct VecEnv<G: Rules> {
    game: G,
    num_envs: usize,
    autoreset: Autoreset,
    /// Blocks of [`LANES`] games; the last may be partly used.
    blocks: Vec<EnvLanes<G>>,
    /// 1 for each game whose episode has ended and that has not been reset since: `[num_envs]`.
    ended: Vec<u8>,
}

/// The reason why a batch of games cannot be stepped or restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VecEnvError {
    /// The number of actions differs from the number of environments.
    #[error("{found} actions were given, but there are {expected} environments: give one for each")]
    ActionCount {
        /// Number of environments.
        expected: usize,
        /// Number of actions passed.
        found: usize,
    },
    /// An action outside the game's range.
    #[error("action {action} of environment {env} is none of {game}'s, which are 0 to {last}")]
    ActionOutOfRange {
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
    EpisodeEnded {
        /// Index of the environment.
        env: usize,
    },
    /// An action that is illegal in the current state of its environment.
    #[error("action {action} may not be taken in environment {env} now: see its action mask")]
    IllegalAction {
        /// Index of the environment.
        env: usize,
        /// The illegal action.
        action: u32,
    },
    /// Saved states of another game, or of another number of games.
    #[error(
        "the saved states have {found} words, but must have {expected} for a batch of {count} of {game}"
    )]
    StateLength {
        /// Name of the game.
        game: &'static str,
        /// Number of environments.
        count: usize,
        /// Number of words that they take.
        expected: usize,
        /// Number of words passed.
        found: usize,
    },
}

/// Buffers that a step of a [`VecEnv`] writes.
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

impl<'a> StepBuffers<'a> {
    /// Splits off the buffers of the first `games`, or of all if there are fewer.
    fn split_off(&mut self, games: usize, features: usize) -> StepBuffers<'a> {
        fn take_first<'a, T>(rest: &mut &'a mut [T], len: usize) -> &'a mut [T] {
            rest.split_off_mut(..len.min(rest.len())).unwrap_or_default()
        }
        StepBuffers {
            obs: take_first(&mut self.obs, games * features),
            final_obs: take_first(&mut self.final_obs, games * features),
            rewards: take_first(&mut self.rewards, games),
            terminated: take_first(&mut self.terminated, games),
            truncated: take_first(&mut self.truncated, games),
            ended: take_first(&mut self.ended, games),
            scores: take_first(&mut self.scores, games),
        }
    }
}

impl<G: Rules> VecEnv<G> {
    /// Creates `num_envs` games at the levels that [`VecEnv::reset`] selects for `seed`.
    ///
    /// # Panics
    /// If `num_envs` is 0.
    pub fn new(game: G, num_envs: usize, autoreset: Autoreset, seed: u64) -> Self {
        assert!(num_envs > 0, "a batch has one game or more");
        let mut batch = Self { game, num_envs, autoreset, blocks: Vec::new(), ended: Vec::new() };
        batch.reset(seed);
        batch
    }

    /// Bytes of memory that `num_envs` games need at most: in a reset, their blocks, new ones, and the states of which
    /// these are made.
    pub fn max_bytes(num_envs: usize) -> usize {
        let block_bytes = num_envs.div_ceil(LANES).saturating_mul(2 * size_of::<EnvLanes<G>>());
        block_bytes.saturating_add(num_envs.saturating_mul(size_of::<EnvState<G>>() + 2))
    }

    /// Number of games.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// The game.
    pub fn game(&self) -> G {
        self.game
    }

    /// Resets every game to its own level: the first levels of an evaluation with this seed.
    pub fn reset(&mut self, seed: u64) {
        let keys = EpisodeKeys::new(Stream::Evaluation, seed);
        let envs: Vec<EnvState<G>> = (0..self.num_envs as u32)
            .map(|env| EnvState::new(keys.level(env), self.game))
            .collect();
        self.blocks = envs.chunks(LANES).map(EnvLanes::new).collect();
        self.ended = vec![0; self.num_envs];
    }

    /// Resets game `env` to the level that game `episode` of a batch has after [`VecEnv::reset`] with this seed.
    ///
    /// # Panics
    /// If there is no such game.
    pub fn reset_env(&mut self, env: usize, seed: u64, episode: u32) {
        assert!(env < self.num_envs, "game {env} of {}", self.num_envs);
        let level = EpisodeKeys::new(Stream::Evaluation, seed).level(episode);
        self.blocks[env / LANES].set_env(env % LANES, &EnvState::new(level, self.game));
        self.ended[env] = 0;
    }

    /// The states of all games as words, `[env_words + 1, num_envs]`: episode and state, and whether the episode has
    /// ended.
    pub fn export_state(&self) -> Vec<u32> {
        let env = |env: usize| self.blocks[env / LANES].env(env % LANES);
        let mut words = pack_envs(self.game, &(0..self.num_envs).map(env).collect::<Vec<_>>());
        words.extend(self.ended.iter().map(|ended| u32::from(*ended)));
        words
    }

    /// Replaces the states of all games by those from [`VecEnv::export_state`] of as many games with the
    /// same parameters.
    ///
    /// # Errors
    /// [`VecEnvError::StateLength`] if there are more or fewer words; the games then stay as they are.
    pub fn import_state(&mut self, words: &[u32]) -> Result<(), VecEnvError> {
        let (count, found) = (self.num_envs, words.len());
        let ended_offset = env_words(self.game) * count;
        let expected = ended_offset + count;
        let error = VecEnvError::StateLength { game: G::NAME, count, expected, found };
        if found != expected {
            return Err(error);
        }
        let envs = unpack_envs(self.game, count, &words[..ended_offset]).map_err(|_| error)?;
        self.blocks = envs.chunks(LANES).map(EnvLanes::new).collect();
        self.ended = words[ended_offset..].iter().map(|ended| u8::from(*ended != 0)).collect();
        Ok(())
    }

    /// Writes the observations of all games, `[num_envs, num_features]`.
    pub fn observe(&self, obs: &mut [f32]) {
        let features = self.game.num_features();
        let mut scratch = vec![[0.0; LANES]; features];
        for (block, rows) in self.blocks.iter().zip(obs.chunks_mut(LANES * features)) {
            block.observe(self.game, &mut scratch);
            transpose(&scratch, rows);
        }
    }

    /// Writes 1 for each legal action of each game, else 0: `[num_envs, num_actions]`.
    pub fn write_legal_actions(&self, mask: &mut [u8]) {
        let actions = self.game.num_actions();
        let mut bits = [u32::MAX; LANES];
        for (block, rows) in self.blocks.iter().zip(mask.chunks_mut(LANES * actions)) {
            if G::HAS_ILLEGAL_ACTIONS {
                block.write_legal(self.game, &mut bits);
            }
            for (row, bits) in rows.chunks_exact_mut(actions).zip(bits) {
                let legal = |a: usize| !G::HAS_ILLEGAL_ACTIONS || bits >> a & 1 == 1;
                row.iter_mut().enumerate().for_each(|(a, x)| *x = u8::from(legal(a)));
            }
        }
    }

    /// Takes an action in every game, `[num_envs]`. Returns whether an episode ended.
    ///
    /// # Errors
    /// If an action is out of range or illegal, or a game has ended and was not reset where
    /// [`Autoreset::Disabled`] requires it; no game is stepped then.
    ///
    /// # Panics
    /// If a buffer has another size than documented.
    pub fn step(&mut self, actions: &[i64], buffers: StepBuffers) -> Result<bool, VecEnvError> {
        self.check_actions(actions)?;
        let (game, autoreset, features) = (self.game, self.autoreset, self.game.num_features());
        let rows = self.num_envs * features;
        let final_rows = if autoreset == Autoreset::SameStep { rows } else { 0 };
        assert_eq!(
            [buffers.obs.len(), buffers.final_obs.len()],
            [rows, final_rows],
            "obs: [num_envs, num_features]"
        );
        let StepBuffers { rewards, terminated, truncated, ended, scores, .. } = &buffers;
        let ends = [terminated, truncated, ended].map(|ends| ends.len());
        assert_eq!(ends, [self.num_envs; 3], "ends: [num_envs]");
        assert_eq!([rewards.len(), scores.len()], [self.num_envs; 2], "results: [num_envs]");
        let (blocks, ended) = (&mut self.blocks[..], &mut self.ended[..]);
        if rows < MIN_PARALLEL_FEATURES {
            return Ok(step_part(BatchPart { blocks, ended, actions, buffers }, game, autoreset));
        }
        let mut rest = buffers;
        let games_per_part = BLOCKS_PER_PART * LANES;
        let parts: Vec<_> = blocks
            .chunks_mut(BLOCKS_PER_PART)
            .zip(ended.chunks_mut(games_per_part))
            .zip(actions.chunks(games_per_part))
            .map(|((blocks, ended), actions)| {
                let buffers = rest.split_off(games_per_part, features);
                BatchPart { blocks, ended, actions, buffers }
            })
            .collect();
        let step = |part| step_part(part, game, autoreset);
        Ok(parts.into_par_iter().map(step).reduce(|| false, |a, b| a | b))
    }

    /// Checks the number of actions, and that each exists and is legal in its game.
    fn check_actions(&self, actions: &[i64]) -> Result<(), VecEnvError> {
        let (expected, found) = (self.num_envs, actions.len());
        if expected != found {
            return Err(VecEnvError::ActionCount { expected, found });
        }
        let num_actions = self.game.num_actions();
        if let Some(env) = find_out_of_range(actions, num_actions) {
            let (action, last) = (actions[env], num_actions - 1);
            return Err(VecEnvError::ActionOutOfRange { game: G::NAME, env, action, last });
        }
        if self.autoreset == Autoreset::Disabled
            && let Some(env) = self.ended.iter().position(|ended| *ended != 0)
        {
            return Err(VecEnvError::EpisodeEnded { env });
        }
        if G::HAS_ILLEGAL_ACTIONS {
            let mut bits = [0; LANES];
            for (index, (block, actions)) in
                self.blocks.iter().zip(actions.chunks(LANES)).enumerate()
            {
                block.write_legal(self.game, &mut bits);
                for (lane, (action, bits)) in actions.iter().zip(&bits).enumerate() {
                    let env = index * LANES + lane;
                    if bits >> action & 1 == 0 && self.ended[env] == 0 {
                        return Err(VecEnvError::IllegalAction { env, action: *action as u32 });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Consecutive blocks of a batch, with the actions and buffers of their games.
struct BatchPart<'a, G: Rules> {
    blocks: &'a mut [EnvLanes<G>],
    ended: &'a mut [u8],
    actions: &'a [i64],
    buffers: StepBuffers<'a>,
}

/// Steps the games of a part. Returns whether an episode ended.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn step_part<G: Rules>(part: BatchPart<G>, game: G, autoreset: Autoreset) -> bool {
    let BatchPart { blocks, ended, actions, buffers } = part;
    let features = game.num_features();
    let mut scratch = vec![[0.0; LANES]; features];
    for (index, block) in blocks.iter_mut().enumerate() {
        let games = index * LANES..actions.len().min((index + 1) * LANES);
        let mut results = StepResultLanes::default();
        block.step_episode_inlined(game, &to_lane_actions(&actions[games.clone()]), &mut results);
        let mut rewards = [0.0; LANES];
        rewards.iter_mut().zip(&results.rewards).for_each(|(to, reward)| *to = f64::from(*reward));
        let terminated = results.status_flags(EpisodeStatus::Terminated);
        let truncated = results.status_flags(EpisodeStatus::Truncated);
        let mut ended = terminated;
        ended.iter_mut().zip(&truncated).for_each(|(ended, truncated)| *ended |= truncated);
        write_lanes(&mut buffers.rewards[games.clone()], &rewards);
        write_lanes(&mut buffers.terminated[games.clone()], &terminated);
        write_lanes(&mut buffers.truncated[games.clone()], &truncated);
        write_lanes(&mut buffers.ended[games.clone()], &ended);
        write_lanes(&mut buffers.scores[games.clone()], &results.scores);
        block.observe_inlined(game, &mut scratch);
        transpose(&scratch, &mut buffers.obs[games.start * features..games.end * features]);
    }
    match autoreset {
        Autoreset::NextStep => {
            // These games ignore the action and start their next level.
            let restarts = flagged_indices(ended);
            for env in &restarts {
                (buffers.rewards[*env], buffers.scores[*env]) = (0.0, 0.0);
                (buffers.terminated[*env], buffers.truncated[*env], buffers.ended[*env]) =
                    (0, 0, 0);
            }
            restart_games(blocks, &restarts, game, buffers.obs, &mut scratch);
            ended.copy_from_slice(buffers.ended);
        }
        Autoreset::SameStep => {
            let restarts = flagged_indices(buffers.ended);
            for row in restarts.iter().map(|env| env * features..(env + 1) * features) {
                buffers.final_obs[row.clone()].copy_from_slice(&buffers.obs[row]);
            }
            restart_games(blocks, &restarts, game, buffers.obs, &mut scratch);
        }
        Autoreset::Disabled => ended.copy_from_slice(buffers.ended),
    }
    buffers.ended.contains(&1)
}

/// Starts the next level of some games, [`LANES`] at a time, and writes their observations.
#[inline(always)]
fn restart_games<G: Rules>(
    blocks: &mut [EnvLanes<G>],
    envs: &[usize],
    game: G,
    obs: &mut [f32],
    scratch: &mut [Lanes],
) {
    for envs in envs.chunks(LANES) {
        let mut levels = [0; LANES];
        for (level, env) in levels.iter_mut().zip(envs) {
            *level = blocks[env / LANES].level(env % LANES);
        }
        let started = EnvLanes::start_next_levels_inlined(levels, game);
        started.observe_inlined(game, scratch);
        for (lane, env) in envs.iter().enumerate() {
            blocks[env / LANES].copy_env(env % LANES, &started, lane);
            let row = obs[env * scratch.len()..].iter_mut();
            row.zip(&*scratch).for_each(|(x, lanes)| *x = lanes[lane]);
        }
    }
}

/// The indices of the flags that are 1, in order; the others are 0.
#[inline(always)]
fn flagged_indices(flags: &[u8]) -> Vec<usize> {
    let mut indices = Vec::with_capacity(flags.len());
    let (words, rest) = flags.as_chunks();
    let mut add = |first: usize, flags: [u8; 8]| {
        let mut bits = u64::from_le_bytes(flags);
        while bits != 0 {
            indices.push(first + bits.trailing_zeros() as usize / 8);
            bits &= bits - 1;
        }
    };
    words.iter().enumerate().for_each(|(word, flags)| add(word * 8, *flags));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(words.len() * 8, last);
    indices
}

/// Converts the actions of a block to lanes, with zeros for the lanes without a game.
#[inline(always)]
fn to_lane_actions(actions: &[i64]) -> [u32; LANES] {
    // Constant sizes, for which it compiles to shuffles of vectors.
    let lanes: [i64; LANES] = actions.try_into().unwrap_or_else(|_| {
        let mut lanes = [0; LANES];
        lanes[..actions.len()].copy_from_slice(actions);
        lanes
    });
    lanes.map(|action| action as u32)
}

/// Finds the first action that is not below `num_actions`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn find_out_of_range(actions: &[i64], num_actions: usize) -> Option<usize> {
    let last = num_actions as i64 - 1;
    // Negative if the action is below 0 or above the last.
    let sign = |action: &i64| action | last.wrapping_sub(*action);
    // Without an early end, so that it compiles to vector code.
    if actions.iter().fold(0, |all, action| all | sign(action)) >= 0 {
        return None;
    }
    actions.iter().position(|action| sign(action) < 0)
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
fn write_lanes<T: Copy>(to: &mut [T], values: &[T; LANES]) {
    match <&mut [T; LANES]>::try_from(&mut *to) {
        Ok(to) => *to = *values,
        Err(_) => to.copy_from_slice(&values[..to.len()]),
    }
}
