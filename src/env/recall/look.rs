//! Look of Recall: a basket carried across a meadow. The fruit to be recalled lies at the start,
//! and the currently lit one is shown above the basket.

use super::{Recall, RecallState};
use crate::env::look::{
    Look, SceneInfo, SceneSize, Sprite, lerp, pick_tile_variant, sky_tile, tile,
};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Size of the scene in cells.
const COLUMNS: u32 = 15;
const ROWS: u32 = 6;
/// Path of the basket: its row and the centres of its first and last cell.
const PATH_ROW: u32 = ROWS - 2;
const FIRST_X: f32 = 2.5;
const LAST_X: f32 = COLUMNS as f32 - 1.5;

impl SceneInfo for Recall {
    fn size(&self) -> SceneSize {
        SceneSize { columns: COLUMNS, rows: ROWS }
    }

    fn background(&self, column: u32, row: u32) -> u32 {
        if row > PATH_ROW {
            tile::MEADOW_A + pick_tile_variant(column, row, 3)
        } else if row == PATH_ROW {
            tile::HILL_A + column % 2
        } else {
            sky_tile(column, row, PATH_ROW)
        }
    }

    /// Cue, inside of the basket, lit fruit, front of the basket.
    fn num_sprites(&self) -> usize {
        4
    }

    fn steps_per_second(&self) -> f32 {
        6.0
    }
}

#[cube]
impl Look for Recall {
    const TITLE: &'static str = "Recall";
    const RULES_TEXT: &'static str =
        "A cue lights up at the first step. At the last step, choose the same: +1 if right.";

    /// The cue at the start, and the basket on its way, whose inside and front enclose the lit fruit.
    fn sprite(
        before: &RecallState,
        now: &RecallState,
        progress: f32,
        #[comptime] i: usize,
        #[comptime] game: Self,
    ) -> Sprite {
        let path = comptime!(PATH_ROW as f32 + 0.5);
        let step_width = comptime!(((LAST_X - FIRST_X) / game.steps as f32).min(1.0));
        let x = FIRST_X + lerp(before.time as f32, now.time as f32, progress) * step_width;
        if comptime!(i == 0) {
            Sprite::upright(
                1.0f32.runtime(),
                path,
                1.0f32,
                1.0f32,
                now.cue + comptime!(tile::APPLE),
            )
        } else if comptime!(i == 1) {
            Sprite::upright(x, path, 1.0f32, 1.0f32, tile::INSIDE_ALONE)
        } else if comptime!(i == 2) {
            let light = select(progress < 0.5f32, before.light, now.light);
            let kind = light + comptime!(tile::APPLE);
            Sprite::upright(x, comptime!(PATH_ROW as f32 - 1.0), 1.0f32, 1.0f32, kind)
        } else {
            Sprite::upright(x, path, 1.0f32, 1.0f32, tile::BASKET_ALONE)
        }
    }
}
