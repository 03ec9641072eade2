//! Look of Breakout: a chequered board, a wall in three colours, a ball with a trail, and a paddle.

use super::{BOTTOM, Breakout, BreakoutState, NUM_BRICKS, SIDE};
use crate::env::look::{Look, SceneInfo, SceneSize, Sprite, lerp, tile};
use burn::cubecl;
use burn::cubecl::prelude::*;

impl SceneInfo for Breakout {
    fn size(&self) -> SceneSize {
        SceneSize { columns: SIDE, rows: SIDE }
    }

    fn background(&self, column: u32, row: u32) -> u32 {
        if (column + row).is_multiple_of(2) { tile::BOARD_A } else { tile::BOARD_B }
    }

    /// Bricks, trail, paddle, ball.
    fn num_sprites(&self) -> usize {
        NUM_BRICKS as usize + 3
    }

    fn steps_per_second(&self) -> f32 {
        10.0
    }
}

/// The ball. If it bounces back to its row, it moves halfway to the obstacle and returns.
#[cube]
fn ball_sprite(before: &BreakoutState, now: &BreakoutState, progress: f32) -> Sprite {
    let x = lerp(before.ball_x as f32, now.ball_x as f32, progress) + 0.5f32;
    let y = lerp(before.ball_y as f32, now.ball_y as f32, progress) + 0.5f32;
    let returns = before.ball_y == now.ball_y && before.ball_dir != now.ball_dir;
    let touch = select(returns && before.ball_y > 0, 0.4f32, 0.0f32);
    let depth = select(progress < 0.5f32, progress, 1.0f32 - progress) * 2.0f32 * touch;
    let offset = select(before.ball_dir >= 2, depth, -depth);
    Sprite::upright(x, y + offset, 1.0f32, 1.0f32, tile::BALL)
}

#[cube]
impl Look for Breakout {
    const TITLE: &'static str = "Breakout";
    const RULES_TEXT: &'static str =
        "Keep the ball in play with the paddle: +1 for each brick. A missed ball ends the game.";
    const TRAINING_TIME: Option<&'static str> = Some("a minute");
    /// The paddle stays.
    const IDLE_ACTION: Option<u32> = Some(0);

    /// The bricks, then the ball's trail, the paddle and the ball.
    fn sprite(
        before: &BreakoutState,
        now: &BreakoutState,
        progress: f32,
        #[comptime] i: usize,
        #[comptime] _game: Self,
    ) -> Sprite {
        let index = comptime!(i as u32);
        if comptime!(index < NUM_BRICKS) {
            let x = comptime!((index % SIDE) as f32 + 0.5);
            let y = comptime!((index / SIDE) as f32 + 1.5);
            let tile = comptime!(tile::BRICK_RED + (index / SIDE) % 3);
            let bricks = select(progress < 0.5f32, before.bricks, now.bricks);
            let mut brick = Sprite::upright(x, y, 1.0f32, 1.0f32, tile);
            brick.opacity = ((bricks >> comptime!(index % NUM_BRICKS)) & 1) as f32;
            brick
        } else if comptime!(index == NUM_BRICKS) {
            let x = lerp(before.last_x as f32, now.last_x as f32, progress) + 0.5f32;
            let y = lerp(before.last_y as f32, now.last_y as f32, progress) + 0.5f32;
            Sprite::upright(x, y, 1.0f32, 1.0f32, tile::TRAIL)
        } else if comptime!(index == NUM_BRICKS + 1) {
            let x = lerp(before.paddle as f32, now.paddle as f32, progress) + 0.5f32;
            let y = comptime!(BOTTOM as f32 + 0.5);
            Sprite::upright(x, y, 1.0f32, 1.0f32, tile::PADDLE)
        } else {
            ball_sprite(before, now, progress)
        }
    }
}
