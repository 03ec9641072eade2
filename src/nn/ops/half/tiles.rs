//! Operands of products, rounded to bf16 and packed into tiles.

use crate::nn::ops::Parallelism;
use crate::nn::ops::matmul::{View, transpose};
use multiversion::multiversion;
use rayon::prelude::*;

/// Rows of a left operand, or columns of a right one, in a tile, and words in a row of a tile.
pub const SIDE: usize = 16;
/// Numbers of the inner dimension in a tile: two in a word.
pub const DEPTH: usize = 2 * SIDE;
/// Strips of a right operand that kernels take side by side at most.
pub const GROUP: usize = 4;

/// A tile of an operand: `[16, 16]` words of two adjacent numbers of the inner dimension, the first in the low half.
/// The rows of a tile are rows of a left operand, or pairs of the inner dimension of a right one.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Tile(pub [[u32; SIDE]; SIDE]);

/// A tile of sums: `[16 rows, 16 columns]`.
#[repr(C, align(64))]
pub struct Sums(pub [[f32; SIDE]; SIDE]);

/// The side of a product on which an operand stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Rows.
    Left,
    /// Columns.
    Right,
}

/// An operand in bf16: a strip of tiles for each 16 rows or columns. The last tiles are padded with zeros.
#[derive(Clone, Debug, Default)]
pub struct Operand {
    tiles: Vec<Tile>,
    outer: usize,
    inner: usize,
}

impl Operand {
    /// Rounds and packs a matrix, `[outer, inner]`, into this operand's memory: the rows of a left operand, or the
    /// columns of a right one.
    pub fn pack(
        &mut self,
        parallelism: Parallelism,
        matrix: View,
        [outer, inner]: [usize; 2],
        side: Side,
    ) {
        (self.outer, self.inner) = (outer, inner);
        let blocks = inner.div_ceil(DEPTH);
        self.tiles.resize(outer.div_ceil(SIDE) * blocks, Tile([[0; SIDE]; SIDE]));
        let strip = |(number, tiles): (usize, &mut [Tile])| {
            let first = number * SIDE;
            let matrix = View { values: &matrix.values[first * matrix.row..], ..matrix };
            pack_strip(matrix, [SIDE.min(outer - first), inner], side, tiles);
        };
        match parallelism {
            Parallelism::Parallel if self.tiles.len() > 2 * SIDE => {
                self.tiles.par_chunks_mut(blocks).enumerate().for_each(strip);
            }
            _ => self.tiles.chunks_mut(blocks.max(1)).enumerate().for_each(strip),
        }
    }

    /// The number of rows of a left operand, or columns of a right one.
    pub fn outer(&self) -> usize {
        self.outer
    }

    /// The inner dimension.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// The number of strips.
    pub(super) fn strips(&self) -> usize {
        self.outer.div_ceil(SIDE)
    }

    /// Size of a strip in bytes.
    pub(super) fn strip_bytes(&self) -> usize {
        self.inner.div_ceil(DEPTH) * size_of::<Tile>()
    }

    /// The tiles of a strip.
    pub(super) fn strip(&self, number: usize) -> &[Tile] {
        let blocks = self.inner.div_ceil(DEPTH);
        &self.tiles[number * blocks..][..blocks]
    }
}

/// The nearest number in bf16, of two equally near ones the even one.
#[inline(always)]
pub fn round(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

#[inline(always)]
fn pair(low: f32, high: f32) -> u32 {
    u32::from(round(low)) | u32::from(round(high)) << 16
}

/// Packs up to 16 rows of a matrix, all of its inner dimension.
#[multiversion(targets(
    "x86_64+avx512f+avx512vl+avx512bw+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
fn pack_strip(matrix: View, [outer, inner]: [usize; 2], side: Side, tiles: &mut [Tile]) {
    let View { values, row, column } = matrix;
    for (block, tile) in tiles.iter_mut().enumerate() {
        let first = block * DEPTH;
        let depth = DEPTH.min(inner - first);
        let is_whole = outer == SIDE && depth == DEPTH;
        if is_whole && column == 1 {
            for (i, words) in tile.0.iter_mut().enumerate() {
                let from: &[f32; DEPTH] =
                    values[i * row + first..].first_chunk().expect("a row of a tile");
                let halves = from.map(round);
                *words = std::array::from_fn(|k| {
                    u32::from(halves[2 * k]) | u32::from(halves[2 * k + 1]) << 16
                });
            }
        } else if is_whole && row == 1 {
            for (k, words) in tile.0.iter_mut().enumerate() {
                let pairs = [0, 1].map(|odd| {
                    let from = &values[(first + 2 * k + odd) * column..];
                    from.first_chunk::<SIDE>().expect("a row of a tile")
                });
                *words = std::array::from_fn(|i| pair(pairs[0][i], pairs[1][i]));
            }
        } else {
            let at = |i: usize, k: usize| match i < outer && k < depth {
                true => values[i * row + (first + k) * column],
                false => 0.0,
            };
            for (i, words) in tile.0.iter_mut().enumerate() {
                *words = std::array::from_fn(|k| pair(at(i, 2 * k), at(i, 2 * k + 1)));
            }
        }
        // Tiles of a left operand have been filled row by row, except those read by the inner dimension.
        let filled = if is_whole && column != 1 && row == 1 { Side::Right } else { Side::Left };
        if filled != side {
            tile.0 = transpose(&tile.0.map(|words| words.map(f32::from_bits)))
                .map(|words| words.map(f32::to_bits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_then_to_even() {
        let halves = [0x3f80u16, 0x3f81, 0xc2f7, 0x0001, 0x7f7f];
        for half in halves {
            let bits = u32::from(half) << 16;
            assert_eq!(round(f32::from_bits(bits)), half);
            assert_eq!(round(f32::from_bits(bits + 0x7fff)), half);
            assert_eq!(round(f32::from_bits(bits + 0x8000)), half + (half & 1));
            assert_eq!(round(f32::from_bits(bits + 0x8001)), half + 1);
        }
        assert_eq!(round(f32::INFINITY), 0x7f80);
        assert!(f32::from_bits(u32::from(round(f32::from_bits(0x7f80_0001))) << 16).is_nan());
    }
}
