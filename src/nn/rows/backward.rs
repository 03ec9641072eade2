//! The backward pass of a decoder's layers over packed rows.

use super::weights::Weights;
use super::{Activations, Attend, Piece, PieceScratch, Prefix, Scratch, Tape};
use crate::nn::arch::{LayerLayout, Projection, QkNorm};
use crate::nn::ops::attention::sequence::{self, AttentionPass, Heads};
use crate::nn::ops::gate;
use crate::nn::ops::norm::NormActivations;
use crate::nn::ops::rope::{Direction, Rotation, rotate};
use std::mem;
use std::ops::Range;

/// A forward pass to differentiate.
pub(super) struct ForwardRecord<'a> {
    /// The activations.
    pub tape: &'a Tape,
    /// The sequences of its rows, in the order of the rows.
    pub pieces: &'a [Piece],
}

impl Weights {
    /// The backward pass of the last norm: fills `d_stream` from the gradient of its result, `d_normed`, and adds the
    /// gradient of its weights to `gradient`.
    pub(super) fn last_norm_backward(
        &self,
        tape: &Tape,
        d_normed: &mut [f32],
        d_stream: &mut [f32],
        gradient: &mut [f32],
    ) {
        d_stream.fill(0.0);
        self.norm_backward(&tape.last, &self.layout.norm, d_normed, d_stream, gradient);
    }

    /// The backward pass of a layer: turns `d_stream`, the gradient of the stream after it, into the gradient of the
    /// stream before it, and adds the parameters' gradients to `gradient`. `attend` recomputes the layer if its
    /// activations were not kept.
    pub(super) fn layer_backward(
        &self,
        number: usize,
        of: &ForwardRecord,
        attend: &mut impl Attend,
        d_stream: &mut [f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let ForwardRecord { tape, pieces } = of;
        let mut recomputed = mem::take(&mut scratch.recomputed);
        let activations = match tape.streams.get(number) {
            Some(kept) => {
                let mut stream = mem::take(&mut scratch.stream);
                kept.clone_into(&mut stream);
                let rotations = &tape.rotations;
                self.layer(number, rotations, &mut stream, attend, &mut recomputed, scratch);
                scratch.stream = stream;
                &recomputed
            }
            None => &tape.layers[number],
        };
        self.mlp_backward(number, activations, d_stream, gradient, scratch);
        let layout = &self.layout.layers[number];
        let linear = &layout.linears[Projection::Output as usize];
        let output = (&activations.attention_output, &layout.norms[1]);
        let d_block = self.output_backward(output, d_stream, gradient, scratch);
        scratch.d_attended.resize(activations.attended.len(), 0.0);
        let results = [(linear, d_block.as_deref().unwrap_or(d_stream))];
        let dx = (&mut scratch.d_attended[..], false);
        self.linears_backward(&activations.attended, results, dx, gradient);
        if let Some(d_block) = d_block {
            scratch.d_block = d_block;
        }
        self.attention_backward(number, activations, pieces, scratch);
        let rotations = &tape.rotations[self.shape.rope_table(number)];
        self.heads_backward(layout, activations, rotations, d_stream, gradient, scratch);
        scratch.recomputed = recomputed;
    }

    /// Adds to the gradients of a norm's input and, unless adapters are learnt, of its weights; `dy` is overwritten.
    fn norm_backward(
        &self,
        normed: &NormActivations,
        place: &Range<usize>,
        dy: &mut [f32],
        dx: &mut [f32],
        gradient: &mut [f32],
    ) {
        let d_weight = self.adapters.is_none().then(|| &mut gradient[place.clone()]);
        normed.backward(self.parallelism, self.norm(place), dy, dx, d_weight);
    }

    /// The gradient of a block's result, in the memory of `scratch.d_block`, from that of the stream to which it was added;
    /// `None` if both are the same, since the block has no norm after it.
    fn output_backward(
        &self,
        (normed, place): (&NormActivations, &Range<usize>),
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
        self.norm_backward(normed, place, d_input, &mut d_block, gradient);
        Some(d_block)
    }

    /// Adds the gradient of a block's input, `scratch.d_input`, to that of the stream.
    fn input_backward(
        &self,
        normed: &NormActivations,
        place: &Range<usize>,
        d_stream: &mut [f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let d_input = &mut scratch.d_input;
        match place.is_empty() {
            true => d_stream.iter_mut().zip(d_input).for_each(|(sum, d)| *sum += *d),
            false => self.norm_backward(normed, place, d_input, d_stream, gradient),
        }
    }

    fn mlp_backward(
        &self,
        number: usize,
        activations: &Activations,
        d_stream: &mut [f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let Activations { mlp_input, gate, up, mlp_output, .. } = activations;
        let LayerLayout { norms, linears, .. } = &self.layout.layers[number];
        let d_block = self.output_backward((mlp_output, &norms[3]), d_stream, gradient, scratch);
        let [mut d_gate, mut d_up] = mem::take(&mut scratch.d_inner);
        let Scratch { input, inner, d_input, .. } = scratch;
        for all in [&mut d_gate, &mut d_up, &mut *inner] {
            all.resize(gate.len(), 0.0);
        }
        gate::forward(self.shape.activation, self.parallelism, [gate, up], inner);
        let down = &linears[Projection::Down as usize];
        let down = [(down, d_block.as_deref().unwrap_or(d_stream))];
        self.linears_backward(inner, down, (&mut d_gate, false), gradient);
        let to = [&mut d_gate[..], &mut d_up[..]];
        gate::backward(self.shape.activation, self.parallelism, [gate, up], to);
        d_input.resize(d_stream.len(), 0.0);
        mlp_input.recompute(self.parallelism, self.norm(&norms[2]), input);
        let results = [(Projection::Gate, &d_gate[..]), (Projection::Up, &d_up[..])];
        let results = results.map(|(linear, dy)| (&linears[linear as usize], dy));
        self.linears_backward(input, results, (d_input, false), gradient);
        if let Some(d_block) = d_block {
            scratch.d_block = d_block;
        }
        scratch.d_inner = [d_gate, d_up];
        self.input_backward(mlp_input, &norms[2], d_stream, gradient, scratch);
    }

    /// Computes the gradients of the rows' queries, keys and values from that of the result of attention.
    fn attention_backward(
        &self,
        number: usize,
        activations: &Activations,
        pieces: &[Piece],
        scratch: &mut Scratch,
    ) {
        let kv = self.shape.kv_size();
        let mut d_heads = mem::take(&mut scratch.d_heads);
        for (d, heads) in d_heads.iter_mut().zip(&activations.heads) {
            d.clear();
            d.resize(heads.len(), 0.0);
        }
        let [d_queries, d_keys_values @ ..] = &mut d_heads;
        let mut rest = &mut d_queries[..];
        let mut all = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let size = piece.rows.len() * self.shape.query_size();
            let (own, after) = rest.split_at_mut(size);
            all.push((piece, own, Default::default()));
            rest = after;
        }
        let Scratch { d_attended, pieces: scratches, d_pieces, .. } = &*scratch;
        self.parallelism.each_mut(&mut all, |_, (piece, d_queries, d_piece)| {
            *d_piece = d_pieces.take();
            scratches.with(|scratch| {
                let d = (&d_attended[..], &mut **d_queries, d_piece);
                self.piece_backward(number, activations, piece, d, scratch);
            });
        });
        self.parallelism.each_mut(d_keys_values, |which, to| {
            all.iter().for_each(|(piece, _, found)| piece.add_gradients(&found[which], kv, to));
        });
        all.into_iter().for_each(|(.., d_piece)| d_pieces.put(d_piece));
        scratch.d_heads = d_heads;
    }

    /// Computes the gradients of a piece's queries, and of all keys and values that it attends to,
    /// `[prefix + rows, kv_size]` each.
    fn piece_backward(
        &self,
        number: usize,
        activations: &Activations,
        piece: &Piece,
        (d_attended, d_queries, d_keys_values): (&[f32], &mut [f32], &mut [Vec<f32>; 2]),
        scratch: &mut PieceScratch,
    ) {
        let (shape, rows) = (self.shape.head_shape(), &piece.rows);
        let PieceScratch { attention, keys_values } = scratch;
        piece.gather(number, &activations.heads, shape.kv_size(), keys_values);
        for (d, all) in d_keys_values.iter_mut().zip(&*keys_values) {
            d.clear();
            d.resize(all.len(), 0.0);
        }
        if rows.is_empty() {
            return;
        }
        let of_queries = rows.start * shape.query_size()..rows.end * shape.query_size();
        let [keys, values] = &*keys_values;
        let queries = &activations.heads[0][of_queries.clone()];
        let of = AttentionPass {
            output: &activations.attended[of_queries.clone()],
            log_totals: &activations.log_totals[rows.start * shape.heads..rows.end * shape.heads],
            gradient: &d_attended[of_queries],
        };
        let [d_keys, d_values] = d_keys_values;
        let to = [d_queries, &mut d_keys[..], &mut d_values[..]];
        let mask = piece.mask(self, number);
        sequence::backward(&shape, Heads { queries, keys, values }, &mask, of, to, attention);
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
        let half = shape.rotary_dim() / 2;
        let qk = activations.qk_norms.iter().zip(&layout.qk_norms);
        for (d, (normed, place)) in d_heads.iter_mut().zip(qk) {
            let sizes = [shape.head_dim, half];
            rotate(self.parallelism, d, sizes, rotations, Direction::Backward);
            if shape.qk_norm != QkNorm::None {
                let d_unnormed = &mut scratch.d_unnormed;
                d_unnormed.clear();
                d_unnormed.resize(d.len(), 0.0);
                self.norm_backward(normed, place, d, d_unnormed, gradient);
                mem::swap(d, d_unnormed);
            }
        }
        let Scratch { input: rows, d_input, .. } = scratch;
        d_input.resize(d_stream.len(), 0.0);
        input.recompute(self.parallelism, self.norm(&layout.norms[0]), rows);
        let results = [0, 1, 2].map(|i| (&layout.linears[i], &d_heads[i][..]));
        self.linears_backward(rows, results, (d_input, false), gradient);
        scratch.d_heads = d_heads;
        self.input_backward(input, &layout.norms[0], d_stream, gradient, scratch);
    }
}

impl Piece {
    /// Adds the gradients of the keys, or of the values, that the piece attends to, `[prefix + rows, kv_size]`, to the
    /// rows' gradients; keys and values in memory get no gradient.
    fn add_gradients(&self, found: &[f32], kv: usize, to: &mut [f32]) {
        let (of_prefix, own) = found.split_at(self.prefix_len(kv) * kv);
        let mut add = |rows: &Range<usize>, found: &[f32]| {
            let sum = &mut to[rows.start * kv..rows.end * kv];
            sum.iter_mut().zip(found).for_each(|(sum, d)| *sum += d);
        };
        if let Prefix::Rows(rows) = &self.prefix {
            add(rows, of_prefix);
        }
        add(&self.rows, own);
    }
}
