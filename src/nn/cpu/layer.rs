//! The forward pass of a decoder's layers over packed rows.

use super::weights::DecoderWeights;
use super::{Activations, Attend, DecoderTape, Retention, Scratch};
use crate::nn::arch::{LayerLayout, LinearLayout, QkNorm, QkNorms};
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
        tape: &mut DecoderTape,
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
        let [_, _, _, o_proj, gate_proj, up_proj, down_proj] = &layout.linears;
        let Scratch { input, inner, block, normed, .. } = scratch;
        self.norm_input(&norms.before_attention, stream, &mut activations.attention_input, input);
        let rotations = &rotations[self.shape.rope_table_index(layer)];
        self.project_heads(layout, input, rotations, activations, normed);
        let rows = stream.len() / self.shape.hidden_size;
        activations.attended.resize(rows * self.shape.query_size(), 0.0);
        activations.log_sum_exps.resize(rows * self.shape.num_heads, 0.0);
        attention.attend(self, layer, activations);
        let Activations { attended, attention_output, mlp_input, gate, up, mlp_output, .. } =
            activations;
        let (place, buffers) = (&norms.after_attention, [&mut *block, &mut *normed]);
        self.add_output(o_proj, place, attended, attention_output, stream, buffers);
        self.norm_input(&norms.before_mlp, stream, mlp_input, input);
        for values in [&mut *gate, &mut *up, &mut *inner] {
            values.resize(rows * self.shape.intermediate_size, 0.0);
        }
        let mut results = [(gate_proj, &mut gate[..]), (up_proj, &mut up[..])];
        self.linears_forward(input, &mut results, WriteMode::Overwrite);
        gate::forward(self.shape.activation, self.parallelism, [gate, up], inner);
        self.add_output(down_proj, &norms.after_mlp, inner, mlp_output, stream, [block, normed]);
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
        layout: &LayerLayout,
        input: &[f32],
        rotations: &[Rotation],
        activations: &mut Activations,
        buffer: &mut Vec<f32>,
    ) {
        let shape = &self.shape;
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

    /// Adds the result of a block to the stream, normed where there is a norm after the block.
    fn add_output(
        &self,
        linear: &LinearLayout,
        place: &Range<usize>,
        x: &[f32],
        norm_activations: &mut NormActivations,
        stream: &mut [f32],
        [block, result]: [&mut Vec<f32>; 2],
    ) {
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
