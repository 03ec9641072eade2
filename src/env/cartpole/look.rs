//! Look of CartPole: a cart on an outdoor track, at four cells per metre.

use super::{CartPole, CartPoleState, HALF_LENGTH, STEP_SECONDS, X_LIMIT, cos_small, sin_small};
use crate::env::look::{
    Look, SceneInfo, SceneSize, Sprite, lerp, pick_tile_variant, sky_tile, tile,
};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Cells per metre.
const CELLS_PER_METRE: f32 = 4.0;
/// Size of the scene in cells.
const COLUMNS: u32 = 25;
const ROWS: u32 = 9;
/// Row of the track.
const TRACK_ROW: u32 = 7;
/// Vertical centres of the cart, the wheels and the pole's joint, in cells.
const CART_Y: f32 = 6.2;
const WHEEL_Y: f32 = 6.85;
const JOINT_Y: f32 = 5.8;
/// Radius of a wheel, and its distance from the centre of the cart, in cells.
const WHEEL_RADIUS: f32 = 0.4;
const WHEEL_X: f32 = 0.6;

impl SceneInfo for CartPole {
    fn size(&self) -> SceneSize {
        SceneSize { columns: COLUMNS, rows: ROWS }
    }

    fn background(&self, column: u32, row: u32) -> u32 {
        let middle = COLUMNS / 2;
        let end = (X_LIMIT * CELLS_PER_METRE).ceil() as u32;
        if row > TRACK_ROW {
            tile::MEADOW_A + pick_tile_variant(column, row, 3)
        } else if row == TRACK_ROW {
            match column.abs_diff(middle) {
                0 => tile::TRACK_MIDDLE,
                away if away == end => tile::TRACK_END,
                away if away < end => tile::TRACK,
                _ => tile::GRAVEL,
            }
        } else if row + 1 == TRACK_ROW {
            tile::HILL_A + column % 2
        } else {
            sky_tile(column, row, TRACK_ROW)
        }
    }

    /// Pole, cart, two wheels, joint.
    fn num_sprites(&self) -> usize {
        5
    }

    /// Real time.
    fn steps_per_second(&self) -> f32 {
        1.0 / STEP_SECONDS
    }
}

#[cube]
impl Look for CartPole {
    const TITLE: &'static str = "Cart pole";
    const RULES_TEXT: &'static str =
        "Keep the pole on the cart upright by pushing left or right: +1 for each step it stands.";
    const TRAINING_TIME: Option<&'static str> = Some("10 seconds");

    /// The pole, the cart, its two wheels, and the hub on which the pole turns.
    fn sprite(
        before: &CartPoleState,
        now: &CartPoleState,
        progress: f32,
        #[comptime] i: usize,
        #[comptime] _game: Self,
    ) -> Sprite {
        let moved = lerp(before.x, now.x, progress) * CELLS_PER_METRE;
        let x = moved + comptime!(COLUMNS as f32 / 2.0);
        if comptime!(i == 0) {
            // The tile of the pole is horizontal.
            let theta = lerp(before.theta, now.theta, progress);
            let half = comptime!(HALF_LENGTH * CELLS_PER_METRE);
            let (end_x, end_y) = (x + sin_small(theta) * half, JOINT_Y - cos_small(theta) * half);
            let mut pole = Sprite::upright(end_x, end_y, 2.0f32 * half, 1.0f32, tile::POLE);
            pole.rotation = theta - comptime!(std::f32::consts::FRAC_PI_2);
            pole.repeat = comptime!(2.0 * HALF_LENGTH * CELLS_PER_METRE);
            pole
        } else if comptime!(i == 1) {
            let mut cart = Sprite::upright(x, CART_Y, 2.0f32, 1.0f32, tile::CART);
            cart.repeat = 2.0f32.runtime();
            cart
        } else if comptime!(i < 4) {
            let side = comptime!(if i == 2 { -WHEEL_X } else { WHEEL_X });
            let mut wheel = Sprite::upright(x + side, WHEEL_Y, 1.0f32, 1.0f32, tile::WHEEL);
            wheel.rotation = moved * comptime!(1.0 / WHEEL_RADIUS);
            wheel
        } else {
            Sprite::upright(x, JOINT_Y, 1.0f32, 1.0f32, tile::HUB)
        }
    }
}
