//! The two products of attention over a KV cache: a few queries with blocks of keys, and their weights with values.
//!
//! Each sum runs in one order, that of a head's elements or of the tokens, whichever queries are side by side
//! and whatever the instruction set.

use super::words::{Words, element};
use crate::math::{LANES, map_array, mul_add};
use multiversion::multiversion;

/// Fills `scores` with the products of `Q` queries, `[Q, dim]`, and blocks of keys, `[blocks, dim / N, LANES]` words of
/// `N` elements, times `scale`. `stride` is the stride between the scores of successive queries.
///
/// # Panics
/// If a length does not match.
pub fn score_keys<const Q: usize, const N: usize>(
    queries: &[f32],
    keys: &[Words],
    scale: f32,
    scores: &mut [f32],
    stride: usize,
) {
    let dim = queries.len() / Q;
    let rows = dim.div_ceil(N);
    let blocks = keys.len() / rows;
    assert!(keys.len() == blocks * rows && queries.len() == Q * dim, "whole blocks and queries");
    assert!((Q - 1) * stride + blocks * LANES <= scores.len(), "room for the scores");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions, and the lengths were checked above.
        return unsafe { avx512::score_keys::<Q, N>(queries, keys, scale, scores, stride) };
    }
    score_keys_plain::<Q, N>(queries, keys, scale, scores, stride);
}

/// Adds to `output`, `[Q, dim]`, the values of `tokens` tokens, `[tokens / N, dim]` words of `N` elements, times each
/// query's weights. `stride` is the stride between the weights of successive queries.
///
/// # Panics
/// If a length does not match.
pub fn add_weighted_values<const Q: usize, const N: usize>(
    weights: &[f32],
    stride: usize,
    values: &[u32],
    tokens: usize,
    output: &mut [f32],
) {
    let dim = output.len() / Q;
    let rows = tokens.div_ceil(N);
    assert!(values.len() == rows * dim && output.len() == Q * dim, "whole rows and queries");
    assert!((Q - 1) * stride + tokens <= weights.len(), "a weight for each token");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions, and the lengths were checked above.
        return unsafe {
            avx512::add_weighted_values::<Q, N>(weights, stride, values, tokens, output)
        };
    }
    if dim.is_multiple_of(LANES) {
        add_weighted_values_plain::<Q, N, LANES>(weights, stride, values, tokens, output);
    } else {
        add_weighted_values_plain::<Q, N, 1>(weights, stride, values, tokens, output);
    }
}

/// The form of [`score_keys`] in plain Rust, for [`LANES`] tokens at a time.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn score_keys_plain<const Q: usize, const N: usize>(
    queries: &[f32],
    keys: &[Words],
    scale: f32,
    scores: &mut [f32],
    stride: usize,
) {
    let dim = queries.len() / Q;
    for (block, keys) in keys.chunks_exact(dim.div_ceil(N)).enumerate() {
        let mut sums = [[0.0f32; LANES]; Q];
        for (row, words) in keys.iter().enumerate() {
            for (n, at) in (row * N..).take(N).enumerate() {
                if at == dim {
                    break;
                }
                let key = map_array(*words, |word| element::<N>(word, n));
                for (q, sums) in sums.iter_mut().enumerate() {
                    let x = queries[q * dim + at];
                    for (sum, key) in sums.iter_mut().zip(&key) {
                        *sum = mul_add(x, *key, *sum);
                    }
                }
            }
        }
        for (q, sums) in sums.iter().enumerate() {
            let scores = &mut scores[q * stride + block * LANES..][..LANES];
            scores.iter_mut().zip(sums).for_each(|(score, sum)| *score = sum * scale);
        }
    }
}

/// The form of [`add_weighted_values`] in plain Rust, for `V` columns at a time.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn add_weighted_values_plain<const Q: usize, const N: usize, const V: usize>(
    weights: &[f32],
    stride: usize,
    values: &[u32],
    tokens: usize,
    output: &mut [f32],
) {
    let dim = output.len() / Q;
    for from in (0..dim).step_by(V) {
        let mut sums = [[0.0f32; V]; Q];
        for (q, sums) in sums.iter_mut().enumerate() {
            sums.copy_from_slice(&output[q * dim + from..][..V]);
        }
        for (row, words) in values.chunks_exact(dim).enumerate() {
            let words: &[u32; V] = words[from..].first_chunk().expect("V words");
            for (n, at) in (row * N..).take(N).enumerate() {
                if at == tokens {
                    break;
                }
                let value = map_array(*words, |word| element::<N>(word, n));
                for (q, sums) in sums.iter_mut().enumerate() {
                    let weight = weights[q * stride + at];
                    for (sum, x) in sums.iter_mut().zip(&value) {
                        *sum = mul_add(weight, *x, *sum);
                    }
                }
            }
        }
        for (q, sums) in sums.iter().enumerate() {
            output[q * dim + from..][..V].copy_from_slice(sums);
        }
    }
}

/// Both products in AVX-512's 32 registers, which compilers do not fill by themselves.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{LANES, Words};
    use std::arch::x86_64::{
        __m512, __m512i, _mm512_and_si512, _mm512_castsi512_ps, _mm512_fmadd_ps,
        _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_epi32, _mm512_maskz_loadu_ps,
        _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
        _mm512_slli_epi32, _mm512_storeu_ps,
    };

    /// The elements in row `n` of some words, as [`super::element`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn elements<const N: usize>(words: __m512i, n: usize) -> __m512 {
        _mm512_castsi512_ps(match (N, n) {
            (1, _) => words,
            (_, 0) => _mm512_slli_epi32::<16>(words),
            _ => _mm512_and_si512(words, _mm512_set1_epi32(!0xffff)),
        })
    }

    /// # Safety
    /// The processor has AVX-512, and the lengths are those that [`super::score_keys`] checks.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn score_keys<const Q: usize, const N: usize>(
        queries: &[f32],
        keys: &[Words],
        scale: f32,
        scores: &mut [f32],
        stride: usize,
    ) {
        let blocks = keys.len() / (queries.len() / Q).div_ceil(N);
        let mut block = 0;
        while block < blocks {
            // SAFETY: at least this number of blocks is left.
            block += unsafe {
                match blocks - block {
                    4.. => score_blocks::<Q, N, 4>(queries, keys, scale, scores, stride, block),
                    2.. => score_blocks::<Q, N, 2>(queries, keys, scale, scores, stride, block),
                    _ => score_blocks::<Q, N, 1>(queries, keys, scale, scores, stride, block),
                }
            };
        }
    }

    /// Fills the scores of blocks `first..first + B`; returns `B`.
    ///
    /// # Safety
    /// The contract of [`score_keys`], and the blocks exist.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn score_blocks<const Q: usize, const N: usize, const B: usize>(
        queries: &[f32],
        keys: &[Words],
        scale: f32,
        scores: &mut [f32],
        stride: usize,
        first: usize,
    ) -> usize {
        let dim = queries.len() / Q;
        let rows = dim.div_ceil(N);
        let keys = keys[first * rows..(first + B) * rows].as_ptr();
        let mut sums = [[_mm512_setzero_ps(); B]; Q];
        for row in 0..rows {
            let mut words = [_mm512_setzero_si512(); B];
            for (b, words) in words.iter_mut().enumerate() {
                // SAFETY: a row of a block, a vector of 16 words.
                *words = unsafe { _mm512_loadu_si512(keys.add(b * rows + row).cast()) };
            }
            for (n, at) in (row * N..).take(N).enumerate() {
                if at == dim {
                    break;
                }
                let mut key = [_mm512_setzero_ps(); B];
                for (key, words) in key.iter_mut().zip(words) {
                    *key = elements::<N>(words, n);
                }
                for (q, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: there are Q queries of `dim` numbers.
                    let x = unsafe { *queries.get_unchecked(q * dim + at) };
                    let x = _mm512_set1_ps(x);
                    for (sum, key) in sums.iter_mut().zip(key) {
                        *sum = _mm512_fmadd_ps(x, key, *sum);
                    }
                }
            }
        }
        let scale = _mm512_set1_ps(scale);
        for (q, sums) in sums.into_iter().enumerate() {
            for (b, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller checked that there is room for all blocks of all queries.
                unsafe {
                    let to = scores.as_mut_ptr().add(q * stride + (first + b) * LANES);
                    _mm512_storeu_ps(to, _mm512_mul_ps(sum, scale));
                }
            }
        }
        B
    }

    /// # Safety
    /// The processor has AVX-512, and the lengths are those that [`super::add_weighted_values`] checks.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn add_weighted_values<const Q: usize, const N: usize>(
        weights: &[f32],
        stride: usize,
        values: &[u32],
        tokens: usize,
        output: &mut [f32],
    ) {
        let dim = output.len() / Q;
        let mut from = 0;
        while from < dim {
            // SAFETY: elements of a head from `from` on.
            from += unsafe {
                match (dim - from).div_ceil(LANES) {
                    4.. => add_elements::<Q, N, 4>(weights, stride, values, tokens, output, from),
                    2.. => add_elements::<Q, N, 2>(weights, stride, values, tokens, output, from),
                    _ => add_elements::<Q, N, 1>(weights, stride, values, tokens, output, from),
                }
            };
        }
    }

    /// Adds up `V` vectors of a head's elements from `from` on, the last of which may be partial; returns how many
    /// elements fit in them.
    ///
    /// # Safety
    /// The contract of [`add_weighted_values`], and the last vector begins within the head.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_elements<const Q: usize, const N: usize, const V: usize>(
        weights: &[f32],
        stride: usize,
        values: &[u32],
        tokens: usize,
        output: &mut [f32],
        from: usize,
    ) -> usize {
        let dim = output.len() / Q;
        let last = (dim - from - (V - 1) * LANES).min(LANES);
        let mask = |v: usize| if v + 1 < V { u16::MAX } else { u16::MAX >> (LANES - last) };
        let mut sums = [[_mm512_setzero_ps(); V]; Q];
        for (q, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                let start = output[q * dim + from..].as_ptr();
                // SAFETY: the mask leaves out what is beyond the head.
                *sum = unsafe { _mm512_maskz_loadu_ps(mask(v), start.add(v * LANES)) };
            }
        }
        for row in 0..tokens.div_ceil(N) {
            let mut words = [_mm512_setzero_si512(); V];
            for (v, words) in words.iter_mut().enumerate() {
                // SAFETY: the rows of `dim` words exist, and the mask leaves out what is beyond the head.
                *words = unsafe {
                    let start = values.as_ptr().add(row * dim + from + v * LANES);
                    _mm512_maskz_loadu_epi32(mask(v), start.cast())
                };
            }
            for (n, at) in (row * N..).take(N).enumerate() {
                if at == tokens {
                    break;
                }
                let mut value = [_mm512_setzero_ps(); V];
                for (value, words) in value.iter_mut().zip(words) {
                    *value = elements::<N>(words, n);
                }
                for (q, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller checked that each query has a weight for each token.
                    let weight = unsafe { *weights.get_unchecked(q * stride + at) };
                    let weight = _mm512_set1_ps(weight);
                    for (sum, value) in sums.iter_mut().zip(value) {
                        *sum = _mm512_fmadd_ps(weight, value, *sum);
                    }
                }
            }
        }
        for (q, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                // SAFETY: the mask leaves out what is beyond the head.
                unsafe {
                    let to = output.as_mut_ptr().add(q * dim + from + v * LANES);
                    _mm512_mask_storeu_ps(to, mask(v), sum);
                }
            }
        }
        V * LANES
    }
}
