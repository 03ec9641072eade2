//! Products of tiles by the dot products of `avx512_bf16`.
//!
//! `vdpbf16ps` adds the product of the odd elements of a pair, then that of the even ones, and takes subnormal numbers
//! for zero (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2).

use super::output::Output;
use super::tiles::{TILE_SIDE, Tile, TiledMatrix};
use crate::math::map_array;
use crate::nn::ops::WriteMode;
use std::arch::x86_64::{
    __m512, __m512bh, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_dpbf16_ps,
    _mm512_load_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32,
    _mm512_setzero_ps,
};
use std::mem::transmute;
use std::ops::Range;

/// Strips of columns that are multiplied at a time.
pub const NUM_STRIPS: usize = 4;

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
    parts: [Range<usize>; 2],
    output: &Output,
) {
    assert!(is_available());
    let num_rows = a.outer() - parts[0].start * TILE_SIDE;
    // SAFETY: the processor has the instructions; this part of the output is this thread's.
    unsafe {
        match num_rows {
            0..=1 => multiply_strips::<1>(a, b, parts, output),
            2 => multiply_strips::<2>(a, b, parts, output),
            _ => multiply_strips::<4>(a, b, parts, output),
        }
    }
}

/// Multiplies `R` rows by [`NUM_STRIPS`] strips of columns at a time: the sums of four rows fill half of the registers,
/// and each operand read serves four products.
///
/// # Safety
/// The processor has the instructions, and no other thread writes to this part of `output`.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply_strips<const R: usize>(
    a: &TiledMatrix,
    b: &TiledMatrix,
    [rows, columns]: [Range<usize>; 2],
    output: &Output,
) {
    const { assert!(TILE_SIDE.is_multiple_of(R)) };
    for j in columns.clone().step_by(NUM_STRIPS) {
        // Where fewer strips are left, the last one is multiplied again and its product dropped.
        let strips: [usize; NUM_STRIPS] = std::array::from_fn(|c| (j + c).min(columns.end - 1));
        let right = map_array(strips, |j| b.strip(j));
        for i in rows.clone() {
            let end = TILE_SIDE.min(a.outer() - i * TILE_SIDE);
            for first in (0..end).step_by(R) {
                let rows = i * TILE_SIDE + first..i * TILE_SIDE + end.min(first + R);
                // The destination arrives from memory while the products are summed.
                for (to, _) in parts_of(output, rows.clone(), j..columns.end).flatten() {
                    _mm_prefetch::<_MM_HINT_T0>(to.cast());
                }
                let sums = sum_products::<R>(a.strip(i), first, right);
                for (row, sums) in parts_of(output, rows, j..columns.end).zip(sums) {
                    for ((to, width), sums) in row.zip(sums) {
                        // SAFETY: the caller guarantees it (`# Safety`).
                        unsafe { write(to, width, sums, output.mode()) };
                    }
                }
            }
        }
    }
}

/// The parts of some rows of `output` in the first [`NUM_STRIPS`] of some strips of columns, row by row.
fn parts_of(
    output: &Output,
    rows: Range<usize>,
    strips: Range<usize>,
) -> impl Iterator<Item = impl Iterator<Item = (*mut f32, usize)>> {
    rows.map(move |row| {
        strips.clone().take(NUM_STRIPS).map(move |strip| output.row_part(row, strip))
    })
}

/// The products of `R` rows of a strip, from `first` on, with strips of columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn sum_products<const R: usize>(
    a: &[Tile],
    first: usize,
    b: [&[Tile]; NUM_STRIPS],
) -> [[__m512; NUM_STRIPS]; R] {
    let mut sums = [[_mm512_setzero_ps(); NUM_STRIPS]; R];
    for (at, a) in a.iter().enumerate() {
        let b = map_array(b, |b| &b[at]);
        let a: &[_; R] = a.0[first..].first_chunk().expect("rows of a tile");
        for k in 0..TILE_SIDE {
            // SAFETY: a row of a tile is 64 aligned bytes, as are the vectors that it is read as.
            let right: [__m512bh; NUM_STRIPS] =
                map_array(b, |b| unsafe { transmute(_mm512_load_si512(b.0[k].as_ptr().cast())) });
            for (row, sums) in a.iter().zip(&mut sums) {
                // SAFETY: both are 512 bits.
                let left: __m512bh = unsafe { transmute(_mm512_set1_epi32(row[k] as i32)) };
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = _mm512_dpbf16_ps(*sum, left, right);
                }
            }
        }
    }
    sums
}

/// Replaces `width` numbers at `to` with sums, or adds the sums to them.
///
/// # Safety
/// The processor has the instructions, `width` is 1 to 16, and no other thread accesses these numbers.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn write(to: *mut f32, width: usize, sums: __m512, mode: WriteMode) {
    let mask = u16::MAX >> (TILE_SIDE - width);
    // SAFETY: the caller guarantees it (`# Safety`).
    unsafe {
        let sums = match mode {
            WriteMode::Overwrite => sums,
            WriteMode::Accumulate => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sums),
        };
        _mm512_mask_storeu_ps(to, mask, sums);
    }
}
