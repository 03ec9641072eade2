//! The KV cache of a segment of text, and the attention of one query over it.
//!
//! A text occupies one cache, or two: its prompt's, which all completions of the prompt share, and its own. Keys of
//! [`LANES`] tokens lie side by side, so that a query is compared with as many at once; every sum runs in the order of
//! the tokens and in f32, whatever the batch and the cache's number format.

use super::products::{add_weighted_values, score_keys};
pub use super::words::CacheFormat;
use super::words::with_element;
use super::{AttentionOutput, HeadShape};
use crate::math::{LANES, exp, ln};
use crate::nn::ops::maximum;
use multiversion::multiversion;
use std::cell::RefCell;

thread_local! {
    /// The memory of the scores of some queries, for reuse.
    static SCORES: RefCell<Vec<f32>> = RefCell::default();
}

/// The text that precedes a segment, in another cache.
#[derive(Clone, Copy, Debug)]
pub struct PrefixCache {
    /// Index of the cache among all.
    pub index: usize,
    /// Number of tokens in it.
    pub num_tokens: usize,
}

/// The token and layer whose queries attend to a cache.
#[derive(Clone, Copy, Debug)]
pub struct QueryPlace {
    /// Index of the layer.
    pub layer: usize,
    /// Index of the token in its segment.
    pub token: usize,
    /// Maximum number of tokens that a query sees, its own included.
    pub window: usize,
}

/// The keys and values of a segment of text, in all layers or in the last one executed.
#[derive(Clone, Debug, Default)]
pub struct KvCache {
    shape: HeadShape,
    /// Layers that are stored: all, or 1 that every layer overwrites (a training pass).
    num_layers: usize,
    /// Tokens that fit: a multiple of [`LANES`].
    capacity: usize,
    format: CacheFormat,
    prefix: Option<PrefixCache>,
    /// `[layers, kv_heads, capacity / LANES, head_dim / N, LANES]` words of `N` numbers.
    keys: Vec<u32>,
    /// `[layers, kv_heads, capacity / N, head_dim]` words of `N` numbers.
    values: Vec<u32>,
}

impl KvCache {
    /// Replaces the segment of text and allocates `num_tokens` tokens in each of `num_layers` layers: all layers, or
    /// one that each layer overwrites.
    pub fn begin(
        &mut self,
        shape: &HeadShape,
        format: CacheFormat,
        num_layers: usize,
        num_tokens: usize,
        prefix: Option<PrefixCache>,
    ) {
        let capacity = num_tokens.next_multiple_of(LANES).max(self.capacity);
        let present = (self.shape, self.num_layers, self.capacity, self.format);
        if (*shape, num_layers, capacity, format) != present {
            (self.shape, self.num_layers) = (*shape, num_layers);
            (self.capacity, self.format) = (capacity, format);
            let words = num_layers * shape.kv_heads * self.head_words();
            self.keys = vec![0; words];
            self.values = vec![0; words];
        }
        self.prefix = prefix;
    }

    /// The position in the whole text of the token with this index in the segment.
    pub fn position(&self, token: usize) -> usize {
        self.prefix.map_or(0, |prefix| prefix.num_tokens) + token
    }

    /// Stores the keys and values of the token with this index in the segment, `[kv_size]` each.
    pub fn write(&mut self, layer: usize, token: usize, keys_values: [&[f32]; 2]) {
        match self.format {
            CacheFormat::F32 => self.write_words::<1>(layer, token, keys_values),
            CacheFormat::Bf16 => self.write_words::<2>(layer, token, keys_values),
        }
    }

    fn write_words<const N: usize>(
        &mut self,
        layer: usize,
        token: usize,
        [keys, values]: [&[f32]; 2],
    ) {
        let dim = self.shape.dim;
        let heads = keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate();
        for (head, (key, value)) in heads {
            let start = self.head_start(layer, head);
            let block = start + token / LANES * dim.div_ceil(N) * LANES + token % LANES;
            for (row, key) in key.chunks(N).enumerate() {
                let elements = key.iter().enumerate();
                self.keys[block + row * LANES] =
                    elements.fold(0, |word, (n, x)| with_element::<N>(word, n, *x));
            }
            let row = &mut self.values[start + token / N * dim..][..dim];
            for (word, x) in row.iter_mut().zip(value) {
                *word = with_element::<N>(*word, token % N, *x);
            }
        }
    }

    /// The words of a head's keys, and of its values.
    fn head_words(&self) -> usize {
        self.capacity * self.shape.dim.div_ceil(self.format.elements_per_word())
    }

    /// The offset of a head's keys, and of its values.
    fn head_start(&self, layer: usize, head: usize) -> usize {
        (layer % self.num_layers * self.shape.kv_heads + head) * self.head_words()
    }

    /// The tokens `first..end` of a head.
    fn segment(&self, [layer, head]: [usize; 2], [first, end]: [usize; 2]) -> CacheSegment<'_> {
        let (start, dim) = (self.head_start(layer, head), self.shape.dim);
        let n = self.format.elements_per_word();
        // Whole blocks, so that a window changes no sum.
        let [block, block_end] = [first / LANES * LANES, end.next_multiple_of(LANES)];
        let keys = [block, block_end].map(|token| start + token * dim.div_ceil(n));
        let values = [block, block_end].map(|token| start + token / n * dim);
        CacheSegment {
            keys: &self.keys[keys[0]..keys[1]],
            values: &self.values[values[0]..values[1]],
            first: first - block,
            end: end - block,
        }
    }

    /// Fills `results` for the queries of a token, `[query_size]`. The prefix is in one of the `caches`.
    pub fn attend(
        &self,
        caches: &[Self],
        place: QueryPlace,
        queries: &[f32],
        results: AttentionOutput,
    ) {
        match self.format {
            CacheFormat::F32 => self.attend_words::<1>(caches, place, queries, results),
            CacheFormat::Bf16 => self.attend_words::<2>(caches, place, queries, results),
        }
    }

    /// Computes [`KvCache::attend`] for a format with `N` numbers per word.
    fn attend_words<const N: usize>(
        &self,
        caches: &[Self],
        QueryPlace { layer, token, window }: QueryPlace,
        queries: &[f32],
        AttentionOutput { output, log_sum_exps }: AttentionOutput,
    ) {
        let (shape, mut scores) = (&self.shape, SCORES.take());
        let width = shape.heads_per_kv_head() * shape.dim;
        let heads = queries.chunks_exact(width).zip(output.chunks_exact_mut(width));
        let log_sum_exps = log_sum_exps.chunks_exact_mut(shape.heads_per_kv_head());
        let first = (self.position(token) + 1).saturating_sub(window);
        for ((head, (queries, output)), log_sum_exps) in heads.enumerate().zip(log_sum_exps) {
            let layer_head = [layer, head];
            let results = AttentionOutput { output, log_sum_exps };
            match self.prefix {
                Some(PrefixCache { index, num_tokens }) if first < num_tokens => {
                    assert_eq!(caches[index].format, self.format, "one number format for a text");
                    let prefix = caches[index].segment(layer_head, [first, num_tokens]);
                    let segments = [prefix, self.segment(layer_head, [0, token + 1])];
                    attend_group::<N>(queries, shape, &segments, &mut scores, results);
                }
                prefix => {
                    let first = first - prefix.map_or(0, |prefix| prefix.num_tokens);
                    let own = self.segment(layer_head, [first, token + 1]);
                    attend_group::<N>(queries, shape, &[own], &mut scores, results);
                }
            }
        }
        SCORES.set(scores);
    }
}

/// Fills the results of all queries that share a head of keys, some side by side, and the
/// log-sum-exps of their scores.
fn attend_group<const N: usize>(
    mut queries: &[f32],
    shape: &HeadShape,
    segments: &[CacheSegment],
    scores: &mut Vec<f32>,
    AttentionOutput { mut output, mut log_sum_exps }: AttentionOutput,
) {
    while !log_sum_exps.is_empty() {
        // Three at a time, but never one that could be two.
        let count = match log_sum_exps.len() {
            4 => 2,
            left => left.min(3),
        };
        let size = count * shape.dim;
        let queries = queries.split_off(..size).expect("all queries");
        let output = output.split_off_mut(..size).expect("all results");
        let log_sum_exps = log_sum_exps.split_off_mut(..count).expect("no more than are left");
        let results = AttentionOutput { output, log_sum_exps };
        match count {
            1 => attend_queries::<1, N>(queries, shape.scale, segments, scores, results),
            2 => attend_queries::<2, N>(queries, shape.scale, segments, scores, results),
            _ => attend_queries::<3, N>(queries, shape.scale, segments, scores, results),
        }
    }
}

/// The tokens `first..end` of some blocks, for one head.
struct CacheSegment<'a> {
    keys: &'a [u32],
    values: &'a [u32],
    first: usize,
    end: usize,
}

/// Fills the results of attention for `Q` queries over segments in order, and the log-sum-exps of their
/// scores.
fn attend_queries<const Q: usize, const N: usize>(
    queries: &[f32],
    scale: f32,
    segments: &[CacheSegment],
    scores: &mut Vec<f32>,
    AttentionOutput { output, log_sum_exps }: AttentionOutput,
) {
    let dim = queries.len() / Q;
    let tokens = |segment: &CacheSegment| segment.end.next_multiple_of(LANES);
    let length = segments.iter().map(tokens).sum();
    scores.resize(Q * length, 0.0);
    let mut start = 0;
    for segment in segments {
        let (keys, _) = segment.keys.as_chunks::<LANES>();
        score_keys::<Q, N>(queries, keys, scale, &mut scores[start..], length);
        let next = start + tokens(segment);
        for scores in scores.chunks_exact_mut(length) {
            scores[start..start + segment.first].fill(f32::NEG_INFINITY);
            scores[start + segment.end..next].fill(f32::NEG_INFINITY);
        }
        start = next;
    }
    let mut sums = [0.0f32; Q];
    for ((scores, sum), log_sum_exp) in
        scores.chunks_exact_mut(length).zip(&mut sums).zip(log_sum_exps)
    {
        let max;
        (max, *sum) = exponentiate_scores(scores);
        *log_sum_exp = max + ln(*sum);
    }
    output.fill(0.0);
    let mut start = 0;
    for segment in segments {
        let values = &segment.values[..segment.end.div_ceil(N) * dim];
        add_weighted_values::<Q, N>(&scores[start..], length, values, segment.end, output);
        start += tokens(segment);
    }
    for (output, sum) in output.chunks_exact_mut(dim).zip(sums) {
        let inverse_sum = 1.0 / sum;
        output.iter_mut().for_each(|x| *x *= inverse_sum);
    }
}

/// Turns whole blocks of scores into weights, the largest of which is 1 and those of hidden keys 0; returns the largest
/// score and the sum of the weights.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn exponentiate_scores(scores: &mut [f32]) -> (f32, f32) {
    let max = maximum(scores);
    let (blocks, _) = scores.as_chunks_mut::<LANES>();
    let mut sum = [0.0f32; LANES];
    for block in blocks {
        for (score, sum) in block.iter_mut().zip(&mut sum) {
            let is_hidden = *score == f32::NEG_INFINITY;
            *score = if is_hidden { 0.0 } else { exp(*score - max) };
            *sum += *score;
        }
    }
    (max, sum.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::attention::sequence::{self, AttentionInputs, AttentionMask, Scratch};
    use crate::nn::ops::check::Draws;
    use crate::nn::ops::{Parallelism, bf16};

    /// The results of all rows, `[rows, query_size]` and `[rows, heads]`, from caches of a prefix and of what follows
    /// it.
    fn attend(
        shape: &HeadShape,
        format: CacheFormat,
        inputs: AttentionInputs,
        mask: &AttentionMask,
        prefix: usize,
    ) -> [Vec<f32>; 2] {
        let mut caches = vec![KvCache::default(); 2];
        caches[0].begin(shape, format, 1, prefix.max(1), None);
        let before = PrefixCache { index: 0, num_tokens: prefix };
        caches[1].begin(shape, format, 1, mask.rows - prefix, (prefix > 0).then_some(before));
        let (size, kv) = (shape.query_size(), shape.kv_size());
        let (mut output, mut log_sum_exps) =
            (vec![0.0; inputs.queries.len()], vec![0.0; mask.rows * shape.heads]);
        for row in 0..mask.rows {
            let (cache, at) = if row < prefix { (0, row) } else { (1, row - prefix) };
            let new = [inputs.keys, inputs.values].map(|all| &all[row * kv..][..kv]);
            caches[cache].write(0, at, new);
            let own = row * size..(row + 1) * size;
            let queries = &inputs.queries[own.clone()];
            let to = AttentionOutput {
                output: &mut output[own],
                log_sum_exps: &mut log_sum_exps[row * shape.heads..][..shape.heads],
            };
            let place = QueryPlace { layer: 0, token: at, window: mask.window };
            caches[cache].attend(&caches, place, queries, to);
        }
        [output, log_sum_exps]
    }

    #[test]
    fn attention_over_caches_equals_attention_over_a_sequence() {
        let mut draws = Draws::new(11);
        for round in 0..24 {
            let format = [CacheFormat::F32, CacheFormat::Bf16][round / 12];
            let (kv_heads, group, dim) =
                (draws.next_size(2), draws.next_size(3), draws.next_size(70));
            let shape = HeadShape { heads: kv_heads * group, kv_heads, dim, scale: 0.4 };
            let rows = draws.next_size(40);
            let prefix = if round % 3 == 0 { 0 } else { draws.next_size(rows) - 1 };
            let window = if round % 2 == 0 { usize::MAX } else { draws.next_size(20) };
            let queries = draws.next_numbers(rows * shape.query_size());
            let [mut keys, mut values] =
                [(); 2].map(|()| draws.next_numbers(rows * shape.kv_size()));
            let mask = AttentionMask { rows, prefix_len: 0, starts: &[], window };
            let inputs = AttentionInputs { queries: &queries, keys: &keys, values: &values };
            let got = attend(&shape, format, inputs, &mask, prefix);
            if format == CacheFormat::Bf16 {
                for all in [&mut keys, &mut values] {
                    bf16::round(Parallelism::Parallel, all);
                }
                let inputs = AttentionInputs { queries: &queries, keys: &keys, values: &values };
                assert!(got == attend(&shape, format, inputs, &mask, prefix), "rounded on the way");
            }
            let mut want = [vec![0.0; queries.len()], vec![0.0; rows * shape.heads]];
            let inputs = AttentionInputs { queries: &queries, keys: &keys, values: &values };
            let [output, log_sum_exps] = want.each_mut().map(|all| &mut all[..]);
            let to = AttentionOutput { output, log_sum_exps };
            sequence::forward(&shape, inputs, &mask, to, &mut Scratch::default());
            for (a, b) in got.iter().flatten().zip(want.iter().flatten()) {
                assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{format:?}: {a}, not {b}");
            }
        }
    }

    #[test]
    fn numbers_in_bf16_take_half_the_memory() {
        let shape = HeadShape { heads: 4, kv_heads: 2, dim: 64, scale: 0.125 };
        let bytes = |format| {
            let mut cache = KvCache::default();
            cache.begin(&shape, format, 3, 1000, None);
            size_of_val(&cache.keys[..]) + size_of_val(&cache.values[..])
        };
        // Keys and values of 3 layers, 2 heads, 1,008 tokens and 64 numbers.
        assert_eq!(bytes(CacheFormat::F32), 2 * 3 * 2 * 1008 * 64 * 4);
        assert_eq!(bytes(CacheFormat::Bf16), 2 * 3 * 2 * 1008 * 64 * 2);
    }
}
