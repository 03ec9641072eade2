//! Keys and values of a piece of text, written in place, and what a query finds in them.
//!
//! A text is in one cache or in two: that of its prompt, which all completions of the prompt share, and its
//! own. Keys of 16 tokens lie side by side, so that a query is compared with as many at once; every sum runs
//! in the order of the tokens, whoever else is in the batch.

use crate::math::{at_least, exp, ln, mul_add};
use crate::model::{DecoderShape, LANES, Lanes};
use multiversion::multiversion;

/// Keys and values of a piece of text, in all layers or in the last that was gone through.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// Layers that there is room for, of which more are needed only where later passes look back.
    layers: usize,
    /// Tokens that there is room for: a multiple of [`LANES`].
    capacity: usize,
    /// The number of the cache of what comes before, and how many tokens that is.
    before: Option<(usize, usize)>,
    /// `[layers, num_kv_heads, capacity / LANES, head_dim, LANES]`.
    keys: Vec<f32>,
    /// `[layers, num_kv_heads, capacity, head_dim]`.
    values: Vec<f32>,
}

impl Cache {
    /// With room for so many tokens, which follow what is in cache number `before`, if there is one.
    pub fn new(shape: &DecoderShape, tokens: usize, before: Option<(usize, usize)>) -> Self {
        let mut cache = Self::default();
        cache.begin(shape, shape.num_layers, tokens, before);
        cache
    }

    /// Makes room for another piece of text, in the place of the last: in all layers, or in one that each takes from
    /// the layer before.
    pub fn begin(
        &mut self,
        shape: &DecoderShape,
        layers: usize,
        tokens: usize,
        before: Option<(usize, usize)>,
    ) {
        let capacity = tokens.next_multiple_of(LANES).max(self.capacity);
        if (layers, capacity) != (self.layers, self.capacity) {
            let count = layers * shape.kv_size() * capacity;
            self.keys = vec![0.0; count];
            self.values = vec![0.0; count];
            (self.layers, self.capacity) = (layers, capacity);
        }
        self.before = before;
    }

    /// The position in the text of token number `at` of this piece.
    pub fn position(&self, at: usize) -> usize {
        self.before.map_or(0, |(_, tokens)| tokens) + at
    }

    /// Puts down the keys and values of token number `at`, `[kv_size]` each.
    pub fn write(
        &mut self,
        shape: &DecoderShape,
        layer: usize,
        at: usize,
        [keys, values]: [&[f32]; 2],
    ) {
        let dim = shape.head_dim;
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

    /// Where a head's keys begin, and its values.
    fn start(&self, shape: &DecoderShape, layer: usize, head: usize) -> usize {
        (layer % self.layers * shape.num_kv_heads + head) * self.capacity * shape.head_dim
    }

    /// The first `seen` tokens of a head.
    fn piece(&self, shape: &DecoderShape, [layer, head]: [usize; 2], seen: usize) -> Piece<'_> {
        let start = self.start(shape, layer, head);
        let count = seen.next_multiple_of(LANES) * shape.head_dim;
        Piece { keys: &self.keys[start..][..count], values: &self.values[start..][..count], seen }
    }

    /// What token number `at` of this piece finds with its queries, `[query_size]`: `found`, likewise; and
    /// the logarithms by which the scores of its heads were lessened, `[num_heads]`. What comes before this piece is
    /// in one of `all` caches.
    pub fn find(
        &self,
        all: &[Self],
        shape: &DecoderShape,
        [layer, at]: [usize; 2],
        queries: &[f32],
        [found, totals]: [&mut [f32]; 2],
        scores: &mut Vec<f32>,
    ) {
        let dim = shape.head_dim;
        let scale = (dim as f32).sqrt().recip();
        let heads = queries.chunks_exact(dim).zip(found.chunks_exact_mut(dim));
        for ((number, (query, found)), total) in heads.enumerate().zip(totals) {
            let place = [layer, number / shape.heads_of_a_group()];
            let own = self.piece(shape, place, at + 1);
            *total = match self.before {
                Some((number, tokens)) => {
                    let pieces = [all[number].piece(shape, place, tokens), own];
                    look_back(query, scale, &pieces, scores, found)
                }
                None => look_back(query, scale, &[own], scores, found),
            };
        }
    }
}

/// The tokens of a piece that a query sees, of one head.
struct Piece<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    seen: usize,
}

/// What a query finds in the pieces, one after the other; gives the logarithm by which its scores were
/// lessened to be weights.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn look_back(
    query: &[f32],
    scale: f32,
    pieces: &[Piece],
    scores: &mut Vec<f32>,
    found: &mut [f32],
) -> f32 {
    let dim = query.len();
    scores.clear();
    for piece in pieces {
        let first = scores.len();
        scores.resize(first + piece.keys.len() / dim, f32::NEG_INFINITY);
        let blocks = piece.keys.chunks(4 * dim * LANES);
        for (keys, scores) in blocks.zip(scores[first..].chunks_mut(4 * LANES)) {
            match keys.len() / (dim * LANES) {
                4 => compare::<4>(query, keys, scale, scores),
                3 => compare::<3>(query, keys, scale, scores),
                2 => compare::<2>(query, keys, scale, scores),
                _ => compare::<1>(query, keys, scale, scores),
            }
        }
        scores[first + piece.seen..].fill(f32::NEG_INFINITY);
    }
    let (blocks, _) = scores.as_chunks_mut::<LANES>();
    let mut max = [f32::NEG_INFINITY; LANES];
    for block in blocks.iter() {
        max.iter_mut().zip(block).for_each(|(max, x)| *max = at_least(*max, *x));
    }
    let max = max.iter().fold(f32::NEG_INFINITY, |max, x| at_least(max, *x));
    let mut total = [0.0f32; LANES];
    for block in blocks {
        for (score, total) in block.iter_mut().zip(&mut total) {
            let unseen = *score == f32::NEG_INFINITY;
            *score = if unseen { 0.0 } else { exp(*score - max) };
            *total += *score;
        }
    }
    let total: f32 = total.iter().sum();
    let share = 1.0 / total;
    match dim % (4 * LANES) {
        0 => gather::<{ 4 * LANES }>(pieces, scores, share, found),
        r if r % (2 * LANES) == 0 => gather::<{ 2 * LANES }>(pieces, scores, share, found),
        r if r % LANES == 0 => gather::<LANES>(pieces, scores, share, found),
        _ => gather::<2>(pieces, scores, share, found),
    }
    max + ln(total)
}

/// The scores of a query with `B` blocks of keys.
#[inline(always)]
fn compare<const B: usize>(query: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
    let size = query.len() * LANES;
    let blocks: [&[Lanes]; B] =
        std::array::from_fn(|b| keys[b * size..(b + 1) * size].as_chunks::<LANES>().0);
    let mut sums = [[0.0f32; LANES]; B];
    for (i, x) in query.iter().enumerate() {
        for (sums, block) in sums.iter_mut().zip(&blocks) {
            for (sum, key) in sums.iter_mut().zip(&block[i]) {
                *sum = mul_add(*x, *key, *sum);
            }
        }
    }
    let (scores, _) = scores.as_chunks_mut::<LANES>();
    for (scores, sums) in scores.iter_mut().zip(&sums) {
        scores.iter_mut().zip(sums).for_each(|(score, sum)| *score = sum * scale);
    }
}

/// The values weighted by the scores, `N` numbers of a head at a time.
#[inline(always)]
fn gather<const N: usize>(pieces: &[Piece], weights: &[f32], share: f32, found: &mut [f32]) {
    let dim = found.len();
    for (part, found) in found.chunks_exact_mut(N).enumerate() {
        let mut sums = [0.0f32; N];
        let mut weights = weights;
        for piece in pieces {
            let rows = piece.values.chunks_exact(dim).take(piece.seen);
            for (value, weight) in rows.zip(weights) {
                let value: &[f32; N] = value[part * N..][..N].try_into().expect("N numbers");
                for (sum, x) in sums.iter_mut().zip(value) {
                    *sum = mul_add(*weight, *x, *sum);
                }
            }
            weights = &weights[piece.keys.len() / dim..];
        }
        found.iter_mut().zip(&sums).for_each(|(found, sum)| *found = sum * share);
    }
}
