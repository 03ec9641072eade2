//! The destination of a product whose parts are written by several threads.

use super::tiles::TILE_SIDE;
use crate::nn::ops::WriteMode;
use std::marker::PhantomData;

/// Maximum strips of a right operand that a kernel multiplies at a time.
pub const MAX_STRIPS: usize = 4;

/// A tile of sums: `[16 rows, 16 columns]`.
#[repr(C, align(64))]
pub struct Sums(pub [[f32; TILE_SIDE]; TILE_SIDE]);

/// A row-major matrix that tiles of sums are written or added to.
pub struct Output<'a> {
    values: *mut f32,
    rows: usize,
    columns: usize,
    mode: WriteMode,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: the matrix is borrowed mutably, and threads write to disjoint tiles of it (`write`, `square`).
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

    /// Writes or adds the sums of the tile in row `i` and column `j` of tiles, clipped to the matrix.
    ///
    /// # Safety
    /// No other thread accesses this tile.
    #[inline]
    pub unsafe fn write(&self, tile: [usize; 2], sums: &Sums) {
        // SAFETY: as this function demands.
        unsafe {
            match self.mode {
                WriteMode::Accumulate => self.each_row(tile, sums, |y, x| *y += x),
                WriteMode::Overwrite => self.overwrite(tile, sums),
            }
        }
    }

    /// Writes the sums of a tile, as [`Output::write`].
    ///
    /// # Safety
    /// The contract of [`Output::write`].
    #[inline]
    pub unsafe fn overwrite(&self, tile: [usize; 2], sums: &Sums) {
        // SAFETY: as this function demands.
        unsafe { self.each_row(tile, sums, |y, x| *y = *x) }
    }

    /// Calls `change` with each element of a tile and its sum, row by row.
    ///
    /// # Safety
    /// The contract of [`Output::write`].
    #[inline(always)]
    unsafe fn each_row(&self, [i, j]: [usize; 2], sums: &Sums, change: impl Fn(&mut f32, &f32)) {
        let (i, j) = (i * TILE_SIDE, j * TILE_SIDE);
        let width = TILE_SIDE.min(self.columns - j);
        for (row, sums) in sums.0[..TILE_SIDE.min(self.rows - i)].iter().enumerate() {
            // SAFETY: the row and the columns are within the matrix, and the tile is this thread's.
            let to = unsafe {
                let start = self.values.add((i + row) * self.columns + j);
                std::slice::from_raw_parts_mut(start, width)
            };
            match <&mut [f32; TILE_SIDE]>::try_from(&mut *to) {
                Ok(to) => to.iter_mut().zip(sums).for_each(|(y, x)| change(y, x)),
                Err(_) => to.iter_mut().zip(sums).for_each(|(y, x)| change(y, x)),
            }
        }
    }

    /// Whether sums are added to the matrix instead of replacing it.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub fn accumulates(&self) -> bool {
        self.mode == WriteMode::Accumulate
    }

    /// Loads the tile in row `i` and column `j` of tiles, clipped to the matrix, into `sums`.
    ///
    /// # Safety
    /// No other thread accesses this tile.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub unsafe fn load(&self, [i, j]: [usize; 2], sums: &mut Sums) {
        let (i, j) = (i * TILE_SIDE, j * TILE_SIDE);
        let width = TILE_SIDE.min(self.columns - j);
        for (row, sums) in sums.0[..TILE_SIDE.min(self.rows - i)].iter_mut().enumerate() {
            // SAFETY: the row and the columns are within the matrix, and the tile is this thread's.
            let from = unsafe {
                let start = self.values.add((i + row) * self.columns + j);
                std::slice::from_raw_parts(start, width)
            };
            sums[..width].copy_from_slice(from);
        }
    }

    /// The start of the square of 2 by 2 tiles at a tile, and the stride between its rows, if it is within the matrix.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub fn square(&self, [i, j]: [usize; 2]) -> Option<(*mut f32, usize)> {
        let (i, j) = (i * TILE_SIDE, j * TILE_SIDE);
        let is_within = i + 2 * TILE_SIDE <= self.rows && j + 2 * TILE_SIDE <= self.columns;
        // `wrapping_add` stays within the matrix where the square does.
        let start = self.values.wrapping_add(i * self.columns + j);
        is_within.then_some((start, self.columns))
    }
}
