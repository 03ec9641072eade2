//! A tile of a product, as many sums as registers hold.

#[cfg(not(target_family = "wasm"))]
use crate::math::mul_add;
use crate::model::{LANES, Lanes};
#[cfg(not(target_family = "wasm"))]
use multiversion::multiversion;

/// Whether the machine has 32 registers of [`LANES`] numbers, instead of 16 smaller ones.
pub fn many_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The products of `R` rows with a strip of `V` vectors of columns: `[R, V]` sums.
#[inline]
pub fn sums<const R: usize, const V: usize>(a: &[[f32; R]], strip: &[Lanes], to: &mut [Lanes]) {
    let (to, _) = to.as_chunks_mut::<V>();
    let to: &mut [[Lanes; V]; R] = to.first_chunk_mut().expect("room for R rows of V vectors");
    let (strip, _) = strip.as_chunks::<V>();
    #[cfg(target_arch = "x86_64")]
    if many_registers() {
        // SAFETY: the machine has these instructions.
        return unsafe { avx512(a, strip, to) };
    }
    for v in 0..V {
        // A vector at a time, since other machines have fewer or smaller registers.
        plain(a, strip, v, to);
    }
}

/// All of it in the 32 registers of AVX-512, which compilers do not manage by themselves.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512<const R: usize, const V: usize>(
    a: &[[f32; R]],
    strip: &[[Lanes; V]],
    to: &mut [[Lanes; V]; R],
) {
    use std::arch::x86_64::{
        _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    };
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for (a, vectors) in a.iter().zip(strip) {
        let mut b = [_mm512_setzero_ps(); V];
        for (b, vector) in b.iter_mut().zip(vectors) {
            // SAFETY: there are 16 numbers.
            *b = unsafe { _mm512_loadu_ps(vector.as_ptr()) };
        }
        for (sums, x) in sums.iter_mut().zip(a) {
            let x = _mm512_set1_ps(*x);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = _mm512_fmadd_ps(x, b, *sum);
            }
        }
    }
    for (to, sums) in to.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        // SAFETY: there is room for 16 numbers.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), *sums) };
    }
}

/// One of the vectors.
#[cfg(not(target_family = "wasm"))]
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn plain<const R: usize, const V: usize>(
    a: &[[f32; R]],
    strip: &[[Lanes; V]],
    v: usize,
    to: &mut [[Lanes; V]; R],
) {
    let mut sums = [[0.0f32; LANES]; R];
    for (a, vectors) in a.iter().zip(strip) {
        let b = vectors[v];
        for (sum, x) in sums.iter_mut().zip(a) {
            for (sum, b) in sum.iter_mut().zip(&b) {
                *sum = mul_add(*x, *b, *sum);
            }
        }
    }
    for (to, sum) in to.iter_mut().zip(sums) {
        to[v] = sum;
    }
}

/// The same, spelled out for WebAssembly: half a vector at a time, since its sixteen registers hold four
/// numbers each.
#[cfg(target_family = "wasm")]
fn plain<const R: usize, const V: usize>(
    a: &[[f32; R]],
    strip: &[[Lanes; V]],
    v: usize,
    to: &mut [[Lanes; V]; R],
) {
    half::<R, V, 0>(a, strip, v, to);
    half::<R, V, { LANES / 2 }>(a, strip, v, to);
}

/// The half of one of the vectors that begins with its number `FIRST`.
#[cfg(target_family = "wasm")]
fn half<const R: usize, const V: usize, const FIRST: usize>(
    a: &[[f32; R]],
    strip: &[[Lanes; V]],
    v: usize,
    to: &mut [[Lanes; V]; R],
) {
    use crate::math::quads::{QUAD, load, mul_add, splat, store};
    const QUADS: usize = LANES / 2 / QUAD;
    let mut sums = [[splat(0.0); QUADS]; R];
    for (a, vectors) in a.iter().zip(strip) {
        let b = &vectors[v];
        let b: [_; QUADS] = std::array::from_fn(|q| load(&b[FIRST + q * QUAD..]));
        for (sums, x) in sums.iter_mut().zip(a) {
            let x = splat(*x);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = mul_add(x, b, *sum);
            }
        }
    }
    for (to, sums) in to.iter_mut().zip(sums) {
        for (to, sum) in to[v][FIRST..].chunks_exact_mut(QUAD).zip(sums) {
            store(sum, to);
        }
    }
}
