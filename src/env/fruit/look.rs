//! Look of the fruit catcher: an orchard, with leaves above the grid and a meadow below.

use super::{Fruit, FruitState};
use crate::env::look::{
    Look, NUM_FRUIT_KINDS, SceneInfo, SceneSize, Sprite, lerp, pick_tile_variant, sky_tile, tile,
};
use crate::rng::mix;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Width of the border around the grid in cells.
const MARGIN: u32 = 1;
/// Sprites of the inside of the basket, and of its front: left end, middle, right end.
const NUM_PIECES: usize = 3;
/// Fraction of a step that a missed fruit falls before it bursts.
const GROUND_PROGRESS: f32 = 0.7;

impl SceneInfo for Fruit {
    fn size(&self) -> SceneSize {
        SceneSize { columns: self.width + 2 * MARGIN, rows: self.height + 2 * MARGIN }
    }

    fn background(&self, column: u32, row: u32) -> u32 {
        let SceneSize { columns, rows } = self.size();
        let (last_column, last_row) = (columns - 1, rows - 1);
        let is_edge = column == 0 || column == last_column;
        if row == 0 {
            if is_edge {
                tile::CANOPY_END
            } else {
                tile::CANOPY_A + pick_tile_variant(column, row, 3)
            }
        } else if row == last_row {
            tile::MEADOW_A + pick_tile_variant(column, row, 3)
        } else if is_edge {
            match pick_tile_variant(column, row, 4) {
                _ if row + 1 == last_row => tile::TRUNK_FOOT,
                0 => tile::TRUNK_B,
                _ => tile::TRUNK_A,
            }
        } else if row + 1 == last_row {
            tile::HILL_A + column % 2
        } else {
            sky_tile(column, row, last_row)
        }
    }

    /// Inside of the basket, existing fruits, appearing fruits, front of the basket.
    fn num_sprites(&self) -> usize {
        2 * (NUM_PIECES + self.max_fruits as usize)
    }

    fn steps_per_second(&self) -> f32 {
        8.0
    }
}

/// Piece 0, 1 or 2 of the basket: left end, middle, right end. `tile` is the tile of the left end,
/// followed by those of the middle, the right end and a basket of one cell.
#[cube]
fn basket_sprite(
    before: &FruitState,
    now: &FruitState,
    progress: f32,
    #[comptime] piece: u32,
    #[comptime] tile: u32,
    #[comptime] game: Fruit,
) -> Sprite {
    let centre = lerp(before.basket as f32, now.basket as f32, progress);
    let left = centre + comptime!(MARGIN as f32 - game.num_left_columns() as f32);
    let middle = comptime!(game.basket.saturating_sub(2) as f32);
    let (offset, width, tile, is_visible) = comptime!(match piece {
        0 if game.basket == 1 => (0.5f32, 1.0f32, tile + 3, true),
        0 => (0.5f32, 1.0f32, tile, true),
        1 => (1.0f32 + middle / 2.0, middle, tile + 1, game.basket > 2),
        _ => (game.basket as f32 - 0.5, 1.0f32, tile + 2, game.basket > 1),
    });
    let y = comptime!((game.height + MARGIN) as f32 - 0.5);
    let mut sprite = Sprite::upright(left + offset, y, width, 1.0f32, tile);
    sprite.repeat = width;
    sprite.opacity = comptime!(if is_visible { 1.0f32 } else { 0.0 });
    sprite
}

/// A fruit at a fractional row, `size` cells across. Its kind does not change while it falls.
#[cube]
fn fruit_sprite(state: &FruitState, #[comptime] i: usize, row: f32, size: f32) -> Sprite {
    let kind = mix(state.slot(i)) % NUM_FRUIT_KINDS;
    let x = state.column(i) as f32 + comptime!(MARGIN as f32 + 0.5);
    let y = row + comptime!(MARGIN as f32 + 0.5);
    Sprite::upright(x, y, size, size, kind + comptime!(tile::APPLE))
}

/// Fruit `i` of the state before the step, which falls one row or lands.
#[cube]
fn falling_sprite(
    before: &FruitState,
    now: &FruitState,
    progress: f32,
    #[comptime] i: usize,
    #[comptime] game: Fruit,
) -> Sprite {
    let is_moving = before.tick != now.tick;
    let is_present = before.has_fruit(i);
    let row = before.row(i) as f32;
    let lands = is_moving && before.row(i) + 1 >= comptime!(game.height - 1);
    let offset = before.column(i) + comptime!(game.num_left_columns());
    let caught = lands && offset >= now.basket && offset < now.basket + game.basket;
    let missed = lands && !caught;
    // A caught fruit shrinks into the basket; a missed one bursts on the ground.
    let shrinkage = select(progress > 0.5f32, progress - 0.5f32, 0.0f32);
    let fall_of_missed =
        select(progress > GROUND_PROGRESS, 1.0f32, progress * comptime!(1.0 / GROUND_PROGRESS));
    let fall = select(caught, progress * 1.15f32, select(missed, fall_of_missed, progress));
    let size = select(caught, 1.0f32 - shrinkage, 1.0f32);
    let mut sprite = fruit_sprite(before, i, row + select(is_moving, fall, 0.0f32), size);
    sprite.tile = select(missed && progress > GROUND_PROGRESS, comptime!(tile::PUFF), sprite.tile);
    sprite.opacity = select(is_present && !(lands && progress >= 1.0f32), 1.0f32, 0.0f32);
    sprite
}

/// Fruit `i` of the state after the step, if it is new: it grows out of the leaves.
#[cube]
fn appearing_sprite(
    before: &FruitState,
    now: &FruitState,
    progress: f32,
    #[comptime] i: usize,
) -> Sprite {
    let appears =
        now.has_fruit(i) && now.row(i) == 0 && before.tick != now.tick && progress > 0.0f32;
    let mut sprite = fruit_sprite(now, i, progress - 1.0f32, lerp(0.25f32, 1.0f32, progress));
    sprite.opacity = select(appears, 1.0f32, 0.0f32);
    sprite
}

#[cube]
impl Look for Fruit {
    const TITLE: &'static str = "Fruit catcher";
    const RULES_TEXT: &'static str = "Fruits fall; a basket moves one cell a step: +1 for each fruit caught, \
                                      −1 for each missed. Some cannot be reached.";
    const TRAINING_TIME: Option<&'static str> = Some("10 seconds");
    /// The basket stays.
    const IDLE_ACTION: Option<u32> = Some(1);

    fn sprite(
        before: &FruitState,
        now: &FruitState,
        progress: f32,
        #[comptime] i: usize,
        #[comptime] game: Self,
    ) -> Sprite {
        let falling_end = comptime!(NUM_PIECES + game.max_fruits as usize);
        let appearing_end = comptime!(falling_end + game.max_fruits as usize);
        if comptime!(i < NUM_PIECES) {
            basket_sprite(before, now, progress, comptime!(i as u32), tile::INSIDE_LEFT, game)
        } else if comptime!(i < falling_end) {
            falling_sprite(before, now, progress, comptime!(i - NUM_PIECES), game)
        } else if comptime!(i < appearing_end) {
            appearing_sprite(before, now, progress, comptime!(i - falling_end))
        } else {
            let piece = comptime!((i - appearing_end) as u32);
            basket_sprite(before, now, progress, piece, tile::BASKET_LEFT, game)
        }
    }
}
