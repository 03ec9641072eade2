//! Attention over a whole sequence, forward and backward, a tile of queries at a time, so that the memory of the
//! scores does not grow with the square of the length.

use super::{AttentionOutput, HeadShape};
use crate::math::{LANES, exp, ln};
use crate::nn::ops::matmul::{
    PackedMatrix, STRIP_COLUMNS, Strips, Target, View, matmul, matmul_packed,
};
use crate::nn::ops::{Parallelism, WriteMode, maximum};
use multiversion::multiversion;

/// Queries of a tile: as many as a strip of keys.
const TILE_QUERIES: usize = STRIP_COLUMNS;

/// The keys that each row of a sequence sees: an interval that ends with the row's own key.
///
/// Keys are those of `prefix_len` earlier rows, then the sequence's own.
#[derive(Clone, Copy, Debug)]
pub struct AttentionMask<'a> {
    /// Rows of the sequence.
    pub rows: usize,
    /// Keys before the first row.
    pub prefix_len: usize,
    /// The first key of each row's episode: `[rows]`, or empty if all rows see the prefix's first key.
    pub starts: &'a [usize],
    /// Maximum number of keys that a row sees, its own included.
    pub window: usize,
}

impl AttentionMask<'_> {
    /// The first key that a row sees.
    fn first(&self, row: usize) -> usize {
        let start = self.starts.get(row).copied().unwrap_or(0);
        start.max((self.prefix_len + row + 1).saturating_sub(self.window))
    }
}

/// Queries, `[rows, query_size]`, and the keys and values of the prefix and the rows, `[prefix_len + rows, kv_size]`.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs<'a> {
    /// The queries.
    pub queries: &'a [f32],
    /// The keys.
    pub keys: &'a [f32],
    /// The values.
    pub values: &'a [f32],
}

/// The result of the forward pass, as the backward pass needs it, and its gradient.
#[derive(Clone, Copy, Debug)]
pub struct AttentionPass<'a> {
    /// The result: `[rows, query_size]`.
    pub output: &'a [f32],
    /// The log-sum-exp of the scores of each row and head: `[rows, heads]`.
    pub log_sum_exps: &'a [f32],
    /// The gradient of the result.
    pub gradient: &'a [f32],
}

/// Destinations of a backward pass, of the sizes of [`AttentionInputs`].
#[derive(Debug)]
pub struct AttentionGradients<'a> {
    /// The gradient of the queries, which is replaced.
    pub d_queries: &'a mut [f32],
    /// The gradient of the keys, to which the pass adds.
    pub d_keys: &'a mut [f32],
    /// The gradient of the values, to which the pass adds.
    pub d_values: &'a mut [f32],
}

/// The scores of a tile, and packed keys and values of a head: as columns and as rows.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    weights: Vec<f32>,
    d_weights: Vec<f32>,
    key_columns: PackedMatrix,
    value_columns: PackedMatrix,
    rows: PackedMatrix,
}

/// A tile of queries, and whole strips of the keys that they see.
struct Tile {
    first_query: usize,
    num_queries: usize,
    first_key: usize,
    num_keys: usize,
}

/// The tiles of a sequence, in order.
fn tiles<'a>(mask: &AttentionMask<'a>) -> impl Iterator<Item = Tile> + use<'a> {
    let mask = *mask;
    (0..mask.rows).step_by(TILE_QUERIES).map(move |first_query| {
        let end_query = (first_query + TILE_QUERIES).min(mask.rows);
        let first_key = mask.first(first_query) / STRIP_COLUMNS * STRIP_COLUMNS;
        let end_key = (mask.prefix_len + end_query)
            .next_multiple_of(STRIP_COLUMNS)
            .min(mask.prefix_len + mask.rows);
        Tile {
            first_query,
            num_queries: end_query - first_query,
            first_key,
            num_keys: end_key - first_key,
        }
    })
}

/// One head of queries with its keys and values.
struct Head<'a> {
    queries: View<'a>,
    keys: View<'a>,
    values: View<'a>,
}

impl<'a> Head<'a> {
    fn new(shape: &HeadShape, inputs: AttentionInputs<'a>, head_index: usize) -> Self {
        let kv_start = head_index / shape.heads_per_kv_head() * shape.dim;
        Self {
            queries: View::rows(&inputs.queries[head_index * shape.dim..], shape.query_size()),
            keys: View::rows(&inputs.keys[kv_start..], shape.kv_size()),
            values: View::rows(&inputs.values[kv_start..], shape.kv_size()),
        }
    }
}

/// Fills `products` with the products of a tile's rows of `a` with its columns of `b`.
fn multiply_tile(a: View, b: Strips, tile: &Tile, products: &mut Vec<f32>) {
    products.resize(tile.num_queries * tile.num_keys, 0.0);
    let target = Target::rows(products, tile.num_keys, WriteMode::Overwrite);
    let b = b.strips_from(tile.first_key / STRIP_COLUMNS, tile.num_keys);
    matmul_packed(a.rows_from(tile.first_query), b, target, tile.num_queries);
}

/// Fills the result and the log-sum-exps of the rows' scores.
pub fn forward(
    shape: &HeadShape,
    inputs: AttentionInputs,
    mask: &AttentionMask,
    AttentionOutput { output, log_sum_exps }: AttentionOutput,
    scratch: &mut Scratch,
) {
    let (dim, num_keys) = (shape.dim, mask.prefix_len + mask.rows);
    for head_index in 0..shape.heads {
        let head = Head::new(shape, inputs, head_index);
        if head_index % shape.heads_per_kv_head() == 0 {
            scratch.key_columns.pack(Parallelism::Sequential, head.keys.transpose(), dim, num_keys);
            scratch.rows.pack(Parallelism::Sequential, head.values, num_keys, dim);
        }
        for tile in tiles(mask) {
            let weights = &mut scratch.weights;
            multiply_tile(head.queries, scratch.key_columns.strips(), &tile, weights);
            for (q, weights) in weights.chunks_exact_mut(tile.num_keys).enumerate() {
                let t = tile.first_query + q;
                let visible =
                    mask.first(t) - tile.first_key..mask.prefix_len + t + 1 - tile.first_key;
                log_sum_exps[t * shape.heads + head_index] =
                    softmax_with_log_sum_exp(weights, visible, shape.scale);
            }
            let start = tile.first_query * shape.query_size() + head_index * dim;
            let target =
                Target::rows(&mut output[start..], shape.query_size(), WriteMode::Overwrite);
            let values = scratch.rows.strips().rows(tile.first_key, tile.num_keys);
            matmul_packed(View::rows(weights, tile.num_keys), values, target, tile.num_queries);
        }
    }
}

/// Fills `d_queries`, the gradient of the queries, and adds to `d_keys` and `d_values`.
pub fn backward(
    shape: &HeadShape,
    inputs: AttentionInputs,
    mask: &AttentionMask,
    pass: AttentionPass,
    AttentionGradients { d_queries, d_keys, d_values }: AttentionGradients,
    scratch: &mut Scratch,
) {
    let (dim, query_size, kv_size) = (shape.dim, shape.query_size(), shape.kv_size());
    for head_index in 0..shape.heads {
        let head = Head::new(shape, inputs, head_index);
        let column = head_index * dim;
        let kv_start = head_index / shape.heads_per_kv_head() * dim;
        let gradient = View::rows(&pass.gradient[column..], query_size);
        let Scratch { weights, d_weights, key_columns, value_columns, rows } = scratch;
        if head_index % shape.heads_per_kv_head() == 0 {
            let num_keys = mask.prefix_len + mask.rows;
            key_columns.pack(Parallelism::Sequential, head.keys.transpose(), dim, num_keys);
            value_columns.pack(Parallelism::Sequential, head.values.transpose(), dim, num_keys);
            rows.pack(Parallelism::Sequential, head.keys, num_keys, dim);
        }
        for tile in tiles(mask) {
            let Tile { first_query, num_queries, first_key, num_keys } = tile;
            multiply_tile(head.queries, key_columns.strips(), &tile, weights);
            multiply_tile(gradient, value_columns.strips(), &tile, d_weights);
            let rows_of =
                weights.chunks_exact_mut(num_keys).zip(d_weights.chunks_exact_mut(num_keys));
            for (t, (weights, d_weights)) in (first_query..).zip(rows_of) {
                let row = t * query_size + column..t * query_size + column + dim;
                let products = pass.output[row.clone()].iter().zip(&pass.gradient[row]);
                let mean: f32 = products.map(|(x, y)| x * y).sum();
                let visible = mask.first(t) - first_key..mask.prefix_len + t + 1 - first_key;
                let log_sum_exp = pass.log_sum_exps[t * shape.heads + head_index];
                softmax_backward(weights, d_weights, visible, shape.scale, log_sum_exp, mean);
            }
            let d_weights = View::rows(d_weights, num_keys);
            let of_values = (&mut *d_values, View::rows(weights, num_keys), gradient);
            for (sums, weights, rows) in [of_values, (&mut *d_keys, d_weights, head.queries)] {
                let sums = &mut sums[first_key * kv_size + kv_start..];
                let target = Target::rows(sums, kv_size, WriteMode::Accumulate);
                let sizes = [num_keys, num_queries, dim];
                matmul(weights.transpose(), rows.rows_from(first_query), target, sizes);
            }
            let d_queries = &mut d_queries[first_query * query_size + column..];
            let target = Target::rows(d_queries, query_size, WriteMode::Overwrite);
            matmul_packed(d_weights, rows.strips().rows(first_key, num_keys), target, num_queries);
        }
    }
}

/// Turns scores into weights that add up to 1, 0 outside of `visible`; returns the log-sum-exp of the scaled scores.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn softmax_with_log_sum_exp(
    scores: &mut [f32],
    visible: std::ops::Range<usize>,
    scale: f32,
) -> f32 {
    scores[..visible.start].fill(0.0);
    scores[visible.end..].fill(0.0);
    let scores = &mut scores[visible];
    let max = maximum(scores) * scale;
    let (vectors, rest) = scores.as_chunks_mut::<LANES>();
    let mut sum = [0.0f32; LANES];
    for vector in vectors {
        for (score, sum) in vector.iter_mut().zip(&mut sum) {
            *score = exp(*score * scale - max);
            *sum += *score;
        }
    }
    for (score, sum) in rest.iter_mut().zip(&mut sum) {
        *score = exp(*score * scale - max);
        *sum += *score;
    }
    let sum: f32 = sum.iter().sum();
    let inverse_sum = 1.0 / sum;
    scores.iter_mut().for_each(|score| *score *= inverse_sum);
    max + ln(sum)
}

/// Turns scores into weights again, and `d_weights`, the gradients of the weights, whose mean under the weights is
/// `mean`, into those of the unscaled scores.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn softmax_backward(
    scores: &mut [f32],
    d_weights: &mut [f32],
    visible: std::ops::Range<usize>,
    scale: f32,
    log_sum_exp: f32,
    mean: f32,
) {
    for values in [&mut *scores, &mut *d_weights] {
        values[..visible.start].fill(0.0);
        values[visible.end..].fill(0.0);
    }
    for (score, d_weight) in scores[visible.clone()].iter_mut().zip(&mut d_weights[visible]) {
        *score = exp(*score * scale - log_sum_exp);
        *d_weight = *score * (*d_weight - mean) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted_sum};

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(10);
        for round in 0..8 {
            let (kv_heads, group, dim) =
                (draws.next_size(2), draws.next_size(2), 2 * draws.next_size(3));
            // Some sequences are longer than a tile.
            let rows = if round == 0 { TILE_QUERIES + 5 } else { draws.next_size(9) };
            let (prefix_len, window) = (draws.next_size(5) - 1, draws.next_size(12));
            let starts: Vec<usize> = match round % 2 {
                0 => Vec::new(),
                _ => (0..rows)
                    .map(|row| if row < rows / 2 { 0 } else { prefix_len + rows / 2 })
                    .collect(),
            };
            let mask = AttentionMask { rows, prefix_len, starts: &starts, window };
            let shape = HeadShape { heads: kv_heads * group, kv_heads, dim, scale: 0.7 };
            let queries = draws.next_numbers(rows * shape.query_size());
            let [keys, values] =
                [(); 2].map(|()| draws.next_numbers((prefix_len + rows) * shape.kv_size()));
            let gradient = draws.next_numbers(queries.len());
            let run = |queries: &[f32], keys: &[f32], values: &[f32]| {
                let (mut output, mut log_sum_exps) =
                    (vec![0.0; queries.len()], vec![0.0; rows * shape.heads]);
                let inputs = AttentionInputs { queries, keys, values };
                let to = AttentionOutput { output: &mut output, log_sum_exps: &mut log_sum_exps };
                forward(&shape, inputs, &mask, to, &mut Scratch::default());
                (output, log_sum_exps)
            };
            let (output, log_sum_exps) = run(&queries, &keys, &values);
            let mut d = [vec![0.0; queries.len()], vec![0.0; keys.len()], vec![0.0; values.len()]];
            let inputs = AttentionInputs { queries: &queries, keys: &keys, values: &values };
            let pass =
                AttentionPass { output: &output, log_sum_exps: &log_sum_exps, gradient: &gradient };
            let [d_queries, d_keys, d_values] = d.each_mut().map(|d| &mut d[..]);
            let to = AttentionGradients { d_queries, d_keys, d_values };
            backward(&shape, inputs, &mask, pass, to, &mut Scratch::default());
            let loss = |q: &[f32], k: &[f32], v: &[f32]| weighted_sum(&run(q, k, v).0, &gradient);
            assert_gradient("queries", &queries, &d[0], |x| loss(x, &keys, &values));
            assert_gradient("keys", &keys, &d[1], |x| loss(&queries, x, &values));
            assert_gradient("values", &values, &d[2], |x| loss(&queries, &keys, x));
        }
    }
}
