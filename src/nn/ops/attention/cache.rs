//! The KV cache of a piece of text, and the attention of one query over it.
//!
//! A text occupies one cache, or two: that of a prompt, shared by all its completions, and its own. Keys of [`LANES`]
//! tokens lie side by side, so that a query is compared with as many at once; every sum runs in the order of the
//! tokens, whatever the batch.

use super::HeadShape;
use super::products::{compare, gather};
use crate::math::{LANES, exp, ln};
use crate::nn::ops::largest;
use multiversion::multiversion;
use std::cell::RefCell;

thread_local! {
    /// The memory of the scores of some queries, for reuse.
    static SCORES: RefCell<Vec<f32>> = RefCell::default();
}

/// The text that a piece follows, in another cache.
#[derive(Clone, Copy, Debug)]
pub struct PrefixCache {
    /// Index of the cache among all.
    pub index: usize,
    /// Tokens in it.
    pub tokens: usize,
}

/// The keys and values of a piece of text, in all layers or in the last one executed.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// Layers that are stored: all, or 1 that every layer overwrites (a training pass).
    layers: usize,
    /// Tokens that fit: a multiple of [`LANES`].
    capacity: usize,
    prefix: Option<PrefixCache>,
    /// `[layers, kv_heads, capacity / LANES, head_dim, LANES]`.
    keys: Vec<f32>,
    /// `[layers, kv_heads, capacity, head_dim]`.
    values: Vec<f32>,
}

impl Cache {
    /// A cache for `tokens` tokens in each of `layers` layers, which follow the text of `prefix`, if any.
    pub fn new(
        shape: &HeadShape,
        layers: usize,
        tokens: usize,
        prefix: Option<PrefixCache>,
    ) -> Self {
        let mut cache = Self::default();
        cache.begin(shape, layers, tokens, prefix);
        cache
    }

    /// Replaces the piece of text, and makes room for `tokens` tokens in each of `layers` layers: all layers, or one
    /// that each layer takes over from the one before.
    pub fn begin(
        &mut self,
        shape: &HeadShape,
        layers: usize,
        tokens: usize,
        prefix: Option<PrefixCache>,
    ) {
        let capacity = tokens.next_multiple_of(LANES).max(self.capacity);
        if (layers, capacity) != (self.layers, self.capacity) {
            let count = layers * shape.kv_size() * capacity;
            self.keys = vec![0.0; count];
            self.values = vec![0.0; count];
            (self.layers, self.capacity) = (layers, capacity);
        }
        self.prefix = prefix;
    }

    /// The position in the whole text of token number `at` of this piece.
    pub fn position(&self, at: usize) -> usize {
        self.prefix.map_or(0, |prefix| prefix.tokens) + at
    }

    /// Stores the keys and values of token number `at`, `[kv_size]` each.
    pub fn write(
        &mut self,
        shape: &HeadShape,
        layer: usize,
        at: usize,
        [keys, values]: [&[f32]; 2],
    ) {
        let dim = shape.dim;
        let heads = keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate();
        for (head, (key, value)) in heads {
            let start = self.start(shape, layer, head);
            let block = start + at / LANES * dim * LANES + at % LANES;
            for (i, x) in key.iter().enumerate() {
                self.keys[block + i * LANES] = *x;
            }
            self.values[start + at * dim..][..dim].copy_from_slice(value);
        }
    }

    /// The offset of a head's keys, and of its values.
    fn start(&self, shape: &HeadShape, layer: usize, head: usize) -> usize {
        (layer % self.layers * shape.kv_heads + head) * self.capacity * shape.dim
    }

    /// The tokens `first..seen` of a head.
    fn piece(
        &self,
        shape: &HeadShape,
        [layer, head]: [usize; 2],
        [first, seen]: [usize; 2],
    ) -> Piece<'_> {
        let start = self.start(shape, layer, head);
        // Whole blocks, so that a window changes no sum.
        let block = first / LANES * LANES;
        let range = start + block * shape.dim..start + seen.next_multiple_of(LANES) * shape.dim;
        let (keys, values) = (&self.keys[range.clone()], &self.values[range]);
        Piece { keys, values, first: first - block, seen: seen - block }
    }

    /// Fills `output`, the result of attention for the queries of token number `at`, `[query_size]`, and the logarithms
    /// of its softmaxes' totals, `[heads]`. The prefix is in one of `all` caches; `window` is the most tokens that a
    /// query sees, its own included.
    pub fn attend(
        &self,
        all: &[Self],
        shape: &HeadShape,
        (layer, at, window): (usize, usize, usize),
        queries: &[f32],
        [output, log_totals]: [&mut [f32]; 2],
    ) {
        let mut scores = SCORES.take();
        let width = shape.group() * shape.dim;
        let heads = queries.chunks_exact(width).zip(output.chunks_exact_mut(width));
        let log_totals = log_totals.chunks_exact_mut(shape.group());
        let first = (self.position(at) + 1).saturating_sub(window);
        for ((head, (queries, output)), log_totals) in heads.enumerate().zip(log_totals) {
            let place = [layer, head];
            let to = [output, log_totals];
            match self.prefix {
                Some(PrefixCache { index, tokens }) if first < tokens => {
                    let prefix = all[index].piece(shape, place, [first, tokens]);
                    let pieces = [prefix, self.piece(shape, place, [0, at + 1])];
                    attend_group(queries, shape, &pieces, &mut scores, to);
                }
                prefix => {
                    let first = first - prefix.map_or(0, |prefix| prefix.tokens);
                    let own = self.piece(shape, place, [first, at + 1]);
                    attend_group(queries, shape, &[own], &mut scores, to);
                }
            }
        }
        SCORES.set(scores);
    }
}

/// Fills the results of all queries that share a head of keys, some side by side, and the logarithms of their
/// softmaxes' totals.
fn attend_group(
    queries: &[f32],
    shape: &HeadShape,
    pieces: &[Piece],
    scores: &mut Vec<f32>,
    [mut output, mut log_totals]: [&mut [f32]; 2],
) {
    let mut queries = queries;
    while !log_totals.is_empty() {
        // Three at a time, but never one that could be two.
        let count = match log_totals.len() {
            4 => 2,
            left => left.min(3),
        };
        let (some, after) = queries.split_at(count * shape.dim);
        let (to, output_after) = output.split_at_mut(some.len());
        let (totals, totals_after) = log_totals.split_at_mut(count);
        match count {
            1 => attend::<1>(some, shape.scale, pieces, scores, [to, totals]),
            2 => attend::<2>(some, shape.scale, pieces, scores, [to, totals]),
            _ => attend::<3>(some, shape.scale, pieces, scores, [to, totals]),
        }
        (queries, output, log_totals) = (after, output_after, totals_after);
    }
}

/// The tokens `first..seen` of some blocks, for one head.
struct Piece<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    first: usize,
    seen: usize,
}

/// Fills the results of attention for `Q` queries over pieces in order, and the logarithms of their softmaxes' totals.
fn attend<const Q: usize>(
    queries: &[f32],
    scale: f32,
    pieces: &[Piece],
    scores: &mut Vec<f32>,
    [output, log_totals]: [&mut [f32]; 2],
) {
    let dim = queries.len() / Q;
    let length: usize = pieces.iter().map(|piece| piece.keys.len() / dim).sum();
    scores.resize(Q * length, 0.0);
    let mut start = 0;
    for piece in pieces {
        let (keys, _) = piece.keys.as_chunks::<LANES>();
        compare::<Q>(queries, keys, scale, &mut scores[start..], length);
        let end = start + piece.keys.len() / dim;
        for scores in scores.chunks_exact_mut(length) {
            scores[start..start + piece.first].fill(f32::NEG_INFINITY);
            scores[start + piece.seen..end].fill(f32::NEG_INFINITY);
        }
        start = end;
    }
    let mut totals = [0.0f32; Q];
    for ((scores, total), log_total) in
        scores.chunks_exact_mut(length).zip(&mut totals).zip(log_totals)
    {
        let max;
        (max, *total) = softmax(scores);
        *log_total = max + ln(*total);
    }
    output.fill(0.0);
    let mut start = 0;
    for piece in pieces {
        let seen = &piece.values[..piece.seen * dim];
        gather::<Q>(&scores[start..], length, seen, output);
        start += piece.keys.len() / dim;
    }
    for (output, total) in output.chunks_exact_mut(dim).zip(totals) {
        let share = 1.0 / total;
        output.iter_mut().for_each(|x| *x *= share);
    }
}

/// Turns whole blocks of scores into weights, the largest of which is 1 and those of unseen keys 0; returns the largest
/// score and the total of the weights.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn softmax(scores: &mut [f32]) -> (f32, f32) {
    let max = largest(scores);
    let (blocks, _) = scores.as_chunks_mut::<LANES>();
    let mut total = [0.0f32; LANES];
    for block in blocks {
        for (score, total) in block.iter_mut().zip(&mut total) {
            let unseen = *score == f32::NEG_INFINITY;
            *score = if unseen { 0.0 } else { exp(*score - max) };
            *total += *score;
        }
    }
    (max, total.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::attention::sequence::{self, AttentionMask, Heads, Scratch};
    use crate::nn::ops::check::Draws;

    #[test]
    fn a_query_over_caches_finds_what_a_whole_sequence_finds() {
        let mut draws = Draws::new(11);
        for round in 0..12 {
            let (kv_heads, group, dim) = (draws.size(2), draws.size(2), 2 * draws.size(9));
            let shape = HeadShape { heads: kv_heads * group, kv_heads, dim, scale: 0.4 };
            let rows = draws.size(40);
            let prefix = if round % 3 == 0 { 0 } else { draws.size(rows) - 1 };
            let window = if round % 2 == 0 { usize::MAX } else { draws.size(20) };
            let queries = draws.numbers(rows * shape.query_size());
            let [keys, values] = [(); 2].map(|()| draws.numbers(rows * shape.kv_size()));
            let mask = AttentionMask { rows, prefix: 0, starts: &[], window };
            let (mut want, mut totals) = (vec![0.0; queries.len()], vec![0.0; rows * shape.heads]);
            let heads = Heads { queries: &queries, keys: &keys, values: &values };
            let to = [&mut want[..], &mut totals[..]];
            sequence::forward(&shape, heads, &mask, to, &mut Scratch::default());
            let mut caches = vec![Cache::new(&shape, 1, prefix.max(1), None)];
            let before = PrefixCache { index: 0, tokens: prefix };
            caches.push(Cache::new(&shape, 1, rows - prefix, (prefix > 0).then_some(before)));
            let (size, kv) = (shape.query_size(), shape.kv_size());
            for row in 0..rows {
                let (cache, at) = if row < prefix { (0, row) } else { (1, row - prefix) };
                let new = [&keys, &values].map(|all| &all[row * kv..][..kv]);
                caches[cache].write(&shape, 0, at, new);
                let (mut got, mut log_totals) = (vec![0.0; size], vec![0.0; shape.heads]);
                let queries = &queries[row * size..][..size];
                let to = [&mut got[..], &mut log_totals[..]];
                let place = (0, at, window);
                caches[cache].attend(&caches, &shape, place, queries, to);
                let near = |a: &[f32], b: &[f32]| {
                    a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5 * b.abs().max(1.0))
                };
                assert!(near(&got, &want[row * size..][..size]), "row {row} of {rows}");
                assert!(near(&log_totals, &totals[row * shape.heads..][..shape.heads]));
            }
        }
    }
}
