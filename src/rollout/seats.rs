//! The games of a rollout between two steps, in host memory.

use crate::config::{RolloutConfig, Start};
use crate::draws::draw;
use crate::env::bits::{from_bits, to_bits};
use crate::env::{Episode, Played, Rules, Words, new_game, play};
use crate::rollout::{RolloutKeys, staggered_time};

/// Words of a seat before those of the game's state: level, time, score.
pub(crate) const HEADER: usize = 3;

/// Words that hold one game between two iterations.
pub fn seat_words<G: Rules>(game: G) -> usize {
    HEADER + game.num_words()
}

/// Saved seats that do not fit.
#[derive(Debug, thiserror::Error)]
#[error(
    "the saved games are {found} words, but {expected} are needed for {num_envs} games of `{game}`"
)]
pub struct SeatsError {
    /// The game's name.
    pub game: &'static str,
    /// Games of this run.
    pub num_envs: usize,
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
        let episode = Episode {
            level,
            time: 0,
            score: 0.0,
        };
        Self {
            state: new_game::<G>(level, game),
            episode,
        }
    }

    /// Plays one step.
    pub fn play(&mut self, action: u32, game: G) -> Played {
        play::<G>(&mut self.state, &mut self.episode, action, game)
    }
}

/// The seats of an iteration's start; `last` are those of the last iteration's end, none before
/// the first.
pub(crate) fn deal<G: Rules>(
    game: G,
    config: &RolloutConfig,
    keys: &RolloutKeys,
    iteration: u32,
    last: &[Seat<G>],
) -> Vec<Seat<G>> {
    let keys = keys.at(iteration);
    let members = config.group_size as u32;
    (0..config.num_envs() as u32)
        .map(|env| {
            let group = env / members;
            if config.start == Start::Branch && !last.is_empty() {
                let member = draw(keys.branch, group) % members;
                return last[(group * members + member) as usize];
            }
            let mut seat = Seat::new(draw(keys.level, group), game);
            if config.start == Start::Branch {
                seat.episode.time = staggered_time(seat.episode.level, game.max_steps());
            }
            seat
        })
        .collect()
}

/// The seats as words `[seat_words, num_envs]`.
pub(crate) fn export<G: Rules>(game: G, seats: &[Seat<G>]) -> Vec<u32> {
    let num_envs = seats.len();
    let mut words = vec![0; seat_words(game) * num_envs];
    for (env, seat) in seats.iter().enumerate() {
        let Words {
            w0,
            w1,
            w2,
            w3,
            w4,
            w5,
            w6,
            w7,
        } = G::pack(&seat.state, game);
        let Episode { level, time, score } = seat.episode;
        let all = [level, time, to_bits(score), w0, w1, w2, w3, w4, w5, w6, w7];
        for (w, word) in all[..seat_words(game)].iter().enumerate() {
            words[w * num_envs + env] = *word;
        }
    }
    words
}

/// The seats that [`export`] wrote.
pub(crate) fn import<G: Rules>(
    game: G,
    num_envs: usize,
    words: &[u32],
) -> Result<Vec<Seat<G>>, SeatsError> {
    check_len(game, num_envs, words)?;
    let seats = (0..num_envs).map(|env| {
        let at = |w: usize| {
            if w < seat_words(game) {
                words[w * num_envs + env]
            } else {
                0
            }
        };
        let packed = Words {
            w0: at(HEADER),
            w1: at(HEADER + 1),
            w2: at(HEADER + 2),
            w3: at(HEADER + 3),
            w4: at(HEADER + 4),
            w5: at(HEADER + 5),
            w6: at(HEADER + 6),
            w7: at(HEADER + 7),
        };
        Seat {
            state: G::unpack(&packed, game),
            episode: Episode {
                level: at(0),
                time: at(1),
                score: from_bits(at(2)),
            },
        }
    });
    Ok(seats.collect())
}

/// Checks the number of saved words.
pub(crate) fn check_len<G: Rules>(
    game: G,
    num_envs: usize,
    words: &[u32],
) -> Result<(), SeatsError> {
    let expected = seat_words(game) * num_envs;
    if words.len() == expected {
        Ok(())
    } else {
        Err(SeatsError {
            game: G::NAME,
            num_envs,
            expected,
            found: words.len(),
        })
    }
}
