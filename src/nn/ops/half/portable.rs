//! Products of tiles by operands widened to f32, on any processor.

use super::output::Output;
use super::tiles::{Operand, SIDE, Sums};
use crate::math::{LANES, Lanes};
use crate::nn::ops::stored::{self, Strip};
use std::ops::Range;

/// The scales of numbers that have none.
const UNSCALED: &[[Lanes; 2]] = &[[[0.0; LANES]; 2]];

/// Multiplies the strips `rows` of `a` by the strips `columns` of `b`, as a stored matrix of bfloat16 is multiplied.
///
/// # Safety
/// No other thread may access that part of `to`.
pub unsafe fn multiply(a: &Operand, b: &Operand, [rows, columns]: [Range<usize>; 2], to: &Output) {
    let (inner, width) = (a.inner(), columns.len() * SIDE);
    let x = widened(a, rows.clone());
    let mut y = vec![0.0; x.len() / inner * width];
    let strip = |number| Strip { pairs: b.pairs(columns.start + number), scales: UNSCALED };
    let sizes = [inner, inner.next_multiple_of(2)];
    stored::multiply(sizes, strip, width, &x, &mut y, false);
    let mut sums = Sums([[0.0; SIDE]; SIDE]);
    for (i, y) in rows.zip(y.chunks(SIDE * width)) {
        for (number, j) in columns.clone().enumerate() {
            for (sums, y) in sums.0.iter_mut().zip(y.chunks(width)) {
                sums.copy_from_slice(&y[number * SIDE..][..SIDE]);
            }
            // SAFETY: the tile is this thread's.
            unsafe { to.put([i, j], &sums) };
        }
    }
}

/// The rows of some strips: `[rows, inner]`.
fn widened(a: &Operand, strips: Range<usize>) -> Vec<f32> {
    let inner = a.inner();
    let mut numbers = Vec::with_capacity(strips.len() * SIDE * inner);
    for i in strips {
        for row in 0..SIDE.min(a.outer() - i * SIDE) {
            let words = a.strip(i).iter().flat_map(|tile| tile.0[row]);
            let both = words.flat_map(|word| [word << 16, word & 0xffff_0000]);
            numbers.extend(both.take(inner).map(f32::from_bits));
        }
    }
    numbers
}
