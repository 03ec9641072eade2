//! Memory that a model carries from step to step of an episode.

use burn::tensor::Tensor;

/// A model's memory of a batch of games: `()`, or a tensor `[batch, memory_size]`.
pub trait Memory: Sized {
    /// The memory as rows, `[batch, memory_size]`; `None` for a model without memory.
    fn into_rows(self) -> Option<Tensor<2>>;

    /// The memory with these rows, the inverse of [`Memory::into_rows`].
    ///
    /// # Panics
    /// If there are no rows, and the memory is a tensor.
    fn from_rows(rows: Option<Tensor<2>>) -> Self;
}

impl Memory for () {
    fn into_rows(self) -> Option<Tensor<2>> {
        None
    }

    fn from_rows(_rows: Option<Tensor<2>>) {}
}

impl Memory for Tensor<2> {
    fn into_rows(self) -> Option<Tensor<2>> {
        Some(self)
    }

    fn from_rows(rows: Option<Tensor<2>>) -> Self {
        rows.expect("memory: [batch, memory_size]")
    }
}

/// Resets memory, `[batch, memory_size]`, at the start of an episode: takes the rows of `initial` where `starts`,
/// `[batch]`, is 1, and keeps the rows of `memory` where it is 0.
pub(crate) fn reset(memory: Tensor<2>, initial: &Tensor<2>, starts: Tensor<1>) -> Tensor<2> {
    let batch = memory.dims()[0];
    let starts = starts.reshape([batch, 1]);
    // Exact: one of the two products is 0, the other is a row unchanged.
    memory * (-starts.clone() + 1.0) + initial.clone() * starts
}
