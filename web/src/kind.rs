//! A game with its parameters, whichever it is, and its words on the page.

use grove::config::{ConfigError, TrainConfig};
use grove::env::{CartPole, Catch, Fruit, FruitObservation, Game, Observation};

/// A game with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Fruit(Fruit),
    Catch(Catch),
    CartPole(CartPole),
}

/// Runs the same for whichever game it is.
macro_rules! with_kind {
    ($kind:expr, $game:ident => $run:expr) => {
        match $kind {
            $crate::kind::Kind::Fruit($game) => $run,
            $crate::kind::Kind::Catch($game) => $run,
            $crate::kind::Kind::CartPole($game) => $run,
        }
    };
}
pub(crate) use with_kind;

impl Kind {
    /// All games, with their usual parameters.
    pub fn all() -> [Self; 3] {
        [
            Self::Fruit(Fruit::default()),
            Self::Catch(Catch::default()),
            Self::CartPole(CartPole::default()),
        ]
    }

    /// The name in settings and checkpoints.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fruit(_) => Fruit::NAME,
            Self::Catch(_) => Catch::NAME,
            Self::CartPole(_) => CartPole::NAME,
        }
    }

    /// The name for people.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Fruit(_) => "Fruit catcher",
            Self::Catch(_) => "Catch",
            Self::CartPole(_) => "Cart pole",
        }
    }

    /// The actions, in their order.
    pub fn actions(&self) -> &'static [&'static str] {
        match self {
            Self::Fruit(_) | Self::Catch(_) => &["left", "stay", "right"],
            Self::CartPole(_) => &["push left", "push right"],
        }
    }

    /// What a person does who does nothing; none where something must be done.
    pub fn idle(&self) -> Option<u32> {
        match self {
            Self::Fruit(_) | Self::Catch(_) => Some(1),
            Self::CartPole(_) => None,
        }
    }

    /// What each number of an observation is.
    pub fn features(&self) -> Vec<String> {
        match self {
            Self::Fruit(game) => {
                let fruits = 1..=game.max_fruits;
                let mut names = vec!["basket: column".to_string()];
                if game.observation == FruitObservation::Positions {
                    let kinds =
                        |fruit| ["column", "row", "there"].map(|k| format!("fruit {fruit}: {k}"));
                    names.extend(fruits.flat_map(kinds));
                    return names;
                }
                for fruit in fruits.clone() {
                    let kinds = ["to the right", "height", "slack", "close by"];
                    names.extend(kinds.map(|kind| format!("fruit {fruit}: {kind}")));
                }
                for apart in [1, 2] {
                    let pairs = fruits.clone().filter(|first| first + apart <= game.max_fruits);
                    names.extend(pairs.map(|a| format!("fruits {a} and {}: slack", a + apart)));
                }
                names
            }
            Self::Catch(game) if game.observation == Observation::Board => {
                let cells = (0..game.rows).flat_map(|y| (0..game.columns).map(move |x| (x, y)));
                cells.map(|(x, y)| format!("column {x}, row {y}")).collect()
            }
            Self::Catch(_) => ["ball: column", "ball: row", "paddle: column", "ball: to the right"]
                .map(String::from)
                .to_vec(),
            Self::CartPole(_) => {
                ["position", "velocity", "angle", "angular velocity"].map(String::from).to_vec()
            }
        }
    }

    /// Mean scores of known players, worst first.
    pub fn references(&self) -> &'static [(&'static str, f64)] {
        with_kind!(self, game => game.references())
    }

    /// The step at which an episode is truncated at the latest.
    pub fn max_steps(&self) -> u32 {
        with_kind!(self, game => game.max_steps())
    }

    /// The settings of a run of this game, as TOML.
    pub fn settings(&self, config: &TrainConfig) -> String {
        with_kind!(self, game => grove::trainer::config_toml(game, config))
    }

    /// Checks the game's parameters and a run's settings.
    ///
    /// # Errors
    /// One sentence.
    pub fn check(&self, config: &TrainConfig) -> Result<(), ConfigError> {
        with_kind!(self, game => game.validate()).map_err(ConfigError::OutOfRange)?;
        config.validate()
    }
}
