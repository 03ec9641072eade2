//! Reference scores: those of players without a network, on the levels of an evaluation.

use super::{EpisodeKeys, EpisodeResult, Evaluation};
use crate::env::{Episode, Rules, ScriptedPlayer, draw_legal_action, initial_state, step_episode};
use crate::rng::{Stream, draw};
use rayon::prelude::*;
use serde::Serialize;

/// Maximum number of steps of a player, so that it costs a fraction of a second.
const MAX_STEPS: u64 = 2_000_000;

/// The mean score of a player without a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReferenceScore {
    /// The player's name, for instance `random`.
    pub player: &'static str,
    /// The mean score.
    pub mean_score: f64,
    /// Standard error of the mean; `None` if the score is known rather than measured, or of a single episode.
    pub std_error: Option<f64>,
}

/// Returns the known reference scores of a game, then measured ones of random actions and scripted players that have
/// none.
///
/// Each player plays the first episodes of an [`evaluate`](super::evaluate) of `episodes` episodes: as many as fit in
/// two million steps, at least two.
pub fn measure_reference_scores<G: Rules>(
    game: G,
    episodes: usize,
    stream: Stream,
    seed: u64,
) -> Vec<ReferenceScore> {
    let max_episodes = (MAX_STEPS / u64::from(game.max_steps().max(1))).max(2);
    let episodes = episodes.min(max_episodes as usize);
    let keys = EpisodeKeys::new(stream, seed);
    let measure = |player, scripted: Option<&ScriptedPlayer>| {
        let play = |i: usize| {
            play_episode(game, scripted, keys.level(i as u32), keys.action_key(i as u32))
        };
        let results: Vec<EpisodeResult> = (0..episodes).into_par_iter().map(play).collect();
        let Evaluation { mean_score, std_error, .. } = Evaluation::from_results(&results);
        ReferenceScore { player, mean_score, std_error }
    };
    let known = game.reference_scores().iter();
    let mut scores: Vec<_> = known
        .map(|(player, score)| ReferenceScore { player, mean_score: *score, std_error: None })
        .collect();
    if !scores.iter().any(|score| ["random", "chance"].contains(&score.player)) {
        scores.push(measure("random", None));
    }
    for player in game.players() {
        if !scores.iter().any(|score| score.player == player.name()) {
            scores.push(measure(player.name(), Some(&player)));
        }
    }
    scores
}

/// Plays an episode by a scripted player or, without one, by random actions.
fn play_episode<G: Rules>(
    game: G,
    player: Option<&ScriptedPlayer>,
    level: u32,
    key: u32,
) -> EpisodeResult {
    let mut state = initial_state::<G>(level, game);
    let mut episode = Episode { level, ..Episode::default() };
    for length in 1.. {
        let action = match player {
            Some(player) => player.act(&state),
            None => draw_legal_action(&state, draw(key, length), game).expect("an action is legal"),
        };
        let result = step_episode::<G>(&mut state, &mut episode, action, game);
        if result.has_ended() {
            return EpisodeResult { score: result.episode_score.into(), length };
        }
    }
    unreachable!("an episode ends after its longest length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{CartPole, Catch, Fruit};

    fn scores<G: Rules>(game: G) -> Vec<(&'static str, f64, Option<f64>)> {
        let scores = measure_reference_scores(game, 500, Stream::Evaluation, 0);
        scores.iter().map(|score| (score.player, score.mean_score, score.std_error)).collect()
    }

    #[test]
    fn references_stay_and_players_are_measured() {
        let catch = scores(Catch::default());
        assert_eq!(catch[..2], [("random", -0.595, None), ("optimum", 1.0, None)]);
        assert_eq!(catch[2], ("chaser", 1.0, Some(0.0)));
        assert_eq!(scores(CartPole::default())[2].1, 500.0);
    }

    #[test]
    fn random_actions_are_measured_where_no_score_is_known() {
        let wide = Catch { columns: 7, ..Catch::default() };
        let catch = scores(wide);
        let (player, score, error) = catch[1];
        assert_eq!(player, "random");
        // A paddle somewhere on the bottom row is rarely under the ball.
        assert!((-0.9..-0.5).contains(&score), "{score}");
        assert!(error.is_some_and(|error| error > 0.0 && error < 0.05), "{error:?}");
        let names = |game| scores(game).into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
        let fruit = names(Fruit { width: 24, ..Fruit::default() });
        assert_eq!(fruit, ["random", "lowest-fruit", "planner"]);
        let usual = names(Fruit::default());
        assert_eq!(usual, ["random", "lowest-fruit", "optimum", "planner"]);
    }
}
