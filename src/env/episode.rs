//! Episodes: counting steps and score, truncating, and going on with the next level.

use super::{PackedState, Rules};
use crate::rng::draw;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The counter under a level's key that names the level which follows it.
const NEXT_LEVEL: u32 = 0xffff_ffff;
/// The counter under a level's key that names the draws of its start.
const START: u32 = 0xffff_fffe;

/// Where a game stands in its episode.
///
/// A level is a number: the start and the whole future of the environment. Games with equal level
/// and time meet the same environment draws, whatever their actions.
#[derive(CubeType, Clone, Copy, Debug, Default, PartialEq)]
pub struct Episode {
    /// The key of the level.
    pub level: u32,
    /// Steps played.
    pub time: u32,
    /// The sum of what its steps have scored so far ([`Outcome::score`](super::Outcome::score)).
    pub score: f32,
}

/// What a step of an episode gave.
#[derive(CubeType, Clone, Copy, Debug, PartialEq)]
pub struct Played {
    /// The reward of the step.
    pub reward: f32,
    /// Whether the game came to an end of its own.
    pub terminated: bool,
    /// Whether the episode was cut off by [`Env::max_steps`](super::Env::max_steps); not also where the
    /// game came to an end of its own.
    pub truncated: bool,
    /// The score of the episode if it ended with this step, else 0.
    pub score: f32,
}

#[cube]
impl Played {
    /// Whether the episode ended with this step, one way or the other.
    #[inline(always)]
    pub fn ended(&self) -> bool {
        self.terminated || self.truncated
    }
}

/// The start of the level whose key is `level`.
#[cube]
pub fn new_game<G: Rules>(level: u32, #[comptime] game: G) -> G::State {
    let mut state = blank::<G::State>();
    G::reset(&mut state, draw(level, START), game);
    state
}

/// A state whose words are all 0.
#[inline(always)]
fn blank<S: PackedState>() -> S {
    S::unpack(|_| 0)
}

/// The kernel side of [`blank()`].
mod blank {
    use super::*;

    pub fn expand<S: PackedState>(scope: &Scope) -> S::ExpandType {
        let words: Vec<_> = (0..S::WORDS).map(|_| 0u32.into_expand(scope)).collect();
        S::__expand_unpack(scope, &words)
    }
}

/// Plays one step, and starts the level's successor where the episode ended.
///
/// Members of a group that end an episode at the same time go on with the same next level.
#[cube]
#[inline(always)]
pub fn play<G: Rules>(
    state: &mut G::State,
    episode: &mut Episode,
    action: u32,
    #[comptime] game: G,
) -> Played {
    let played = advance::<G>(state, episode, action, game);
    if played.ended() {
        start_next::<G>(state, episode, game);
    }
    played
}

/// Plays one step, and leaves the game where it is if the episode ended.
#[cube]
#[inline(always)]
pub fn advance<G: Rules>(
    state: &mut G::State,
    episode: &mut Episode,
    action: u32,
    #[comptime] game: G,
) -> Played {
    let outcome = G::step(state, action, draw(episode.level, episode.time), game);
    episode.time += 1;
    episode.score += outcome.score;
    let ended = outcome.terminated || episode.time >= comptime!(game.max_steps());
    let score = select(ended, episode.score, 0.0f32);
    Played {
        reward: outcome.reward,
        terminated: outcome.terminated,
        truncated: ended && !outcome.terminated,
        score,
    }
}

/// Starts the successor of a level.
#[cube]
#[inline(always)]
pub fn start_next<G: Rules>(state: &mut G::State, episode: &mut Episode, #[comptime] game: G) {
    episode.level = draw(episode.level, NEXT_LEVEL);
    restart::<G>(state, episode, game);
}

/// Starts the level of an episode, from whatever was there before.
#[cube]
#[inline(always)]
pub(super) fn restart<G: Rules>(state: &mut G::State, episode: &mut Episode, #[comptime] game: G) {
    episode.time = 0;
    episode.score = 0.0;
    G::reset(state, draw(episode.level, START), game);
}
