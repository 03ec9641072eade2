//! A game with its parameters, whichever it is, and its words on the page.

use crate::games::{Known, Playable};
use crate::shown::{Shown, show};
use grove::checkpoint::Checkpoint;
use grove::config::{ConfigError, TrainConfig};
use grove::data::Manifest;
use grove::env::look::Setting;
use grove::model::NativePolicy;
use grove::trainer::{config_toml, load_policy, saved_config};
use grove::viewer::Scene;
use std::any::Any;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// A game with its parameters, the settings of its run, and the policy.
pub type Loaded = Result<(Rc<dyn Kind>, TrainConfig, NativePolicy), JsError>;

/// A game with its parameters, without its type.
pub trait Kind {
    /// The name in settings and checkpoints.
    fn name(&self) -> &'static str;
    /// The name for people.
    fn title(&self) -> String;
    /// The rules in a line; empty where nobody says.
    fn rules(&self) -> &'static str;
    /// The actions, in their order.
    fn actions(&self) -> Vec<String>;
    /// What a person does who does nothing; none where something must be done.
    fn idle(&self) -> Option<u32>;
    /// What each number of an observation is.
    fn features(&self) -> Vec<String>;
    /// Mean scores of known players, worst first.
    fn references(&self) -> &'static [(&'static str, f64)];
    /// The step at which an episode is truncated at the latest.
    fn max_steps(&self) -> u32;
    /// The settings of a run of this game, as TOML.
    fn settings(&self, config: &TrainConfig) -> String;
    /// What games of it say of themselves, whoever has played them.
    fn manifest(&self) -> Manifest;
    /// The settings that train it well.
    fn defaults(&self) -> Result<TrainConfig, ConfigError>;
    /// Its background.
    fn setting(&self) -> &dyn Setting;
    /// So many games, from the first levels of a seed.
    fn start(&self, count: usize, seed: u64) -> Box<dyn Shown>;
    /// Whether it is the same game with the same parameters.
    fn is(&self, other: &dyn Kind) -> bool;
    /// The game, for [`Kind::is`].
    fn game(&self) -> &dyn Any;
}

/// What is said of a game and how it is drawn, by its look or without.
pub struct Words<G: Playable> {
    /// How it is drawn.
    pub scene: fn(G) -> Scene<G>,
    /// Its name for people.
    pub title: fn(&G) -> &'static str,
    /// The rules in a line.
    pub rules: fn(&G) -> &'static str,
    /// What a person does who does nothing.
    pub idle: fn(&G) -> Option<u32>,
}

impl<G: Playable> Clone for Words<G> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<G: Playable> Copy for Words<G> {}

/// A game and its scene.
struct One<G: Playable> {
    game: G,
    known: Known<G>,
    scene: Scene<G>,
}

/// A game with these parameters.
pub fn of<G: Playable>(known: Known<G>, game: G) -> Rc<dyn Kind> {
    Rc::new(One { game, known, scene: (known.watch.scene)(game) })
}

/// The policy in a checkpoint, and what it is of.
pub fn load<G: Playable>(known: Known<G>, checkpoint: &Checkpoint) -> Loaded {
    let (game, config) = saved_config::<G>(checkpoint)?;
    game.validate().map_err(ConfigError::OutOfRange)?;
    config.validate()?;
    let network = load_policy(checkpoint, game, &config)?;
    Ok((of(known, game), config, network))
}

impl<G: Playable> Kind for One<G> {
    fn name(&self) -> &'static str {
        G::NAME
    }

    fn title(&self) -> String {
        (self.known.watch.title)(&self.game).to_string()
    }

    fn rules(&self) -> &'static str {
        (self.known.watch.rules)(&self.game)
    }

    fn actions(&self) -> Vec<String> {
        (0..self.game.num_actions()).map(|a| self.game.action_name(a)).collect()
    }

    fn idle(&self) -> Option<u32> {
        (self.known.watch.idle)(&self.game)
    }

    fn features(&self) -> Vec<String> {
        (0..self.game.num_features()).map(|i| self.game.feature_name(i)).collect()
    }

    fn references(&self) -> &'static [(&'static str, f64)] {
        self.game.references()
    }

    fn max_steps(&self) -> u32 {
        self.game.max_steps()
    }

    fn settings(&self, config: &TrainConfig) -> String {
        config_toml(&self.game, config)
    }

    fn manifest(&self) -> Manifest {
        let settings = match serde_json::to_value(self.game) {
            Ok(serde_json::Value::Object(settings)) => settings,
            _ => Default::default(),
        };
        let (features, actions) = (self.features(), self.actions());
        Manifest { settings, features, actions, ..Manifest::new(G::NAME) }
    }

    fn defaults(&self) -> Result<TrainConfig, ConfigError> {
        TrainConfig::of(&self.game)
    }

    fn setting(&self) -> &dyn Setting {
        self.scene.setting()
    }

    fn start(&self, count: usize, seed: u64) -> Box<dyn Shown> {
        show((self.known.watch.scene)(self.game), self.game, count, seed)
    }

    fn is(&self, other: &dyn Kind) -> bool {
        other.game().downcast_ref::<G>().is_some_and(|game| *game == self.game)
    }

    fn game(&self) -> &dyn Any {
        &self.game
    }
}
