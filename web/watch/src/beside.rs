//! Policies side by side: each plays the same levels on a board of its own, and waits for the others at their end.

use crate::kind::Kind;
use crate::shown::{Boards, Scores, Standing};
use crate::watch::{Policy, Show};
use grove::model::NativePolicy;
use grove::rollout::{Choice, Player};
use grove::viewer::Instance;
use serde_json::{Value, json};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The largest number of policies beside the first.
const MOST: usize = 7;

/// A policy beside the first, with a memory and a game of its own.
pub struct Rival {
    network: Rc<NativePolicy>,
    game: Box<dyn Boards>,
    choices: Vec<Choice>,
    scores: Scores,
}

impl Rival {
    fn new(network: Rc<NativePolicy>, kind: &dyn Kind, seed: u64) -> Self {
        let game = kind.start(1, seed);
        Self { network, game, choices: Vec::new(), scores: Scores::default() }
    }

    /// Restarts its game, from the first level of a seed.
    pub fn restart(&mut self, kind: &dyn Kind, seed: u64) {
        self.game = kind.start(1, seed);
    }

    /// Chooses its next action.
    pub fn choose(&mut self, player: Player) {
        self.choices = self.game.choose(&self.network, player);
    }

    /// Resets its scores.
    pub fn reset_scores(&mut self) {
        self.scores = Scores::default();
    }

    /// Whether its episode has ended.
    pub fn ended(&self) -> bool {
        self.game.standing(0).ended
    }

    /// Plays a step. A finished game waits, or starts the next level.
    pub fn step(&mut self, wait: bool) {
        let stood = wait && self.ended();
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
    pub fn sprites(&self, part: f32, into: &mut Vec<Instance>) {
        let mut own = Vec::new();
        self.game.instances(part, &mut own);
        into.append(&mut own);
    }
}

#[wasm_bindgen]
impl Show {
    /// Restarts with one game of the policy, and one game of each of these policies beside it on the same level;
    /// an empty list removes the policies beside.
    pub fn set_beside(&mut self, policies: Vec<Policy>) -> Result<(), JsError> {
        if policies.len() > MOST {
            return Err(JsError::new(&format!("at most {MOST} policies fit beside another")));
        }
        if policies.iter().any(|policy| !self.kind.is(&*policy.kind)) {
            return Err(JsError::new(
                "this policy is for another game, or for other parameters: it cannot play the same levels",
            ));
        }
        if policies.is_empty() {
            self.rivals.clear();
            return Ok(());
        }
        self.set_games(1);
        let (kind, seed) = (self.kind.clone(), self.seed);
        let rivals = policies.iter().map(|policy| Rival::new(policy.network.clone(), &*kind, seed));
        self.rivals = rivals.collect();
        self.choose();
        Ok(())
    }
}
