//! Policies and the games that they play on the CPU, for JavaScript.

use crate::beside::{MAX_RIVALS, Rival};
use crate::games;
use crate::kind::Kind;
use crate::person::Demonstrations;
use crate::shown::{Boards, Scores, Standing};
use grove::data::{Manifest, serialize_games};
use grove::model::policy_file::{Header, read_header, replace_header, write_params};
use grove::model::{NativePolicy, Parameter};
use grove::rng::{draw, uniform};
use grove::rollout::{ActionSelection, Choice};
use grove::settings::TrainConfig;
use grove::trainer::{read_game_name, read_policy_file};
use grove::viewer::{Sprite, Wall};
use serde_json::json;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The largest number of games on the screen.
const MAX_GAMES: u32 = 1024;

/// The games of the page: `[{name, title, rules, training_time, actions, features, settings}]`, as JSON.
#[wasm_bindgen]
pub fn games() -> Result<String, JsError> {
    let mut all = Vec::new();
    for entry in games::all().iter() {
        let kind = entry.default_game();
        let facts = kind.facts();
        all.push(json!({
            "name": facts.name,
            "title": facts.title,
            "rules": facts.rules,
            "training_time": facts.training_time,
            "actions": facts.actions,
            "features": facts.features,
            "settings": kind.settings(&kind.defaults()?),
        }));
    }
    Ok(json!(all).to_string())
}

fn unknown(name: &str) -> JsError {
    let names = games::all().joined_names();
    JsError::new(&format!("this policy is for an unknown game, `{name}`; this page has: {names}"))
}

/// A trained policy, with its game and settings.
#[wasm_bindgen]
pub struct Policy {
    kind: Rc<dyn Kind>,
    config: TrainConfig,
    network: Rc<NativePolicy>,
    file: Vec<u8>,
    iteration: u64,
}

#[wasm_bindgen]
impl Policy {
    /// Reads a file with a policy and its settings.
    #[wasm_bindgen(constructor)]
    pub fn new(file: Vec<u8>) -> Result<Policy, JsError> {
        let checkpoint = read_policy_file(file.clone())?;
        let name = read_game_name(&checkpoint)?;
        let entry = games::all().find(&name).ok_or_else(|| unknown(&name))?;
        let (kind, config, network) = entry.load(&checkpoint)?;
        let iteration = checkpoint.iteration;
        Ok(Self { kind, config, network: Rc::new(network), file, iteration })
    }

    /// Reads a checkpoint's `config.toml` and `weights.safetensors`.
    pub fn from_parts(config: String, weights: Vec<u8>) -> Result<Policy, JsError> {
        let iteration = read_header(&weights).map_or(0, |header| header.iteration);
        Self::new(replace_header(&weights, &Header { iteration, config, dataset: None })?)
    }

    /// A policy with random weights for the game of this name.
    pub fn untrained(name: &str) -> Result<Policy, JsError> {
        let kind = games::all().find(name).ok_or_else(|| unknown(name))?.default_game();
        let config = kind.defaults()?;
        let (features, actions) = (kind.facts().features.len(), kind.facts().actions.len());
        let layout = config.policy.parameters(features, actions);
        let num_params = layout.iter().map(Parameter::num_elements).sum::<usize>() as u32;
        let random = |i| uniform(draw(config.seed as u32, i)) - 0.5;
        let values: Vec<f32> = (0..num_params).map(random).collect();
        let header = Header { iteration: 0, config: kind.settings(&config), dataset: None };
        Self::new(write_params(&layout, &values, Some(&header)))
    }

    /// The settings of its run and the parameters of its game, as TOML.
    pub fn settings(&self) -> String {
        self.kind.settings(&self.config)
    }

    /// The file.
    pub fn file(&self) -> Vec<u8> {
        self.file.clone()
    }

    /// The game and settings: `{env, title, rules, actions, features, kind, hidden, activation, num_params,
    /// iteration, seed, max_steps, settings, references}`, as JSON.
    pub fn about(&self) -> String {
        let facts = self.kind.facts();
        let (features, actions) = (facts.features.len(), facts.actions.len());
        let parameters = self.config.policy.parameters(features, actions);
        json!({
            "env": facts.name,
            "title": facts.title,
            "rules": facts.rules,
            "actions": facts.actions,
            "features": facts.features,
            "kind": self.config.policy.kind,
            "hidden": self.config.policy.hidden,
            "activation": self.config.policy.activation,
            "num_params": parameters.iter().map(Parameter::num_elements).sum::<usize>(),
            "iteration": self.iteration,
            "seed": self.config.seed,
            "max_steps": facts.max_steps,
            "settings": self.kind.manifest().settings,
            "references": facts.references,
        })
        .to_string()
    }
}

/// Games on the CPU that a policy plays, and perhaps a person.
#[wasm_bindgen]
pub struct Show {
    pub(crate) kind: Rc<dyn Kind>,
    network: Rc<NativePolicy>,
    player: ActionSelection,
    games: Box<dyn Boards>,
    count: usize,
    seed: u64,
    /// The game that [`Show::report`] describes.
    watched: usize,
    /// The last action of a person, who plays game 1; `None` if no person plays.
    person: Option<u32>,
    /// The steps that the person has played.
    played: Demonstrations,
    /// Other policies beside the one game, each with its own game.
    rivals: Vec<Rival>,
    /// The games before a person took over, and the watched one among them.
    aside: Option<(Box<dyn Boards>, usize)>,
    /// The policy's choices in the present states, one for each game.
    choices: Vec<Choice>,
    /// The scores of all games since this policy plays.
    scores: Scores,
    /// Episodes of the watched game, and the last score of each game.
    episodes: u32,
    last: Vec<Option<f32>>,
}

#[wasm_bindgen]
impl Show {
    /// `games` games of the policy's game, from the first levels of a seed.
    #[wasm_bindgen(constructor)]
    pub fn new(policy: &Policy, seed: f64, games: u32) -> Show {
        let count = games.clamp(1, MAX_GAMES) as usize;
        let (kind, network) = (policy.kind.clone(), policy.network.clone());
        let games = kind.start(count, seed as u64);
        let mut show = Self {
            kind,
            network,
            player: ActionSelection::Greedy,
            games,
            count,
            seed: seed as u64,
            watched: 0,
            person: None,
            played: Demonstrations::default(),
            rivals: Vec::new(),
            aside: None,
            choices: Vec::new(),
            scores: Scores::default(),
            episodes: 0,
            last: vec![None; count],
        };
        show.choose();
        show
    }

    /// Replaces the policy by another of the same game, and resets the scores.
    pub fn set_policy(&mut self, policy: &Policy) -> Result<(), JsError> {
        self.check_game(policy)?;
        self.network = policy.network.clone();
        self.reset_scores();
        self.choose();
        Ok(())
    }

    /// Restarts all games, from the first levels of a seed.
    pub fn restart(&mut self, seed: f64) {
        self.seed = seed as u64;
        self.played.leave();
        (self.person, self.aside) = (None, None);
        self.games = self.kind.start(self.count, self.seed);
        self.rivals.iter_mut().for_each(|rival| rival.restart(&*self.kind, self.seed));
        self.watched = self.watched.min(self.count - 1);
        self.reset_scores();
        self.choose();
    }

    /// Restarts with `games` games, 1 to 1,024, and no policies beside.
    pub fn set_games(&mut self, games: u32) {
        self.count = games.clamp(1, MAX_GAMES) as usize;
        self.rivals.clear();
        self.watched = 0;
        self.restart(self.seed as f64);
    }

    /// Samples actions from the distribution if `on`, else takes the most likely one; resets the scores.
    pub fn set_sampled(&mut self, on: bool) {
        self.player = if on { ActionSelection::Sampling } else { ActionSelection::Greedy };
        self.reset_scores();
        self.choose();
    }

    /// Chooses the game that [`Show::report`] describes.
    pub fn watch(&mut self, game: usize) {
        if self.person.is_none() {
            self.watched = game.min(self.count - 1);
            self.episodes = 0;
        }
    }

    /// Hands a copy of the watched game to a person, beside one that the policy plays on; or returns to all games,
    /// in the state that they were left in. A game that has just ended leaves nothing to play: both begin the next
    /// level.
    pub fn take_over(&mut self, on: bool) {
        self.played.leave();
        match (on, self.aside.take()) {
            (true, None) => {
                let duel = self.games.duel(self.watched);
                let games = std::mem::replace(&mut self.games, duel);
                self.aside = Some((games, self.watched));
                self.person = Some(self.kind.facts().idle_action.unwrap_or(0));
                self.watched = 0;
            }
            (true, aside) => self.aside = aside,
            (false, Some((games, watched))) => {
                (self.games, self.watched, self.person) = (games, watched, None);
            }
            (false, None) => {}
        }
        self.choose();
        self.next_level();
    }

    /// Starts the next level after the end of a duel, the same for both players.
    pub fn next_level(&mut self) {
        if self.over() {
            self.games.step(&self.choices, self.person, false);
            self.choose();
        }
    }

    /// Plays a step of every game; `action` is the person's, -1 for no key. In a duel a finished game waits for
    /// the other, and then both wait for [`Show::next_level`].
    pub fn step(&mut self, action: i32) {
        if let Some(last) = &mut self.person {
            let known = u32::try_from(action).ok();
            let known = known.filter(|action| *action < self.kind.facts().actions.len() as u32);
            *last = known.or(self.kind.facts().idle_action).unwrap_or(*last);
        }
        if self.over() {
            return;
        }
        // Policies side by side wait for each other, and start the next level together.
        let all_ended =
            self.games.standing(0).ended && self.rivals.iter().all(|rival| rival.has_ended());
        let wait = self.person.is_some() || (!self.rivals.is_empty() && !all_ended);
        let stood = wait && self.games.standing(0).ended;
        let seen = self.person.filter(|_| !self.games.standing(1).ended);
        let seen = seen.map(|action| (self.games.observe(1), action));
        self.games.step(&self.choices, self.person, wait);
        if let Some((obs, action)) = seen {
            self.played.add(obs, action, self.games.standing(1).ended);
        }
        self.rivals.iter_mut().for_each(|rival| rival.step(wait));
        if self.person.is_none() {
            for i in 0..self.games.count() {
                let Standing { ended, score, .. } = self.games.standing(i);
                if ended && !stood {
                    self.scores.add(f64::from(score));
                    self.last[i] = Some(score);
                    self.episodes += u32::from(i == self.watched);
                }
            }
        }
        self.choose();
    }

    /// The state of the watched game, the policy's probabilities in it, and the state of the person's game:
    /// `{games, watched, time, score, ended, level, episodes, last_score, finished, mean_score, error,
    /// probabilities, action, features, over, person, beside}`, as JSON. `finished` counts the episodes of
    /// all games in the mean; `beside` are the policies beside this one.
    pub fn report(&self) -> String {
        let Standing { time, score, ended, level } = self.games.standing(self.watched);
        let person = self.person.map(|action| {
            let Standing { time, score, ended, .. } = self.games.standing(1);
            json!({ "time": time, "score": score, "ended": ended, "action": action })
        });
        let choice = &self.choices[self.watched];
        json!({
            "games": self.games.count(),
            "watched": self.watched,
            "time": time,
            "score": score,
            "ended": ended,
            "level": level,
            "episodes": self.episodes,
            "last_score": self.last.get(self.watched),
            "finished": self.scores.count,
            "mean_score": self.scores.mean(),
            "error": self.scores.error(),
            "probabilities": choice.probabilities,
            "action": choice.action,
            "features": self.games.observe(self.watched),
            "over": self.over(),
            "person": person,
            "beside": self.rivals.iter().map(|rival| rival.report()).collect::<Vec<_>>(),
        })
        .to_string()
    }

    /// The last score of each game; NaN before its first episode ends.
    pub fn last_scores(&self) -> Vec<f32> {
        self.last.iter().map(|score| score.unwrap_or(f32::NAN)).collect()
    }

    /// The layout of the games in a picture of this size, in pixels: `[columns, left, top, width, height, gap]`.
    pub fn board_layout(&self, width: u32, height: u32) -> Vec<u32> {
        let wall = Wall::fit(self.kind.info().size(), self.boards(), width, height);
        vec![wall.columns, wall.left, wall.top, wall.board_width, wall.board_height, wall.gap]
    }

    /// Restarts with one game of the policy, and one game of each of these policies beside it on the same level;
    /// an empty list removes the policies beside.
    pub fn set_beside(&mut self, policies: Vec<Policy>) -> Result<(), JsError> {
        if policies.len() > MAX_RIVALS {
            return Err(JsError::new(&format!("at most {MAX_RIVALS} policies fit beside another")));
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

    /// Replaces the policy at place `i` of those beside by another of the same game, which plays on, and resets its
    /// scores.
    pub fn set_rival(&mut self, i: usize, policy: &Policy) -> Result<(), JsError> {
        self.check_game(policy)?;
        let rival = self.rivals.get_mut(i).ok_or_else(|| JsError::new("no policy plays there"))?;
        rival.set_policy(policy.network.clone());
        self.choose();
        Ok(())
    }

    /// The person's games since the last call, as a file; `None` while a game is under way.
    pub fn take_games(&mut self) -> Option<Vec<u8>> {
        let games = self.played.take()?;
        let manifest = Manifest { player: "a person".to_string(), ..self.kind.manifest() };
        Some(serialize_games(&manifest, &games))
    }
}

impl Show {
    /// The number of boards in the picture.
    pub(crate) fn boards(&self) -> usize {
        self.games.count() + self.rivals.len()
    }

    /// Replaces the contents of `into` by the sprites of all boards, after `progress` (0 to 1) of the motion of the
    /// last step.
    pub(crate) fn sprites(&self, progress: f32, into: &mut Vec<Sprite>) {
        self.games.compute_sprites(progress, into);
        self.rivals.iter().for_each(|rival| rival.sprites(progress, into));
    }

    /// Refuses a policy for another game, or for other parameters of this one.
    fn check_game(&self, policy: &Policy) -> Result<(), JsError> {
        if self.kind.is(&*policy.kind) {
            Ok(())
        } else {
            Err(JsError::new("this policy is for another game, or for other parameters"))
        }
    }

    /// Chooses the policies' next actions.
    fn choose(&mut self) {
        self.choices = self.games.choose(&self.network, self.player);
        self.rivals.iter_mut().for_each(|rival| rival.choose(self.player));
    }

    fn reset_scores(&mut self) {
        (self.scores, self.episodes) = (Scores::default(), 0);
        self.rivals.iter_mut().for_each(Rival::reset_scores);
        self.last = vec![None; self.count];
    }

    /// Whether a duel has ended.
    fn over(&self) -> bool {
        self.person.is_some() && (0..2).all(|i| self.games.standing(i).ended)
    }
}
