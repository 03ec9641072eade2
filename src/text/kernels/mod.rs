//! Kernels of language models, for the token step of generation and for whole texts. The order of sums depends on sizes
//! alone.

pub(crate) mod attend;
pub(crate) mod attention_tiles;
pub(crate) mod choose;
pub(crate) mod filter;
pub(crate) mod heads;
pub(crate) mod launch;
pub(crate) mod progress;
pub(crate) mod rows;
pub(crate) mod text_attention;
pub(crate) mod text_gradients;
pub(crate) mod text_heads;
pub(crate) mod token_loss;

/// Units of a cube.
pub(crate) const UNITS: usize = 64;
/// Elements, or vectors, that a unit reads at a time from a buffer, so that it waits for all of them at once.
pub(crate) const LOADS_AT_ONCE: usize = 8;
