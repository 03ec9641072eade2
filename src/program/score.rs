//! A policy's scores, by its most likely actions and by drawn ones, beside those of known players.

use super::games::References;
use super::patience::patiently;
use crate::env::Rules;
use crate::model::Actor;
use crate::rng::Stream;
use crate::rollout::{Evaluation, Player, evaluate};
use serde::Serialize;

/// The scores of fresh episodes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scores {
    /// Where the most likely action is always taken.
    #[serde(flatten)]
    pub greedy: Evaluation,
    /// Where actions are drawn, as in training.
    pub sampled: Evaluation,
}

impl Scores {
    /// Plays `episodes` fresh episodes in both ways, on the same levels.
    pub fn of<A: Actor, G: Rules>(policy: &A, game: G, episodes: usize, seed: u64) -> Self {
        let play = |player| evaluate(policy, game, episodes, Stream::Evaluation, seed, player);
        patiently(&format!("Playing {episodes} episodes, twice."), || Self {
            greedy: play(Player::Greedy),
            sampled: play(Player::Sampling),
        })
    }

    /// The table for people.
    pub fn table(&self, references: References) -> String {
        let error = |evaluation: &Evaluation| format!(" +- {:.3}", evaluation.std_error);
        let own = [("this policy, sampled", self.sampled), ("this policy, greedy", self.greedy)];
        let own = own.iter().map(|(who, e)| (*who, e.mean_score, error(e)));
        let known = references.iter().map(|(who, score)| (*who, *score, String::new()));
        let mut rows: Vec<(&str, f64, String)> = own.chain(known).collect();
        rows.sort_by(|a, b| a.1.total_cmp(&b.1));
        let width = rows.iter().map(|(who, ..)| who.len()).max().unwrap_or(0);
        let mut table = format!("{:width$}  {:>8}", "player", "score");
        for (who, score, error) in rows {
            table += &format!("\n{who:width$}  {score:>8.3}{error}");
        }
        let Evaluation { episodes, min_score, max_score, mean_length, .. } = self.greedy;
        table
            + &format!(
                "\n\ngreedy: its most likely action each time; sampled: drawn, as in training.\n\
                 {episodes} fresh episodes each; greedy ones score {min_score} to {max_score} in \
                 {mean_length:.1} steps."
            )
    }
}
