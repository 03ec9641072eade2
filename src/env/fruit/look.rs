//! Look of the fruit catcher: an orchard, with leaves above the grid and a meadow below.

use super::{Fruit, FruitState};
use crate::env::look::{Look, NUM_FRUIT_KINDS, SceneInfo, Sprite, lerp, sky, tile, variant};
use crate::rng::mix;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Width of the border around the grid in cells.
const MARGIN: u32 = 1;
/// Sprites of the inside of the basket, and of its front: left end, middle, right end.
const PIECES: usize = 3;
/// Fraction of a step that a missed fruit falls before it bursts.
const TO_GROUND: f32 = 0.7;

impl SceneInfo for Fruit {
    fn title(&self) -> &'static str {
        "Fruit catcher"
    }

    fn rules_text(&self) -> &'static str {
        "Fruits fall; a basket moves one cell a step: +1 for each fruit caught, −1 for each missed. Some \
         cannot be reached."
    }

    /// The basket stays.
    fn idle(&self) -> Option<u32> {
        Some(1)
    }

    fn columns(&self) -> u32 {
        self.width + 2 * MARGIN
    }

    fn rows(&self) -> u32 {
        self.height + 2 * MARGIN
    }

    fn background(&self, column: u32, row: u32) -> u32 {
        let (last_column, last_row) = (self.columns() - 1, self.rows() - 1);
        let edge = column == 0 || column == last_column;
        if row == 0 {
            if edge { tile::CANOPY_END } else { tile::CANOPY_A + variant(column, row, 3) }
        } else if row == last_row {
            tile::MEADOW_A + variant(column, row, 3)
        } else if edge {
            match variant(column, row, 4) {
                _ if row + 1 == last_row => tile::TRUNK_FOOT,
                0 => tile::TRUNK_B,
                _ => tile::TRUNK_A,
            }
        } else if row + 1 == last_row {
            tile::HILL_A + column % 2
        } else {
            sky(column, row, last_row)
        }
    }

    /// Inside of the basket, existing fruits, appearing fruits, front of the basket.
    fn num_sprites(&self) -> usize {
        2 * (PIECES + self.max_fruits as usize)
    }

    fn steps_per_second(&self) -> f32 {
        8.0
    }
}

/// Piece 0, 1 or 2 of the basket: left end, middle, right end. `tile` is the tile of the left end,
/// followed by those of the middle, the right end and a basket of one cell.
#[cube]
fn basket(
    before: &FruitState,
    now: &FruitState,
    part: f32,
    #[comptime] piece: u32,
    #[comptime] tile: u32,
    #[comptime] game: Fruit,
) -> Sprite {
    let centre = lerp(before.basket as f32, now.basket as f32, part);
    let left = centre + comptime!(MARGIN as f32 - game.left_columns() as f32);
    let middle = comptime!(game.basket.saturating_sub(2) as f32);
    let (offset, width, tile, seen) = comptime!(match piece {
        0 if game.basket == 1 => (0.5f32, 1.0f32, tile + 3, true),
        0 => (0.5f32, 1.0f32, tile, true),
        1 => (1.0f32 + middle / 2.0, middle, tile + 1, game.basket > 2),
        _ => (game.basket as f32 - 0.5, 1.0f32, tile + 2, game.basket > 1),
    });
    let y = comptime!((game.height + MARGIN) as f32 - 0.5);
    let mut sprite = Sprite::upright(left + offset, y, width, 1.0f32, tile);
    sprite.repeat = width;
    sprite.opacity = comptime!(if seen { 1.0f32 } else { 0.0 });
    sprite
}

/// A fruit at a fractional row, `size` cells across. Its kind does not change while it falls.
#[cube]
fn fruit(state: &FruitState, #[comptime] i: usize, row: f32, size: f32) -> Sprite {
    let kind = mix(state.slot(i)) % NUM_FRUIT_KINDS;
    let x = state.column(i) as f32 + comptime!(MARGIN as f32 + 0.5);
    let y = row + comptime!(MARGIN as f32 + 0.5);
    Sprite::upright(x, y, size, size, kind + comptime!(tile::APPLE))
}

/// Fruit `i` of the state before the step, which falls one row or lands.
#[cube]
fn falling(
    before: &FruitState,
    now: &FruitState,
    part: f32,
    #[comptime] i: usize,
    #[comptime] game: Fruit,
) -> Sprite {
    let moving = before.tick != now.tick;
    let there = before.has_fruit(i);
    let row = before.row(i) as f32;
    let lands = moving && before.row(i) + 1 >= comptime!(game.height - 1);
    let offset = before.column(i) + comptime!(game.left_columns());
    let caught = lands && offset >= now.basket && offset < now.basket + game.basket;
    let missed = lands && !caught;
    // A caught fruit shrinks into the basket; a missed one bursts on the ground.
    let late = select(part > 0.5f32, part - 0.5f32, 0.0f32);
    let way = select(part > TO_GROUND, 1.0f32, part * comptime!(1.0 / TO_GROUND));
    let fall = select(caught, part * 1.15f32, select(missed, way, part));
    let size = select(caught, 1.0f32 - late, 1.0f32);
    let mut sprite = fruit(before, i, row + select(moving, fall, 0.0f32), size);
    sprite.tile = select(missed && part > TO_GROUND, comptime!(tile::PUFF), sprite.tile);
    sprite.opacity = select(there && !(lands && part >= 1.0f32), 1.0f32, 0.0f32);
    sprite
}

/// Fruit `i` of the state after the step, if it is new: it grows out of the leaves.
#[cube]
fn appearing(before: &FruitState, now: &FruitState, part: f32, #[comptime] i: usize) -> Sprite {
    let appears = now.has_fruit(i) && now.row(i) == 0 && before.tick != now.tick && part > 0.0f32;
    let mut sprite = fruit(now, i, part - 1.0f32, lerp(0.25f32, 1.0f32, part));
    sprite.opacity = select(appears, 1.0f32, 0.0f32);
    sprite
}

#[cube]
impl Look for Fruit {
    fn sprite(
        before: &FruitState,
        now: &FruitState,
        part: f32,
        #[comptime] i: usize,
        #[comptime] game: Self,
    ) -> Sprite {
        let falling_end = comptime!(PIECES + game.max_fruits as usize);
        let appearing_end = comptime!(falling_end + game.max_fruits as usize);
        if comptime!(i < PIECES) {
            basket(before, now, part, comptime!(i as u32), tile::INSIDE_LEFT, game)
        } else if comptime!(i < falling_end) {
            falling(before, now, part, comptime!(i - PIECES), game)
        } else if comptime!(i < appearing_end) {
            appearing(before, now, part, comptime!(i - falling_end))
        } else {
            let piece = comptime!((i - appearing_end) as u32);
            basket(before, now, part, piece, tile::BASKET_LEFT, game)
        }
    }
}
