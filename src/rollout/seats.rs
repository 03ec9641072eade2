//! The games of a rollout between two steps, in host memory.

use crate::config::{RolloutConfig, Start};
use crate::env::bits::{from_bits, to_bits};
use crate::env::{Episode, Played, Rules, Words, new_game, play};
use crate::rng::draw;
use crate::rollout::{branch_member, branch_step, staggered_time};

/// Words of a seat before those of the game's state: level, time, score.
pub(crate) const HEADER: usize = 3;

/// Words that hold one game between two iterations.
pub fn seat_words<G: Rules>(game: G) -> usize {
    HEADER + game.num_words()
}

/// Saved seats that do not fit.
#[derive(Debug, thiserror::Error)]
#[error(
    "the saved games are {found} words, but {expected} are needed for {count} groups of `{game}`"
)]
pub struct SeatsError {
    /// The game's name.
    pub game: &'static str,
    /// Groups of this run.
    pub count: usize,
    /// Words needed.
    pub expected: usize,
    /// Words found.
    pub found: usize,
}

/// One game and its episode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat<G: Rules> {
    pub state: G::State,
    pub episode: Episode,
}

impl<G: Rules> Seat<G> {
    /// The start of a level.
    pub fn new(level: u32, game: G) -> Self {
        let episode = Episode { level, time: 0, score: 0.0 };
        Self { state: new_game::<G>(level, game), episode }
    }

    /// Plays one step.
    pub fn play(&mut self, action: u32, game: G) -> Played {
        play::<G>(&mut self.state, &mut self.episode, action, game)
    }
}

/// The seats of an iteration's start. `branches`, one a group, are where the last iteration says to
/// go on; none before the first.
pub(crate) fn deal<G: Rules>(
    game: G,
    config: &RolloutConfig,
    level_key: u32,
    branches: &[Seat<G>],
) -> Vec<Seat<G>> {
    let groups = (0..config.num_groups).map(|group| {
        let level = draw(level_key, group as u32);
        if config.start == Start::Branch && !branches.is_empty() {
            // From here on the environment's draws are others than those that led here.
            let mut seat = branches[group];
            seat.episode.level = level;
            return seat;
        }
        let mut seat = Seat::new(level, game);
        if config.start == Start::Branch {
            seat.episode.time = staggered_time(seat.episode.level, game.max_steps());
        }
        seat
    });
    groups.flat_map(|seat| std::iter::repeat_n(seat, config.group_size)).collect()
}

/// Where a group goes on in the next iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BranchPoint {
    /// After this many steps of the iteration.
    pub step: usize,
    /// From the state of this game.
    pub env: usize,
}

/// The branch points of an iteration, one a group; none where games start at levels.
pub(crate) fn branch_points(config: &RolloutConfig, branch_key: u32) -> Vec<BranchPoint> {
    if config.start == Start::Level {
        return Vec::new();
    }
    let (steps, members) = (config.learn_steps as u32, config.group_size as u32);
    let groups = 0..config.num_groups as u32;
    let point = |group| BranchPoint {
        step: branch_step(branch_key, group, steps) as usize,
        env: (group * members + branch_member(branch_key, group, members)) as usize,
    };
    groups.map(point).collect()
}

/// The seats as words `[seat_words, number of seats]`.
pub(crate) fn export<G: Rules>(game: G, seats: &[Seat<G>]) -> Vec<u32> {
    let count = seats.len();
    let mut words = vec![0; seat_words(game) * count];
    for (env, seat) in seats.iter().enumerate() {
        let Words { w0, w1, w2, w3, w4, w5, w6, w7 } = G::pack(&seat.state, game);
        let Episode { level, time, score } = seat.episode;
        let all = [level, time, to_bits(score), w0, w1, w2, w3, w4, w5, w6, w7];
        for (w, word) in all[..seat_words(game)].iter().enumerate() {
            words[w * count + env] = *word;
        }
    }
    words
}

/// The seats that [`export`] wrote: `count` of them, or none.
pub(crate) fn import<G: Rules>(
    game: G,
    count: usize,
    words: &[u32],
) -> Result<Vec<Seat<G>>, SeatsError> {
    check_len(game, count, words)?;
    let count = if words.is_empty() { 0 } else { count };
    let seats = (0..count).map(|env| {
        let at = |w: usize| words[w * count + env];
        let packed = Words::gather(game.num_words(), |w| at(HEADER + w));
        Seat {
            state: G::unpack(&packed, game),
            episode: Episode { level: at(0), time: at(1), score: from_bits(at(2)) },
        }
    });
    Ok(seats.collect())
}

/// Checks the number of saved words: those of `count` seats, or none.
pub(crate) fn check_len<G: Rules>(game: G, count: usize, words: &[u32]) -> Result<(), SeatsError> {
    let expected = seat_words(game) * count;
    if words.is_empty() || words.len() == expected {
        Ok(())
    } else {
        Err(SeatsError { game: G::NAME, count, expected, found: words.len() })
    }
}
