//! Policies side by side: each plays the same levels on its own board, and waits for the others at their end.

use crate::kind::Kind;
use crate::shown::{Boards, Scores, Standing};
use grove::model::NativePolicy;
use grove::rollout::{ActionSelection, Choice};
use grove::viewer::Sprite;
use serde_json::{Value, json};
use std::rc::Rc;

/// The largest number of policies beside the first.
pub const MAX_RIVALS: usize = 7;

/// A policy beside the first, with its own game and memory.
pub struct Rival {
    network: Rc<NativePolicy>,
    game: Box<dyn Boards>,
    choices: Vec<Choice>,
    scores: Scores,
}

impl Rival {
    /// Starts its game at the first level of a seed.
    pub fn new(network: Rc<NativePolicy>, kind: &dyn Kind, seed: u64) -> Self {
        let game = kind.start(1, seed);
        Self { network, game, choices: Vec::new(), scores: Scores::default() }
    }

    /// Restarts its game, from the first level of a seed.
    pub fn restart(&mut self, kind: &dyn Kind, seed: u64) {
        self.game = kind.start(1, seed);
    }

    /// Replaces its policy by another of the same game, and resets its scores.
    pub fn set_policy(&mut self, network: Rc<NativePolicy>) {
        self.network = network;
        self.reset_scores();
    }

    /// Chooses its next action.
    pub fn choose(&mut self, player: ActionSelection) {
        self.choices = self.game.choose(&self.network, player);
    }

    /// Resets its scores.
    pub fn reset_scores(&mut self) {
        self.scores = Scores::default();
    }

    /// Whether its episode has ended.
    pub fn has_ended(&self) -> bool {
        self.game.standing(0).ended
    }

    /// Plays a step. A finished game waits, or starts the next level.
    pub fn step(&mut self, wait: bool) {
        let stood = wait && self.has_ended();
        self.game.step(&self.choices, None, wait);
        let Standing { ended, score, .. } = self.game.standing(0);
        if ended && !stood {
            self.scores.add(f64::from(score));
        }
    }

    /// The state of its game: `{score, ended, finished, mean_score, error}`.
    pub fn report(&self) -> Value {
        let Standing { ended, score, .. } = self.game.standing(0);
        json!({
            "score": score,
            "ended": ended,
            "finished": self.scores.count,
            "mean_score": self.scores.mean(),
            "error": self.scores.error(),
        })
    }

    /// Appends its sprites to `into`.
    pub fn sprites(&self, progress: f32, into: &mut Vec<Sprite>) {
        let mut own = Vec::new();
        self.game.compute_sprites(progress, &mut own);
        into.append(&mut own);
    }
}
