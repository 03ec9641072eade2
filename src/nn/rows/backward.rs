//! The backward pass of a decoder's layers over packed rows.

use super::weights::DecoderWeights;
use super::{
    Activations, Attend, HeadRows, KeyValueRows, Prefix, Scratch, Segment, SegmentScratch, Tape,
};
use crate::nn::arch::{LayerLayout, Projection, QkNorm};
use crate::nn::ops::attention::sequence::{self, AttentionPass, Heads};
use crate::nn::ops::gate;
use crate::nn::ops::norm::NormActivations;
use crate::nn::ops::rope::{Direction, Rotation, rotate};
use std::mem;
use std::ops::Range;

/// A forward pass to differentiate.
pub(super) struct ForwardTape<'a> {
    /// The activations.
    pub tape: &'a Tape,
    /// The sequences of its rows, in the order of the rows.
    pub segments: &'a [Segment],
}

impl DecoderWeights {
    /// Runs the backward pass of the last norm: fills `d_stream`, the gradient of its input, from `d_normed`, that of
    /// its result, and adds the gradient of its weights to `gradient`.
    pub(super) fn last_norm_backward(
        &self,
        tape: &Tape,
        d_normed: &mut [f32],
        d_stream: &mut [f32],
        gradient: &mut [f32],
    ) {
        d_stream.fill(0.0);
        self.norm_backward(&tape.last_norm, &self.layout.norm, d_normed, d_stream, gradient);
    }

    /// Runs the backward pass of a layer: replaces `d_stream`, the gradient of the stream after the layer, by the
    /// gradient of the stream before it, and adds the gradient of the layer's parameters to `gradient`. `attention`
    /// recomputes the layer if its activations were not kept.
    pub(super) fn layer_backward(
        &self,
        layer: usize,
        forward_tape: &ForwardTape,
        attention: &mut impl Attend,
        d_stream: &mut [f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let ForwardTape { tape, segments } = forward_tape;
        let mut recomputed = mem::take(&mut scratch.recomputed);
        let activations = match tape.streams.get(layer) {
            Some(kept) => {
                let mut stream = mem::take(&mut scratch.stream);
                kept.clone_into(&mut stream);
                let rotations = &tape.rotations;
                self.layer_forward(
                    layer,
                    rotations,
                    &mut stream,
                    attention,
                    &mut recomputed,
                    scratch,
                );
                scratch.stream = stream;
                &recomputed
            }
            None => &tape.layers[layer],
        };
        self.mlp_backward(layer, activations, d_stream, gradient, scratch);
        let layout = &self.layout.layers[layer];
        let linear = &layout.linears[Projection::Output as usize];
        let (norm_activations, place) =
            (&activations.attention_output, &layout.norms.after_attention);
        let d_block = self.output_backward(norm_activations, place, d_stream, gradient, scratch);
        scratch.d_attended.resize(activations.attended.len(), 0.0);
        let results = [(linear, d_block.as_deref().unwrap_or(d_stream))];
        let dx = &mut scratch.d_attended[..];
        self.linears_backward(&activations.attended, results, dx, gradient);
        if let Some(d_block) = d_block {
            scratch.d_block = d_block;
        }
        self.attention_backward(layer, activations, segments, scratch);
        let rotations = &tape.rotations[self.shape.rope_table_index(layer)];
        self.heads_backward(layout, activations, rotations, d_stream, gradient, scratch);
        scratch.recomputed = recomputed;
    }

    /// Adds to the gradients of a norm's input and, unless adapters are learnt, of its weights; `dy` is overwritten.
    fn norm_backward(
        &self,
        norm_activations: &NormActivations,
        place: &Range<usize>,
        dy: &mut [f32],
        dx: &mut [f32],
        gradient: &mut [f32],
    ) {
        let d_weight = self.adapters.is_none().then(|| &mut gradient[place.clone()]);
        norm_activations.backward(self.parallelism, self.norm(place), dy, dx, d_weight);
    }

    /// Computes the gradient of a block's result, in the memory of `scratch.d_block`, from the gradient of the stream
    /// to which the result was added; `None` if both gradients are the same, since the block has no norm after it.
    fn output_backward(
        &self,
        norm_activations: &NormActivations,
        place: &Range<usize>,
        d_stream: &[f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) -> Option<Vec<f32>> {
        if place.is_empty() {
            return None;
        }
        let mut d_block = mem::take(&mut scratch.d_block);
        d_block.clear();
        d_block.resize(d_stream.len(), 0.0);
        let d_input = &mut scratch.d_input;
        d_stream.clone_into(d_input);
        self.norm_backward(norm_activations, place, d_input, &mut d_block, gradient);
        Some(d_block)
    }

    /// Adds the gradient of a block's input, `scratch.d_input`, to that of the stream.
    fn input_backward(
        &self,
        norm_activations: &NormActivations,
        place: &Range<usize>,
        d_stream: &mut [f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let d_input = &mut scratch.d_input;
        if place.is_empty() {
            d_stream.iter_mut().zip(d_input).for_each(|(sum, d)| *sum += *d)
        } else {
            self.norm_backward(norm_activations, place, d_input, d_stream, gradient)
        }
    }

    /// Computes the backward pass of a feed-forward block: adds to the gradients of its parameters, and that of its
    /// input to `d_stream`.
    fn mlp_backward(
        &self,
        layer: usize,
        activations: &Activations,
        d_stream: &mut [f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let Activations { mlp_input, gate, up, mlp_output, .. } = activations;
        let LayerLayout { norms, linears, .. } = &self.layout.layers[layer];
        let d_block =
            self.output_backward(mlp_output, &norms.after_mlp, d_stream, gradient, scratch);
        let mut d_gate = mem::take(&mut scratch.d_gate);
        let mut d_up = mem::take(&mut scratch.d_up);
        let Scratch { input, inner, d_input, .. } = scratch;
        for values in [&mut d_gate, &mut d_up, &mut *inner] {
            values.resize(gate.len(), 0.0);
        }
        gate::forward(self.shape.activation, self.parallelism, [gate, up], inner);
        let down = &linears[Projection::Down as usize];
        let down = [(down, d_block.as_deref().unwrap_or(d_stream))];
        self.linears_backward(inner, down, &mut d_gate, gradient);
        let grads = [&mut d_gate[..], &mut d_up[..]];
        gate::backward(self.shape.activation, self.parallelism, [gate, up], grads);
        d_input.resize(d_stream.len(), 0.0);
        mlp_input.recompute(self.parallelism, self.norm(&norms.before_mlp), input);
        let results = [(Projection::Gate, &d_gate[..]), (Projection::Up, &d_up[..])];
        let results = results.map(|(projection, dy)| (&linears[projection as usize], dy));
        self.linears_backward(input, results, d_input, gradient);
        if let Some(d_block) = d_block {
            scratch.d_block = d_block;
        }
        (scratch.d_gate, scratch.d_up) = (d_gate, d_up);
        self.input_backward(mlp_input, &norms.before_mlp, d_stream, gradient, scratch);
    }

    /// Computes the gradients of the rows' queries, keys and values from the gradient of the result of attention.
    fn attention_backward(
        &self,
        layer: usize,
        activations: &Activations,
        segments: &[Segment],
        scratch: &mut Scratch,
    ) {
        let kv_size = self.shape.kv_size();
        let mut d_heads = mem::take(&mut scratch.d_heads);
        let HeadRows { queries, keys, values } = &activations.heads;
        for (d, heads) in d_heads.all_mut().into_iter().zip([queries, keys, values]) {
            d.clear();
            d.resize(heads.len(), 0.0);
        }
        let HeadRows { queries: d_queries, keys: d_keys, values: d_values } = &mut d_heads;
        let mut rest = &mut d_queries[..];
        let mut segment_grads = Vec::with_capacity(segments.len());
        for segment in segments {
            let size = segment.rows.len() * self.shape.query_size();
            let (d_queries, after) = rest.split_at_mut(size);
            segment_grads.push((segment, d_queries, Default::default()));
            rest = after;
        }
        let Scratch { d_attended, segment_scratches, d_keys_values, .. } = &*scratch;
        self.parallelism.each_mut(&mut segment_grads, |_, (segment, d_queries, d_segment)| {
            *d_segment = d_keys_values.take();
            segment_scratches.with(|scratch| {
                let d = (&d_attended[..], &mut **d_queries, d_segment);
                self.segment_backward(layer, activations, segment, d, scratch);
            });
        });
        self.parallelism.each_mut(&mut [d_keys, d_values], |index, d| {
            for (segment, _, d_segment) in &segment_grads {
                segment.add_gradients(d_segment.both()[index], kv_size, d);
            }
        });
        segment_grads.into_iter().for_each(|(.., d_segment)| d_keys_values.put(d_segment));
        scratch.d_heads = d_heads;
    }

    /// Computes the gradients of a segment's queries, and of all keys and values that it attends to,
    /// `[prefix + rows, kv_size]` each.
    fn segment_backward(
        &self,
        layer: usize,
        activations: &Activations,
        segment: &Segment,
        (d_attended, d_queries, d_keys_values): (&[f32], &mut [f32], &mut KeyValueRows),
        scratch: &mut SegmentScratch,
    ) {
        let (shape, rows) = (self.shape.head_shape(), &segment.rows);
        let SegmentScratch { attention, keys_values } = scratch;
        segment.gather(layer, &activations.heads, shape.kv_size(), keys_values);
        for (d, values) in d_keys_values.both_mut().into_iter().zip(keys_values.both()) {
            d.clear();
            d.resize(values.len(), 0.0);
        }
        if rows.is_empty() {
            return;
        }
        let query_range = rows.start * shape.query_size()..rows.end * shape.query_size();
        let KeyValueRows { keys, values } = &*keys_values;
        let queries = &activations.heads.queries[query_range.clone()];
        let pass = AttentionPass {
            output: &activations.attended[query_range.clone()],
            log_sum_exps: &activations.log_sum_exps
                [rows.start * shape.heads..rows.end * shape.heads],
            gradient: &d_attended[query_range],
        };
        let KeyValueRows { keys: d_keys, values: d_values } = d_keys_values;
        let grads = [d_queries, &mut d_keys[..], &mut d_values[..]];
        let mask = segment.mask(self, layer);
        sequence::backward(&shape, Heads { queries, keys, values }, &mask, pass, grads, attention);
    }

    /// Propagates the gradients of queries, keys and values to the stream before the layer.
    fn heads_backward(
        &self,
        layout: &LayerLayout,
        activations: &Activations,
        rotations: &[Rotation],
        d_stream: &mut [f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (shape, input) = (&self.shape, &activations.attention_input);
        let mut d_heads = mem::take(&mut scratch.d_heads);
        let (qk_norms, places) = (&activations.qk_norms, &layout.qk_norms);
        let queries = (&mut d_heads.queries, &qk_norms.query, &places.query);
        let keys = (&mut d_heads.keys, &qk_norms.key, &places.key);
        for (d, norm_activations, place) in [queries, keys] {
            let sizes = [shape.head_dim, shape.rotary_dim() / 2];
            rotate(self.parallelism, d, sizes, rotations, Direction::Backward);
            if shape.qk_norm != QkNorm::None {
                let d_unnormed = &mut scratch.d_unnormed;
                d_unnormed.clear();
                d_unnormed.resize(d.len(), 0.0);
                self.norm_backward(norm_activations, place, d, d_unnormed, gradient);
                mem::swap(d, d_unnormed);
            }
        }
        let Scratch { input: rows, d_input, .. } = scratch;
        d_input.resize(d_stream.len(), 0.0);
        input.recompute(self.parallelism, self.norm(&layout.norms.before_attention), rows);
        let HeadRows { queries, keys, values } = &d_heads;
        let [query, key, value, ..] = &layout.linears;
        let results = [(query, &queries[..]), (key, &keys[..]), (value, &values[..])];
        self.linears_backward(rows, results, d_input, gradient);
        scratch.d_heads = d_heads;
        self.input_backward(input, &layout.norms.before_attention, d_stream, gradient, scratch);
    }
}

impl Segment {
    /// Adds `gradients`, those of the keys, or of the values, that the segment attends to, `[prefix + rows, kv_size]`,
    /// to `sums`, the gradients of all rows. Keys and values in a game's memory have no gradient.
    fn add_gradients(&self, gradients: &[f32], kv_size: usize, sums: &mut [f32]) {
        let (prefix, own) = gradients.split_at(self.prefix_len(kv_size) * kv_size);
        let mut add = |rows: &Range<usize>, gradients: &[f32]| {
            let sums = &mut sums[rows.start * kv_size..rows.end * kv_size];
            sums.iter_mut().zip(gradients).for_each(|(sum, d)| *sum += d);
        };
        if let Prefix::Rows(rows) = &self.prefix {
            add(rows, prefix);
        }
        add(&self.rows, own);
    }
}
