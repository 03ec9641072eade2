//! A test game whose state is a large board of small integers, of the maximum number of words.

use burn::cubecl;
use burn::cubecl::prelude::*;
use grove::env::{Bits, Cells, Env, Outcome, Rules};
use grove::rng::{below, draw};

/// Side length of the board, which wraps around.
const SIDE: u32 = 31;

/// A grazing animal: each step it moves, eats the grass on its cell, and grass grows on a random
/// cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meadow;

grove::packed_state! {
    /// The board and the animal.
    pub struct MeadowState {
        /// Grass on each cell, 0 to 3: 961 values.
        pub grass: Cells<2, 61>,
        pub column: Bits<5>,
        pub row: Bits<5>,
        /// Whether the animal ate in the last step.
        pub fed: bool,
        /// Total amount eaten.
        pub eaten: f32,
        /// The draw of the last step.
        pub drawn: u32,
    }
}

impl Env for Meadow {
    const NAME: &'static str = "meadow";

    fn num_features(&self) -> usize {
        7
    }

    /// Stay, left, right, up, down.
    fn num_actions(&self) -> usize {
        5
    }

    fn max_steps(&self) -> u32 {
        23
    }

    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Cell at an offset from the animal.
#[cube]
fn cell(state: &MeadowState, #[comptime] right: u32, #[comptime] down: u32) -> u32 {
    (state.row + down) % SIDE * SIDE + (state.column + right) % SIDE
}

/// Cell by a draw: its row and its column, since [`below`] has no range of 961.
#[cube]
fn any_cell(bits: u32) -> u32 {
    below(bits, SIDE) * SIDE + below(draw(bits, 0u32), SIDE)
}

#[cube]
impl Rules for Meadow {
    type State = MeadowState;

    fn reset(state: &mut MeadowState, key: u32, #[comptime] _game: Self) {
        state.grass.clear();
        state.column = below(draw(key, 0), SIDE);
        state.row = below(draw(key, 1), SIDE);
        state.fed = false;
        state.eaten = 0.0;
        state.drawn = 0;
        // A loop in kernels too: 40 times a choice among all words would take minutes to compile.
        for i in 0..40u32 {
            state.grass.set(any_cell(draw(key, 2 + i)), 1 + i % 3);
        }
    }

    fn step(state: &mut MeadowState, action: u32, key: u32, #[comptime] _game: Self) -> Outcome {
        state.column =
            (state.column + select(action == 1, SIDE - 1, select(action == 2, 1u32, 0u32))) % SIDE;
        state.row =
            (state.row + select(action == 3, SIDE - 1, select(action == 4, 1u32, 0u32))) % SIDE;
        let here = cell(&*state, 0u32, 0u32);
        let found = state.grass.get(here);
        state.fed = found > 0;
        if found > 0 {
            state.grass.set(here, found - 1);
            state.eaten += found as f32;
        }
        state.drawn = draw(key, 0);
        let sown = any_cell(state.drawn);
        state.grass.set(sown, state.grass.get(sown) + 1);
        Outcome {
            reward: found as f32,
            score: found as f32 * 2.0f32,
            terminated: draw(key, 1) % 16 == 3,
        }
    }

    fn feature(state: &MeadowState, #[comptime] i: usize, #[comptime] _game: Self) -> f32 {
        if comptime!(i == 0) {
            state.grass.get(cell(state, 0u32, 0u32)) as f32
        } else if comptime!(i == 1) {
            state.grass.get(cell(state, 1u32, 0u32)) as f32
        } else if comptime!(i == 2) {
            state.grass.get(cell(state, 0u32, 1u32)) as f32
        } else if comptime!(i == 3) {
            state.grass.at(500usize) as f32
        } else if comptime!(i == 4) {
            select(state.fed, 1.0f32, 0.0f32)
        } else if comptime!(i == 5) {
            state.eaten * 0.05f32
        } else {
            state.column as f32 * comptime!(1.0 / SIDE as f32)
        }
    }
}
