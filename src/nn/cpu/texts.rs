//! Texts on the CPU: generation and learning of a decoder over tokens, a row for each token.
//!
//! Both run the same code, so a token's log-probability under unchanged weights is the same to the last bit when it is
//! generated and when it is learnt from. A prompt goes forward and backward once, whatever the number of its
//! completions: the gradients that reach its keys and values from all of them are added up.

use super::backward::SegmentedTape;
use super::weights::DecoderWeights;
use super::{
    Activations, Attend, DecoderTape, KvCache, Pool, Prefix, PrefixCache, Retention, Scratch,
    Segment, fill_zeros,
};
use crate::nn::DecoderParams;
use crate::nn::arch::{Adapters, DecoderShape, Parameter};
use crate::nn::ops::attention::AttentionOutput;
use crate::nn::ops::attention::cache::QueryPlace;
use crate::nn::ops::linear::Arithmetic;
use crate::nn::ops::{Parallelism, WriteMode, embed};
use crate::nn::tensors::device_copy::DeviceCopy;
use crate::nn::text::{CompletionIndex, PromptWithCompletions};
use std::ops::Range;

/// Minimum parameters for products to use all threads; of smaller decoders, whole passes run in parallel.
const MIN_PARALLEL_PARAMS: usize = 1 << 22;

/// A decoder over tokens with its weights in host memory. Clones share the weights until one of them changes its own.
#[derive(Clone, Debug)]
pub struct TokenDecoder {
    pub(super) weights: DecoderWeights,
    /// The device that runs the passes over texts, if it is not the CPU.
    pub(super) device: DeviceCopy,
    /// Buffers of generation, for reuse.
    pub(crate) decode_buffers: Pool<DecodeBuffers>,
}

/// Buffers of generation, kept between calls so that the system need not zero fresh pages.
#[derive(Debug, Default)]
pub struct DecodeBuffers {
    /// Caches of completions, then those of the prompts that they continue.
    pub caches: Vec<KvCache>,
    /// Caches of earlier prompts, to be filled again.
    pub spare_prompt_caches: Vec<KvCache>,
    /// Buffers of a forward pass.
    pub pass: Pass,
    /// The logits of some rows.
    pub logits: Vec<f32>,
}

/// A token in a pass, which belongs to the segment of text whose keys and values are in its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token id.
    pub token: u32,
    /// The index of the cache.
    pub cache: usize,
    /// The token's index in that cache.
    pub index: usize,
}

/// The result of a pass, its activations, and buffers for the next one.
#[derive(Debug, Default)]
pub struct Pass {
    rows: Vec<Row>,
    tape: DecoderTape,
    /// The stream, or its gradient: `[rows, hidden_size]`.
    stream: Vec<f32>,
    scratch: Scratch,
}

impl Pass {
    /// The normed stream after the last layer: `[rows, hidden_size]`.
    pub fn hidden(&self) -> &[f32] {
        &self.tape.hidden
    }
}

/// Attention over the caches of some segments of text.
struct CachedAttention<'a> {
    rows: &'a [Row],
    caches: &'a mut [KvCache],
}

impl Attend for CachedAttention<'_> {
    /// Writes the keys and values of all rows into their caches, and attends to them.
    fn attend(&mut self, weights: &DecoderWeights, layer: usize, activations: &mut Activations) {
        let (shape, window) = (weights.shape.head_shape(), weights.shape.window(layer));
        let Activations { heads, attended, log_sum_exps, .. } = activations;
        let [queries, keys, values] = &*heads;
        let (rows, width, kv_size) = (self.rows, shape.query_size(), shape.kv_size());
        weights.parallelism.each_mut(self.caches, |cache, to| {
            let first = rows.partition_point(|row| row.cache < cache);
            let own = rows[first..].iter().take_while(|row| row.cache == cache);
            for (i, row) in (first..).zip(own) {
                let new = [keys, values].map(|all| &all[i * kv_size..][..kv_size]);
                to.write(layer, row.index, new);
            }
        });
        let caches = &*self.caches;
        let results = [(&mut attended[..], width), (&mut log_sum_exps[..], shape.heads)];
        weights.parallelism.each_chunk(results, |i, [output, log_sum_exps]| {
            let Row { cache, index, .. } = rows[i];
            let queries = &queries[i * width..][..width];
            let place = QueryPlace { layer, token: index, window };
            let results = AttentionOutput { output, log_sum_exps };
            caches[cache].attend(caches, place, queries, results);
        });
    }
}

impl TokenDecoder {
    /// A decoder with these parameters, in the order of [`DecoderShape::parameters`].
    ///
    /// # Panics
    /// If their number is not that of the shape, or observations enter instead of tokens.
    pub fn new(shape: DecoderShape, params: impl Into<DecoderParams>) -> Self {
        let params = params.into();
        assert!(shape.takes_tokens(), "a decoder over tokens");
        assert_eq!(params.len(), shape.num_params(), "params: [num_params]");
        let parallelism = if params.len() < MIN_PARALLEL_PARAMS {
            Parallelism::Sequential
        } else {
            Parallelism::Parallel
        };
        let weights = DecoderWeights::new(shape, params, parallelism);
        Self { weights, device: DeviceCopy::default(), decode_buffers: Pool::default() }
    }

    /// Replaces the adapters, which are learnt in place of the weights; `None` removes them.
    pub fn with_adapters(mut self, adapters: Option<Adapters>) -> Self {
        self.sync_from_device();
        self.weights.adapters = adapters;
        self.device.invalidate_adapters();
        self
    }

    /// Sets the arithmetic of products on the CPU.
    pub fn with_arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.weights.arithmetic = arithmetic;
        self.weights.drop_packed();
        self
    }

    /// The arithmetic of products on the CPU.
    pub fn arithmetic(&self) -> Arithmetic {
        self.weights.arithmetic
    }

    /// The sizes and switches of the decoder.
    pub fn shape(&self) -> &DecoderShape {
        &self.weights.shape
    }

    /// The weights of the decoder, without its adapters; downloaded if a device has changed them.
    pub fn params(&self) -> &DecoderParams {
        self.device.params(&self.weights.params)
    }

    /// Whether adapters are learnt instead of the weights.
    pub fn has_adapters(&self) -> bool {
        self.weights.adapters.is_some()
    }

    /// The adapters that are learnt instead of the weights, if any; downloaded if a device has changed them.
    pub fn adapters(&self) -> Option<&Adapters> {
        self.weights.adapters.as_ref().map(|host| self.device.adapters(host))
    }

    /// The trainable parameters: the adapters', or, without adapters, all weights; downloaded if a device has
    /// changed them.
    pub fn trainable(&self) -> &[f32] {
        self.adapters().map_or_else(|| self.params().values(), |adapters| adapters.params())
    }

    /// The number of trainable parameters.
    pub fn num_trainable(&self) -> usize {
        self.trainable_sizes().iter().sum()
    }

    /// The number of elements of each trainable parameter.
    pub fn trainable_sizes(&self) -> Vec<usize> {
        let sizes = |list: &[Parameter]| list.iter().map(Parameter::num_elements).collect();
        match &self.weights.adapters {
            Some(adapters) => sizes(adapters.parameters()),
            None => sizes(&self.shape().parameters()),
        }
    }

    /// Sets whether a large decoder keeps packed copies of its matrices on the CPU, as it does by default. Without them
    /// each product packs its matrix again, which takes longer for few rows and saves the memory of all weights. Drops
    /// the present copies.
    pub fn keep_packed_weights(&mut self, keep: bool) {
        self.weights.keeps_packed = keep;
        if self.arithmetic() == Arithmetic::F32 {
            self.weights.drop_packed();
        }
    }

    /// Changes the trainable parameters in host memory.
    pub fn update<T>(&mut self, change: impl FnOnce(&mut [f32]) -> T) -> T {
        self.sync_from_device();
        if let Some(adapters) = &mut self.weights.adapters {
            self.device.invalidate_adapters();
            return change(&mut adapters.params);
        }
        self.device.invalidate_weights();
        let result = change(self.weights.params.to_mut());
        self.weights.repack();
        result
    }

    /// Downloads the trainable parameters if a device has changed them.
    pub(super) fn sync_from_device(&mut self) {
        if self.device.is_newer() {
            let (params, adapters) = (self.params().clone(), self.adapters().cloned());
            (self.weights.params, self.weights.adapters) = (params, adapters);
            self.weights.drop_packed();
        }
    }

    /// The parallelism of a pass.
    pub fn parallelism(&self) -> Parallelism {
        self.weights.parallelism
    }

    /// Whether whole passes of this decoder should run in parallel, as it is too small to divide its products among
    /// threads.
    pub fn is_sequential(&self) -> bool {
        self.parallelism() == Parallelism::Sequential
    }

    /// Replaces a cache's segment of text and allocates `tokens` tokens after the text of `prefix`, if any.
    pub fn begin_cache(&self, cache: &mut KvCache, tokens: usize, prefix: Option<PrefixCache>) {
        self.weights.begin_cache(cache, self.shape().num_layers, tokens, prefix);
    }

    /// Runs all layers on rows, in the order of their caches, and writes their keys and values into `caches`. The
    /// predecessors of a token must be in the same pass or in a cache.
    pub fn forward(
        &self,
        rows: &[Row],
        caches: &mut [KvCache],
        retention: Retention,
        pass: &mut Pass,
    ) {
        let weights = &self.weights;
        let Pass { rows: kept, tape, stream, scratch } = pass;
        rows.clone_into(kept);
        if rows.is_empty() {
            *tape = DecoderTape::default();
            return;
        }
        stream.clear();
        let (table, scale) = (weights.layout.embed_tokens.clone(), weights.shape.embedding_scale);
        let tokens = rows.iter().map(|row| row.token);
        match weights.params.stored_matrix(&table) {
            Some(matrix) => embed::forward_stored(matrix, scale, tokens, stream),
            None => {
                let size = weights.shape.hidden_size;
                embed::forward(weights.params.slice(&table), size, scale, tokens, stream);
            }
        }
        let positions = rows.iter().map(|row| caches[row.cache].position(row.index));
        tape.set_rotations(&weights.rope, positions);
        weights.forward(stream, retention, &mut CachedAttention { rows, caches }, tape, scratch);
    }

    /// Computes the logits of normed vectors: `[rows, vocabulary]`.
    pub fn compute_logits(&self, hidden: &[f32], logits: &mut Vec<f32>) {
        let DecoderWeights { shape, layout, .. } = &self.weights;
        logits.resize(hidden.len() / shape.hidden_size * shape.vocab_size(), 0.0);
        self.weights.linear_forward(&layout.head, hidden, logits, WriteMode::Overwrite);
    }
}

/// A forward pass over texts: hidden states, and the activations that the backward pass needs.
#[derive(Debug, Default)]
pub struct TextPass {
    /// All rows: first the prompts', then the completions'.
    pass: Pass,
    caches: Vec<KvCache>,
    /// The prompts, then the completions.
    segments: Vec<Segment>,
    num_prompts: usize,
    /// The number of rows of all prompts.
    num_prompt_rows: usize,
    /// The index of the segment of each prompt's first completion.
    first_segments: Vec<usize>,
    /// The normed streams from which tokens are predicted: of each prompt's last token, then of the completions' tokens
    /// but the last ones: `[predictions, hidden_size]`.
    hidden: Vec<f32>,
}

impl TextPass {
    /// The normed streams from which tokens are predicted: `[predictions, hidden_size]`.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// The row of [`TextPass::hidden`] that predicts the token `token_index` of a completion.
    pub fn prediction(&self, completion: CompletionIndex, token_index: usize) -> usize {
        let CompletionIndex { prompt, completion } = completion;
        let Segment { rows, .. } = &self.segments[self.first_segments[prompt] + completion];
        match token_index {
            0 => prompt,
            _ => self.num_prompts + rows.start - self.num_prompt_rows + token_index - 1,
        }
    }

    /// Replaces the prompts with their completions and returns their rows.
    fn begin(&mut self, weights: &DecoderWeights, prompts: &[PromptWithCompletions]) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut segment = |cache: usize, tokens: &[u32], prefix: Range<usize>| {
            let start = rows.len();
            let tokens = tokens.iter().enumerate();
            rows.extend(tokens.map(|(index, token)| Row { token: *token, cache, index }));
            Segment { rows: start..rows.len(), prefix: Prefix::Rows(prefix), starts: Vec::new() }
        };
        let indexed = prompts.iter().enumerate();
        self.segments = indexed.map(|(index, text)| segment(index, text.prompt, 0..0)).collect();
        self.num_prompts = prompts.len();
        self.num_prompt_rows = self.segments.last().map_or(0, |segment| segment.rows.end);
        self.first_segments.clear();
        let count: usize = prompts.iter().map(|text| text.completions.len()).sum();
        self.caches.resize_with(prompts.len() + count, KvCache::default);
        for (index, text) in prompts.iter().enumerate() {
            let rows = self.segments[index].rows.clone();
            // A layer reads its own keys and values alone, so one layer's memory is enough.
            weights.begin_cache(&mut self.caches[index], 1, rows.len(), None);
            self.first_segments.push(self.segments.len());
            for tokens in &text.completions {
                let cache = self.segments.len();
                let prefix = PrefixCache { index, num_tokens: rows.len() };
                weights.begin_cache(&mut self.caches[cache], 1, tokens.len(), Some(prefix));
                // The last token predicts nothing.
                self.segments.push(segment(cache, &tokens[..tokens.len() - 1], rows.clone()));
            }
        }
        rows
    }
}

impl TokenDecoder {
    /// Runs the forward pass over texts.
    ///
    /// # Panics
    /// If a prompt or a completion has no token.
    pub fn forward_texts(
        &self,
        prompts: &[PromptWithCompletions],
        retention: Retention,
        text_pass: &mut TextPass,
    ) {
        let size = self.shape().hidden_size;
        let rows = text_pass.begin(&self.weights, prompts);
        self.forward(&rows, &mut text_pass.caches, retention, &mut text_pass.pass);
        let hidden = text_pass.pass.hidden();
        text_pass.hidden.clear();
        for Segment { rows, .. } in &text_pass.segments[..text_pass.num_prompts] {
            text_pass.hidden.extend_from_slice(&hidden[(rows.end - 1) * size..rows.end * size]);
        }
        text_pass.hidden.extend_from_slice(&hidden[text_pass.num_prompt_rows * size..]);
    }

    /// The offsets in [`TokenDecoder::trainable`] at which the layers begin, in order, preceded by 0 unless the first
    /// layer begins there: a gradient is complete from one of these on as soon as [`TokenDecoder::backward_texts`] has
    /// left that layer.
    pub fn layer_starts(&self) -> Vec<usize> {
        let layers = self.shape().num_layers;
        let mut starts = vec![0];
        starts.extend((0..layers).map(|layer| match &self.weights.adapters {
            Some(adapters) => adapters.params.len() / layers * layer,
            None => self.weights.layout.layers[layer].start,
        }));
        starts.dedup();
        starts
    }

    /// Adds the gradient of the trainable parameters to `gradient`, from `d_hidden`, that of [`TextPass::hidden`].
    /// After each layer, last to first, calls `on_layer(gradient, start)`: `gradient[start..]` is final, and `start` is
    /// one of [`TokenDecoder::layer_starts`].
    pub fn backward_texts(
        &self,
        text_pass: &mut TextPass,
        d_hidden: &[f32],
        gradient: &mut [f32],
        mut on_layer: impl FnMut(&[f32], usize),
    ) {
        let (size, weights) = (self.shape().hidden_size, &self.weights);
        let TextPass { pass, caches, segments, .. } = text_pass;
        let Pass { rows, tape, stream: d, scratch } = pass;
        let (d_last, d_completions) = d_hidden.split_at(text_pass.num_prompts * size);
        fill_zeros(d, text_pass.num_prompt_rows * size);
        for (Segment { rows, .. }, d_row) in segments.iter().zip(d_last.chunks(size)) {
            d[(rows.end - 1) * size..rows.end * size].copy_from_slice(d_row);
        }
        d.extend_from_slice(d_completions);
        let starts = self.layer_starts();
        let first_layer = starts.len() - self.shape().num_layers;
        let mut segmented_tape = SegmentedTape { tape, segments };
        let mut attention = CachedAttention { rows, caches };
        let on_layer = |layer: usize, gradient: &[f32]| {
            on_layer(gradient, starts[first_layer + layer]);
        };
        weights.backward(&mut segmented_tape, &mut attention, d, gradient, scratch, on_layer);
        if !self.has_adapters() {
            let d_table = &mut gradient[weights.layout.embed_tokens.clone()];
            let tokens = rows.iter().map(|row| row.token);
            embed::backward(d, size, self.shape().embedding_scale, tokens, d_table);
        }
    }

    /// Fills the gradient of normed vectors from the gradient of their logits, and adds that of the head's weights to
    /// `gradient`.
    pub fn backward_head(
        &self,
        hidden: &[f32],
        d_logits: &[f32],
        d_hidden: &mut [f32],
        gradient: &mut [f32],
    ) {
        let head = [(&self.weights.layout.head, d_logits)];
        self.weights.linears_backward(hidden, head, d_hidden, gradient);
    }
}
