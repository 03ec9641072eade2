//! Policies side by side: each plays the same levels on a board of its own, and waits for the others at the end.

use crate::kind::Kind;
use crate::shown::{Scores, Shown, Standing};
use crate::watch::{Policy, Show};
use grove::model::NativePolicy;
use grove::rollout::{Choice, Player};
use grove::viewer::Instance;
use serde_json::{Value, json};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The most policies beside the one that is told of.
const MOST: usize = 7;

/// A policy beside the one that is told of. What it remembers is its own, and so is its game.
pub struct Rival {
    network: Rc<NativePolicy>,
    game: Box<dyn Shown>,
    choices: Vec<Choice>,
    scores: Scores,
}

impl Rival {
    fn new(network: Rc<NativePolicy>, kind: &dyn Kind, seed: u64) -> Self {
        let game = kind.start(1, seed);
        Self { network, game, choices: Vec::new(), scores: Scores::default() }
    }

    /// Starts anew, from the first level of a seed.
    pub fn restart(&mut self, kind: &dyn Kind, seed: u64) {
        self.game = kind.start(1, seed);
    }

    /// Chooses what it does next.
    pub fn look(&mut self, player: Player) {
        self.choices = self.game.choose(&self.network, player);
    }

    /// Scores count from here.
    pub fn forget(&mut self) {
        self.scores = Scores::default();
    }

    /// Whether it is at the end of its episode.
    pub fn ended(&self) -> bool {
        self.game.standing(0).ended
    }

    /// Plays a step. At its end it waits, or begins with the next level.
    pub fn step(&mut self, wait: bool) {
        let stood = wait && self.ended();
        self.game.step(&self.choices, None, wait);
        let Standing { ended, score, .. } = self.game.standing(0);
        if ended && !stood {
            self.scores.add(f64::from(score));
        }
    }

    /// How it stands: `{score, ended, finished, mean_score, error}`.
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

    /// Its sprites, behind what `into` holds.
    pub fn sprites(&self, part: f32, into: &mut Vec<Instance>) {
        let mut own = Vec::new();
        self.game.instances(part, &mut own);
        into.append(&mut own);
    }
}

#[wasm_bindgen]
impl Show {
    /// Starts anew with one game of the policy, and one of each of these beside it on the same level; or goes
    /// on alone, if there are none.
    pub fn set_beside(&mut self, policies: Vec<Policy>) -> Result<(), JsError> {
        if policies.len() > MOST {
            return Err(JsError::new(&format!("at most {MOST} policies play beside another")));
        }
        if policies.iter().any(|policy| !self.kind.is(&*policy.kind)) {
            return Err(JsError::new(
                "this policy is of another game, or of other parameters: it cannot play the same levels",
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
        self.look();
        Ok(())
    }
}
