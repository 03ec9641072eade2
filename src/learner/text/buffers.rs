//! Buffers of passes on the CPU.

use crate::text::{Pool, TextPass};

/// Buffers of passes that keep their memory between updates.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    /// Gradients of all learnt parameters.
    pub gradients: Pool<Vec<f32>>,
    /// Forward passes.
    pub passes: Pool<TextPass>,
    /// Logits of some rows.
    pub logits: Pool<Vec<f32>>,
}
