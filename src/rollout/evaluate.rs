//! Evaluation of policies on whole episodes of unseen levels.

use super::action_selection::LanePolicy;
use super::env_lanes::{EnvLanes, StepResultLanes};
use super::env_state::EnvState;
use super::{ActionSelection, action_key};
use crate::env::Rules;
use crate::model::{Actor, LANES, splat};
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
    /// Standard error of the mean; `None` for a single episode, which does not tell it.
    pub std_error: Option<f64>,
    /// Minimum score.
    pub min_score: f64,
    /// Maximum score.
    pub max_score: f64,
    /// Mean episode length in steps.
    pub mean_length: f64,
}

/// Score and length of an episode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpisodeResult {
    /// The score.
    pub score: f64,
    /// Number of steps.
    pub length: u32,
}

/// Keys of the levels and of the actions of an evaluation's episodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeKeys {
    levels: u32,
    actions: u32,
}

impl EpisodeKeys {
    /// Derives the keys from a stream of draws and a seed.
    pub fn new(stream: Stream, seed: u64) -> Self {
        let key = stream.key(seed);
        Self { levels: draw(key, 0), actions: draw(key, 1) }
    }

    /// Level of an episode.
    pub(super) fn level(self, index: u32) -> u32 {
        draw(self.levels, index)
    }

    /// Key of the sampled actions of an episode.
    pub(super) fn action_key(self, index: u32) -> u32 {
        action_key(self.actions, index)
    }
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
    selection: ActionSelection,
) -> Evaluation {
    let keys = EpisodeKeys::new(stream, seed);
    Evaluation::from_results(&play_episodes(policy, game, 0..episodes, keys, selection))
}

/// Plays some of the episodes of an evaluation and returns their results.
///
/// # Panics
/// If the policy's numbers of features and actions differ from the game's.
pub fn play_episodes<A: Actor, G: Rules>(
    policy: &A,
    game: G,
    episodes: Range<usize>,
    keys: EpisodeKeys,
    selection: ActionSelection,
) -> Vec<EpisodeResult> {
    assert_eq!(
        policy.num_features(),
        game.num_features(),
        "features of the policy and of the game"
    );
    assert_eq!(policy.num_actions(), game.num_actions(), "actions of the policy and of the game");
    // Side by side, as many as there are lanes.
    let play_block = |block: usize| {
        let first = episodes.start + block * LANES;
        let count = LANES.min(episodes.end - first);
        let index = |lane: usize| (first + lane) as u32;
        let start = |lane| EnvState::<G>::new(keys.level(index(lane)), game);
        let mut envs = EnvLanes::new(&(0..count).map(start).collect::<Vec<_>>());
        let mut step_results = StepResultLanes::default();
        let mut results: Vec<Option<EpisodeResult>> = vec![None; count];
        let mut memory = splat(&policy.initial_memory());
        let mut policy = LanePolicy::new(policy, game);
        let action_keys: [u32; LANES] = std::array::from_fn(|lane| keys.action_key(index(lane)));
        let mut t = 0;
        while results.iter().any(Option::is_none) {
            let logits = policy.compute_logits(game, &envs, &mut memory);
            let chosen = selection.choose(logits, &action_keys, t);
            envs.step_with_auto_reset(game, &chosen.actions, &mut step_results);
            for (lane, result) in results.iter_mut().enumerate() {
                if result.is_none() && step_results.status(lane).has_ended() {
                    let (score, length) = (step_results.scores[lane].into(), t + 1);
                    *result = Some(EpisodeResult { score, length });
                }
            }
            t += 1;
        }
        results.into_iter().flatten()
    };
    let blocks = (0..episodes.len().div_ceil(LANES)).into_par_iter();
    blocks.flat_map_iter(play_block).collect()
}

impl Evaluation {
    /// Summarizes the results of episodes.
    ///
    /// # Panics
    /// If there are none.
    pub fn from_results(episodes: &[EpisodeResult]) -> Self {
        assert!(!episodes.is_empty(), "an evaluation needs an episode");
        let n = episodes.len() as f64;
        let scores = || episodes.iter().map(|episode| episode.score);
        let mean = scores().sum::<f64>() / n;
        Self {
            episodes: episodes.len(),
            mean_score: mean,
            std_error: std_error(scores(), mean),
            // NaN only where all scores are.
            min_score: scores().fold(f64::NAN, f64::min),
            max_score: scores().fold(f64::NAN, f64::max),
            mean_length: episodes.iter().map(|episode| f64::from(episode.length)).sum::<f64>() / n,
        }
    }
}

/// Standard error of the mean of independent values; `None` for fewer than two.
pub(crate) fn std_error(values: impl ExactSizeIterator<Item = f64>, mean: f64) -> Option<f64> {
    let n = values.len() as f64;
    let squares = values.map(|value| (value - mean).powi(2)).sum::<f64>();
    (n > 1.0).then(|| (squares / (n - 1.0) / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_that_are_all_nan_have_no_extremes() {
        let result = |score, length| EpisodeResult { score, length };
        let nan = Evaluation::from_results(&[result(f64::NAN, 3), result(f64::NAN, 5)]);
        assert!(nan.min_score.is_nan() && nan.max_score.is_nan() && nan.mean_length == 4.0);
        let usual = Evaluation::from_results(&[result(2.0, 1), result(-1.0, 1)]);
        let Evaluation { min_score, max_score, .. } = usual;
        assert_eq!([min_score, max_score], [-1.0, 2.0]);
    }

    #[test]
    fn a_single_score_has_no_standard_error() {
        let error = |scores: &[f64]| std_error(scores.iter().copied(), 1.0);
        assert_eq!([error(&[]), error(&[1.0]), error(&[0.0, 2.0])], [None, None, Some(1.0)]);
    }
}
