//! A test game with illegal actions and a score that differs from the reward.

// `is_multiple_of` is not available in kernels.
#![allow(clippy::manual_is_multiple_of)]

use burn::cubecl;
use burn::cubecl::prelude::*;
use grove::env::{Bits, Env, Outcome, Rules};
use grove::rng::{below, draw};

/// A walk along a ledge. Stepping off its ends, jumping from cells with a wall and standing still
/// twice in a row are illegal. Being at the lit lamp's cell gives the reward; the score counts how
/// often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ledge {
    /// Number of cells.
    pub cells: u32,
}

grove::packed_state! {
    /// Position of the walker and the lamp.
    pub struct LedgeState {
        pub cell: Bits<8>,
        pub lamp: Bits<8>,
        /// 1 after standing still.
        pub stood: Bits<1>,
    }
}

impl Env for Ledge {
    const NAME: &'static str = "ledge";
    const HAS_ILLEGAL_ACTIONS: bool = true;

    fn num_features(&self) -> usize {
        3
    }

    /// Stand still, left, right, jump to the lamp.
    fn num_actions(&self) -> usize {
        4
    }

    fn max_steps(&self) -> u32 {
        11
    }

    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

#[cube]
impl Rules for Ledge {
    type State = LedgeState;

    fn reset(state: &mut LedgeState, key: u32, #[comptime] game: Self) {
        state.cell = below(draw(key, 0), game.cells);
        state.lamp = below(draw(key, 1), game.cells);
        state.stood = 0;
    }

    fn step(state: &mut LedgeState, action: u32, key: u32, #[comptime] game: Self) -> Outcome {
        let left = select(action == 1, 1u32, 0u32);
        let right = select(action == 2, 1u32, 0u32);
        let walked = state.cell + right - left;
        state.cell = select(action == 3, state.lamp, walked);
        state.stood = select(action == 0, 1u32, 0u32);
        let there = state.cell == state.lamp;
        let reward = select(there, 1.0f32, -0.25f32);
        let score = select(there, 3.0f32, 0.0f32);
        if there {
            state.lamp = below(draw(key, 0), game.cells);
        }
        Outcome { reward, score, terminated: draw(key, 1) % 9 == 0 }
    }

    fn feature(state: &LedgeState, #[comptime] i: usize, #[comptime] game: Self) -> f32 {
        let scale = comptime!(1.0 / game.cells as f32);
        if comptime!(i == 0) {
            state.cell as f32 * scale
        } else if comptime!(i == 1) {
            (state.lamp as f32 - state.cell as f32) * scale
        } else {
            state.stood as f32
        }
    }

    fn is_legal(state: &LedgeState, #[comptime] action: usize, #[comptime] game: Self) -> bool {
        if comptime!(action == 0) {
            state.stood == 0
        } else if comptime!(action == 1) {
            state.cell > 0
        } else if comptime!(action == 2) {
            state.cell + 1 < game.cells
        } else {
            // There is a wall at every third cell.
            state.cell % 3 != 0
        }
    }
}
