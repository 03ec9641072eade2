//! Look of Catch: a chequered board, a ball and a paddle.

use super::{Catch, CatchState};
use crate::env::look::{Look, SceneInfo, SceneSize, Sprite, lerp, tile};
use burn::cubecl;
use burn::cubecl::prelude::*;

impl SceneInfo for Catch {
    fn size(&self) -> SceneSize {
        SceneSize { columns: self.columns, rows: self.rows }
    }

    fn background(&self, column: u32, row: u32) -> u32 {
        if (column + row).is_multiple_of(2) { tile::BOARD_A } else { tile::BOARD_B }
    }

    /// The paddle and the ball.
    fn num_sprites(&self) -> usize {
        2
    }

    fn steps_per_second(&self) -> f32 {
        6.0
    }
}

#[cube]
impl Look for Catch {
    const TITLE: &'static str = "Catch";
    const RULES_TEXT: &'static str =
        "A ball falls; be under it when it lands: +1 if caught, −1 if missed.";
    const TRAINING_TIME: Option<&'static str> = Some("10 seconds");
    /// The paddle stays.
    const IDLE_ACTION: Option<u32> = Some(1);

    fn sprite(
        before: &CatchState,
        now: &CatchState,
        progress: f32,
        #[comptime] i: usize,
        #[comptime] game: Self,
    ) -> Sprite {
        if comptime!(i == 0) {
            let x = lerp(before.paddle as f32, now.paddle as f32, progress) + 0.5f32;
            let y = comptime!(game.rows as f32 - 0.5);
            Sprite::upright(x, y, 1.0f32, 1.0f32, tile::PADDLE)
        } else {
            let x = lerp(before.ball_column as f32, now.ball_column as f32, progress) + 0.5f32;
            let y = lerp(before.ball_row as f32, now.ball_row as f32, progress) + 0.5f32;
            Sprite::upright(x, y, 1.0f32, 1.0f32, tile::BALL)
        }
    }
}
