//! The destination of a product whose parts are written by several threads.

use super::tiles::TILE_SIDE;
use crate::nn::ops::WriteMode;
use std::marker::PhantomData;

/// A row-major matrix that sums are written or added to.
pub struct Output<'a> {
    values: *mut f32,
    rows: usize,
    columns: usize,
    mode: WriteMode,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: the matrix is borrowed mutably, and threads write to disjoint tiles of it (`row_part`, `square`).
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// The destination of sums: `values` is `[rows, columns]`, which is replaced, or added to.
    ///
    /// # Panics
    /// If `values` has another length.
    pub fn new(values: &'a mut [f32], [rows, columns]: [usize; 2], mode: WriteMode) -> Self {
        assert_eq!(values.len(), rows * columns, "[rows, columns]");
        Self { values: values.as_mut_ptr(), rows, columns, mode, matrix: PhantomData }
    }

    /// Whether sums replace the matrix or are added to it.
    pub fn mode(&self) -> WriteMode {
        self.mode
    }

    /// The start of a row's part in a strip of 16 columns, and its length, which is shorter at the end of the row.
    ///
    /// # Panics
    /// If they are not within the matrix.
    #[inline]
    pub fn row_part(&self, row: usize, strip: usize) -> (*mut f32, usize) {
        let j = strip * TILE_SIDE;
        assert!(row < self.rows && j < self.columns, "a row and a strip of the matrix");
        (self.values.wrapping_add(row * self.columns + j), TILE_SIDE.min(self.columns - j))
    }
}

/// A tile of sums: `[16 rows, 16 columns]`.
#[cfg(target_os = "linux")]
#[repr(C, align(64))]
pub struct Sums(pub [[f32; TILE_SIDE]; TILE_SIDE]);

#[cfg(target_os = "linux")]
impl Output<'_> {
    /// The rows of the tile in row `i` and column `j` of tiles, clipped to the matrix.
    ///
    /// # Safety
    /// No other thread accesses this tile, and one row is used at a time.
    unsafe fn rows(&self, [i, j]: [usize; 2]) -> impl Iterator<Item = &mut [f32]> {
        let first = i * TILE_SIDE;
        (first..self.rows.min(first + TILE_SIDE)).map(move |row| {
            let (start, width) = self.row_part(row, j);
            // SAFETY: the part is within the matrix, and this thread's.
            unsafe { std::slice::from_raw_parts_mut(start, width) }
        })
    }

    /// Loads the tile in row `i` and column `j` of tiles, clipped to the matrix, into `sums`.
    ///
    /// # Safety
    /// No other thread accesses this tile.
    pub unsafe fn load(&self, tile: [usize; 2], sums: &mut Sums) {
        // SAFETY: the caller guarantees it (`# Safety`).
        for (from, to) in unsafe { self.rows(tile) }.zip(&mut sums.0) {
            to[..from.len()].copy_from_slice(from);
        }
    }

    /// Replaces the tile in row `i` and column `j` of tiles, clipped to the matrix, with `sums`.
    ///
    /// # Safety
    /// No other thread accesses this tile.
    pub unsafe fn overwrite(&self, tile: [usize; 2], sums: &Sums) {
        // SAFETY: the caller guarantees it (`# Safety`).
        for (to, from) in unsafe { self.rows(tile) }.zip(&sums.0) {
            to.copy_from_slice(&from[..to.len()]);
        }
    }

    /// The start of the square of 2 by 2 tiles at a tile, and the stride between its rows, if it is within the matrix.
    pub fn square(&self, [i, j]: [usize; 2]) -> Option<(*mut f32, usize)> {
        let (i, j) = (i * TILE_SIDE, j * TILE_SIDE);
        let is_within = i + 2 * TILE_SIDE <= self.rows && j + 2 * TILE_SIDE <= self.columns;
        // `wrapping_add` stays within the matrix where the square does.
        let start = self.values.wrapping_add(i * self.columns + j);
        is_within.then_some((start, self.columns))
    }
}
