//! The tokens of a batch on its device, in tensors or in kernels.

/// Decoding steps between two read-backs, which tell which completions have ended.
pub(super) const BLOCK: usize = 8;

/// The choices of a step, row by row.
pub(super) struct Step {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities.
    pub logprobs: Vec<f32>,
    /// The entropies of the choices, nats.
    pub entropies: Vec<f32>,
    /// The candidates of each row; none where nothing is left out.
    pub candidates: Vec<Vec<u32>>,
}

/// The tokens of a batch on its device.
pub(super) trait Decode {
    /// Chooses the next token of each row.
    fn advance(&mut self);

    /// The last `steps` choices, at most [`BLOCK`].
    fn read(&mut self, steps: usize) -> Vec<Step>;
}
