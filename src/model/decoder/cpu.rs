//! The decoder on the CPU's vector units, for acting. Keys and values are written into the games' memory in place.

use crate::math::{at_least, exp, map_array, mul_add, rotate_pair, sigmoid};
use crate::model::dense::Dense;
use crate::model::{Actor, LANES, Lanes, PolicySizes};
use crate::nn::DecoderShape;
use crate::nn::arch::{Layout, LinearLayout};
use crate::nn::ops::rope::RopeTable;
use multiversion::multiversion;
use std::ops::Range;

/// A copy of a [`Decoder`](super::Decoder)'s weights for acting on the CPU.
#[derive(Clone, Debug)]
pub struct NativeDecoder {
    shape: Box<DecoderShape>,
    input: Dense,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Dense,
    rope: RopeTable,
}

/// The weights of a layer.
#[derive(Clone, Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    queries: Dense,
    keys: Dense,
    values: Dense,
    output: Dense,
    mlp_norm: Vec<f32>,
    gate: Dense,
    up: Dense,
    down: Dense,
}

/// Scratch buffers of one thread.
#[derive(Clone, Debug)]
pub struct DecoderScratch {
    /// The residual stream, the stream after a norm, and the result of a block: `[hidden_size]` each.
    stream: Vec<Lanes>,
    normed: Vec<Lanes>,
    block: Vec<Lanes>,
    queries: Vec<Lanes>,
    keys: Vec<Lanes>,
    values: Vec<Lanes>,
    /// The gate and the up projection: `[intermediate_size]` each.
    gate: Vec<Lanes>,
    up: Vec<Lanes>,
    /// The scores of a head: `[context]`.
    scores: Vec<Lanes>,
    /// Cosines, then sines: `[head_dim / 2]` each.
    rotations: [Vec<Lanes>; 2],
    logits: Vec<Lanes>,
}

impl NativeDecoder {
    /// Creates the network from parameters in the order of [`flatten`](crate::model::flatten).
    ///
    /// # Panics
    /// If the number of parameters differs.
    pub fn from_params(shape: DecoderShape, params: &[f32]) -> Self {
        assert_eq!(params.len(), shape.num_params(), "params: [num_params]");
        let layout = Layout::new(&shape);
        let copy = |place: &Range<usize>| params[place.clone()].to_vec();
        let dense = |linear: &LinearLayout| Dense {
            inputs: linear.inputs,
            outputs: linear.outputs,
            weight: copy(&linear.weight),
            bias: if linear.bias.is_empty() {
                vec![0.0; linear.outputs]
            } else {
                copy(&linear.bias)
            },
        };
        let layers = layout.layers.iter().map(|layer| {
            let [queries, keys, values, output, gate, up, down] =
                layer.linears.each_ref().map(dense);
            Layer {
                attention_norm: copy(&layer.norms.before_attention),
                queries,
                keys,
                values,
                output,
                mlp_norm: copy(&layer.norms.before_mlp),
                gate,
                up,
                down,
            }
        });
        let layers = layers.collect();
        let input =
            dense(layout.input.as_ref().expect("this decoder takes observations, not tokens"));
        let (norm, head) = (copy(&layout.norm), dense(&layout.head));
        let rope = shape.rope_tables().swap_remove(0);
        Self { input, layers, norm, head, rope, shape: Box::new(shape) }
    }

    /// Computes a layer's attention from `scratch.normed` to `scratch.block`, after appending the step's keys and
    /// values to the layer's cache in `memory`.
    fn attend(
        &self,
        index: usize,
        layer: &Layer,
        memory: &mut [Lanes],
        scratch: &mut DecoderScratch,
    ) {
        let (shape, s) = (&self.shape, scratch);
        let (kv, head_dim) = (shape.kv_size(), shape.head_dim);
        let past_steps = memory[0];
        layer.queries.apply(&s.normed, &mut s.queries);
        layer.keys.apply(&s.normed, &mut s.keys);
        layer.values.apply(&s.normed, &mut s.values);
        let scale = shape.head_shape().scale;
        s.queries.chunks_exact_mut(head_dim).for_each(|head| rotate(head, &s.rotations, scale));
        s.keys.chunks_exact_mut(head_dim).for_each(|head| rotate(head, &s.rotations, 1.0));
        let cache = &mut memory[shape.cache_start(index)..][..2 * shape.cache_size()];
        let (keys, values) = cache.split_at_mut(shape.cache_size());
        write_step(keys, &s.keys, &past_steps, shape.context);
        write_step(values, &s.values, &past_steps, shape.context);
        let rows = past_steps.iter().map(|n| *n as usize + 1).max().unwrap_or(0).min(shape.context);
        let heads_per_kv_head = shape.head_shape().heads_per_kv_head();
        for (head, query) in s.queries.chunks_exact(head_dim).enumerate() {
            let start = head / heads_per_kv_head * head_dim;
            let output = &mut s.normed[head * head_dim..][..head_dim];
            let cache = Cache { keys: &keys[start..], values: &values[start..], stride: kv };
            attend_head(query, &cache, &past_steps, &mut s.scores[..rows], output);
        }
        layer.output.apply(&s.normed, &mut s.block);
    }
}

impl Actor for NativeDecoder {
    type Scratch = DecoderScratch;

    fn sizes(&self) -> PolicySizes {
        PolicySizes {
            num_features: self.shape.num_features(),
            num_actions: self.shape.num_outputs,
            memory_size: self.shape.memory_size(),
        }
    }

    fn new_scratch(&self) -> DecoderScratch {
        let shape = &self.shape;
        let (size, inner) = (shape.hidden_size, shape.intermediate_size);
        let zeros = |count: usize| vec![[0.0; LANES]; count];
        DecoderScratch {
            stream: zeros(size),
            normed: zeros(size),
            block: zeros(size),
            queries: zeros(size),
            keys: zeros(shape.kv_size()),
            values: zeros(shape.kv_size()),
            gate: zeros(inner),
            up: zeros(inner),
            scores: zeros(shape.context),
            rotations: [zeros(shape.head_dim / 2), zeros(shape.head_dim / 2)],
            logits: zeros(shape.num_outputs),
        }
    }

    /// Computes the logits of a step of [`LANES`] games, and appends the step to their memory.
    fn compute_logits<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut DecoderScratch,
    ) -> &'a [Lanes] {
        assert_eq!(obs.len(), self.num_features(), "obs: [num_features][LANES]");
        assert_eq!(memory.len(), self.memory_size(), "memory: [memory_size][LANES]");
        let eps = self.shape.rms_norm_eps;
        for (lane, count) in memory[0].iter().enumerate() {
            for (i, rotation) in self.rope.at(*count as usize).enumerate() {
                let coordinates = scratch.rotations.iter_mut().zip(rotation);
                coordinates.for_each(|(lanes, x)| lanes[i][lane] = x);
            }
        }
        self.input.apply(obs, &mut scratch.stream);
        for (i, layer) in self.layers.iter().enumerate() {
            normalize(&scratch.stream, &layer.attention_norm, eps, &mut scratch.normed);
            self.attend(i, layer, memory, scratch);
            add(&scratch.block, &mut scratch.stream);
            normalize(&scratch.stream, &layer.mlp_norm, eps, &mut scratch.normed);
            layer.gate.apply(&scratch.normed, &mut scratch.gate);
            layer.up.apply(&scratch.normed, &mut scratch.up);
            multiply_gate(&scratch.up, &mut scratch.gate);
            layer.down.apply(&scratch.gate, &mut scratch.block);
            add(&scratch.block, &mut scratch.stream);
        }
        memory[0].iter_mut().for_each(|count| *count += 1.0);
        normalize(&scratch.stream, &self.norm, eps, &mut scratch.normed);
        self.head.apply(&scratch.normed, &mut scratch.logits);
        &scratch.logits
    }
}

/// Computes the root-mean-square norm, `x / sqrt(mean(x^2) + eps) * weight`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn normalize(x: &[Lanes], weight: &[f32], eps: f32, normed: &mut [Lanes]) {
    let mut squares = [0.0f32; LANES];
    for x in x {
        for (square, x) in squares.iter_mut().zip(x) {
            *square = mul_add(*x, *x, *square);
        }
    }
    let mut scale = [0.0f32; LANES];
    for (scale, square) in scale.iter_mut().zip(&squares) {
        *scale = 1.0 / (square / weight.len() as f32 + eps).sqrt();
    }
    for ((normed, x), weight) in normed.iter_mut().zip(x).zip(weight) {
        for lane in 0..LANES {
            normed[lane] = x[lane] * scale[lane] * weight;
        }
    }
}

/// Adds the result of a block to the stream.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn add(block: &[Lanes], stream: &mut [Lanes]) {
    stream.as_flattened_mut().iter_mut().zip(block.as_flattened()).for_each(|(x, y)| *x += y);
}

/// Replaces `gate` by `silu(gate) * up`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn multiply_gate(up: &[Lanes], gate: &mut [Lanes]) {
    for (gate, up) in gate.as_flattened_mut().iter_mut().zip(up.as_flattened()) {
        *gate = *gate * sigmoid(*gate) * up;
    }
}

/// Rotates a head by cosines and sines, and scales it.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn rotate(head: &mut [Lanes], rotations: &[Vec<Lanes>; 2], scale: f32) {
    let [cosines, sines] = rotations;
    let (left, right) = head.split_at_mut(cosines.len());
    for ((a, b), (cos, sin)) in left.iter_mut().zip(right).zip(cosines.iter().zip(sines)) {
        for lane in 0..LANES {
            let (x, y) = rotate_pair(a[lane], b[lane], cos[lane], sin[lane]);
            (a[lane], b[lane]) = (x * scale, y * scale);
        }
    }
}

/// Writes a step's keys or values to each lane's row of a cache, `[context][kv_size]`.
fn write_step(cache: &mut [Lanes], step: &[Lanes], past_steps: &Lanes, context: usize) {
    let rows = past_steps.map(|n| n as usize % context);
    if rows == [rows[0]; LANES] {
        cache[rows[0] * step.len()..][..step.len()].copy_from_slice(step);
        return;
    }
    for (lane, row) in rows.into_iter().enumerate() {
        let row = &mut cache[row * step.len()..][..step.len()];
        row.iter_mut().zip(step).for_each(|(to, from)| to[lane] = from[lane]);
    }
}

/// Keys and values of a head; those of consecutive steps are `stride` apart.
struct Cache<'a> {
    keys: &'a [Lanes],
    values: &'a [Lanes],
    stride: usize,
}

/// Computes the attention of one query over the first `scores.len()` rows of a cache. A lane with `n` earlier steps
/// (`past_steps`) attends to rows `0..=n` alone.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn attend_head(
    query: &[Lanes],
    cache: &Cache,
    past_steps: &Lanes,
    scores: &mut [Lanes],
    output: &mut [Lanes],
) {
    let mut max = [f32::NEG_INFINITY; LANES];
    for (row, (score, key)) in scores.iter_mut().zip(cache.keys.chunks(cache.stride)).enumerate() {
        let mut sums = [0.0f32; LANES];
        for (query, key) in query.iter().zip(key) {
            for lane in 0..LANES {
                sums[lane] = mul_add(query[lane], key[lane], sums[lane]);
            }
        }
        for lane in 0..LANES {
            score[lane] =
                if row as f32 <= past_steps[lane] { sums[lane] } else { f32::NEG_INFINITY };
            max[lane] = at_least(score[lane], max[lane]);
        }
    }
    let mut total = [0.0f32; LANES];
    for (row, score) in scores.iter_mut().enumerate() {
        for lane in 0..LANES {
            let weight = exp(score[lane] - max[lane]);
            score[lane] = if row as f32 <= past_steps[lane] { weight } else { 0.0 };
            total[lane] += score[lane];
        }
    }
    let inverse_sum = map_array(total, |total| 1.0 / total);
    for (i, output) in output.iter_mut().enumerate() {
        let mut sums = [0.0f32; LANES];
        for (weight, value) in scores.iter().zip(cache.values.chunks(cache.stride)) {
            for lane in 0..LANES {
                sums[lane] = mul_add(weight[lane], value[i][lane], sums[lane]);
            }
        }
        for lane in 0..LANES {
            output[lane] = sums[lane] * inverse_sum[lane];
        }
    }
}
