//! The parts of a decoder that are no products, forward and backward, and where its parameters are.

use super::shape::DecoderShape;
use crate::math::{mul_add, sigmoid};
use crate::model::LANES;
use multiversion::multiversion;
use std::ops::Range;

/// Where a linear layer's parameters are; the bias is empty where there is none.
#[derive(Clone, Debug)]
pub struct LinearSlot {
    pub weight: Range<usize>,
    pub bias: Range<usize>,
}

/// Where a layer's parameters are.
#[derive(Clone, Debug)]
pub struct LayerSlots {
    /// The norm before attention.
    pub first: Range<usize>,
    /// Of queries, keys and values.
    pub projections: [LinearSlot; 3],
    /// Of what attention found.
    pub found: Range<usize>,
    /// The norms of the heads of queries and of keys, where there are any.
    pub head_norms: [Range<usize>; 2],
    /// The norm before the gated network.
    pub second: Range<usize>,
    pub gate: Range<usize>,
    pub up: Range<usize>,
    pub down: Range<usize>,
}

/// Where a decoder's parameters are in the vector of all.
#[derive(Clone, Debug)]
pub struct Slots {
    /// Of observations, or the table of the tokens' vectors.
    pub input: LinearSlot,
    pub layers: Vec<LayerSlots>,
    pub norm: Range<usize>,
    /// Empty where it is the table.
    pub head: Range<usize>,
}

impl LinearSlot {
    /// Adds the bias to rows of outputs.
    pub fn add_bias(&self, params: &[f32], rows: &mut [f32]) {
        if !self.bias.is_empty() {
            let bias = &params[self.bias.clone()];
            for row in rows.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
            }
        }
    }
}

impl Slots {
    /// Those of a shape, in the order of [`DecoderShape::parameters`].
    pub fn new(shape: &DecoderShape) -> Self {
        let (size, kv, inner) = (shape.hidden_size, shape.kv_size(), shape.intermediate_size);
        let mut end = 0;
        let mut take = |count: usize| {
            end += count;
            end - count..end
        };
        let mut linear = |inputs: usize, outputs: usize, biased: bool| LinearSlot {
            weight: take(inputs * outputs),
            bias: take(if biased { outputs } else { 0 }),
        };
        let queries = shape.query_size();
        let input = match shape.takes_tokens() {
            true => linear(shape.num_actions, size, false),
            false => linear(shape.num_features, size, true),
        };
        let head_norm = if shape.qk_norm { shape.head_dim } else { 0 };
        let layers = (0..shape.num_layers).map(|_| LayerSlots {
            first: linear(1, size, false).weight,
            projections: [queries, kv, kv].map(|outputs| linear(size, outputs, shape.qkv_bias)),
            found: linear(queries, size, false).weight,
            head_norms: [(); 2].map(|()| linear(1, head_norm, false).weight),
            second: linear(1, size, false).weight,
            gate: linear(size, inner, false).weight,
            up: linear(size, inner, false).weight,
            down: linear(inner, size, false).weight,
        });
        let layers = layers.collect();
        let norm = linear(1, size, false).weight;
        let head = if shape.tie_word_embeddings { 0 } else { shape.num_actions };
        Self { input, layers, norm, head: linear(size, head, false).weight }
    }
}

/// The sum of products, in [`LANES`] sums of their own.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = mul_add(*a, *b, *sum);
        }
    }
    sums.iter().sum()
}

/// Rows over the roots of their mean squares, times the weights; `scale` becomes what they were multiplied by.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn norm(x: &[f32], weight: &[f32], eps: f32, scale: &mut [f32], normed: &mut [f32]) {
    let size = weight.len();
    let rows = x.chunks_exact(size).zip(normed.chunks_exact_mut(size));
    for ((x, normed), scale) in rows.zip(scale) {
        *scale = 1.0 / (dot(x, x) / size as f32 + eps).sqrt();
        for ((normed, x), weight) in normed.iter_mut().zip(x).zip(weight) {
            *normed = x * *scale * weight;
        }
    }
}

/// A normed stream.
#[derive(Clone, Debug, Default)]
pub struct Normed {
    /// Before: `[rows, hidden_size]`.
    pub stream: Vec<f32>,
    /// What it was multiplied by: `[rows]`.
    pub scale: Vec<f32>,
    /// After, weights included: `[rows, hidden_size]`.
    pub normed: Vec<f32>,
}

impl Normed {
    /// Norms vectors of as many numbers as there are weights.
    pub fn forward(&mut self, stream: &[f32], weight: &[f32], eps: f32) {
        self.stream.clear();
        self.stream.extend_from_slice(stream);
        self.normed.resize(stream.len(), 0.0);
        self.scale.resize(stream.len() / weight.len(), 0.0);
        norm(stream, weight, eps, &mut self.scale, &mut self.normed);
    }
}

/// Adds to the gradients of the rows and of the weights, `to`, from `d_normed`, which is used up.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn norm_backward(
    x: &[f32],
    weight: &[f32],
    scale: &[f32],
    d_normed: &mut [f32],
    to: [&mut [f32]; 2],
) {
    let size = weight.len();
    let [dx, d_weight] = to;
    let rows = x.chunks_exact(size).zip(d_normed.chunks_exact_mut(size));
    for (((x, d), dx), scale) in rows.zip(dx.chunks_exact_mut(size)).zip(scale) {
        for i in 0..size {
            d_weight[i] += d[i] * x[i] * scale;
            d[i] *= weight[i];
        }
        let along = dot(d, x) / size as f32 * scale * scale;
        for i in 0..size {
            dx[i] += (d[i] - x[i] * along) * scale;
        }
    }
}

/// `inner = silu(gate) * up`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn gate(gate: &[f32], up: &[f32], inner: &mut [f32]) {
    for ((inner, gate), up) in inner.iter_mut().zip(gate).zip(up) {
        *inner = gate * sigmoid(*gate) * up;
    }
}

/// `d`, the gradient of the inner units, becomes that of the gates; `d_up` that of what they let through.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn gate_backward(gate: &[f32], up: &[f32], d: &mut [f32], d_up: &mut [f32]) {
    for (((gate, up), d), d_up) in gate.iter().zip(up).zip(d).zip(d_up) {
        let open = sigmoid(*gate);
        *d_up = *d * gate * open;
        *d *= up * open * (1.0 + gate * (1.0 - open));
    }
}

/// Turns the heads of every row by the row's cosines and sines; back where `sign` is -1.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn turn(rows: &mut [f32], head_dim: usize, turns: &[[f32; 2]], sign: f32) {
    let half = head_dim / 2;
    let width = rows.len() / (turns.len() / half);
    for (row, turns) in rows.chunks_exact_mut(width).zip(turns.chunks_exact(half)) {
        for head in row.chunks_exact_mut(head_dim) {
            let (left, right) = head.split_at_mut(half);
            for ((a, b), [cos, sin]) in left.iter_mut().zip(right).zip(turns) {
                let (x, y, sin) = (*a, *b, sin * sign);
                *a = x * cos - y * sin;
                *b = y * cos + x * sin;
            }
        }
    }
}

/// Adds the rows of `d` to the gradient of a bias, if there is one.
pub fn bias_gradient(d: &[f32], gradient: &mut [f32]) {
    if !gradient.is_empty() {
        for d in d.chunks_exact(gradient.len()) {
            gradient.iter_mut().zip(d).for_each(|(sum, d)| *sum += d);
        }
    }
}
