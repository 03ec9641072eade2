//! Products of tiles by the dot products of `avx512_bf16`.
//!
//! `vdpbf16ps` adds the product of the odd elements of a pair, then that of the even ones, and takes subnormal numbers
//! for zero (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2).

use super::output::{MAX_STRIPS, Output, Sums};
use super::tiles::{TILE_SIDE, Tile, TiledMatrix};
use crate::math::map_array;
use std::arch::x86_64::{
    __m512, __m512bh, _mm512_dpbf16_ps, _mm512_load_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_store_ps,
};
use std::mem::transmute;
use std::ops::Range;

/// Whether the processor and the operating system support the instructions.
pub fn is_available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

/// Multiplies the strips `rows` of `a` by the strips `columns` of `b`.
///
/// # Safety
/// No other thread may access that part of `output`.
///
/// # Panics
/// If the processor lacks the instructions.
pub unsafe fn multiply(
    a: &TiledMatrix,
    b: &TiledMatrix,
    [rows, columns]: [Range<usize>; 2],
    output: &Output,
) {
    assert!(is_available());
    let num_rows = a.outer() - rows.start * TILE_SIDE;
    // SAFETY: the processor has the instructions; this part of the output is this thread's.
    unsafe {
        match num_rows {
            0..=1 => multiply_strips::<1, 4>(a, b, [rows, columns], output),
            2 => multiply_strips::<2, 4>(a, b, [rows, columns], output),
            3..=4 => multiply_strips::<4, 4>(a, b, [rows, columns], output),
            5..=8 => multiply_strips::<8, 2>(a, b, [rows, columns], output),
            _ => multiply_strips::<TILE_SIDE, 1>(a, b, [rows, columns], output),
        }
    }
}

/// Multiplies the first `R` rows of each strip, `C` strips of columns at a time.
///
/// # Safety
/// The processor has the instructions, and no other thread writes to this part of `output`.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply_strips<const R: usize, const C: usize>(
    a: &TiledMatrix,
    b: &TiledMatrix,
    [rows, columns]: [Range<usize>; 2],
    output: &Output,
) {
    const { assert!(C <= MAX_STRIPS && R <= TILE_SIDE) };
    let mut sums = [const { Sums([[0.0; TILE_SIDE]; TILE_SIDE]) }; C];
    for j in columns.clone().step_by(C) {
        // Beyond the last strip, it is multiplied again.
        let strips: [usize; C] = std::array::from_fn(|c| (j + c).min(columns.end - 1));
        let right = map_array(strips, |j| b.strip(j));
        for i in rows.clone() {
            // SAFETY: as this function demands.
            unsafe {
                fill_sums::<R, C>(a.strip(i), right, &mut sums);
                for (j, sums) in (j..columns.end).zip(&sums) {
                    output.write([i, j], sums);
                }
            }
        }
    }
}

/// Fills the sums of `R` rows and `C` strips of columns.
///
/// # Safety
/// The processor has the instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn fill_sums<const R: usize, const C: usize>(
    a: &[Tile],
    b: [&[Tile]; C],
    results: &mut [Sums; C],
) {
    let mut sums: [[__m512; C]; R] = [[_mm512_setzero_ps(); C]; R];
    for (at, a) in a.iter().enumerate() {
        let b = map_array(b, |b| &b[at]);
        for k in 0..TILE_SIDE {
            // SAFETY: a row of a tile is 64 aligned bytes, as are the vectors that it is read as.
            let right: [__m512bh; C] =
                map_array(b, |b| unsafe { transmute(_mm512_load_si512(b.0[k].as_ptr().cast())) });
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: both are 512 bits.
                let left: __m512bh = unsafe { transmute(_mm512_set1_epi32(a.0[r][k] as i32)) };
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = _mm512_dpbf16_ps(*sum, left, right);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (sum, result) in sums.iter().zip(results.iter_mut()) {
            // SAFETY: a row of sums is 64 aligned bytes.
            unsafe { _mm512_store_ps(result.0[r].as_mut_ptr(), *sum) };
        }
    }
}
