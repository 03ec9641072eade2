//! Evaluation of policies on whole episodes of unseen levels.

use super::action_selection::LanePolicy;
use super::env_lanes::{EnvLanes, StepResultLanes};
use super::env_state::EnvState;
use super::{ActionSelection, action_key};
use crate::env::Rules;
use crate::model::{Actor, LANES, Lanes};
use crate::rng::{Stream, draw};
use rayon::prelude::*;
use serde::Serialize;
use std::ops::Range;

/// Summary of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Number of episodes.
    pub episodes: usize,
    /// Mean score.
    pub mean_score: f64,
    /// Standard error of the mean; 0 for a single episode.
    pub std_error: f64,
    /// Minimum score.
    pub min_score: f64,
    /// Maximum score.
    pub max_score: f64,
    /// Mean episode length in steps.
    pub mean_length: f64,
}

/// Plays `episodes` whole episodes, each on its own level.
///
/// The result depends on the arguments only, not on the number of threads. Levels of
/// [`Stream::Evaluation`] and [`Stream::Validation`] are drawn independently of training levels. As
/// levels are 32-bit hashes, a few coincide by chance: about two of 10,000 episodes after a run
/// over a million levels (10^4 * 10^6 / 2^32).
///
/// # Panics
/// If `episodes` is 0, or the policy's numbers of features and actions differ from the game's.
pub fn evaluate<A: Actor, G: Rules>(
    policy: &A,
    game: G,
    episodes: usize,
    stream: Stream,
    seed: u64,
    player: ActionSelection,
) -> Evaluation {
    Evaluation::of(&play_episodes(policy, game, 0..episodes, (stream, seed), player))
}

/// Plays some of the episodes of an evaluation and returns score and length of each.
///
/// # Panics
/// If the policy's numbers of features and actions differ from the game's.
pub fn play_episodes<A: Actor, G: Rules>(
    policy: &A,
    game: G,
    episodes: Range<usize>,
    (stream, seed): (Stream, u64),
    player: ActionSelection,
) -> Vec<[f64; 2]> {
    assert_eq!(policy.num_features(), game.num_features());
    assert_eq!(policy.num_actions(), game.num_actions());
    let levels = draw(stream.key(seed), 0);
    let actions = draw(stream.key(seed), 1);
    (0..episodes.len().div_ceil(LANES))
        .into_par_iter()
        .flat_map_iter(|block| {
            let first = episodes.start + block * LANES;
            let lanes = LANES.min(episodes.end - first);
            play_block(policy, game, levels, actions, first, lanes, player)
        })
        .collect()
}

impl Evaluation {
    /// Summarizes scores and lengths of episodes.
    ///
    /// # Panics
    /// If there are no episodes.
    pub fn of(episodes: &[[f64; 2]]) -> Self {
        assert!(!episodes.is_empty(), "an evaluation needs an episode");
        let n = episodes.len() as f64;
        let scores = || episodes.iter().map(|[score, _]| *score);
        let mean = scores().sum::<f64>() / n;
        let squares = scores().map(|score| (score - mean).powi(2)).sum::<f64>();
        Self {
            episodes: episodes.len(),
            mean_score: mean,
            std_error: if n > 1.0 { (squares / (n - 1.0) / n).sqrt() } else { 0.0 },
            // NaN only where all scores are.
            min_score: scores().fold(f64::NAN, f64::min),
            max_score: scores().fold(f64::NAN, f64::max),
            mean_length: episodes.iter().map(|[_, length]| length).sum::<f64>() / n,
        }
    }
}

/// Plays `lanes` episodes, starting with number `first`.
fn play_block<A: Actor, G: Rules>(
    policy: &A,
    game: G,
    levels: u32,
    actions: u32,
    first: usize,
    lanes: usize,
    player: ActionSelection,
) -> Vec<[f64; 2]> {
    let number = |lane: usize| (first + lane) as u32;
    let envs: Vec<EnvState<G>> =
        (0..lanes).map(|lane| EnvState::new(draw(levels, number(lane)), game)).collect();
    let mut envs = EnvLanes::new(&envs);
    let mut played = StepResultLanes::default();
    let mut results: Vec<Option<[f64; 2]>> = vec![None; lanes];
    let mut memory: Vec<Lanes> = policy.initial_memory().iter().map(|x| [*x; LANES]).collect();
    let mut policy = LanePolicy::new(policy, game);
    let action_keys: [u32; LANES] = std::array::from_fn(|lane| action_key(actions, number(lane)));
    let mut t = 0;
    while results.iter().any(Option::is_none) {
        let logits = policy.logits(game, &envs, &mut memory);
        let (picked, _) = player.choose(logits, &action_keys, t);
        envs.play(game, &picked, &mut played);
        for (lane, result) in results.iter_mut().enumerate() {
            if result.is_none() && played.end(lane).ended() {
                *result = Some([f64::from(played.scores[lane]), f64::from(t + 1)]);
            }
        }
        t += 1;
    }
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_that_are_all_nan_have_no_extremes() {
        let nan = Evaluation::of(&[[f64::NAN, 3.0], [f64::NAN, 5.0]]);
        assert!(nan.min_score.is_nan() && nan.max_score.is_nan() && nan.mean_length == 4.0);
        let Evaluation { min_score, max_score, .. } = Evaluation::of(&[[2.0, 1.0], [-1.0, 1.0]]);
        assert_eq!([min_score, max_score], [-1.0, 2.0]);
    }
}
