//! Episodes: step and score counting, truncation and automatic reset.

use super::{PackedState, Rules};
use crate::rng::draw;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Counter under a level's key from which the next level's key is drawn.
const NEXT_LEVEL_COUNTER: u32 = 0xffff_ffff;
/// Counter under a level's key from which the initial state is drawn.
const START_COUNTER: u32 = 0xffff_fffe;

/// Progress of a game within its current episode.
///
/// A level is a key that determines the initial state and all future environment randomness. Games
/// at the same level and time see the same draws, whatever their actions.
#[derive(CubeType, Clone, Copy, Debug, Default, PartialEq)]
pub struct Episode {
    /// Key of the level.
    pub level: u32,
    /// Steps played so far.
    pub time: u32,
    /// Sum of the scores of the steps so far ([`Outcome::score`](super::Outcome::score)).
    pub score: f32,
}

/// Result of one step of an episode.
#[derive(CubeType, Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Reward of the step.
    pub reward: f32,
    /// Whether the game ended by its own rules.
    pub terminated: bool,
    /// Whether the episode was cut off at [`Env::max_steps`](super::Env::max_steps). False if the
    /// game terminated in the same step.
    pub truncated: bool,
    /// Score of the episode if it ended with this step, else 0.
    pub episode_score: f32,
}

#[cube]
impl StepResult {
    /// Whether the episode ended with this step, by termination or truncation.
    #[inline(always)]
    pub fn has_ended(&self) -> bool {
        self.terminated || self.truncated
    }
}

/// Returns the initial state of the level with key `level`.
#[cube]
pub fn initial_state<G: Rules>(level: u32, #[comptime] game: G) -> G::State {
    let mut state = zero_state::<G::State>();
    G::reset(&mut state, draw(level, START_COUNTER), game);
    state
}

/// Returns a state of zero words.
#[inline(always)]
fn zero_state<S: PackedState>() -> S {
    S::unpack(|_| 0)
}

/// Kernel-side form of [`zero_state()`].
mod zero_state {
    use super::*;

    pub fn expand<S: PackedState>(scope: &Scope) -> S::ExpandType {
        let words: Vec<_> = (0..S::WORDS).map(|_| 0u32.into_expand(scope)).collect();
        S::__expand_unpack(scope, &words)
    }
}

/// Plays one step and, if the episode ended, starts the next level.
///
/// Games of a group that end an episode at the same time continue with the same next level.
#[cube]
#[inline(always)]
pub fn step_with_auto_reset<G: Rules>(
    state: &mut G::State,
    episode: &mut Episode,
    action: u32,
    #[comptime] game: G,
) -> StepResult {
    let result = step_episode::<G>(state, episode, action, game);
    if result.has_ended() {
        start_next_level::<G>(state, episode, game);
    }
    result
}

/// Plays one step without starting a new episode if it ended.
#[cube]
#[inline(always)]
pub fn step_episode<G: Rules>(
    state: &mut G::State,
    episode: &mut Episode,
    action: u32,
    #[comptime] game: G,
) -> StepResult {
    let outcome = G::step(state, action, draw(episode.level, episode.time), game);
    episode.time += 1;
    episode.score += outcome.score;
    let ended = outcome.terminated || episode.time >= comptime!(game.max_steps());
    let episode_score = select(ended, episode.score, 0.0f32);
    StepResult {
        reward: outcome.reward,
        terminated: outcome.terminated,
        truncated: ended && !outcome.terminated,
        episode_score,
    }
}

/// Key of the level after the one with key `level`.
#[cube]
#[inline(always)]
pub fn next_level(level: u32) -> u32 {
    draw(level, NEXT_LEVEL_COUNTER)
}

/// Starts the next level.
#[cube]
#[inline(always)]
pub fn start_next_level<G: Rules>(
    state: &mut G::State,
    episode: &mut Episode,
    #[comptime] game: G,
) {
    episode.level = next_level(episode.level);
    restart::<G>(state, episode, game);
}

/// Restarts the current level from any state.
#[cube]
#[inline(always)]
pub(super) fn restart<G: Rules>(state: &mut G::State, episode: &mut Episode, #[comptime] game: G) {
    episode.time = 0;
    episode.score = 0.0;
    G::reset(state, draw(episode.level, START_COUNTER), game);
}
