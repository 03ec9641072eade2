//! Operands of products, rounded to bf16 and packed into tiles.

use crate::math::{LANES, Lanes};
use crate::nn::ops::Parallelism;
use crate::nn::ops::matmul::{View, transpose};
use crate::nn::ops::stored::Bf16RowPair;

/// Rows of a left operand, or columns of a right one, in a tile, and words in a row of a tile.
pub const TILE_SIDE: usize = 16;
/// Elements of the inner dimension in a tile: two in a word.
pub const DEPTH: usize = 2 * TILE_SIDE;
/// Strips of columns that are packed side by side.
const PACKED_STRIPS: usize = 4;

/// A tile of an operand: `[16, 16]` words of two adjacent elements of the inner dimension, the first in the low half.
/// The rows of a tile are rows of a left operand, or pairs of the inner dimension of a right one.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Tile(pub [[u32; TILE_SIDE]; TILE_SIDE]);

/// The side of a product on which an operand stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The left operand, packed by rows.
    Left,
    /// The right operand, packed by columns.
    Right,
}

/// An operand in bf16: a strip of tiles for each 16 rows or columns. The last tiles are padded with zeros.
#[derive(Clone, Debug, Default)]
pub struct TiledMatrix {
    tiles: Vec<Tile>,
    outer: usize,
    inner: usize,
}

impl TiledMatrix {
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
        self.tiles.resize(outer.div_ceil(TILE_SIDE) * blocks, Tile([[0; TILE_SIDE]; TILE_SIDE]));
        // Strips of columns are packed side by side, since a cache line of the matrix reaches over several.
        let group_strips = if matrix.row_stride == 1 { PACKED_STRIPS } else { 1 };
        let parallelism =
            if self.tiles.len() > 2 * TILE_SIDE { parallelism } else { Parallelism::Sequential };
        let groups = [(&mut self.tiles[..], (group_strips * blocks).max(1))];
        parallelism.each_chunk(groups, |index, [tiles]| {
            for block in 0..blocks {
                for (strip, tile) in tiles.iter_mut().skip(block).step_by(blocks).enumerate() {
                    let (i, k) = ((index * group_strips + strip) * TILE_SIDE, block * DEPTH);
                    let values = &matrix.values[i * matrix.row_stride + k * matrix.column_stride..];
                    let sizes = [TILE_SIDE.min(outer - i), DEPTH.min(inner - k)];
                    pack_tile(View { values, ..matrix }, sizes, side, tile);
                }
            }
        });
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
    #[cfg(any(test, target_arch = "x86_64"))]
    pub(super) fn num_strips(&self) -> usize {
        self.outer.div_ceil(TILE_SIDE)
    }

    /// Size of a strip in bytes.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn strip_bytes(&self) -> usize {
        self.inner.div_ceil(DEPTH) * size_of::<Tile>()
    }

    /// The tiles of a strip.
    pub(super) fn strip(&self, index: usize) -> &[Tile] {
        let blocks = self.inner.div_ceil(DEPTH);
        &self.tiles[index * blocks..][..blocks]
    }

    /// The rows of words of a strip of columns.
    pub(super) fn pairs(&self, index: usize) -> &[Bf16RowPair] {
        let tiles = self.strip(index);
        const {
            assert!(size_of::<Tile>() == TILE_SIDE * size_of::<Bf16RowPair>() && TILE_SIDE == LANES)
        };
        // SAFETY: a tile is an array of 16 rows of 16 words without padding, and `Bf16RowPair` is such a row.
        unsafe { std::slice::from_raw_parts(tiles.as_ptr().cast(), tiles.len() * TILE_SIDE) }
    }
}

/// The nearest number in bf16, of two equally near ones the even one.
#[inline(always)]
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

/// Rounds a number to bf16.
#[inline(always)]
pub fn round_to_bf16(x: f32) -> f32 {
    f32::from_bits(u32::from(to_bf16(x)) << 16)
}

#[inline(always)]
fn pack_pair(low: f32, high: f32) -> u32 {
    u32::from(to_bf16(low)) | u32::from(to_bf16(high)) << 16
}

/// Packs up to 16 rows of 32 numbers.
fn pack_tile(matrix: View, [outer, depth]: [usize; 2], side: Side, tile: &mut Tile) {
    let View { values, row_stride, column_stride } = matrix;
    let is_whole = outer == TILE_SIDE && depth == DEPTH;
    // Rows that lie side by side give the words of a left operand, and columns those of a right one.
    let filled = match (is_whole, row_stride, column_stride) {
        (true, _, 1) => {
            pack_rows(values, row_stride, tile);
            Side::Left
        }
        (true, 1, _) => {
            pack_columns(values, column_stride, tile);
            Side::Right
        }
        (_, 1, _) => {
            let mut padded = [[0.0; TILE_SIDE]; DEPTH];
            for (k, to) in padded.iter_mut().take(depth).enumerate() {
                to[..outer].copy_from_slice(&values[k * column_stride..][..outer]);
            }
            pack_columns(padded.as_flattened(), TILE_SIDE, tile);
            Side::Right
        }
        _ => {
            let mut padded = [[0.0; DEPTH]; TILE_SIDE];
            for (i, to) in padded.iter_mut().take(outer).enumerate() {
                let from = values[i * row_stride..].iter().step_by(column_stride);
                to.iter_mut().zip(from.take(depth)).for_each(|(to, x)| *to = *x);
            }
            pack_rows(padded.as_flattened(), DEPTH, tile);
            Side::Left
        }
    };
    if filled != side {
        let words: &mut [Lanes; TILE_SIDE] = bytemuck::cast_mut(&mut tile.0);
        *words = transpose(words);
    }
}

/// Packs 16 rows of 32 elements, `row_stride` apart: a row of words each.
///
/// # Panics
/// If `values` is too short.
fn pack_rows(values: &[f32], row_stride: usize, tile: &mut Tile) {
    assert!((TILE_SIDE - 1) * row_stride + DEPTH <= values.len(), "rows of a tile");
    #[cfg(target_arch = "x86_64")]
    if crate::nn::ops::matmul::has_avx512() {
        // SAFETY: the processor has AVX-512, and the length was checked above.
        return unsafe { avx512::pack_rows(values, row_stride, tile) };
    }
    for (i, words) in tile.0.iter_mut().enumerate() {
        let pairs = values[i * row_stride..][..DEPTH].chunks_exact(2);
        words.iter_mut().zip(pairs).for_each(|(word, x)| *word = pack_pair(x[0], x[1]));
    }
}

/// Packs 32 rows of 16 elements, `row_stride` apart: two rows in a row of words.
///
/// # Panics
/// If `values` is too short.
fn pack_columns(values: &[f32], row_stride: usize, tile: &mut Tile) {
    assert!((DEPTH - 1) * row_stride + TILE_SIDE <= values.len(), "rows of a tile");
    #[cfg(target_arch = "x86_64")]
    if crate::nn::ops::matmul::has_avx512() {
        // SAFETY: the processor has AVX-512, and the length was checked above.
        return unsafe { avx512::pack_columns(values, row_stride, tile) };
    }
    for (k, words) in tile.0.iter_mut().enumerate() {
        let [low, high] = [0, 1].map(|odd| &values[(2 * k + odd) * row_stride..][..TILE_SIDE]);
        let pairs = low.iter().zip(high);
        words.iter_mut().zip(pairs).for_each(|(word, (x, y))| *word = pack_pair(*x, *y));
    }
}

/// Whole tiles packed by AVX-512.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{TILE_SIDE, Tile};
    use std::arch::x86_64::{
        __m512i, _CMP_UNORD_Q, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512,
        _mm512_castsi256_si512, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16, _mm512_inserti64x4,
        _mm512_loadu_ps, _mm512_mask_mov_epi32, _mm512_or_si512, _mm512_set1_epi32,
        _mm512_slli_epi32, _mm512_srli_epi32, _mm512_store_si512,
    };

    /// Rounds 16 elements to bf16, each in the low half of a word, as [`super::to_bf16`].
    ///
    /// # Safety
    /// The processor has AVX-512, and there are 16 elements at `from`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn round(from: *const f32) -> __m512i {
        // SAFETY: the caller guarantees it (`# Safety`).
        let x = unsafe { _mm512_loadu_ps(from) };
        let bits = _mm512_castps_si512(x);
        let high = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        _mm512_mask_mov_epi32(_mm512_srli_epi32::<16>(rounded), is_nan, nan)
    }

    /// # Safety
    /// The processor has AVX-512, and `values` 16 rows of 32 elements, `row_stride` apart.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn pack_rows(values: &[f32], row_stride: usize, tile: &mut Tile) {
        for (i, words) in tile.0.iter_mut().enumerate() {
            // SAFETY: the caller guarantees it (`# Safety`); a row of words is 64 aligned bytes.
            unsafe {
                let from = values.as_ptr().add(i * row_stride);
                let halves =
                    [from, from.add(TILE_SIDE)].map(|from| _mm512_cvtepi32_epi16(round(from)));
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1]);
                _mm512_store_si512(words.as_mut_ptr().cast(), both);
            }
        }
    }

    /// # Safety
    /// The processor has AVX-512, and `values` 32 rows of 16 elements, `row_stride` apart.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn pack_columns(values: &[f32], row_stride: usize, tile: &mut Tile) {
        for (k, words) in tile.0.iter_mut().enumerate() {
            // SAFETY: the caller guarantees it (`# Safety`); a row of words is 64 aligned bytes.
            unsafe {
                let from = values.as_ptr().add(2 * k * row_stride);
                let high = _mm512_slli_epi32::<16>(round(from.add(row_stride)));
                _mm512_store_si512(words.as_mut_ptr().cast(), _mm512_or_si512(round(from), high));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::Draws;

    #[test]
    fn whole_and_partial_tiles_are_packed_alike() {
        let mut draws = Draws::new(34);
        let (rows, inner) = (TILE_SIDE + 3, DEPTH + 5);
        let mut values = draws.next_numbers(rows * inner);
        (values[3], values[inner + 7]) = (f32::NAN, f32::NEG_INFINITY);
        let turned: Vec<f32> =
            (0..rows * inner).map(|at| values[at % rows * inner + at / rows]).collect();
        for side in [Side::Left, Side::Right] {
            let views = [View::rows(&values, inner), View::rows(&turned, rows).transpose()];
            for view in views {
                let mut operand = TiledMatrix::default();
                operand.pack(Parallelism::Sequential, view, [rows, inner], side);
                for i in 0..operand.num_strips() * TILE_SIDE {
                    for k in 0..inner.div_ceil(DEPTH) * DEPTH {
                        let tile = &operand.strip(i / TILE_SIDE)[k / DEPTH];
                        let [row, word] = match side {
                            Side::Left => [i % TILE_SIDE, k % DEPTH / 2],
                            Side::Right => [k % DEPTH / 2, i % TILE_SIDE],
                        };
                        let half = (tile.0[row][word] >> (16 * (k % 2))) as u16;
                        let is_inside = i < rows && k < inner;
                        let want = if is_inside { to_bf16(values[i * inner + k]) } else { 0 };
                        assert_eq!(half, want, "{side:?} {i} {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_then_to_even() {
        let halves = [0x3f80u16, 0x3f81, 0xc2f7, 0x0001, 0x7f7f];
        for half in halves {
            let bits = u32::from(half) << 16;
            assert_eq!(to_bf16(f32::from_bits(bits)), half);
            assert_eq!(to_bf16(f32::from_bits(bits + 0x7fff)), half);
            assert_eq!(to_bf16(f32::from_bits(bits + 0x8000)), half + (half & 1));
            assert_eq!(to_bf16(f32::from_bits(bits + 0x8001)), half + 1);
        }
        assert_eq!(to_bf16(f32::INFINITY), 0x7f80);
        assert!(round_to_bf16(f32::from_bits(0x7f80_0001)).is_nan());
    }
}
