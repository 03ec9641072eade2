//! Demonstrations by a person: the steps that were played in duels, and the file that they become.

use grove::data::{
    EpisodeStatus, Manifest, StepColumns, Steps, deserialize_games, serialize_games,
};
use serde_json::json;
use std::path::PathBuf;
use wasm_bindgen::prelude::*;

/// The steps of a person that no file holds yet.
#[derive(Default)]
pub struct Demonstrations(StepColumns);

impl Demonstrations {
    /// Adds a step: the observation, the action, and whether it ended the game.
    pub fn add(&mut self, obs: Vec<f32>, action: u32, ended: bool) {
        self.0.num_features = obs.len();
        self.0.obs.extend(obs);
        self.0.actions.push(action as i32);
        self.0.weights.push(1.0);
        self.0.statuses.push(EpisodeStatus::new(ended, false));
    }

    /// Ends an unfinished game as truncated.
    pub fn leave(&mut self) {
        if let Some(end) = self.0.statuses.last_mut().filter(|end| !end.has_ended()) {
            *end = EpisodeStatus::Truncated;
        }
    }

    /// Takes all games, if the last of them has ended.
    pub fn take(&mut self) -> Option<StepColumns> {
        match self.0.statuses.last() {
            Some(end) if end.has_ended() => Some(std::mem::take(&mut self.0)),
            _ => None,
        }
    }
}

/// Reads a file of games.
fn games_in(file: Vec<u8>) -> Result<(Manifest, StepColumns), JsError> {
    let (manifest, steps) = deserialize_games(PathBuf::from("your games"), file)?;
    Ok((manifest, StepColumns::from_steps(&steps)))
}

/// Joins two files of games.
#[wasm_bindgen]
pub fn join_games(first: Vec<u8>, more: Vec<u8>) -> Result<Vec<u8>, JsError> {
    let ((of, mut games), (other, more)) = (games_in(first)?, games_in(more)?);
    if of.env != other.env || of.settings != other.settings {
        return Err(JsError::new("the files hold games with different rules"));
    }
    games.append(more);
    Ok(serialize_games(&of, &games))
}

/// The game of a file and its length: `{env, settings, games, steps}`, as JSON.
#[wasm_bindgen]
pub fn about_games(file: Vec<u8>) -> Result<String, JsError> {
    let (of, games) = games_in(file)?;
    let (count, steps) = (games.episodes().len(), games.len());
    Ok(json!({ "env": of.env, "settings": of.settings, "games": count, "steps": steps })
        .to_string())
}
