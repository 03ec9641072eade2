//! The two products of attention over a KV cache: of a few queries with blocks of keys, and of their weights with values.
//!
//! Each number is summed in one order, that of a head's numbers or of the tokens, whichever queries are side by side
//! and whatever the instruction set.

use crate::math::{LANES, Lanes, mul_add};
use multiversion::multiversion;

/// Fills `scores` of `Q` queries, `[Q, dim]`, with `blocks` blocks of keys, `[blocks, dim, LANES]`, times `scale`; the
/// scores of a query are `length` apart from those of the next.
///
/// # Panics
/// If a length does not match.
pub fn compare<const Q: usize>(
    queries: &[f32],
    keys: &[Lanes],
    scale: f32,
    scores: &mut [f32],
    length: usize,
) {
    let dim = queries.len() / Q;
    let blocks = keys.len() / dim;
    assert!(keys.len() == blocks * dim && queries.len() == Q * dim, "whole blocks and queries");
    assert!((Q - 1) * length + blocks * LANES <= scores.len(), "room for the scores");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions, and the lengths were checked above.
        return unsafe { avx512::compare::<Q>(queries, keys, scale, scores, length) };
    }
    plain_compare::<Q>(queries, keys, scale, scores, length);
}

/// Adds to `output`, `[Q, dim]`, the values, `[tokens, dim]`, times each query's weights, which are `length` apart
/// from those of the next query.
///
/// # Panics
/// If a length does not match.
pub fn gather<const Q: usize>(weights: &[f32], length: usize, values: &[f32], output: &mut [f32]) {
    let dim = output.len() / Q;
    let tokens = values.len() / dim;
    assert!(values.len() == tokens * dim && output.len() == Q * dim, "whole rows and queries");
    assert!((Q - 1) * length + tokens <= weights.len(), "a weight for each token");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions, and the lengths were checked above.
        return unsafe { avx512::gather::<Q>(weights, length, values, output) };
    }
    match dim.is_multiple_of(LANES) {
        true => plain_gather::<Q, LANES>(weights, length, values, output),
        false => plain_gather::<Q, 1>(weights, length, values, output),
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn plain_compare<const Q: usize>(
    queries: &[f32],
    keys: &[Lanes],
    scale: f32,
    scores: &mut [f32],
    length: usize,
) {
    let dim = queries.len() / Q;
    for (block, keys) in keys.chunks_exact(dim).enumerate() {
        let mut sums = [[0.0f32; LANES]; Q];
        for (i, key) in keys.iter().enumerate() {
            for (q, sums) in sums.iter_mut().enumerate() {
                let x = queries[q * dim + i];
                for (sum, key) in sums.iter_mut().zip(key) {
                    *sum = mul_add(x, *key, *sum);
                }
            }
        }
        for (q, sums) in sums.iter().enumerate() {
            let scores = &mut scores[q * length + block * LANES..][..LANES];
            scores.iter_mut().zip(sums).for_each(|(score, sum)| *score = sum * scale);
        }
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn plain_gather<const Q: usize, const N: usize>(
    weights: &[f32],
    length: usize,
    values: &[f32],
    output: &mut [f32],
) {
    let dim = output.len() / Q;
    for from in (0..dim).step_by(N) {
        let mut sums = [[0.0f32; N]; Q];
        for (q, sums) in sums.iter_mut().enumerate() {
            sums.copy_from_slice(&output[q * dim + from..][..N]);
        }
        for (t, value) in values.chunks_exact(dim).enumerate() {
            let value: &[f32; N] = value[from..].first_chunk().expect("N numbers");
            for (q, sums) in sums.iter_mut().enumerate() {
                let weight = weights[q * length + t];
                for (sum, x) in sums.iter_mut().zip(value) {
                    *sum = mul_add(weight, *x, *sum);
                }
            }
        }
        for (q, sums) in sums.iter().enumerate() {
            output[q * dim + from..][..N].copy_from_slice(sums);
        }
    }
}

/// Both products in AVX-512's 32 registers, which compilers do not fill by themselves.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{LANES, Lanes};
    use std::arch::x86_64::{
        __m512, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
        _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    };

    /// # Safety
    /// The processor has AVX-512, and the lengths are those that [`super::compare`] checks.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn compare<const Q: usize>(
        queries: &[f32],
        keys: &[Lanes],
        scale: f32,
        scores: &mut [f32],
        length: usize,
    ) {
        let dim = queries.len() / Q;
        let blocks = keys.len() / dim;
        let mut block = 0;
        while block < blocks {
            // SAFETY: so many blocks are left.
            block += unsafe {
                match blocks - block {
                    4.. => some_blocks::<Q, 4>(queries, keys, scale, scores, length, block),
                    2.. => some_blocks::<Q, 2>(queries, keys, scale, scores, length, block),
                    _ => some_blocks::<Q, 1>(queries, keys, scale, scores, length, block),
                }
            };
        }
    }

    /// Fills the scores of blocks `first..first + B`; returns `B`.
    ///
    /// # Safety
    /// As for [`compare`]; there are so many blocks.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn some_blocks<const Q: usize, const B: usize>(
        queries: &[f32],
        keys: &[Lanes],
        scale: f32,
        scores: &mut [f32],
        length: usize,
        first: usize,
    ) -> usize {
        let dim = queries.len() / Q;
        let keys = keys[first * dim..(first + B) * dim].as_ptr();
        let mut sums = [[_mm512_setzero_ps(); B]; Q];
        for i in 0..dim {
            let mut key = [_mm512_setzero_ps(); B];
            for (b, key) in key.iter_mut().enumerate() {
                // SAFETY: row `i` of a block, a vector of 16 numbers.
                *key = unsafe { _mm512_loadu_ps(keys.add(b * dim + i).cast()) };
            }
            for (q, sums) in sums.iter_mut().enumerate() {
                // SAFETY: there are Q queries of `dim` numbers.
                let x = _mm512_set1_ps(unsafe { *queries.get_unchecked(q * dim + i) });
                for (sum, key) in sums.iter_mut().zip(key) {
                    *sum = _mm512_fmadd_ps(x, key, *sum);
                }
            }
        }
        let scale = _mm512_set1_ps(scale);
        for (q, sums) in sums.into_iter().enumerate() {
            for (b, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller checked that there is room for all blocks of all queries.
                unsafe {
                    let to = scores.as_mut_ptr().add(q * length + (first + b) * LANES);
                    _mm512_storeu_ps(to, _mm512_mul_ps(sum, scale));
                }
            }
        }
        B
    }

    /// # Safety
    /// The processor has AVX-512, and the lengths are those that [`super::gather`] checks.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn gather<const Q: usize>(
        weights: &[f32],
        length: usize,
        values: &[f32],
        output: &mut [f32],
    ) {
        let dim = output.len() / Q;
        let mut from = 0;
        while from < dim {
            // SAFETY: numbers of a head from `from` on.
            from += unsafe {
                match (dim - from).div_ceil(LANES) {
                    4.. => some_numbers::<Q, 4>(weights, length, values, output, from),
                    2.. => some_numbers::<Q, 2>(weights, length, values, output, from),
                    _ => some_numbers::<Q, 1>(weights, length, values, output, from),
                }
            };
        }
    }

    /// Adds up `V` vectors of a head's numbers from `from` on, the last of which may be partial; returns how many
    /// numbers fit in them.
    ///
    /// # Safety
    /// As for [`gather`]; the last vector begins within the head.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn some_numbers<const Q: usize, const V: usize>(
        weights: &[f32],
        length: usize,
        values: &[f32],
        output: &mut [f32],
        from: usize,
    ) -> usize {
        let dim = output.len() / Q;
        let last = (dim - from - (V - 1) * LANES).min(LANES);
        let mask = |v: usize| if v + 1 < V { u16::MAX } else { u16::MAX >> (LANES - last) };
        let load = |at: *const f32, v: usize| -> __m512 {
            // SAFETY: the mask leaves out what is beyond the head.
            unsafe { _mm512_maskz_loadu_ps(mask(v), at.add(v * LANES)) }
        };
        let mut sums = [[_mm512_setzero_ps(); V]; Q];
        for (q, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = load(output[q * dim + from..].as_ptr(), v);
            }
        }
        for t in 0..values.len() / dim {
            let mut value = [_mm512_setzero_ps(); V];
            for (v, value) in value.iter_mut().enumerate() {
                // SAFETY: there are so many rows of `dim` numbers.
                *value = load(unsafe { values.as_ptr().add(t * dim + from) }, v);
            }
            for (q, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller checked that each query has a weight for each token.
                let weight = _mm512_set1_ps(unsafe { *weights.get_unchecked(q * length + t) });
                for (sum, value) in sums.iter_mut().zip(value) {
                    *sum = _mm512_fmadd_ps(weight, value, *sum);
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
