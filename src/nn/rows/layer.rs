//! The forward pass of a decoder's layers over packed rows.

use super::weights::DecoderWeights;
use super::{Activations, Attend, Retention, Scratch, Tape};
use crate::nn::arch::{Projection, QkNorm, QkNorms};
use crate::nn::ops::linear::Arithmetic;
use crate::nn::ops::norm::NormActivations;
use crate::nn::ops::rope::{Direction, Rotation, rotate};
use crate::nn::ops::{WriteMode, bf16, gate};
use std::mem;
use std::ops::Range;

impl DecoderWeights {
    /// Runs all layers and the last norm on the stream, `[rows, hidden_size]`. The tape has the rows' rotations.
    pub(super) fn forward(
        &self,
        stream: &mut [f32],
        retention: Retention,
        attention: &mut impl Attend,
        tape: &mut Tape,
        scratch: &mut Scratch,
    ) {
        let num_layers = self.shape.num_layers;
        let keeps_all = retention == Retention::All;
        tape.layers.resize_with(if keeps_all { num_layers } else { 1 }, Activations::default);
        let num_streams = if retention == Retention::Inputs { num_layers } else { 0 };
        tape.streams.resize_with(num_streams, Vec::new);
        for layer in 0..num_layers {
            if let Some(kept) = tape.streams.get_mut(layer) {
                stream.clone_into(kept);
            }
            let activations = &mut tape.layers[if keeps_all { layer } else { 0 }];
            self.layer_forward(layer, &tape.rotations, stream, attention, activations, scratch);
        }
        let norm = self.norm(&self.layout.norm);
        tape.last_norm.forward(self.parallelism, stream, norm, &mut tape.hidden);
    }

    /// Runs a layer on the stream, in place.
    pub(super) fn layer_forward(
        &self,
        layer: usize,
        rotations: &[Vec<Rotation>],
        stream: &mut [f32],
        attention: &mut impl Attend,
        activations: &mut Activations,
        scratch: &mut Scratch,
    ) {
        let layout = &self.layout.layers[layer];
        let norms = &layout.norms;
        let input = &mut activations.attention_input;
        self.norm_input(&norms.before_attention, stream, input, &mut scratch.input);
        let rotations = &rotations[self.shape.rope_table_index(layer)];
        self.project_heads(layer, &scratch.input, rotations, activations, &mut scratch.normed);
        let rows = stream.len() / self.shape.hidden_size;
        activations.attended.resize(rows * self.shape.query_size(), 0.0);
        activations.log_sum_exps.resize(rows * self.shape.num_heads, 0.0);
        attention.attend(self, layer, activations);
        let Activations { attended, attention_output, .. } = activations;
        let output = (Projection::Output, &norms.after_attention);
        let blocks = [&mut scratch.block, &mut scratch.normed];
        self.add_output(layer, output, attended, attention_output, stream, blocks);
        self.norm_input(&norms.before_mlp, stream, &mut activations.mlp_input, &mut scratch.input);
        self.feed_forward(layer, &scratch.input, activations, &mut scratch.inner);
        let output = (Projection::Down, &norms.after_mlp);
        let blocks = [&mut scratch.block, &mut scratch.normed];
        self.add_output(layer, output, &scratch.inner, &mut activations.mlp_output, stream, blocks);
    }

    /// Computes the input of a block: the stream, normed where there is a norm before the block.
    fn norm_input(
        &self,
        place: &Range<usize>,
        stream: &[f32],
        norm_activations: &mut NormActivations,
        input: &mut Vec<f32>,
    ) {
        if place.is_empty() {
            norm_activations.forward_identity(stream, input)
        } else {
            norm_activations.forward(self.parallelism, stream, self.norm(place), input)
        }
    }

    /// Computes queries, keys and values, normed and rotated. In bf16 keys and values are rounded as caches store them,
    /// which the gradient ignores (straight through).
    fn project_heads(
        &self,
        layer: usize,
        input: &[f32],
        rotations: &[Rotation],
        activations: &mut Activations,
        buffer: &mut Vec<f32>,
    ) {
        let (shape, layout) = (&self.shape, &self.layout.layers[layer]);
        let Activations { heads, qk_norms, .. } = activations;
        let rows = input.len() / shape.hidden_size;
        let mut results = Vec::new();
        for (linear, heads) in layout.linears.iter().zip(&mut *heads) {
            heads.resize(rows * linear.outputs, 0.0);
            results.push((linear, &mut heads[..]));
        }
        self.linears_forward(input, &mut results, WriteMode::Overwrite);
        let [queries, keys, values] = heads;
        if shape.qk_norm != QkNorm::None {
            let QkNorms { query, key } = &layout.qk_norms;
            let of_queries = (&mut qk_norms.query, &mut *queries, query);
            let of_keys = (&mut qk_norms.key, &mut *keys, key);
            for (norm_activations, heads, place) in [of_queries, of_keys] {
                norm_activations.forward(self.parallelism, heads, self.norm(place), buffer);
                mem::swap(heads, buffer);
            }
        }
        for heads in [queries, &mut *keys] {
            let sizes = [shape.head_dim, shape.rotary_dim() / 2];
            rotate(self.parallelism, heads, sizes, rotations, Direction::Forward);
        }
        if self.arithmetic != Arithmetic::F32 {
            for heads in [keys, values] {
                bf16::round(self.parallelism, heads);
            }
        }
    }

    /// Computes the gate, the up projection, and the up projection times the activated gate, `inner`.
    fn feed_forward(
        &self,
        layer: usize,
        input: &[f32],
        activations: &mut Activations,
        inner: &mut Vec<f32>,
    ) {
        let Activations { gate, up, .. } = activations;
        let [.., gate_proj, up_proj, _] = &self.layout.layers[layer].linears;
        let count = input.len() / self.shape.hidden_size * self.shape.intermediate_size;
        gate.resize(count, 0.0);
        up.resize(count, 0.0);
        let mut results = [(gate_proj, &mut gate[..]), (up_proj, &mut up[..])];
        self.linears_forward(input, &mut results, WriteMode::Overwrite);
        inner.resize(count, 0.0);
        gate::forward(self.shape.activation, self.parallelism, [gate, up], inner);
    }

    /// Adds the result of a block to the stream, normed where there is a norm after the block.
    fn add_output(
        &self,
        layer: usize,
        (projection, place): (Projection, &Range<usize>),
        x: &[f32],
        norm_activations: &mut NormActivations,
        stream: &mut [f32],
        [block, result]: [&mut Vec<f32>; 2],
    ) {
        let linear = &self.layout.layers[layer].linears[projection as usize];
        if place.is_empty() {
            self.linear_forward(linear, x, stream, WriteMode::Accumulate);
            return;
        }
        block.resize(stream.len(), 0.0);
        self.linear_forward(linear, x, block, WriteMode::Overwrite);
        norm_activations.forward(self.parallelism, block, self.norm(place), result);
        stream.iter_mut().zip(result).for_each(|(x, y)| *x += *y);
    }
}
