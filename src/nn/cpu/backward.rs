//! The backward pass of a decoder's layers over packed rows.

use super::weights::DecoderWeights;
use super::{
    Activations, Attend, DecoderTape, KeysValues, Prefix, Scratch, Segment, SegmentScratch,
    fill_zeros,
};
use crate::nn::arch::{LayerLayout, QkNorm};
use crate::nn::ops::attention::sequence::{
    self, AttentionGradients, AttentionInputs, AttentionPass,
};
use crate::nn::ops::gate;
use crate::nn::ops::norm::NormActivations;
use crate::nn::ops::rope::{Direction, Rotation, rotate};
use std::mem;
use std::ops::Range;

/// A forward pass to differentiate.
pub(super) struct SegmentedTape<'a> {
    /// The activations.
    pub tape: &'a mut DecoderTape,
    /// The sequences of its rows, in the order of the rows.
    pub segments: &'a [Segment],
}

impl DecoderWeights {
    /// Runs the backward pass of the last norm and of all layers, last to first: replaces `d`, the gradient of the last
    /// norm's result, by that of the stream before the first layer, and adds the gradient of the parameters to
    /// `gradient`. `attention` recomputes layers whose activations were not kept. After each layer, calls
    /// `on_layer(layer, gradient)`.
    pub(super) fn backward(
        &self,
        segmented_tape: &mut SegmentedTape,
        attention: &mut impl Attend,
        d: &mut Vec<f32>,
        gradient: &mut [f32],
        scratch: &mut Scratch,
        mut on_layer: impl FnMut(usize, &[f32]),
    ) {
        let d_stream = &mut scratch.d_stream;
        fill_zeros(d_stream, d.len());
        self.norm_backward(
            &segmented_tape.tape.last_norm,
            &self.layout.norm,
            d,
            d_stream,
            gradient,
        );
        mem::swap(d, d_stream);
        for layer in (0..self.shape.num_layers).rev() {
            self.layer_backward(layer, segmented_tape, attention, d, gradient, scratch);
            on_layer(layer, gradient);
        }
    }

    /// Runs the backward pass of a layer: replaces `d_stream`, the gradient of the stream after the layer, by the
    /// gradient of the stream before it.
    fn layer_backward(
        &self,
        layer: usize,
        SegmentedTape { tape, segments }: &mut SegmentedTape,
        attention: &mut impl Attend,
        d_stream: &mut [f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let mut place = layer;
        if let Some(kept) = tape.streams.get(layer) {
            place = 0;
            let mut stream = mem::take(&mut scratch.stream);
            kept.clone_into(&mut stream);
            let (rotations, activations) = (&tape.rotations, &mut tape.layers[place]);
            self.layer_forward(layer, rotations, &mut stream, attention, activations, scratch);
            scratch.stream = stream;
        }
        let activations = &tape.layers[place];
        self.mlp_backward(layer, activations, d_stream, gradient, scratch);
        let layout = &self.layout.layers[layer];
        let [_, _, _, o_proj, ..] = &layout.linears;
        let (norm_activations, norm) =
            (&activations.attention_output, &layout.norms.after_attention);
        let Scratch { d_input, d_block, d_attended, .. } = scratch;
        let buffers = [d_input, d_block];
        let d_output = self.output_backward(norm_activations, norm, d_stream, gradient, buffers);
        d_attended.resize(activations.attended.len(), 0.0);
        let results = [(o_proj, d_output)];
        self.linears_backward(&activations.attended, results, d_attended, gradient);
        self.attention_backward(layer, activations, segments, scratch);
        let rotations = &tape.rotations[self.shape.rope_table_index(layer)];
        self.heads_backward(layout, activations, rotations, d_stream, gradient, scratch);
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

    /// The gradient of a block's result, from the gradient of the stream to which the result was added: the same, or in
    /// the memory of `d_block` where the block has a norm after it.
    fn output_backward<'a>(
        &self,
        norm_activations: &NormActivations,
        place: &Range<usize>,
        d_stream: &'a [f32],
        gradient: &mut [f32],
        [d_normed, d_block]: [&'a mut Vec<f32>; 2],
    ) -> &'a [f32] {
        if place.is_empty() {
            return d_stream;
        }
        d_stream.clone_into(d_normed);
        fill_zeros(d_block, d_stream.len());
        self.norm_backward(norm_activations, place, d_normed, d_block, gradient);
        d_block
    }

    /// Adds the gradient of a block's input, `d_input`, to that of the stream.
    fn input_backward(
        &self,
        norm_activations: &NormActivations,
        place: &Range<usize>,
        d_input: &mut [f32],
        d_stream: &mut [f32],
        gradient: &mut [f32],
    ) {
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
        let LayerLayout { norms, linears: [.., gate_proj, up_proj, down_proj], .. } =
            &self.layout.layers[layer];
        let Scratch { input, inner, d_input, d_block, d_gate, d_up, .. } = scratch;
        let buffers = [&mut *d_input, d_block];
        let d_output =
            self.output_backward(mlp_output, &norms.after_mlp, d_stream, gradient, buffers);
        for values in [&mut *d_gate, &mut *d_up, &mut *inner] {
            values.resize(gate.len(), 0.0);
        }
        gate::forward(self.shape.activation, self.parallelism, [gate, up], inner);
        self.linears_backward(inner, [(down_proj, d_output)], d_gate, gradient);
        gate::backward(self.shape.activation, self.parallelism, [gate, up], [d_gate, d_up]);
        d_input.resize(d_stream.len(), 0.0);
        mlp_input.recompute(self.parallelism, self.norm(&norms.before_mlp), input);
        let results = [(gate_proj, &d_gate[..]), (up_proj, &d_up[..])];
        self.linears_backward(input, results, d_input, gradient);
        self.input_backward(mlp_input, &norms.before_mlp, d_input, d_stream, gradient);
    }

    /// Computes the gradients of the rows' queries, keys and values from the gradient of the result of attention.
    fn attention_backward(
        &self,
        layer: usize,
        activations: &Activations,
        segments: &[Segment],
        scratch: &mut Scratch,
    ) {
        let shape = self.shape.head_shape();
        let Scratch { d_attended, d_heads, segment_scratches, d_keys_values, .. } = scratch;
        for (d, heads) in d_heads.iter_mut().zip(&activations.heads) {
            fill_zeros(d, heads.len());
        }
        let [d_queries, d_keys, d_values] = d_heads;
        let mut rest = &mut d_queries[..];
        let mut segment_grads = Vec::with_capacity(segments.len());
        for segment in segments {
            let size = segment.rows.len() * shape.query_size();
            let d_queries = rest.split_off_mut(..size).expect("the rows of all segments");
            segment_grads.push((segment, d_queries, d_keys_values.take()));
        }
        self.parallelism.each_mut(&mut segment_grads, |_, (segment, d_queries, d_segment)| {
            segment_scratches.with(|scratch| {
                let d = (&d_attended[..], &mut **d_queries, d_segment);
                self.segment_backward(layer, activations, segment, d, scratch);
            });
        });
        self.parallelism.each_mut(&mut [d_keys, d_values], |index, d| {
            for (segment, _, d_segment) in &segment_grads {
                segment.add_gradients(&d_segment[index], shape.kv_size(), d);
            }
        });
        segment_grads.into_iter().for_each(|(.., d_segment)| d_keys_values.put(d_segment));
    }

    /// Computes the gradients of a segment's queries, and of all keys and values that it attends to,
    /// `[prefix + rows, kv_size]` each.
    fn segment_backward(
        &self,
        layer: usize,
        activations: &Activations,
        segment: &Segment,
        (d_attended, d_queries, d_keys_values): (&[f32], &mut [f32], &mut KeysValues),
        scratch: &mut SegmentScratch,
    ) {
        let (shape, rows) = (self.shape.head_shape(), &segment.rows);
        let SegmentScratch { attention, keys_values } = scratch;
        segment.gather(layer, &activations.heads, shape.kv_size(), keys_values);
        let [keys, values] = &*keys_values;
        let [d_keys, d_values] = d_keys_values;
        fill_zeros(d_keys, keys.len());
        fill_zeros(d_values, values.len());
        if rows.is_empty() {
            return;
        }
        let query_range = rows.start * shape.query_size()..rows.end * shape.query_size();
        let queries = &activations.heads[0][query_range.clone()];
        let pass = AttentionPass {
            output: &activations.attended[query_range.clone()],
            log_sum_exps: &activations.log_sum_exps
                [rows.start * shape.heads..rows.end * shape.heads],
            gradient: &d_attended[query_range],
        };
        let grads = AttentionGradients { d_queries, d_keys, d_values };
        let mask = segment.mask(self, layer);
        sequence::backward(
            &shape,
            AttentionInputs { queries, keys, values },
            &mask,
            pass,
            grads,
            attention,
        );
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
        let Scratch {
            input: rows,
            d_input,
            d_heads: [d_queries, d_keys, d_values],
            d_unnormed,
            ..
        } = scratch;
        let (qk_norms, places) = (&activations.qk_norms, &layout.qk_norms);
        let queries = (&mut *d_queries, &qk_norms.query, &places.query);
        let keys = (&mut *d_keys, &qk_norms.key, &places.key);
        for (d, norm_activations, place) in [queries, keys] {
            let sizes = [shape.head_dim, shape.rotary_dim() / 2];
            rotate(self.parallelism, d, sizes, rotations, Direction::Backward);
            if shape.qk_norm != QkNorm::None {
                fill_zeros(d_unnormed, d.len());
                self.norm_backward(norm_activations, place, d, d_unnormed, gradient);
                mem::swap(d, d_unnormed);
            }
        }
        d_input.resize(d_stream.len(), 0.0);
        let norm = &layout.norms.before_attention;
        input.recompute(self.parallelism, self.norm(norm), rows);
        let [query, key, value, ..] = &layout.linears;
        let results = [(query, &d_queries[..]), (key, &d_keys[..]), (value, &d_values[..])];
        self.linears_backward(rows, results, d_input, gradient);
        self.input_backward(input, norm, d_input, d_stream, gradient);
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
