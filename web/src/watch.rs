//! Watching: policies, the games that they play on the CPU, and the screen that shows them.

use crate::kind::{Kind, with_kind};
use crate::named::with_named;
use crate::screen::Canvas;
use grove::checkpoint::Checkpoint;
use grove::config::TrainConfig;
use grove::env::look::Look;
use grove::model::NativePolicy;
use grove::model::saved::{Header, read_header, with_header};
use grove::rollout::{Choice, Player, Watched};
use grove::trainer::{load_policy, policy_file, saved_config, saved_game_name};
use grove::viewer::{Instance, instances};
use serde_json::json;
use std::rc::Rc;
use wasm_bindgen::prelude::*;
use web_sys::HtmlCanvasElement;

/// The most games that are shown at once.
const MOST: u32 = 1024;

/// All games: `[{name, title, actions, features, settings}]`, as JSON.
#[wasm_bindgen]
pub fn games() -> String {
    let games = Kind::all().into_iter().map(|kind| {
        json!({
            "name": kind.name(),
            "title": kind.title(),
            "actions": kind.actions(),
            "features": kind.features(),
            "settings": kind.settings(&TrainConfig::for_game(kind.name())),
        })
    });
    json!(games.collect::<Vec<_>>()).to_string()
}

/// A trained policy, and what it is of.
#[wasm_bindgen]
pub struct Policy {
    kind: Kind,
    config: TrainConfig,
    network: Rc<NativePolicy>,
    file: Vec<u8>,
    iteration: u64,
}

#[wasm_bindgen]
impl Policy {
    /// From a file with a policy and its settings.
    #[wasm_bindgen(constructor)]
    pub fn new(file: Vec<u8>) -> Result<Policy, JsError> {
        let checkpoint = policy_file(file.clone())?;
        let name = saved_game_name(&checkpoint)?;
        let loaded = with_named!(name.as_str(), G => load::<G>(&checkpoint));
        let (kind, config, network) = loaded.unwrap_or_else(|| {
            Err(JsError::new(&format!("this is a policy of an unknown game, `{name}`")))
        })?;
        let iteration = checkpoint.iteration;
        Ok(Self { kind, config, network: Rc::new(network), file, iteration })
    }

    /// From a checkpoint's `config.toml` and `weights.safetensors`.
    pub fn from_parts(config: String, weights: Vec<u8>) -> Result<Policy, JsError> {
        let iteration = read_header(&weights).map_or(0, |header| header.iteration);
        Self::new(with_header(&weights, &Header { iteration, config })?)
    }

    /// The settings of its run and the parameters of its game, as TOML.
    pub fn settings(&self) -> String {
        self.kind.settings(&self.config)
    }

    /// The file.
    pub fn file(&self) -> Vec<u8> {
        self.file.clone()
    }

    /// What it is of: `{env, title, actions, features, hidden, activation, num_params, iteration, seed,
    /// max_steps, references}`, as JSON.
    pub fn about(&self) -> String {
        json!({
            "env": self.kind.name(),
            "title": self.kind.title(),
            "actions": self.kind.actions(),
            "features": self.kind.features(),
            "hidden": self.config.policy.hidden,
            "activation": self.config.policy.activation,
            "num_params": self.network.num_params(),
            "iteration": self.iteration,
            "seed": self.config.seed,
            "max_steps": self.kind.max_steps(),
            "references": self.kind.references(),
        })
        .to_string()
    }
}

fn load<G>(checkpoint: &Checkpoint) -> Result<(Kind, TrainConfig, NativePolicy), JsError>
where
    G: Look + serde::de::DeserializeOwned + Into<Kind>,
{
    let (game, config) = saved_config::<G>(checkpoint)?;
    let kind: Kind = game.into();
    kind.check(&config)?;
    let network = load_policy(checkpoint, game, &config)?;
    Ok((kind, config, network))
}

/// Games on the CPU that a policy plays, and one perhaps a person.
#[wasm_bindgen]
pub struct Show {
    kind: Kind,
    network: Rc<NativePolicy>,
    player: Player,
    games: Box<dyn Games>,
    count: usize,
    seed: u64,
    /// Whether game 1 is a person's, and what that did last.
    person: Option<u32>,
    /// What the policy does in each of the games as they stand.
    choices: Vec<Choice>,
    /// Episodes of game 0 that ended, the sum of their scores, and the last.
    episodes: u32,
    total: f64,
    last: Option<f32>,
}

#[wasm_bindgen]
impl Show {
    /// `games` games of the policy's game, from the first levels of a seed.
    #[wasm_bindgen(constructor)]
    pub fn new(policy: &Policy, seed: f64, games: u32) -> Show {
        let count = games.clamp(1, MOST) as usize;
        let (kind, network) = (policy.kind, policy.network.clone());
        let mut show = Self {
            kind,
            network,
            player: Player::Greedy,
            games: start(kind, count, seed as u64),
            count,
            seed: seed as u64,
            person: None,
            choices: Vec::new(),
            episodes: 0,
            total: 0.0,
            last: None,
        };
        show.look();
        show
    }

    /// Lets another policy of the same game play on.
    pub fn set_policy(&mut self, policy: &Policy) -> Result<(), JsError> {
        if policy.kind != self.kind {
            return Err(JsError::new("this policy is of another game, or of other parameters"));
        }
        self.network = policy.network.clone();
        self.look();
        Ok(())
    }

    /// Starts anew, from the first levels of a seed.
    pub fn restart(&mut self, seed: f64) {
        self.seed = seed as u64;
        self.person = None;
        self.games = start(self.kind, self.count, self.seed);
        (self.episodes, self.total, self.last) = (0, 0.0, None);
        self.look();
    }

    /// Starts anew with so many games, 1 to 1,024.
    pub fn set_games(&mut self, games: u32) {
        self.count = games.clamp(1, MOST) as usize;
        self.restart(self.seed as f64);
    }

    /// Whether actions are drawn from the distribution; else the most likely one is taken.
    pub fn set_sampled(&mut self, on: bool) {
        self.player = if on { Player::Sampling } else { Player::Greedy };
        self.look();
    }

    /// Puts a person beside the policy, both on the level of the first game from its start; or lets the
    /// policy go on alone.
    pub fn take_over(&mut self, on: bool) {
        match on {
            true => {
                self.games = self.games.duel();
                self.person = Some(self.kind.idle().unwrap_or(0));
                self.look();
            }
            false => self.restart(self.seed as f64),
        }
    }

    /// Plays a step of every game; `action` is the person's, -1 for none.
    pub fn step(&mut self, action: i32) {
        if let Some(last) = &mut self.person {
            let known = u32::try_from(action).ok();
            let known = known.filter(|action| *action < self.kind.actions().len() as u32);
            *last = known.or(self.kind.idle()).unwrap_or(*last);
        }
        self.games.step(&self.choices, self.person);
        if self.games.standing(0).ended {
            let score = self.games.standing(0).score;
            self.episodes += 1;
            self.total += f64::from(score);
            self.last = Some(score);
        }
        self.look();
    }

    /// How game 0 stands and what its policy thinks of it, and how the person's stands: `{games, time,
    /// score, ended, level, episodes, last_score, mean_score, probabilities, action, features, person}`,
    /// as JSON.
    pub fn report(&self) -> String {
        let Standing { time, score, ended, level } = self.games.standing(0);
        let person = self.person.map(|action| {
            let Standing { time, score, ended, .. } = self.games.standing(1);
            json!({ "time": time, "score": score, "ended": ended, "action": action })
        });
        json!({
            "games": self.games.count(),
            "time": time,
            "score": score,
            "ended": ended,
            "level": level,
            "episodes": self.episodes,
            "last_score": self.last,
            "mean_score": (self.episodes > 0).then(|| self.total / f64::from(self.episodes)),
            "probabilities": self.choices[0].probabilities,
            "action": self.choices[0].action,
            "features": self.games.observe(),
            "person": person,
        })
        .to_string()
    }
}

impl Show {
    fn look(&mut self) {
        self.choices = self.games.choose(&self.network, self.player);
    }
}

/// How a game stands.
struct Standing {
    time: u32,
    score: f32,
    ended: bool,
    level: u32,
}

/// [`Watched`] games, whichever they are.
trait Games {
    fn count(&self) -> usize;
    fn duel(&self) -> Box<dyn Games>;
    fn choose(&mut self, network: &NativePolicy, player: Player) -> Vec<Choice>;
    fn step(&mut self, choices: &[Choice], person: Option<u32>);
    fn standing(&self, i: usize) -> Standing;
    fn observe(&self) -> Vec<f32>;
    fn instances(&self, part: f32, into: &mut Vec<Instance>);
}

fn start(kind: Kind, count: usize, seed: u64) -> Box<dyn Games> {
    with_kind!(kind, game => Box::new(Watched::new(game, count, seed)))
}

impl<G: Look> Games for Watched<G> {
    fn count(&self) -> usize {
        Watched::count(self)
    }

    fn duel(&self) -> Box<dyn Games> {
        Box::new(Watched::duel(self, 2))
    }

    fn choose(&mut self, network: &NativePolicy, player: Player) -> Vec<Choice> {
        Watched::choose(self, network, player)
    }

    fn step(&mut self, choices: &[Choice], person: Option<u32>) {
        let mut actions: Vec<u32> = choices.iter().map(|choice| choice.action).collect();
        if let Some(action) = person {
            actions[1] = action;
        }
        Watched::step(self, &actions);
    }

    fn standing(&self, i: usize) -> Standing {
        let episode = self.episode(i);
        Standing {
            time: episode.time,
            score: episode.score,
            ended: self.ended(i),
            level: episode.level,
        }
    }

    fn observe(&self) -> Vec<f32> {
        Watched::observe(self, 0)
    }

    fn instances(&self, part: f32, into: &mut Vec<Instance>) {
        instances(self.game(), self.before(), &self.now(), part, into);
    }
}

/// A canvas, drawn by the GPU or by the CPU.
#[wasm_bindgen]
pub struct Screen {
    canvas: Canvas,
    sprites: Vec<Instance>,
}

#[wasm_bindgen]
impl Screen {
    /// Takes a canvas: for WebGPU, or for pictures that the CPU paints.
    pub async fn open(canvas: HtmlCanvasElement, gpu: bool) -> Result<Screen, JsError> {
        let canvas = match gpu {
            true => Canvas::on_gpu(canvas).await?,
            false => Canvas::plain(canvas)?,
        };
        Ok(Self { canvas, sprites: Vec::new() })
    }

    /// `WebGPU` or `2D canvas`.
    pub fn api(&self) -> String {
        self.canvas.api().to_string()
    }

    /// Why the GPU can be used no more, if so.
    pub fn lost(&self) -> Option<String> {
        self.canvas.lost()
    }

    /// Makes the picture so many device pixels large.
    pub fn resize(&mut self, width: u32, height: u32) {
        self.canvas.resize(width, height);
    }

    /// Draws games where `part`, 0 to 1, of the motion of their last step has been made.
    pub fn draw(&mut self, show: &Show, part: f32) -> Result<(), JsError> {
        self.sprites.clear();
        show.games.instances(part.clamp(0.0, 1.0), &mut self.sprites);
        self.canvas.draw(show.kind, show.games.count(), &self.sprites)
    }
}
