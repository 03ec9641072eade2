//! Products of tiles by operands widened to f32, on any processor.

use super::output::Output;
use super::tiles::{Operand, SIDE, Sums, Tile};
use crate::math::{Lanes, mul_add};
use multiversion::multiversion;
use std::ops::Range;

/// Multiplies the strips `rows` of `a` by the strips `columns` of `b`, whose part of `to` is this thread's alone.
pub fn multiply(a: &Operand, b: &Operand, [rows, columns]: [Range<usize>; 2], to: &Output) {
    let mut sums = Sums([[0.0; SIDE]; SIDE]);
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for j in columns {
        right.clear();
        for words in b.strip(j).iter().flat_map(|tile| &tile.0) {
            right.extend([words.map(low), words.map(high)]);
        }
        for i in rows.clone() {
            let (strip, end) = (a.strip(i), SIDE.min(a.outer() - i * SIDE));
            let mut first = 0;
            while first < end {
                first += match end - first {
                    1 => block::<1>(strip, first, &right, &mut left, &mut sums),
                    2..4 => block::<2>(strip, first, &right, &mut left, &mut sums),
                    4..6 => block::<4>(strip, first, &right, &mut left, &mut sums),
                    _ => block::<6>(strip, first, &right, &mut left, &mut sums),
                };
            }
            // SAFETY: the tile is this thread's.
            unsafe { to.put([i, j], &sums) };
        }
    }
}

/// The first number of a word.
fn low(word: u32) -> f32 {
    f32::from_bits(word << 16)
}

/// The second number of a word.
fn high(word: u32) -> f32 {
    f32::from_bits(word & 0xffff_0000)
}

/// Fills the sums of `R` rows from row `first` on, whose numbers are widened into `left`; returns `R`.
fn block<const R: usize>(
    a: &[Tile],
    first: usize,
    right: &[Lanes],
    left: &mut Vec<f32>,
    to: &mut Sums,
) -> usize {
    left.clear();
    for tile in a {
        for k in 0..SIDE {
            let words: [u32; R] = std::array::from_fn(|r| tile.0[first + r][k]);
            left.extend(words.map(low));
            left.extend(words.map(high));
        }
    }
    let (rows, _) = left.as_chunks::<R>();
    add_up::<R>(rows, right, to.0[first..].first_chunk_mut().expect("R rows"));
    R
}

/// Fills the sums of `R` rows with the products of their numbers and a row of `right` each.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn add_up<const R: usize>(left: &[[f32; R]], right: &[Lanes], to: &mut [Lanes; R]) {
    let mut sums = [[0.0f32; SIDE]; R];
    for (left, right) in left.iter().zip(right) {
        for (sums, x) in sums.iter_mut().zip(left) {
            for (sum, y) in sums.iter_mut().zip(right) {
                *sum = mul_add(*x, *y, *sum);
            }
        }
    }
    *to = sums;
}
