//! The scene of a game: its look, or its features if it has none.

use super::{Bars, Sprite, compute_bars, compute_sprites};
use crate::env::Rules;
use crate::env::look::{Look, SceneInfo};

/// Function that computes sprites interpolated between the states before and after a step.
type ComputeSprites<G> =
    fn(G, &[<G as Rules>::State], &[<G as Rules>::State], f32, &mut Vec<Sprite>);

/// A background with sprites.
pub struct Scene<G: Rules> {
    game: G,
    info: Box<dyn SceneInfo>,
    compute: ComputeSprites<G>,
}

impl<G: Rules> Scene<G> {
    /// Creates the scene of a game with a look.
    pub fn with_look(game: G) -> Self
    where
        G: Look,
    {
        Self { game, info: Box::new(game), compute: compute_sprites::<G> }
    }

    /// Creates the scene that shows a game's features as bars.
    pub fn with_bars(game: G) -> Self {
        let info = Box::new(Bars::new(game.num_features()));
        Self { game, info, compute: compute_bars::<G> }
    }

    /// The static part of the scene.
    pub fn info(&self) -> &dyn SceneInfo {
        &*self.info
    }

    /// Replaces the contents of `sprites` with the sprites at `progress` (0 to 1) from `before` to `now`.
    pub fn compute_sprites(
        &self,
        before: &[G::State],
        now: &[G::State],
        progress: f32,
        sprites: &mut Vec<Sprite>,
    ) {
        (self.compute)(self.game, before, now, progress, sprites);
    }
}
