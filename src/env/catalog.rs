//! The games that a program or a page offers, without their types.

use super::Rules;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A game that a program or a page can offer: its parameters have defaults, and are read from settings and
/// written to them. Implemented by every such game.
pub trait Playable: Rules + Default + Serialize + DeserializeOwned {}
impl<G: Rules + Default + Serialize + DeserializeOwned> Playable for G {}

/// Games in their order, found by name. `E` is a trait object: the operations on a game without its type.
pub struct Catalog<E: ?Sized>(Vec<(&'static str, Box<E>)>);

impl<E: ?Sized> Default for Catalog<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E: ?Sized> Catalog<E> {
    /// Adds the operations on a game, in place of a game of the same name.
    pub fn add<G: Playable>(&mut self, game: Box<E>) {
        self.0.retain(|(name, _)| *name != G::NAME);
        self.0.push((G::NAME, game));
    }

    /// Removes the games of these names.
    pub fn remove(&mut self, names: &[&str]) {
        self.0.retain(|(name, _)| !names.contains(name));
    }

    /// The games in their order.
    pub fn iter(&self) -> impl Iterator<Item = &E> {
        self.0.iter().map(|(_, game)| &**game)
    }

    /// The game of this name.
    pub fn find(&self, name: &str) -> Option<&E> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, game)| &**game)
    }

    /// The name of the first game.
    pub fn first(&self) -> Option<&'static str> {
        self.0.first().map(|(name, _)| *name)
    }

    /// The names, for a sentence: `fruit, catch, cartpole`.
    pub fn names(&self) -> String {
        self.0.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }
}
