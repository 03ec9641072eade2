//! Breakout: a paddle on the bottom row keeps a ball in play, which breaks bricks at the top.
//!
//! Follows MinAtar's Breakout (Young & Tian 2019; `minatar/environments/breakout.py` of version
//! 1.0.15) exactly. The board has 10 x 10 cells and the ball moves one cell diagonally per step.
//! Walls reflect it horizontally; the ceiling, a brick and the paddle send it back to the row it
//! came from. A hit brick disappears and gives +1, unless the ball hit one in the previous step, in
//! which case it flies through. When the ball reaches the bottom row and no brick is left, all 30
//! bricks return. If only the ball's next column is the paddle's, the ball also bounces back
//! horizontally; if neither its column nor the next one is, the ball is lost and the episode ends.
//!
//! The only randomness is the side from which the ball starts and, with `sticky` above 0, whether
//! an action is replaced by the previous one. Two details differ from MinAtar without affecting
//! rules or boards: an episode is truncated after `max_steps`, as in gymnax, and the first sticky
//! action of an episode repeats "do nothing" rather than the last action of the previous episode.

mod look;

use super::{Bits, Env, Outcome, Rules, impl_settings};
use crate::rng::{below, draw};
use crate::schema::{names, settings};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Side length of the board in cells.
const SIDE: u32 = 10;
/// Row of the paddle, at which the ball can be lost.
const BOTTOM: u32 = SIDE - 1;
/// Number of bricks of a full wall, on rows 1 to 3.
const NUM_BRICKS: u32 = 3 * SIDE;
/// A full wall, one bit per brick.
const FULL_WALL: u32 = (1 << NUM_BRICKS) - 1;
/// Channels of MinAtar's board: paddle, ball, trail, brick.
const NUM_CHANNELS: usize = 4;
/// Number of features before the bricks in [`BreakoutObservation::Features`].
const NUM_POSITION_FEATURES: usize = 7;

settings! {
    /// Parameters of Breakout.
    pub struct Breakout: Copy, Eq, Hash {
        /// Observation of the policy: MinAtar's `board` of 400 features, or 37 `features`.
        observation: BreakoutObservation = Self::DEFAULT.observation;
        /// Action set: the `minimal` three effective actions, or the `full` six of MinAtar.
        actions: BreakoutActions = Self::DEFAULT.actions;
        /// Probability in per cent that a step repeats the previous action instead of its own; 10 in MinAtar.
        sticky: u32 = Self::DEFAULT.sticky, in integer(0..=99);
        /// Steps after which an episode is truncated. MinAtar has no limit, so an episode may never
        /// end; gymnax uses 1000.
        max_steps: u32 = Self::DEFAULT.max_steps, in integer(1..=1_000_000);
    }
}

names! {
    /// Observation of Breakout.
    pub enum BreakoutObservation {
        /// MinAtar's state, `[row][column][channel]` in row-major order, 400 features: 1 for the paddle
        /// (channel 0), the ball (1), the ball's previous cell (2) or a brick (3), else 0.
        Board = "board",
        /// Positions of ball and paddle, direction of the ball, and one feature per brick: 37 features.
        Features = "features",
    }
}

names! {
    /// Action set of Breakout.
    pub enum BreakoutActions {
        /// The three effective actions: no-op, left, right.
        Minimal = "minimal",
        /// The six actions of every MinAtar game: no-op, left, up, right, down, fire. Up, down and fire
        /// are no-ops here.
        Full = "full",
    }
}

impl Breakout {
    const DEFAULT: Self = Self {
        observation: BreakoutObservation::Board,
        actions: BreakoutActions::Minimal,
        sticky: 0,
        max_steps: 1000,
    };

    /// Action that moves the paddle right; 1 moves it left.
    fn right_action(&self) -> u32 {
        match self.actions {
            BreakoutActions::Minimal => 2,
            BreakoutActions::Full => 3,
        }
    }
}

impl Env for Breakout {
    const NAME: &'static str = "breakout";
    const SCORE_IS_REWARD: bool = true;
    const COMMON_PARAMETERS: Option<Self> = Some(Self::DEFAULT);

    fn training_defaults(&self) -> &'static [&'static str] {
        &[include_str!("defaults.toml")]
    }

    /// Depends on [`BreakoutObservation`].
    fn num_features(&self) -> usize {
        match self.observation {
            BreakoutObservation::Board => (SIDE * SIDE) as usize * NUM_CHANNELS,
            BreakoutObservation::Features => NUM_POSITION_FEATURES + NUM_BRICKS as usize,
        }
    }

    /// Depends on [`BreakoutActions`].
    fn num_actions(&self) -> usize {
        match self.actions {
            BreakoutActions::Minimal => 3,
            BreakoutActions::Full => 6,
        }
    }

    impl_settings!();

    fn max_steps(&self) -> u32 {
        self.max_steps
    }

    /// The random score is the mean of 100,000 episodes; the optimum is unknown.
    fn reference_scores(&self) -> &'static [(&'static str, f64)] {
        // Random episodes end long before they would be truncated.
        match (self.actions, self.sticky, self.max_steps) {
            (BreakoutActions::Minimal, 0, 1000..) => &[("random", 0.415)],
            (BreakoutActions::Full, 0, 1000..) => &[("random", 0.534)],
            _ => &[],
        }
    }

    fn feature_name(&self, i: usize) -> String {
        let side = SIDE as usize;
        let cell_name = |cell: usize| format!("column {}, row {}", cell % side, cell / side);
        match (self.observation, i.checked_sub(NUM_POSITION_FEATURES)) {
            (BreakoutObservation::Board, _) => {
                let channel = ["paddle", "ball", "trail", "brick"][i % NUM_CHANNELS];
                format!("{channel}: {}", cell_name(i / NUM_CHANNELS))
            }
            (BreakoutObservation::Features, Some(brick)) => {
                format!("brick: {}", cell_name(side + brick))
            }
            (BreakoutObservation::Features, None) => {
                let names: [&str; NUM_POSITION_FEATURES] = [
                    "ball: column",
                    "ball: row",
                    "ball: flies right",
                    "ball: flies down",
                    "paddle: column",
                    "ball: to the right",
                    "ball: has just struck a brick",
                ];
                names[i].to_string()
            }
        }
    }

    fn action_name(&self, a: usize) -> String {
        let names: &[&str] = match self.actions {
            BreakoutActions::Minimal => &["nothing", "left", "right"],
            BreakoutActions::Full => &["nothing", "left", "up", "right", "down", "fire"],
        };
        names[a].to_string()
    }
}

crate::packed_state! {
    /// State of Breakout; row 0 is the top, column 0 the left.
    pub struct BreakoutState {
        /// Column of the ball.
        pub ball_x: Bits<4>,
        /// Row of the ball.
        pub ball_y: Bits<4>,
        /// Direction of the ball: 0 up-left, 1 up-right, 2 down-right, 3 down-left.
        pub ball_dir: Bits<4>,
        /// Column of the paddle.
        pub paddle: Bits<4>,
        /// Column of the ball in the previous step.
        pub last_x: Bits<4>,
        /// Row of the ball in the previous step.
        pub last_y: Bits<4>,
        /// 1 if the last step hit a brick; the next step then breaks none.
        pub strike: Bits<1>,
        /// The last action; 0 initially, and always 0 unless actions are sticky.
        pub last_action: Bits<3>,
        /// Bit `10 (y - 1) + x` is set if there is a brick at column `x` and row `y`.
        pub bricks: u32,
    }
}

/// Element `i` of MinAtar's state.
#[cube]
#[inline(always)]
fn board_feature(state: &BreakoutState, #[comptime] i: usize) -> f32 {
    let cell = comptime!((i / NUM_CHANNELS) as u32);
    let channel = comptime!(i % NUM_CHANNELS);
    if comptime!(channel == 0 && cell < BOTTOM * SIDE) {
        0.0f32.runtime()
    } else if comptime!(channel == 0) {
        select(state.paddle == comptime!(cell.saturating_sub(BOTTOM * SIDE)), 1.0f32, 0.0f32)
    } else if comptime!(channel == 1) {
        select(state.ball_y * SIDE + state.ball_x == cell, 1.0f32, 0.0f32)
    } else if comptime!(channel == 2) {
        select(state.last_y * SIDE + state.last_x == cell, 1.0f32, 0.0f32)
    } else if comptime!(!(SIDE..SIDE + NUM_BRICKS).contains(&cell)) {
        0.0f32.runtime()
    } else {
        ((state.bricks >> comptime!(cell.saturating_sub(SIDE) % NUM_BRICKS)) & 1) as f32
    }
}

/// Feature `i` of [`BreakoutObservation::Features`].
#[cube]
#[inline(always)]
fn position_feature(state: &BreakoutState, #[comptime] i: usize) -> f32 {
    let scale = comptime!(2.0f32 / BOTTOM as f32);
    if comptime!(i == 0) {
        state.ball_x as f32 * scale - 1.0f32
    } else if comptime!(i == 1) {
        state.ball_y as f32 * scale - 1.0f32
    } else if comptime!(i == 2) {
        select(state.ball_dir == 1 || state.ball_dir == 2, 1.0f32, -1.0f32)
    } else if comptime!(i == 3) {
        select(state.ball_dir >= 2, 1.0f32, -1.0f32)
    } else if comptime!(i == 4) {
        state.paddle as f32 * scale - 1.0f32
    } else if comptime!(i == 5) {
        (state.ball_x as f32 - state.paddle as f32) * comptime!(1.0f32 / BOTTOM as f32)
    } else if comptime!(i == 6) {
        state.strike as f32
    } else {
        ((state.bricks >> comptime!(i.saturating_sub(NUM_POSITION_FEATURES) as u32 % NUM_BRICKS))
            & 1) as f32
    }
}

#[cube]
impl Rules for Breakout {
    type State = BreakoutState;

    /// The ball starts on row 3, at the left moving right or at the right moving left.
    #[inline(always)]
    fn reset(state: &mut BreakoutState, key: u32, #[comptime] _game: Self) {
        let from_right = below(key, 2) == 1;
        state.ball_x = select(from_right, BOTTOM, 0);
        state.ball_y = 3u32.runtime();
        state.ball_dir = select(from_right, 3u32, 2u32);
        state.paddle = 4u32.runtime();
        state.last_x = state.ball_x;
        state.last_y = state.ball_y;
        state.strike = 0u32.runtime();
        state.last_action = 0u32.runtime();
        state.bricks = FULL_WALL.runtime();
    }

    /// Moves the paddle, then the ball, which breaks the brick that it meets and turns back.
    // `#[cube]` does not support `contains` on ranges.
    #[allow(clippy::manual_range_contains)]
    #[inline(always)]
    fn step(state: &mut BreakoutState, action: u32, key: u32, #[comptime] game: Self) -> Outcome {
        let taken = if comptime!(game.sticky > 0) {
            let repeats = below(draw(key, 0), 100) < game.sticky;
            state.last_action = select(repeats, state.last_action, action);
            state.last_action
        } else {
            action
        };
        // One is added to positions to avoid unsigned underflow.
        let left = select(taken == 1, 1u32, 0u32);
        let right = select(taken == comptime!(game.right_action()), 1u32, 0u32);
        let moved = state.paddle + 1 + right - left;
        state.paddle = select(moved < 1, 1u32, select(moved > SIDE, SIDE, moved)) - 1;

        state.last_x = state.ball_x;
        state.last_y = state.ball_y;
        let moves_right = state.ball_dir == 1 || state.ball_dir == 2;
        let next_x = state.ball_x + select(moves_right, 2u32, 0u32);
        let next_y = state.ball_y + select(state.ball_dir >= 2, 2u32, 0u32);
        // Directions are numbered so that XOR with 1 reverses horizontally, 3 vertically, 2 both.
        let hits_side = next_x < 1 || next_x > SIDE;
        let x = select(next_x < 1, 1u32, select(next_x > SIDE, SIDE, next_x)) - 1;
        let hits_ceiling = next_y < 1;
        let y = select(hits_ceiling, 1u32, next_y) - 1;

        let is_among_bricks = y >= 1 && y <= 3;
        let brick = 1u32 << (select(is_among_bricks, y * SIDE + x, SIDE) - SIDE);
        let hits_brick = is_among_bricks && (state.bricks & brick) != 0;
        let breaks_brick = hits_brick && state.strike == 0;
        let reaches_bottom = y == BOTTOM;
        let is_above_paddle = reaches_bottom && state.ball_x == state.paddle;
        let is_beside_paddle = reaches_bottom && !is_above_paddle && x == state.paddle;
        let is_lost = reaches_bottom && !is_above_paddle && !is_beside_paddle;

        let sideways = select(hits_side, 1u32, 0u32);
        let beside = select(is_beside_paddle, 2u32, 0u32);
        let back = select(hits_ceiling || breaks_brick || is_above_paddle, 3u32, beside);
        state.ball_dir = state.ball_dir ^ sideways ^ back;
        state.ball_x = x;
        state.ball_y = select(breaks_brick || is_above_paddle || is_beside_paddle, state.last_y, y);
        state.strike = select(hits_brick, 1u32, 0u32);
        let left_over = state.bricks & !select(breaks_brick, brick, 0u32);
        state.bricks = select(reaches_bottom && left_over == 0, FULL_WALL, left_over);
        let reward = select(breaks_brick, 1.0f32, 0.0f32);
        Outcome { reward, score: reward, terminated: is_lost }
    }

    /// With [`BreakoutObservation::Features`]: the ball's column and row, its horizontal direction
    /// (1 is right) and its vertical direction (1 is down), the paddle's column, and the ball's
    /// offset from the paddle, each scaled to -1..=1; whether the last step hit a brick; then each
    /// brick, row by row.
    #[inline(always)]
    fn feature(state: &BreakoutState, #[comptime] i: usize, #[comptime] game: Self) -> f32 {
        if comptime!(game.observation == BreakoutObservation::Board) {
            board_feature(state, i)
        } else {
            position_feature(state, i)
        }
    }
}
