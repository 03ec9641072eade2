//! Fallback view of a game without a look: a bar for each feature of the observation.

use super::sprites::fill_sprites;
use crate::env::Rules;
use crate::env::look::{SceneInfo, SceneSize, Sprite, lerp, tile};

/// Width of a feature in cells: from -1 at the left over 0 in the middle to 1 at the right.
const FEATURE_COLUMNS: u32 = 6;
/// Length of a bar of value 1 in cells.
const BAR_LENGTH: f32 = 3.0;
/// Thickness of a bar in cells.
const BAR_THICKNESS: f32 = 0.7;

/// Scene of a game's features: stacks of bars, arranged to be about square.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    num_features: u32,
    rows: u32,
}

impl Bars {
    /// Creates the scene for a number of features.
    pub fn new(num_features: usize) -> Self {
        let num_features = (num_features as u32).max(1);
        let stacks = (f64::from(num_features) / f64::from(FEATURE_COLUMNS)).sqrt().ceil() as u32;
        Self { num_features, rows: num_features.div_ceil(stacks) }
    }

    /// Position of value 0 of feature `i` in cells.
    fn origin(&self, i: u32) -> (f32, f32) {
        let (stack, row) = (i / self.rows, i % self.rows);
        ((stack * FEATURE_COLUMNS) as f32 + 0.5 * FEATURE_COLUMNS as f32, row as f32 + 0.5)
    }
}

impl SceneInfo for Bars {
    fn size(&self) -> SceneSize {
        let columns = self.num_features.div_ceil(self.rows) * FEATURE_COLUMNS;
        SceneSize { columns, rows: self.rows }
    }

    /// Two tones, for negative and for positive values.
    fn background(&self, column: u32, _row: u32) -> u32 {
        if column % FEATURE_COLUMNS < FEATURE_COLUMNS / 2 { tile::BOARD_A } else { tile::BOARD_B }
    }

    fn num_sprites(&self) -> usize {
        self.num_features as usize
    }

    fn steps_per_second(&self) -> f32 {
        8.0
    }
}

/// Computes the bars of some games in the layout of [`compute_sprites()`](super::compute_sprites()), at
/// `progress` (0 to 1) from `before` to `now`. Values are clipped to [-1, 1]; NaN is not drawn.
///
/// # Panics
/// If `before` and `now` differ in length.
pub fn compute_bars<G: Rules>(
    game: G,
    before: &[G::State],
    now: &[G::State],
    progress: f32,
    sprites: &mut Vec<Sprite>,
) {
    let scene = Bars::new(game.num_features());
    fill_sprites(before, now, game.num_features(), sprites, |before, now, i| {
        let value = |state| G::feature(state, i, game);
        create_bar(&scene, i as u32, lerp(value(before), value(now), progress))
    });
}

/// Creates the bar of a feature with the given value.
fn create_bar(scene: &Bars, i: u32, value: f32) -> Sprite {
    let (x, y) = scene.origin(i);
    let length = value.clamp(-1.0, 1.0) * BAR_LENGTH;
    let tile = if length < 0.0 { tile::BAR_LESS } else { tile::BAR_MORE };
    let mut sprite = Sprite::upright(x + 0.5 * length, y, length.abs(), BAR_THICKNESS, tile);
    // Sprites are at least one pixel wide, so a bar of length 0 is hidden instead.
    sprite.opacity = if length.abs() > 1e-3 { 1.0 } else { 0.0 };
    sprite
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{CartPole, Env, initial_state};
    use crate::viewer::{Picture, Wall, paint};

    #[test]
    fn a_bar_reaches_from_the_middle_as_far_as_its_feature() {
        let scene = Bars::new(1);
        for (value, left, right) in
            [(0.5, 3.0, 4.5), (-1.0, 0.0, 3.0), (7.0, 3.0, 6.0), (f32::INFINITY, 3.0, 6.0)]
        {
            let bar = create_bar(&scene, 0, value);
            assert_eq!((bar.x - 0.5 * bar.width, bar.x + 0.5 * bar.width), (left, right));
            assert_eq!(bar.opacity, 1.0);
        }
        assert_eq!(create_bar(&scene, 0, 0.0).opacity, 0.0);
        assert_eq!(create_bar(&scene, 0, f32::NAN).opacity, 0.0);
    }

    #[test]
    fn bars_fit_any_number_of_features() {
        for features in 1..600 {
            let scene = Bars::new(features);
            let (x, y) = scene.origin(features as u32 - 1);
            let SceneSize { columns, rows } = scene.size();
            assert!(x + BAR_LENGTH <= columns as f32 && y <= rows as f32, "{features}");
            assert!(columns * rows < 10 * (FEATURE_COLUMNS * features as u32) + FEATURE_COLUMNS);
        }
    }

    #[test]
    fn a_game_is_painted_as_its_features() {
        let game = CartPole::default();
        let states = [initial_state::<CartPole>(1, game), initial_state::<CartPole>(2, game)];
        let scene = Bars::new(game.num_features());
        let (width, height) = Wall::picture_size(scene.size(), 2, 16);
        let paint_game = |before: &[_], now: &[_], progress| {
            let mut picture = Picture::new(width as u32, height as u32);
            let mut sprites = Vec::new();
            compute_bars(game, before, now, progress, &mut sprites);
            paint(&scene, 2, &sprites, &mut picture);
            picture
        };
        let swapped = [states[1], states[0]];
        let [first, last] = [states, swapped].map(|states| paint_game(&states, &states, 0.0));
        assert_ne!(first, last);
        assert_eq!(paint_game(&states, &swapped, 0.0), first);
        assert_eq!(paint_game(&states, &swapped, 1.0), last);
    }
}
