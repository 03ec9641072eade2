//! What a model remembers of the games of a batch, as the rollout and the learner handle it.

use burn::tensor::{Int, Tensor};
use std::fmt::Debug;

/// What a model remembers of the games of a batch.
///
/// Either nothing, `()`, or some numbers of each game, a tensor `[batch, memory_size]`.
pub trait Memory: Clone + Debug + Send + Sync {
    /// What is remembered of the games at these indices, in their order.
    fn select(&self, games: Tensor<1, Int>) -> Self;

    /// `fresh` where `starts`, `[batch]`, is 1; where it is 0 what was remembered before.
    fn anew(self, fresh: &Self, starts: Tensor<1>) -> Self;

    /// What is remembered as rows of numbers, `[batch, memory_size]`; `None` for a model without memory.
    /// Rows last from iteration to iteration and are saved in checkpoints.
    fn rows(&self) -> Option<Tensor<2>>;

    /// Memory with these [`rows`](Memory::rows).
    fn with_rows(self, rows: Tensor<2>) -> Self;
}

impl Memory for () {
    fn select(&self, _games: Tensor<1, Int>) {}

    fn anew(self, _fresh: &Self, _starts: Tensor<1>) {}

    fn rows(&self) -> Option<Tensor<2>> {
        None
    }

    fn with_rows(self, _rows: Tensor<2>) {}
}

impl Memory for Tensor<2> {
    fn select(&self, games: Tensor<1, Int>) -> Self {
        self.clone().select(0, games)
    }

    fn anew(self, fresh: &Self, starts: Tensor<1>) -> Self {
        let batch = self.dims()[0];
        let starts = starts.reshape([batch, 1]);
        // Exact, since one of the two products is 0 and the other is what it was.
        self * (-starts.clone() + 1.0) + fresh.clone() * starts
    }

    fn rows(&self) -> Option<Tensor<2>> {
        Some(self.clone())
    }

    fn with_rows(self, rows: Tensor<2>) -> Self {
        assert_eq!(rows.dims(), self.dims(), "rows: [batch, memory_size]");
        rows
    }
}
