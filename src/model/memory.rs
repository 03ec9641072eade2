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

/// Takes the steps of whole sequences one by one: `step` maps observations, `[batch, num_features]`, and the memory
/// before them to logits and the memory after them. `obs` is `[num_steps, batch, num_features]`; where `starts`,
/// `[num_steps, batch]`, is 1, memory is reset to `initial`. Returns the logits of each step, `[batch, num_actions]`.
pub(super) fn take_steps(
    obs: &Tensor<3>,
    starts: &Tensor<2>,
    initial: Option<&Tensor<2>>,
    mut memory: Option<Tensor<2>>,
    step: impl Fn(Tensor<2>, Option<Tensor<2>>) -> (Tensor<2>, Option<Tensor<2>>),
) -> Vec<Tensor<2>> {
    let [num_steps, batch, _] = obs.dims();
    let take = |t: usize| {
        let starts = starts.clone().narrow(0, t, 1).reshape([batch]);
        let obs = obs.clone().narrow(0, t, 1).squeeze_dim::<2>(0);
        let before = memory.take().zip(initial);
        let before = before.map(|(memory, initial)| reset(memory, initial, starts));
        let (logits, after) = step(obs, before);
        memory = after;
        logits
    };
    (0..num_steps).map(take).collect()
}

/// Resets memory, `[batch, memory_size]`, at the start of an episode: takes the rows of `initial` where `starts`,
/// `[batch]`, is 1, and keeps the rows of `memory` where it is 0.
pub(crate) fn reset(memory: Tensor<2>, initial: &Tensor<2>, starts: Tensor<1>) -> Tensor<2> {
    let batch = memory.dims()[0];
    let starts = starts.reshape([batch, 1]);
    // Exact: one of the two products is 0, the other is a row unchanged.
    memory * (-starts.clone() + 1.0) + initial.clone() * starts
}
