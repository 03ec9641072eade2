//! A decoder's way from tokens to logits on the CPU, a row for each token.
//!
//! The same code generates and learns: a row's numbers depend on its own text alone, down to the last bit,
//! whatever rows are beside it and however many threads there are.

use super::adapters::Adapters;
use super::cache::Cache;
use super::matrix::{Copies, Kind, Matrices};
use crate::math::at_least;
use crate::math::softmax::{Normalizer, normalizer, unnormalized};
#[cfg(feature = "general")]
use crate::model::Precision;
use crate::model::decoder::layers::{Normed, Slots, gate, turn};
use crate::model::decoder::rope::Turns;
use crate::model::{DecoderShape, LANES, Parameter};
#[cfg(feature = "general")]
use burn::tensor::Device;
use multiversion::multiversion;
use rayon::prelude::*;
use std::sync::Arc;

/// Parameters from which on products are spread over the threads one by one; of smaller decoders, whole
/// passes are.
const LARGE: usize = 1 << 22;

/// A decoder over tokens with its weights in the host's memory. Clones share the weights until one of them
/// changes its own.
#[derive(Clone, Debug)]
pub struct TokenDecoder {
    shape: DecoderShape,
    params: Arc<Vec<f32>>,
    /// What is learnt in the place of the weights, if anything is.
    pub(super) adapters: Option<Adapters>,
    /// Where texts go through it, if that is not the CPU.
    #[cfg(feature = "general")]
    pub(super) device: Option<Device>,
    /// What products are computed in there.
    #[cfg(feature = "general")]
    pub(super) precision: Precision,
    pub(super) slots: Slots,
    pub(super) turns: Turns,
    pub(super) matrices: Matrices,
    pub(super) copies: Arc<Copies>,
}

/// A token on its way: it is number `at` of a piece of text, whose keys and values are in `cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which token.
    pub token: u32,
    /// The number of the cache.
    pub cache: usize,
    /// The token's number in the cache.
    pub at: usize,
}

/// The matrices of queries, keys and values.
pub(super) const PROJECTIONS: [Kind; 3] = [Kind::Query, Kind::Key, Kind::Value];

/// What a layer makes of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    pub first: Normed,
    /// Queries, keys and values, turned: `[rows, query_size]`, `[rows, kv_size]` each.
    pub projected: [Vec<f32>; 3],
    /// Queries and keys before they were turned, where their heads are normed.
    pub head_norms: [Normed; 2],
    /// What attention found: `[rows, query_size]`.
    pub found: Vec<f32>,
    /// The logarithms of the weights' totals: `[rows, num_heads]`.
    pub totals: Vec<f32>,
    pub second: Normed,
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// `silu(gate) * up`.
    pub inner: Vec<f32>,
}

/// What a pass of rows leaves behind, and room for the next one.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    pub(super) rows: Vec<Row>,
    /// Cosines and sines: `[rows, head_dim / 2]`.
    pub(super) turns: Vec<[f32; 2]>,
    /// One for every layer, or one for all of them.
    pub(super) layers: Vec<Layer>,
    /// The stream before each layer, where the rest is to be computed anew: `[rows, hidden_size]` each.
    pub(super) streams: Vec<Vec<f32>>,
    pub(super) last: Normed,
    stream: Vec<f32>,
}

/// What of a pass is kept for a way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// Each layer's input; the rest is computed anew on the way back.
    Inputs,
    /// All.
    All,
}

impl Pass {
    /// The normed stream after the last layer: `[rows, hidden_size]`.
    pub fn hidden(&self) -> &[f32] {
        &self.last.normed
    }
}

impl TokenDecoder {
    /// From parameters in the order of [`DecoderShape::parameters`].
    ///
    /// # Panics
    /// If the number of parameters is another, or observations enter instead of tokens.
    pub fn new(shape: DecoderShape, params: impl Into<Arc<Vec<f32>>>) -> Self {
        let params = params.into();
        assert!(shape.takes_tokens(), "a decoder over tokens");
        assert_eq!(params.len(), shape.num_params(), "params: [num_params]");
        let (slots, turns) = (Slots::new(&shape), Turns::new(&shape));
        let matrices = Matrices::new(&shape, &slots);
        let copies = Arc::new(Copies::none(&matrices, true));
        Self {
            shape,
            params,
            adapters: None,
            #[cfg(feature = "general")]
            device: None,
            #[cfg(feature = "general")]
            precision: Precision::F32,
            slots,
            turns,
            matrices,
            copies,
        }
    }

    /// With adapters, which are learnt in the place of the weights; or without.
    pub fn with_adapters(self, adapters: Option<Adapters>) -> Self {
        Self { adapters, ..self }
    }

    /// One that generates and learns on a device, with products in this precision, or on the CPU where there is
    /// none, in single precision.
    #[cfg(feature = "general")]
    pub fn with_device(self, device: Option<Device>, precision: Precision) -> Self {
        // What has been copied may be on another device.
        let copies = Arc::new(Copies::none(&self.matrices, self.copies.kept));
        Self { device, precision, copies, ..self }
    }

    /// Its sizes and switches.
    pub fn shape(&self) -> &DecoderShape {
        &self.shape
    }

    /// The weights of the decoder, without what adapters add to them.
    pub fn params(&self) -> &Arc<Vec<f32>> {
        &self.params
    }

    /// The adapters that are learnt in the weights' place, if there are any.
    pub fn adapters(&self) -> Option<&Adapters> {
        self.adapters.as_ref()
    }

    /// What is learnt: the adapters' numbers, or where there are none all weights.
    pub fn trained(&self) -> &[f32] {
        self.adapters.as_ref().map_or(&self.params, |adapters| &adapters.params)
    }

    /// Numbers of each of the parameters that are learnt.
    pub fn sizes(&self) -> Vec<usize> {
        let count = |parameter: &Parameter| parameter.shape.iter().product();
        match &self.adapters {
            Some(adapters) => adapters.parameters().iter().map(count).collect(),
            None => self.shape.parameters().iter().map(count).collect(),
        }
    }

    /// Whether copies of a large decoder's matrices, in the order in which products read them, are kept on the CPU from
    /// now on, as they are by default; else they are made anew for each product, which takes longer where rows are few,
    /// and saves the memory of all weights. There are none yet.
    pub fn keep_copies(&mut self, kept: bool) {
        self.copies = Arc::new(Copies::none(&self.matrices, kept));
    }

    /// Changes what is learnt.
    pub fn update(&mut self, change: impl FnOnce(&mut [f32])) {
        match &mut self.adapters {
            Some(adapters) => change(&mut adapters.params),
            None => {
                let params: &mut Vec<f32> = Arc::make_mut(&mut self.params);
                change(params);
                self.keep_copies(self.copies.kept);
            }
        }
    }

    /// Whether whole passes of this decoder are to be spread over the threads: it is too small for more.
    pub fn is_small(&self) -> bool {
        self.params.len() < LARGE
    }

    /// Sends rows through all layers. Their keys and values go into `caches`. A token must have its predecessors in
    /// the same pass or in a cache.
    pub fn forward(&self, rows: &[Row], caches: &mut [Cache], keep: Keep, pass: &mut Pass) {
        let size = self.shape.hidden_size;
        pass.rows.clear();
        pass.rows.extend_from_slice(rows);
        pass.turns.clear();
        if rows.is_empty() {
            pass.last = Normed::default();
            return;
        }
        let mut stream = std::mem::take(&mut pass.stream);
        stream.clear();
        let table = &self.params[self.slots.input.weight.clone()];
        for row in rows {
            pass.turns.extend(self.turns.at(caches[row.cache].position(row.at)));
            stream.extend_from_slice(&table[row.token as usize * size..][..size]);
        }
        let count = if keep == Keep::All { self.shape.num_layers } else { 1 };
        pass.layers.resize_with(count, Layer::default);
        pass.streams
            .resize_with(if keep == Keep::Inputs { self.shape.num_layers } else { 0 }, Vec::new);
        for number in 0..self.shape.num_layers {
            if let Some(kept) = pass.streams.get_mut(number) {
                kept.clear();
                kept.extend_from_slice(&stream);
            }
            let layer = &mut pass.layers[if keep == Keep::All { number } else { 0 }];
            self.layer(number, rows, &pass.turns, caches, &mut stream, layer);
        }
        pass.last.forward(&stream, &self.params[self.slots.norm.clone()], self.shape.rms_norm_eps);
        pass.stream = stream;
    }

    /// Sends rows through a layer: the stream becomes that after it.
    pub(super) fn layer(
        &self,
        number: usize,
        rows: &[Row],
        turns: &[[f32; 2]],
        caches: &mut [Cache],
        stream: &mut [f32],
        layer: &mut Layer,
    ) {
        let (shape, params) = (&self.shape, &self.params);
        let (kv, eps) = (shape.kv_size(), shape.rms_norm_eps);
        let slot = &self.slots.layers[number];
        self.project(number, turns, stream, layer);
        let [queries, keys, values] = &layer.projected;
        let new = keys.chunks_exact(kv).zip(values.chunks_exact(kv));
        for (row, (key, value)) in rows.iter().zip(new) {
            caches[row.cache].write(shape, number, row.at, [key, value]);
        }
        layer.found.resize(queries.len(), 0.0);
        layer.totals.resize(rows.len() * shape.num_heads, 0.0);
        let caches: &[Cache] = caches;
        let width = shape.query_size();
        let find = |scores: &mut Vec<f32>,
                    (i, (found, totals)): (usize, (&mut [f32], &mut [f32]))| {
            let Row { cache, at, .. } = rows[i];
            let queries = &queries[i * width..][..width];
            caches[cache].find(caches, shape, [number, at], queries, [found, totals], scores);
        };
        if !self.is_small() {
            let found = layer.found.par_chunks_exact_mut(width);
            let totals = layer.totals.par_chunks_exact_mut(shape.num_heads);
            found.zip(totals).enumerate().for_each_init(Vec::new, find);
        } else {
            let found = layer.found.chunks_exact_mut(width);
            let totals = layer.totals.chunks_exact_mut(shape.num_heads);
            let mut scores = Vec::new();
            found.zip(totals).enumerate().for_each(|each| find(&mut scores, each));
        }
        self.apply(self.matrices.of(number, Kind::Found), &layer.found, stream, true);
        layer.second.forward(stream, &params[slot.second.clone()], eps);
        let inner = rows.len() * shape.intermediate_size;
        for (output, kind) in [(&mut layer.gate, Kind::Gate), (&mut layer.up, Kind::Up)] {
            output.resize(inner, 0.0);
            self.apply(self.matrices.of(number, kind), &layer.second.normed, output, false);
        }
        layer.inner.resize(inner, 0.0);
        gate(&layer.gate, &layer.up, &mut layer.inner);
        self.apply(self.matrices.of(number, Kind::Down), &layer.inner, stream, true);
    }

    /// Queries, keys and values of a stream, turned.
    pub(super) fn project(
        &self,
        number: usize,
        turns: &[[f32; 2]],
        stream: &[f32],
        layer: &mut Layer,
    ) {
        let (shape, params) = (&self.shape, &self.params);
        let eps = shape.rms_norm_eps;
        let slot = &self.slots.layers[number];
        layer.first.forward(stream, &params[slot.first.clone()], eps);
        let rows = stream.len() / shape.hidden_size;
        let linears = PROJECTIONS.iter().zip(&slot.projections).zip(&mut layer.projected);
        for ((kind, linear), output) in linears {
            let matrix = self.matrices.of(number, *kind);
            output.resize(rows * matrix.outputs, 0.0);
            self.apply(matrix, &layer.first.normed, output, false);
            linear.add_bias(params, output);
        }
        let heads = layer.head_norms.iter_mut().zip(&mut layer.projected);
        for ((normed, heads), slot) in heads.zip(&slot.head_norms) {
            if !slot.is_empty() {
                normed.forward(heads, &params[slot.clone()], eps);
                heads.copy_from_slice(&normed.normed);
            }
        }
        let [queries, keys, _] = &mut layer.projected;
        turn(queries, shape.head_dim, turns, 1.0);
        turn(keys, shape.head_dim, turns, 1.0);
    }

    /// Logits of normed vectors: `[rows, vocabulary]`.
    pub fn logits(&self, hidden: &[f32], logits: &mut Vec<f32>) {
        let size = self.shape.hidden_size;
        logits.resize(hidden.len() / size * self.shape.num_actions, 0.0);
        self.apply(&self.matrices.head, hidden, logits, false);
    }
}

/// What logits are multiplied by at a temperature, where tokens are drawn and where they are learnt from; 0
/// leaves them as they are.
pub fn sharpness(temperature: f32) -> f32 {
    if temperature == 0.0 { 1.0 } else { 1.0 / temperature }
}

/// Numbers that are summed up before their sum goes on in double precision.
const PART: usize = 64 * LANES;

/// What makes probabilities of logits.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn normalize(logits: &[f32]) -> Normalizer {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for block in logits.chunks(LANES) {
        lanes.iter_mut().zip(block).for_each(|(max, x)| *max = at_least(*max, *x));
    }
    let max = lanes.iter().fold(f32::NEG_INFINITY, |max, x| at_least(max, *x));
    let mut total = 0.0f64;
    for part in logits.chunks(PART) {
        let mut sums = [0.0f32; LANES];
        for block in part.chunks(LANES) {
            sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += unnormalized(*x, max));
        }
        total += f64::from(sums.iter().sum::<f32>());
    }
    normalizer(max, total as f32)
}
