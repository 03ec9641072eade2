//! Grouped-query attention (Ainslie et al. 2023) over a row's own sequence, a shared prefix and a window.
//!
//! Two forms compute the same formula. [`sequence`] takes whole sequences forward and backward, tile by tile;
//! [`cache`] takes a single query over a KV cache, for prefill and decoding.

pub mod cache;
mod products;
pub mod sequence;
mod words;

/// Destinations of a forward pass.
#[derive(Debug)]
pub struct AttentionOutput<'a> {
    /// The result: `[rows, query_size]`.
    pub output: &'a mut [f32],
    /// The log-sum-exp of the scores of each row and head: `[rows, heads]`.
    pub log_sum_exps: &'a mut [f32],
}

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadShape {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values: a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// The factor of the scores: usually `1 / sqrt(dim)`.
    pub scale: f32,
}

impl HeadShape {
    /// Elements of a row's queries.
    pub fn query_size(&self) -> usize {
        self.heads * self.dim
    }

    /// Elements of a row's keys, and of its values.
    pub fn kv_size(&self) -> usize {
        self.kv_heads * self.dim
    }

    /// Heads of queries that share a head of keys and values.
    pub fn heads_per_kv_head(&self) -> usize {
        self.heads / self.kv_heads
    }
}
