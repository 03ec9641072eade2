//! The execution of a decoder on the CPU, a packed row for each token of a text or step of a game.
//!
//! One layer, forward and backward, serves generation, learning from texts and learning from games; they differ in the
//! decoder's input, and in how rows reach the keys of earlier rows (`Attend`).

mod backward;
#[cfg(text_kernels)]
mod device;
mod games;
mod layer;
mod pool;
mod sequences;
mod texts;
mod weights;

pub use crate::nn::ops::attention::cache::{KvCache, PrefixCache};
pub use games::DecoderSequenceModel;
pub use pool::Pool;
pub use sequences::{DynSequenceModel, PolicySizes, PooledSequenceModel, SequenceModel, Sequences};
pub(crate) use sequences::{to_lanes, to_rows};
pub use texts::{DecodeBuffers, Pass, Row, TextPass, TokenDecoder};

use crate::nn::arch::QkNorms;
use crate::nn::ops::attention::sequence;
use crate::nn::ops::norm::NormActivations;
use crate::nn::ops::rope::{RopeTable, Rotation};
use std::ops::Range;
use weights::DecoderWeights;

/// Queries, keys and values of rows, or their gradients: `[rows, query_size]`, then `[rows, kv_size]` twice.
type HeadRows = [Vec<f32>; 3];

/// Keys and values of rows, or their gradients: `[rows, kv_size]` each.
type KeysValues = [Vec<f32>; 2];

/// Replaces what is in a buffer by `len` zeros.
fn fill_zeros(buffer: &mut Vec<f32>, len: usize) {
    buffer.clear();
    buffer.resize(len, 0.0);
}

/// The activations of a layer, from which its backward pass computes all that it needs.
#[derive(Clone, Debug, Default)]
struct Activations {
    /// The input of queries, keys and values, normed where the architecture norms it.
    attention_input: NormActivations,
    /// Queries and keys before they are rotated, where they are normed.
    qk_norms: QkNorms<NormActivations>,
    /// Queries, keys and values; the former two rotated.
    heads: HeadRows,
    /// The result of attention: `[rows, query_size]`.
    attended: Vec<f32>,
    /// The log-sum-exp of the scores of each row and head: `[rows, num_heads]`.
    log_sum_exps: Vec<f32>,
    /// The output projection of attention, where it is normed.
    attention_output: NormActivations,
    /// The input of the feed-forward block, normed where the architecture norms it.
    mlp_input: NormActivations,
    /// The gate before its activation: `[rows, intermediate_size]`.
    gate: Vec<f32>,
    /// The up projection: `[rows, intermediate_size]`.
    up: Vec<f32>,
    /// The result of the feed-forward block, where it is normed.
    mlp_output: NormActivations,
}

/// The activations of all layers, or the streams from which the backward pass recomputes them.
#[derive(Clone, Debug, Default)]
struct DecoderTape {
    /// The rotations of the rows, for each of the decoder's tables: `[rows, num_pairs]`.
    rotations: Vec<Vec<Rotation>>,
    /// The activations of every layer, or of the last executed one.
    layers: Vec<Activations>,
    /// The stream before each layer, where the backward pass recomputes the layers: `[rows, hidden_size]` each.
    streams: Vec<Vec<f32>>,
    /// The last norm.
    last_norm: NormActivations,
    /// The result of the last norm: `[rows, hidden_size]`.
    hidden: Vec<f32>,
}

impl DecoderTape {
    /// Replaces the rotations by those of rows at these positions.
    fn set_rotations(
        &mut self,
        tables: &[RopeTable],
        positions: impl Iterator<Item = usize> + Clone,
    ) {
        self.rotations.resize_with(tables.len(), Vec::new);
        for (rotations, table) in self.rotations.iter_mut().zip(tables) {
            rotations.clear();
            positions.clone().for_each(|position| rotations.extend(table.at(position)));
        }
    }
}

/// The activations that a forward pass keeps for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// None: there is no backward pass.
    Nothing,
    /// The input of each layer: the backward pass recomputes the rest.
    Inputs,
    /// All activations (on a device all but values and up projection, which are recomputed).
    All,
}

/// Buffers of a pass, for reuse.
#[derive(Debug, Default)]
struct Scratch {
    /// The input of a block: `[rows, hidden_size]`.
    input: Vec<f32>,
    /// The up projection times the activated gate: `[rows, intermediate_size]`.
    inner: Vec<f32>,
    /// The result of a block before it is normed: `[rows, hidden_size]`.
    block: Vec<f32>,
    /// Normed rows: of a block's result, of queries or of keys.
    normed: Vec<f32>,
    /// The stream of a layer that is recomputed: `[rows, hidden_size]`.
    stream: Vec<f32>,
    /// The gradient of a block's input: `[rows, hidden_size]`.
    d_input: Vec<f32>,
    /// The gradient of a block's result before it is normed: `[rows, hidden_size]`.
    d_block: Vec<f32>,
    /// The gradient of the result of attention: `[rows, query_size]`.
    d_attended: Vec<f32>,
    /// The gradient of `inner`, then of the gate: `[rows, intermediate_size]`.
    d_gate: Vec<f32>,
    /// The gradient of the up projection: `[rows, intermediate_size]`.
    d_up: Vec<f32>,
    /// The gradients of queries, keys and values.
    d_heads: HeadRows,
    /// The gradient of queries or keys before they are normed.
    d_unnormed: Vec<f32>,
    /// The gradient of the stream: `[rows, hidden_size]`.
    d_stream: Vec<f32>,
    /// Buffers of the backward pass of segments.
    segment_scratches: Pool<SegmentScratch>,
    /// The gradients of the keys and values that segments attend to.
    d_keys_values: Pool<KeysValues>,
}

/// Buffers of the attention of one segment, forward or backward.
#[derive(Debug, Default)]
struct SegmentScratch {
    attention: sequence::Scratch,
    /// Keys and values that the segment attends to.
    keys_values: KeysValues,
}

/// Attention of rows over the keys and values of earlier rows, wherever these are stored.
trait Attend {
    /// Fills `attended` and `log_sum_exps` of a layer from its queries, keys and values.
    fn attend(&mut self, weights: &DecoderWeights, layer: usize, activations: &mut Activations);
}

/// A sequence of rows, and the further keys that it attends to.
#[derive(Clone, Debug)]
struct Segment {
    rows: Range<usize>,
    prefix: Prefix,
    /// The first key of each row's episode, counted from the first key of the prefix; empty if that is 0 for all.
    starts: Vec<usize>,
}

/// The keys and values before a segment's own.
#[derive(Clone, Debug)]
enum Prefix {
    /// Keys and values of earlier rows of the same pass.
    Rows(Range<usize>),
    /// Keys and values in a game's memory, to which no gradient flows: layer by layer.
    Memory(Vec<KeysValues>),
}

impl Segment {
    /// Rows of the prefix.
    fn prefix_len(&self, kv_size: usize) -> usize {
        match &self.prefix {
            Prefix::Rows(rows) => rows.len(),
            Prefix::Memory(layers) => layers.first().map_or(0, |[keys, _]| keys.len() / kv_size),
        }
    }

    /// The attention mask of a layer.
    fn mask(&self, weights: &DecoderWeights, layer: usize) -> sequence::AttentionMask<'_> {
        sequence::AttentionMask {
            rows: self.rows.len(),
            prefix_len: self.prefix_len(weights.shape.kv_size()),
            starts: &self.starts,
            window: weights.shape.window(layer),
        }
    }

    /// Gathers all keys and values that the segment attends to in a layer, `[prefix + rows, kv_size]` each, from the
    /// heads of the layer's rows.
    fn gather(&self, layer: usize, heads: &HeadRows, kv_size: usize, gathered: &mut KeysValues) {
        for (index, (gathered, all)) in gathered.iter_mut().zip(&heads[1..]).enumerate() {
            let prefix: &[f32] = match &self.prefix {
                Prefix::Rows(rows) => &all[rows.start * kv_size..rows.end * kv_size],
                Prefix::Memory(layers) => &layers[layer][index],
            };
            prefix.clone_into(gathered);
            gathered.extend_from_slice(&all[self.rows.start * kv_size..self.rows.end * kv_size]);
        }
    }
}
