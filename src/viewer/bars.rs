//! A game that has no look, drawn as what a policy sees of it: a bar for each feature.

use super::Instance;
use crate::env::Rules;
use crate::env::look::{Setting, Sprite, between, tile};

/// Cells across a feature: from -1 on the left over 0 in the middle to 1 on the right.
const WIDTH: u32 = 6;
/// Cells from 0 to 1.
const REACH: f32 = 3.0;
/// Cells across a bar.
const THICKNESS: f32 = 0.7;

/// The scene of a game's features: stacks of bars, as many side by side as make it about square.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    features: u32,
    rows: u32,
}

impl Bars {
    /// For a game that shows so many features.
    pub fn new(features: usize) -> Self {
        let features = (features as u32).max(1);
        let stacks = (f64::from(features) / f64::from(WIDTH)).sqrt().ceil() as u32;
        Self { features, rows: features.div_ceil(stacks) }
    }

    /// Where feature `i` is 0: the middle of its bar, in cells.
    fn origin(&self, i: u32) -> (f32, f32) {
        let (stack, row) = (i / self.rows, i % self.rows);
        ((stack * WIDTH) as f32 + 0.5 * WIDTH as f32, row as f32 + 0.5)
    }
}

impl Setting for Bars {
    fn title(&self) -> &'static str {
        "Features"
    }

    fn columns(&self) -> u32 {
        self.features.div_ceil(self.rows) * WIDTH
    }

    fn rows(&self) -> u32 {
        self.rows
    }

    /// Another tone on the side of -1 than on that of 1.
    fn background(&self, column: u32, _row: u32) -> u32 {
        if column % WIDTH < WIDTH / 2 { tile::BOARD_A } else { tile::BOARD_B }
    }

    fn num_sprites(&self) -> usize {
        self.features as usize
    }

    fn steps_per_second(&self) -> f32 {
        8.0
    }
}

/// The bars of some games, as [`instances()`](super::instances()) gives sprites, where `part` (0 to 1) of
/// the motion from `before` to `now` has been made. What is beyond -1 or 1 ends there, and what is no
/// number is not drawn.
///
/// # Panics
/// If there are not as many games before as now.
pub fn bars<G: Rules>(
    game: G,
    before: &[G::State],
    now: &[G::State],
    part: f32,
    into: &mut Vec<Instance>,
) {
    assert_eq!(before.len(), now.len(), "as many games before as now");
    let scene = Bars::new(game.num_features());
    into.clear();
    for (before, now) in before.iter().zip(now) {
        into.extend((0..game.num_features()).map(|i| {
            let value = |state: &G::State| G::feature(state, i, game);
            bar(&scene, i as u32, between(value(before), value(now), part))
        }));
    }
}

/// The bar of a feature that has this value.
fn bar(scene: &Bars, i: u32, value: f32) -> Instance {
    let (x, y) = scene.origin(i);
    let length = value.clamp(-1.0, 1.0) * REACH;
    let tile = if length < 0.0 { tile::BAR_LESS } else { tile::BAR_MORE };
    let mut sprite = Sprite::upright(x + 0.5 * length, y, length.abs(), THICKNESS, tile);
    // No sprite is narrower than a pixel, but 0 is nothing.
    sprite.shade = if length.abs() > 1e-3 { 1.0 } else { 0.0 };
    sprite.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{CartPole, Env, new_game};
    use crate::viewer::{Cells, Picture, Wall, paint};

    #[test]
    fn a_bar_reaches_from_the_middle_as_far_as_its_feature() {
        let scene = Bars::new(1);
        for (value, left, right) in
            [(0.5, 3.0, 4.5), (-1.0, 0.0, 3.0), (7.0, 3.0, 6.0), (f32::INFINITY, 3.0, 6.0)]
        {
            let bar = bar(&scene, 0, value);
            assert_eq!((bar.x - 0.5 * bar.width, bar.x + 0.5 * bar.width), (left, right));
            assert_eq!(bar.shade, 1.0);
        }
        assert_eq!(bar(&scene, 0, 0.0).shade, 0.0);
        assert_eq!(bar(&scene, 0, f32::NAN).shade, 0.0);
    }

    #[test]
    fn every_number_of_features_has_room() {
        for features in 1..600 {
            let scene = Bars::new(features);
            let (x, y) = scene.origin(features as u32 - 1);
            assert!(x + REACH <= scene.columns() as f32 && y <= scene.rows as f32, "{features}");
            assert!(scene.columns() * scene.rows < 10 * (WIDTH * features as u32) + WIDTH);
        }
    }

    #[test]
    fn a_game_is_painted_as_its_features() {
        let game = CartPole::default();
        let states = [new_game::<CartPole>(1, game), new_game::<CartPole>(2, game)];
        let scene = Bars::new(game.num_features());
        let (width, height) = Wall::size(Cells::of(&scene), 2, 16);
        let mut instances = Vec::new();
        let pictures = [0.0, 1.0].map(|part| {
            let mut picture = Picture::new(width as u32, height as u32);
            bars(game, &states, &[states[1], states[0]], part, &mut instances);
            paint(scene, 2, &instances, &mut picture);
            picture
        });
        assert_ne!(pictures[0], pictures[1]);
    }
}
