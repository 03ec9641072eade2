//! Placeholder game for a labelled table, so that it can be learnt like demonstrations: its features and labels
//! (the actions) are those of the table, and it cannot be played.

use crate::env::{Bits, Env, Outcome, Rules, impl_placeholder_rules, impl_settings};
use crate::schema::settings;
use burn::cubecl;
use burn::cubecl::prelude::*;

settings! {
    /// Dimensions of a table.
    pub struct TableGame: Copy, Eq, Hash {
        /// Number of feature columns.
        columns: u32 = 1, in integer(1..=4096);
        /// Number of labels, which are the actions.
        labels: u32 = 2, in integer(2..=4096);
        /// Number of rows per observation, the current one last.
        stack: u32 = 1, in integer(1..=4096);
    }
}

impl Env for TableGame {
    const NAME: &'static str = "table";
    const IS_PLAYABLE: bool = false;

    impl_settings!();

    fn num_features(&self) -> usize {
        (self.columns * self.stack) as usize
    }

    fn num_actions(&self) -> usize {
        self.labels as usize
    }

    fn max_steps(&self) -> u32 {
        1
    }
}

impl_placeholder_rules!(TableGame, TableState);
