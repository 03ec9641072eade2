//! A game with its parameters and its words on the page, without its type.

use crate::shown::{Boards, boards};
use grove::checkpoint::Checkpoint;
use grove::data::Manifest;
use grove::env::ConfigurableGame;
use grove::env::look::SceneInfo;
use grove::model::NativePolicy;
use grove::settings::{ConfigError, TrainConfig};
use grove::trainer::{config_to_toml, load_policy, read_config};
use grove::viewer::Scene;
use std::any::Any;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// A game with its parameters, the settings of a run, and its policy.
pub type Loaded = Result<(Rc<dyn Kind>, TrainConfig, NativePolicy), JsError>;

/// The page's texts about a game with its parameters.
pub struct Facts {
    /// The name in settings and checkpoints.
    pub name: &'static str,
    /// The title for people.
    pub title: &'static str,
    /// The rules in one line; empty for a game without a look.
    pub rules: &'static str,
    /// The time that training takes with the defaults, in words; `None` if unknown.
    pub training_time: Option<&'static str>,
    /// The names of the actions, in their order.
    pub actions: Vec<String>,
    /// The action of a person who presses no key; `None` if the last one is repeated.
    pub idle_action: Option<u32>,
    /// The names of the features of an observation.
    pub features: Vec<String>,
    /// Mean scores of known players, worst first.
    pub references: &'static [(&'static str, f64)],
    /// The step at which an episode is truncated.
    pub max_steps: u32,
}

/// A game with its parameters, without its type.
pub trait Kind {
    /// Facts about a game that do not change while it is played.
    fn facts(&self) -> &Facts;
    /// The settings of a run of this game, as TOML.
    fn settings(&self, config: &TrainConfig) -> String;
    /// The manifest of a dataset of this game, without a player.
    fn manifest(&self) -> Manifest;
    /// The game's training defaults.
    fn defaults(&self) -> Result<TrainConfig, ConfigError>;
    /// The background of its picture.
    fn info(&self) -> &dyn SceneInfo;
    /// `count` games, from the first levels of a seed.
    fn start(&self, count: usize, seed: u64) -> Box<dyn Boards>;
    /// Whether `other` is the same game with the same parameters.
    fn is(&self, other: &dyn Kind) -> bool;
    /// The game, for [`Kind::is`].
    fn game(&self) -> &dyn Any;
}

/// A game's words for people, and its scene: from its look, or the defaults of a game without one.
#[derive(Clone, Copy)]
pub struct Words<G: ConfigurableGame> {
    /// The scene of a game with these parameters.
    pub scene: fn(G) -> Scene<G>,
    /// The title for people.
    pub title: &'static str,
    /// The rules in one line.
    pub rules: &'static str,
    /// The time that training takes with the defaults, in words.
    pub training_time: Option<&'static str>,
    /// The action of a person who presses no key.
    pub idle_action: Option<u32>,
}

/// A game, its words and its scene.
pub struct Game<G: ConfigurableGame> {
    game: G,
    words: Words<G>,
    facts: Facts,
    scene: Scene<G>,
}

impl<G: ConfigurableGame> Game<G> {
    /// A game with these parameters.
    pub fn shared(words: Words<G>, game: G) -> Rc<dyn Kind> {
        let facts = Facts {
            name: G::NAME,
            title: words.title,
            rules: words.rules,
            training_time: words.training_time,
            actions: game.action_names(),
            idle_action: words.idle_action,
            features: game.feature_names(),
            references: game.reference_scores(),
            max_steps: game.max_steps(),
        };
        Rc::new(Self { game, words, facts, scene: (words.scene)(game) })
    }

    /// The policy in a checkpoint, with its game and settings.
    pub fn load(words: Words<G>, checkpoint: &Checkpoint) -> Loaded {
        let (game, config) = read_config::<G>(checkpoint)?;
        game.validate().map_err(ConfigError::OutOfRange)?;
        config.validate()?;
        let network = load_policy(checkpoint, game, &config)?;
        Ok((Self::shared(words, game), config, network))
    }
}

impl<G: ConfigurableGame> Kind for Game<G> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn settings(&self, config: &TrainConfig) -> String {
        config_to_toml(&self.game, config)
    }

    fn manifest(&self) -> Manifest {
        let settings = match serde_json::to_value(self.game) {
            Ok(serde_json::Value::Object(settings)) => settings,
            _ => Default::default(),
        };
        let (features, actions) = (self.facts.features.clone(), self.facts.actions.clone());
        Manifest { settings, features, actions, ..Manifest::new(G::NAME) }
    }

    fn defaults(&self) -> Result<TrainConfig, ConfigError> {
        TrainConfig::with_defaults_of(&self.game)
    }

    fn info(&self) -> &dyn SceneInfo {
        self.scene.info()
    }

    fn start(&self, count: usize, seed: u64) -> Box<dyn Boards> {
        boards((self.words.scene)(self.game), self.game, count, seed)
    }

    fn is(&self, other: &dyn Kind) -> bool {
        other.game().downcast_ref::<G>().is_some_and(|game| *game == self.game)
    }

    fn game(&self) -> &dyn Any {
        &self.game
    }
}
