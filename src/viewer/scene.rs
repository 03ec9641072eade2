//! What is drawn of a game: its look, or its features where it has none.

use super::{Bars, Instance, bars, instances};
use crate::env::Rules;
use crate::env::look::{Look, Setting};

/// Sprites of some games, where a part of the motion from what was before to what is now has been made.
type Sprites<G> = fn(G, &[<G as Rules>::State], &[<G as Rules>::State], f32, &mut Vec<Instance>);

/// A background, and the sprites over it.
pub struct Scene<G: Rules> {
    game: G,
    setting: Box<dyn Setting>,
    sprites: Sprites<G>,
}

impl<G: Rules> Scene<G> {
    /// A game as it looks.
    pub fn drawn(game: G) -> Self
    where
        G: Look,
    {
        Self { game, setting: Box::new(game), sprites: instances::<G> }
    }

    /// A game as its features.
    pub fn features(game: G) -> Self {
        let setting = Box::new(Bars::new(game.num_features()));
        Self { game, setting, sprites: bars::<G> }
    }

    /// What of it does not move.
    pub fn setting(&self) -> &dyn Setting {
        &*self.setting
    }

    /// What moves, in place of what `into` holds.
    pub fn sprites(
        &self,
        before: &[G::State],
        now: &[G::State],
        part: f32,
        into: &mut Vec<Instance>,
    ) {
        (self.sprites)(self.game, before, now, part, into);
    }
}
