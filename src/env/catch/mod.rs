//! Catch: a ball falls and a paddle on the bottom row must be under it.
//!
//! The rules of bsuite's Catch (Osband et al. 2020, `bsuite/environments/catch.py`): each step the
//! paddle moves and the ball falls one row. When the ball reaches the paddle's row the episode ends
//! with +1 for a catch or -1 for a miss.

mod look;

use super::{Bits, Env, Outcome, Rules, ScriptedPlayer, impl_settings};
use crate::rng::below;
use crate::schema::{OutOfRange, ensure, names, settings};
use burn::cubecl;
use burn::cubecl::prelude::*;
use std::cmp::Ordering;

settings! {
    /// Parameters of Catch.
    pub struct Catch: Copy, Eq, Hash {
        /// Rows of the board.
        rows: u32 = 10, in integer(2..=256);
        /// Columns of the board.
        columns: u32 = 5, in integer(1..=256);
        /// Observation of the policy: four `features`, or the `board` cell by cell.
        observation: CatchObservation;
    }
    check = Catch::check_settings;
}

names! {
    /// Observation of Catch.
    #[derive(Default)]
    pub enum CatchObservation {
        /// Four features: the ball's column and row, the paddle's column, and the ball's horizontal
        /// offset from the paddle, each scaled to [-1, 1].
        #[default]
        Features = "features",
        /// The board as in bsuite and gymnax, row by row from the top: 1 for the ball or the paddle,
        /// else 0. `rows * columns` features, at most 512.
        Board = "board",
    }
}

/// Maximum number of features of a board. Each is separate code in a kernel; drivers take seconds
/// to compile some hundreds, growing faster than linearly.
const MAX_CELLS: u32 = 512;

impl Catch {
    fn check_settings(&self) -> Result<(), OutOfRange> {
        let Self { rows, columns, observation } = self;
        let cells = rows * columns;
        let words = format!("at most {MAX_CELLS} where catch.observation is `board`");
        let is_small = *observation == CatchObservation::Features || cells <= MAX_CELLS;
        ensure(is_small, "rows * catch.columns", cells, words)
    }

    /// Number of cells above the bottom row.
    fn num_cells_above(&self) -> u32 {
        (self.rows - 1) * self.columns
    }
}

impl Env for Catch {
    const NAME: &'static str = "catch";
    const SCORE_IS_REWARD: bool = true;

    fn training_defaults(&self) -> &'static [&'static str] {
        &[include_str!("defaults.toml")]
    }

    impl_settings!();

    /// `chaser` moves under the ball and stays there, which is optimal.
    fn players(&self) -> Vec<ScriptedPlayer> {
        let chase = |state: &CatchState| match state.ball_column.cmp(&state.paddle) {
            Ordering::Less => 0,
            Ordering::Equal => 1,
            Ordering::Greater => 2,
        };
        vec![ScriptedPlayer::new("chaser", chase)]
    }

    /// Depends on [`CatchObservation`].
    fn num_features(&self) -> usize {
        match self.observation {
            CatchObservation::Features => 4,
            CatchObservation::Board => (self.rows * self.columns) as usize,
        }
    }

    /// Left, stay, right.
    fn num_actions(&self) -> usize {
        3
    }

    fn max_steps(&self) -> u32 {
        self.rows - 1
    }

    fn reference_scores(&self) -> &'static [(&'static str, f64)] {
        // The random score is the mean of 100,000 episodes. The ball takes rows - 1 steps to land;
        // the paddle is at most columns / 2 columns away.
        if (self.rows, self.columns) == (10, 5) {
            &[("random", -0.595), ("optimum", 1.0)]
        } else if self.rows > self.columns / 2 {
            &[("optimum", 1.0)]
        } else {
            &[]
        }
    }

    fn feature_name(&self, i: usize) -> String {
        match self.observation {
            CatchObservation::Features => {
                ["ball: column", "ball: row", "paddle: column", "ball: to the right"][i].to_string()
            }
            CatchObservation::Board => {
                let columns = self.columns as usize;
                format!("column {}, row {}", i % columns, i / columns)
            }
        }
    }

    fn action_name(&self, a: usize) -> String {
        ["left", "stay", "right"][a].to_string()
    }
}

crate::packed_state! {
    /// State of Catch; row 0 is the top.
    pub struct CatchState {
        /// Column of the ball.
        pub ball_column: Bits<8>,
        /// Row of the ball.
        pub ball_row: Bits<8>,
        /// Column of the paddle on the bottom row.
        pub paddle: Bits<8>,
    }
}

/// Cell `i` of the board in row-major order: 1 for the ball or the paddle, else 0.
#[cube]
#[inline(always)]
fn board_feature(state: &CatchState, #[comptime] i: usize, #[comptime] game: Catch) -> f32 {
    let cell = comptime!(i as u32);
    let ball = state.ball_row * game.columns + state.ball_column == cell;
    if comptime!(cell >= game.num_cells_above()) {
        let paddle = state.paddle == comptime!(cell - game.num_cells_above());
        select(ball || paddle, 1.0f32, 0.0f32)
    } else {
        select(ball, 1.0f32, 0.0f32)
    }
}

/// Feature `i` of [`CatchObservation::Features`].
#[cube]
#[inline(always)]
fn position_feature(state: &CatchState, #[comptime] i: usize, #[comptime] game: Catch) -> f32 {
    let column_scale = comptime!(2.0 / (game.columns.max(2) - 1) as f32);
    let row_scale = comptime!(2.0 / (game.rows.max(2) - 1) as f32);
    if comptime!(i == 0) {
        state.ball_column as f32 * column_scale - 1.0f32
    } else if comptime!(i == 1) {
        state.ball_row as f32 * row_scale - 1.0f32
    } else if comptime!(i == 2) {
        state.paddle as f32 * column_scale - 1.0f32
    } else {
        (state.ball_column as f32 - state.paddle as f32) * comptime!(column_scale * 0.5)
    }
}

#[cube]
impl Rules for Catch {
    type State = CatchState;

    #[inline(always)]
    fn reset(state: &mut CatchState, key: u32, #[comptime] game: Self) {
        state.ball_column = below(key, game.columns);
        state.ball_row = 0;
        state.paddle = comptime!(game.columns / 2);
    }

    #[inline(always)]
    fn step(state: &mut CatchState, action: u32, _key: u32, #[comptime] game: Self) -> Outcome {
        // Actions 0, 1, 2 move by -1, 0, 1; one is added to avoid unsigned underflow.
        let moved = select(state.paddle + action < 1, 1, state.paddle + action);
        state.paddle = select(moved > game.columns, game.columns, moved) - 1;
        state.ball_row += 1;
        let landed = state.ball_row >= comptime!(game.rows - 1);
        let caught = select(state.ball_column == state.paddle, 1.0f32, -1.0f32);
        let reward = select(landed, caught, 0.0f32);
        Outcome { reward, score: reward, terminated: landed }
    }

    #[inline(always)]
    fn feature(state: &CatchState, #[comptime] i: usize, #[comptime] game: Self) -> f32 {
        if comptime!(game.observation == CatchObservation::Board) {
            board_feature(state, i, game)
        } else {
            position_feature(state, i, game)
        }
    }
}
