//! Placeholder game for a labelled table, so that it can be learnt like demonstrations: its features and labels
//! (the actions) are those of the table, and it cannot be played.

use crate::env::{Bits, Env, Outcome, Rules};
use burn::cubecl;
use burn::cubecl::prelude::*;
use serde::{Deserialize, Serialize};

/// Dimensions of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableGame {
    /// Number of feature columns.
    pub columns: u32,
    /// Number of labels, which are the actions.
    pub labels: u32,
    /// Number of rows per observation, the current one last.
    pub stack: u32,
}

impl Default for TableGame {
    fn default() -> Self {
        Self { columns: 1, labels: 2, stack: 1 }
    }
}

impl Env for TableGame {
    const NAME: &'static str = "table";
    const PLAYABLE: bool = false;

    fn num_features(&self) -> usize {
        (self.columns * self.stack) as usize
    }

    fn num_actions(&self) -> usize {
        self.labels as usize
    }

    fn max_steps(&self) -> u32 {
        1
    }

    fn validate(&self) -> Result<(), String> {
        let Self { columns, labels, stack } = *self;
        for (name, value, min) in
            [("columns", columns, 1), ("labels", labels, 2), ("stack", stack, 1)]
        {
            if !(min..=4096).contains(&value) {
                return Err(format!("table.{name} is {value}, but must be {min} to 4096"));
            }
        }
        Ok(())
    }
}

crate::packed_state! {
    /// An empty state.
    pub struct TableState {
        unused: Bits<1>,
    }
}

#[cube]
impl Rules for TableGame {
    type State = TableState;

    fn reset(state: &mut TableState, _key: u32, #[comptime] _game: Self) {
        state.unused = 0;
    }

    fn step(_state: &mut TableState, _action: u32, _key: u32, #[comptime] _game: Self) -> Outcome {
        let reward = 0.0f32.runtime();
        Outcome { reward, score: reward, terminated: true.runtime() }
    }

    fn feature(_state: &TableState, #[comptime] _i: usize, #[comptime] _game: Self) -> f32 {
        0.0f32.runtime()
    }
}
