//! The games that a program or a page offers, without their types.

use super::Rules;
use super::registry::is_builtin;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A game that a program or a page can offer: its parameters have defaults, and are read from settings and
/// written to them. Implemented by every such game.
pub trait ConfigurableGame: Rules + Default + Serialize + DeserializeOwned {}
impl<G: Rules + Default + Serialize + DeserializeOwned> ConfigurableGame for G {}

/// Games in their order, found by name. `E` is a trait object: the operations on a game without its type.
pub struct Catalog<E: ?Sized>(Vec<Entry<E>>);

struct Entry<E: ?Sized> {
    name: &'static str,
    is_builtin: bool,
    game: Box<E>,
}

impl<E: ?Sized> Default for Catalog<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E: ?Sized> Catalog<E> {
    /// Adds the operations on a game, in the place of a game of the same name if there is one.
    pub fn add<G: ConfigurableGame>(&mut self, game: Box<E>) {
        let entry = Entry { name: G::NAME, is_builtin: is_builtin::<G>(), game };
        match self.0.iter_mut().find(|known| known.name == G::NAME) {
            Some(known) => *known = entry,
            None => self.0.push(entry),
        }
    }

    /// Removes the built-in games, and none of a user that has the name of one.
    pub fn remove_builtin(&mut self) {
        self.0.retain(|entry| !entry.is_builtin);
    }

    /// The games in their order.
    pub fn iter(&self) -> impl Iterator<Item = &E> {
        self.0.iter().map(|entry| &*entry.game)
    }

    /// The game of this name.
    pub fn find(&self, name: &str) -> Option<&E> {
        self.0.iter().find(|entry| entry.name == name).map(|entry| &*entry.game)
    }

    /// The names of the games in their order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|entry| entry.name)
    }

    /// The names, for a sentence: `fruit, catch, cartpole`.
    pub fn joined_names(&self) -> String {
        self.names().collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Catch, Fruit, HostGame};

    #[test]
    fn a_game_takes_the_place_of_one_of_its_name() {
        let mut games = Catalog::<str>::default();
        games.add::<Fruit>("first".into());
        games.add::<Catch>("second".into());
        games.add::<Fruit>("third".into());
        assert_eq!(games.joined_names(), "fruit, catch");
        assert_eq!(games.find("fruit"), Some("third"));
    }

    #[test]
    fn user_defined_games_are_never_removed() {
        let mut games = Catalog::<str>::default();
        games.add::<HostGame>("of a user".into());
        games.add::<Catch>("built in".into());
        games.remove_builtin();
        assert_eq!(games.iter().collect::<Vec<_>>(), ["of a user"]);
    }
}
