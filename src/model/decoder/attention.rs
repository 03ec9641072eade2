//! Attention over a whole sequence on the CPU, forward and backward, a part of the queries at a time, so
//! that the scores need no more room for a longer sequence.

use super::product::{Packed, STRIP_COLUMNS, Strips, Target, View, product, product_packed};
use super::shape::DecoderShape;
use crate::math::{at_least, exp, ln};
use crate::model::LANES;
use multiversion::multiversion;

/// Queries that are compared with keys at a time: as many as a strip of keys.
const QUERIES: usize = STRIP_COLUMNS;

/// What the steps of a game see.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// The first key that each step sees; the last is its own: `[num_steps]`.
    pub first: Vec<usize>,
    /// Keys that were there before the first step.
    pub before: usize,
}

/// Queries, `[num_steps, query_size]`, and all keys and values, `[before + num_steps, kv_size]`.
#[derive(Clone, Copy)]
pub struct Heads<'a> {
    pub queries: &'a [f32],
    pub keys: &'a [f32],
    pub values: &'a [f32],
}

/// What a backward pass knows of the forward one: what was found, `[num_steps, query_size]`, the
/// logarithms of the weights' totals, `[num_heads, num_steps]`, and the gradient of what was found.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    pub found: &'a [f32],
    pub totals: &'a [f32],
    pub gradient: &'a [f32],
}

/// Room for a part of the queries, and for the keys and values of a head as products read them: as columns, and as rows.
#[derive(Clone, Debug, Default)]
pub struct Room {
    weights: Vec<f32>,
    slopes: Vec<f32>,
    key_columns: Packed,
    value_columns: Packed,
    rows: Packed,
}

/// A part of the queries of a head, and whole strips of keys, or all that there are, with those that they see.
struct Part {
    /// The first query, and their number.
    from: usize,
    count: usize,
    /// The first key, and their number.
    first: usize,
    keys: usize,
}

fn parts(sight: &Sight) -> impl Iterator<Item = Part> {
    let steps = sight.first.len();
    (0..steps).step_by(QUERIES).map(move |from| {
        let to = (from + QUERIES).min(steps);
        let first = sight.first[from] / STRIP_COLUMNS * STRIP_COLUMNS;
        let last = (sight.before + to).next_multiple_of(STRIP_COLUMNS).min(sight.before + steps);
        Part { from, count: to - from, first, keys: last - first }
    })
}

/// One head of queries with its keys and values.
struct Head<'a> {
    queries: View<'a>,
    keys: View<'a>,
    values: View<'a>,
    dim: usize,
    scale: f32,
}

impl<'a> Head<'a> {
    fn new(shape: &DecoderShape, heads: Heads<'a>, number: usize) -> Self {
        let dim = shape.head_dim;
        let own = number / shape.heads_of_a_group() * dim;
        let view = |values: &'a [f32], row: usize| View { values, row, column: 1 };
        Self {
            queries: view(&heads.queries[number * dim..], shape.query_size()),
            keys: view(&heads.keys[own..], shape.kv_size()),
            values: view(&heads.values[own..], shape.kv_size()),
            dim,
            scale: (dim as f32).sqrt().recip(),
        }
    }
}

/// The products of some rows of `a` with some columns of `b`, in `to`.
fn compare(a: View, b: Strips, part: &Part, to: &mut Vec<f32>) {
    to.resize(part.count * part.keys, 0.0);
    let target = Target { values: to, row: part.keys, add: false };
    let b = b.strips_from(part.first / STRIP_COLUMNS, part.keys);
    product_packed(a.rows_from(part.from), b, target, part.count);
}

/// Fills `found` and `totals` ([`Found`]).
pub fn forward(
    shape: &DecoderShape,
    heads: Heads,
    sight: &Sight,
    [found, totals]: [&mut [f32]; 2],
    room: &mut Room,
) {
    let steps = sight.first.len();
    let seen = sight.before + steps;
    for number in 0..shape.num_heads {
        let head = Head::new(shape, heads, number);
        if number % shape.heads_of_a_group() == 0 {
            room.key_columns.pack(head.keys.transposed(), head.dim, seen);
            room.rows.pack(head.values, seen, head.dim);
        }
        for part in parts(sight) {
            let weights = &mut room.weights;
            compare(head.queries, room.key_columns.strips(), &part, weights);
            for (q, weights) in weights.chunks_exact_mut(part.keys).enumerate() {
                let t = part.from + q;
                let seen = sight.first[t] - part.first..sight.before + t + 1 - part.first;
                totals[number * steps + t] = softmax(weights, seen, head.scale);
            }
            let target = Target {
                values: &mut found[part.from * shape.query_size() + number * head.dim..],
                row: shape.query_size(),
                add: false,
            };
            let values = room.rows.strips().rows(part.first, part.keys);
            product_packed(View::rows(weights, part.keys), values, target, part.count);
        }
    }
}

/// Fills the gradient of the queries, and adds to those of keys and values: `to`.
pub fn backward(
    shape: &DecoderShape,
    heads: Heads,
    sight: &Sight,
    of: Found,
    to: [&mut [f32]; 3],
    room: &mut Room,
) {
    let (steps, size, kv) = (sight.first.len(), shape.query_size(), shape.kv_size());
    let [queries, keys, values] = to;
    for number in 0..shape.num_heads {
        let head = Head::new(shape, heads, number);
        let (dim, column) = (head.dim, number * head.dim);
        let own = number / shape.heads_of_a_group() * dim;
        let gradient = View { values: &of.gradient[column..], row: size, column: 1 };
        let Room { weights, slopes, key_columns, value_columns, rows } = room;
        if number % shape.heads_of_a_group() == 0 {
            let seen = sight.before + steps;
            key_columns.pack(head.keys.transposed(), dim, seen);
            value_columns.pack(head.values.transposed(), dim, seen);
            rows.pack(head.keys, seen, dim);
        }
        for part in parts(sight) {
            let Part { from, count, first, keys: n } = part;
            compare(head.queries, key_columns.strips(), &part, weights);
            compare(gradient, value_columns.strips(), &part, slopes);
            for q in 0..count {
                let t = from + q;
                let row = t * size + column..t * size + column + dim;
                let mean: f32 =
                    of.found[row.clone()].iter().zip(&of.gradient[row]).map(|(x, y)| x * y).sum();
                let seen = sight.first[t] - first..sight.before + t + 1 - first;
                let row = q * n..(q + 1) * n;
                let (weights, slopes) = (&mut weights[row.clone()], &mut slopes[row]);
                differentiate(
                    weights,
                    slopes,
                    seen,
                    [head.scale, of.totals[number * steps + t], mean],
                );
            }
            let (weights, slopes) = (View::rows(weights, n), View::rows(slopes, n));
            let target = Target { values: &mut values[first * kv + own..], row: kv, add: true };
            product(weights.transposed(), gradient.rows_from(from), target, [n, count, dim]);
            let target = Target { values: &mut keys[first * kv + own..], row: kv, add: true };
            product(slopes.transposed(), head.queries.rows_from(from), target, [n, count, dim]);
            let target =
                Target { values: &mut queries[from * size + column..], row: size, add: false };
            product_packed(slopes, rows.strips().rows(first, n), target, count);
        }
    }
}

/// Turns scores into weights that add up to 1, 0 where nothing is `seen`; gives the logarithm by which the
/// scores are to be lessened.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn softmax(scores: &mut [f32], seen: std::ops::Range<usize>, scale: f32) -> f32 {
    scores[..seen.start].fill(0.0);
    scores[seen.end..].fill(0.0);
    let scores = &mut scores[seen];
    let (vectors, rest) = scores.as_chunks_mut::<LANES>();
    let mut max = [f32::NEG_INFINITY; LANES];
    for vector in &*vectors {
        max.iter_mut().zip(vector).for_each(|(max, x)| *max = at_least(*max, *x));
    }
    max.iter_mut().zip(&*rest).for_each(|(max, x)| *max = at_least(*max, *x));
    let max = max.iter().fold(f32::NEG_INFINITY, |max, x| at_least(max, *x)) * scale;
    let mut total = [0.0f32; LANES];
    for vector in vectors {
        for (score, total) in vector.iter_mut().zip(&mut total) {
            *score = exp(*score * scale - max);
            *total += *score;
        }
    }
    for (score, total) in rest.iter_mut().zip(&mut total) {
        *score = exp(*score * scale - max);
        *total += *score;
    }
    let total: f32 = total.iter().sum();
    let share = 1.0 / total;
    scores.iter_mut().for_each(|score| *score *= share);
    max + ln(total)
}

/// Turns scores into weights again, and the weights' gradients `slopes` into those of the scores before they
/// were scaled.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn differentiate(
    scores: &mut [f32],
    slopes: &mut [f32],
    seen: std::ops::Range<usize>,
    [scale, total, mean]: [f32; 3],
) {
    for values in [&mut *scores, &mut *slopes] {
        values[..seen.start].fill(0.0);
        values[seen.end..].fill(0.0);
    }
    for (score, slope) in scores[seen.clone()].iter_mut().zip(&mut slopes[seen]) {
        *score = exp(*score * scale - total);
        *slope = *score * (*slope - mean) * scale;
    }
}
