//! One tile of a matrix product: as many sums as the registers hold.

use super::Target;
#[cfg(not(target_family = "wasm"))]
use crate::math::mul_add;
use crate::math::{LANES, Lanes};
#[cfg(target_arch = "x86_64")]
use crate::nn::ops::WriteMode;
#[cfg(not(target_family = "wasm"))]
use multiversion::multiversion;

/// Whether the CPU has AVX-512, and so 32 registers of [`LANES`] floats.
pub fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// `R` rows of a left operand.
pub trait LeftRows<const R: usize>: Copy {
    /// The number of columns.
    fn columns(self) -> usize;

    /// The element in row `r`, column `k`.
    ///
    /// # Safety
    /// `r < R` and `k` is less than the number of columns.
    unsafe fn at(self, r: usize, k: usize) -> f32;
}

/// Packed column by column.
impl<const R: usize> LeftRows<R> for &[[f32; R]] {
    #[inline(always)]
    fn columns(self) -> usize {
        self.len()
    }

    #[inline(always)]
    unsafe fn at(self, r: usize, k: usize) -> f32 {
        // SAFETY: the caller guarantees the bounds.
        unsafe { *self.get_unchecked(k).get_unchecked(r) }
    }
}

/// `R` rows read in place, of a row-major matrix, or else of a column-major one.
#[derive(Clone, Copy)]
pub struct Strided<'a, const R: usize, const ROW_MAJOR: bool> {
    values: &'a [f32],
    /// The distance of rows, or of columns.
    stride: usize,
    columns: usize,
}

impl<'a, const R: usize> Strided<'a, R, true> {
    /// The first `columns` columns of rows with this stride.
    ///
    /// # Panics
    /// If `values` is too short.
    pub fn rows(values: &'a [f32], stride: usize, columns: usize) -> Self {
        assert!((R - 1) * stride + columns <= values.len(), "{R} rows of {columns} numbers");
        Self { values, stride, columns }
    }
}

impl<'a, const R: usize> Strided<'a, R, false> {
    /// The first `columns` columns, with this stride between them.
    ///
    /// # Panics
    /// If `values` is too short.
    pub fn columns(values: &'a [f32], stride: usize, columns: usize) -> Self {
        let last = columns.saturating_sub(1);
        assert!(last * stride + R <= values.len(), "{columns} columns of {R} numbers");
        Self { values, stride, columns }
    }
}

impl<const R: usize, const ROW_MAJOR: bool> LeftRows<R> for Strided<'_, R, ROW_MAJOR> {
    #[inline(always)]
    fn columns(self) -> usize {
        self.columns
    }

    #[inline(always)]
    unsafe fn at(self, r: usize, k: usize) -> f32 {
        let at = if ROW_MAJOR { r * self.stride + k } else { k * self.stride + r };
        // SAFETY: `r < R` and `k < columns` by the caller, and the length was checked for them.
        unsafe { *self.values.get_unchecked(at) }
    }
}

/// Multiplies `R` rows by a strip of `V` vectors of columns and stores the first `width` columns in `c`.
///
/// # Panics
/// If the rows and the strip differ in length, or `c` is too short.
#[inline]
pub fn multiply_tile<const R: usize, const V: usize>(
    a: impl LeftRows<R>,
    strip: &[Lanes],
    c: Target,
    width: usize,
) {
    let (strip, _) = strip.as_chunks::<V>();
    assert_eq!(a.columns(), strip.len(), "rows of a strip");
    assert!((V - 1) * LANES < width && width <= V * LANES, "{width} of {V} vectors");
    assert!(
        (R - 1) * c.row_stride + width <= c.values.len(),
        "room for {R} rows of {width} numbers"
    );
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        // SAFETY: the CPU has AVX-512, and the lengths were checked above.
        return unsafe { multiply_tile_avx512(a, strip, c, width) };
    }
    let mut sums = [[[0.0; LANES]; V]; R];
    for v in 0..V {
        // A vector at a time: other instruction sets have fewer or smaller registers.
        sum_vector(a, strip, v, &mut sums);
    }
    for (r, sums) in sums.iter().enumerate() {
        let row = &mut c.values[r * c.row_stride..][..width];
        let sums = &sums.as_flattened()[..width];
        c.mode.write_row(row, sums);
    }
}

/// Computes the whole tile in AVX-512's 32 registers, which compilers do not manage by themselves.
///
/// # Safety
/// `c` must hold `R` rows of `width` elements, and the strip must have as many rows as `a` has columns.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_tile_avx512<const R: usize, const V: usize>(
    a: impl LeftRows<R>,
    strip: &[[Lanes; V]],
    c: Target,
    width: usize,
) {
    use std::arch::x86_64::{
        _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps,
        _mm512_maskz_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
    };
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for (k, vectors) in strip.iter().enumerate() {
        let mut b = [_mm512_setzero_ps(); V];
        for (b, vector) in b.iter_mut().zip(vectors) {
            // SAFETY: a vector has 16 numbers.
            *b = unsafe { _mm512_loadu_ps(vector.as_ptr()) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `a` has R rows, and a column for each row of the strip.
            let x = _mm512_set1_ps(unsafe { a.at(r, k) });
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = _mm512_fmadd_ps(x, b, *sum);
            }
        }
    }
    // The last vector may be partial.
    let last = u16::MAX >> (V * LANES - width);
    for (r, sums) in sums.into_iter().enumerate() {
        for (v, sum) in sums.into_iter().enumerate() {
            let mask = if v + 1 < V { u16::MAX } else { last };
            // SAFETY: `c` holds R rows of `width` numbers.
            unsafe {
                let to = c.values.as_mut_ptr().add(r * c.row_stride + v * LANES);
                let sum = match c.mode {
                    WriteMode::Accumulate => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sum),
                    WriteMode::Overwrite => sum,
                };
                _mm512_mask_storeu_ps(to, mask, sum);
            }
        }
    }
}

/// Computes the sums of vector `v`.
#[cfg(not(target_family = "wasm"))]
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn sum_vector<const R: usize, const V: usize>(
    a: impl LeftRows<R>,
    strip: &[[Lanes; V]],
    v: usize,
    results: &mut [[Lanes; V]; R],
) {
    let mut sums = [[0.0f32; LANES]; R];
    for (k, vectors) in strip.iter().enumerate() {
        let b = vectors[v];
        for (r, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `a` has R rows, and a column for each row of the strip.
            let x = unsafe { a.at(r, k) };
            for (sum, b) in sum.iter_mut().zip(&b) {
                *sum = mul_add(x, *b, *sum);
            }
        }
    }
    for (result, sum) in results.iter_mut().zip(sums) {
        result[v] = sum;
    }
}

/// Computes the sums of vector `v` on WebAssembly: half a vector at a time, since its sixteen registers hold
/// four floats each.
#[cfg(target_family = "wasm")]
fn sum_vector<const R: usize, const V: usize>(
    a: impl LeftRows<R>,
    strip: &[[Lanes; V]],
    v: usize,
    results: &mut [[Lanes; V]; R],
) {
    sum_half_vector::<R, V, 0>(a, strip, v, results);
    sum_half_vector::<R, V, { LANES / 2 }>(a, strip, v, results);
}

/// Computes the half of vector `v` that begins at lane `FIRST`.
#[cfg(target_family = "wasm")]
fn sum_half_vector<const R: usize, const V: usize, const FIRST: usize>(
    a: impl LeftRows<R>,
    strip: &[[Lanes; V]],
    v: usize,
    results: &mut [[Lanes; V]; R],
) {
    use crate::math::quads::{QUAD, load, mul_add, splat, store};
    const QUADS: usize = LANES / 2 / QUAD;
    let mut sums = [[splat(0.0); QUADS]; R];
    for (k, vectors) in strip.iter().enumerate() {
        let b = &vectors[v];
        let b: [_; QUADS] = std::array::from_fn(|q| load(&b[FIRST + q * QUAD..]));
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `a` has R rows, and a column for each row of the strip.
            let x = splat(unsafe { a.at(r, k) });
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = mul_add(x, b, *sum);
            }
        }
    }
    for (result, sums) in results.iter_mut().zip(sums) {
        for (quad, sum) in result[v][FIRST..].chunks_exact_mut(QUAD).zip(sums) {
            store(sum, quad);
        }
    }
}

/// Transposes a square of [`LANES`] rows.
#[inline]
pub fn transpose(rows: &[Lanes; LANES]) -> [Lanes; LANES] {
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        // SAFETY: the CPU has AVX-512.
        return unsafe { transpose_avx512(rows) };
    }
    std::array::from_fn(|j| std::array::from_fn(|i| rows[i][j]))
}

/// Transposes by exchanging pairs of rows, then pairs of pairs, then the quarters of registers.
///
/// # Safety
/// The CPU must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_avx512(rows: &[Lanes; LANES]) -> [Lanes; LANES] {
    use crate::math::map_array;
    use std::arch::x86_64::{
        _mm512_castpd_ps, _mm512_castps_pd, _mm512_loadu_ps, _mm512_shuffle_f32x4,
        _mm512_storeu_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd,
        _mm512_unpacklo_ps,
    };
    // SAFETY: each row has 16 numbers.
    let rows = map_array(rows.each_ref(), |row| unsafe { _mm512_loadu_ps(row.as_ptr()) });
    let mut pairs = rows;
    for i in (0..LANES).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    // Element `4 i + c` holds column `c` of each quarter of rows `4 i` to `4 i + 3`.
    let mut fours = pairs;
    for i in (0..LANES).step_by(4) {
        for half in 0..2 {
            let [a, b] = map_array([pairs[i + half], pairs[i + half + 2]], |x| _mm512_castps_pd(x));
            fours[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let mut all = [[0.0; LANES]; LANES];
    for c in 0..4 {
        let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
        let even = [_mm512_shuffle_f32x4::<EVEN>(a, b), _mm512_shuffle_f32x4::<EVEN>(d, e)];
        let odd = [_mm512_shuffle_f32x4::<ODD>(a, b), _mm512_shuffle_f32x4::<ODD>(d, e)];
        let columns = [
            _mm512_shuffle_f32x4::<EVEN>(even[0], even[1]),
            _mm512_shuffle_f32x4::<EVEN>(odd[0], odd[1]),
            _mm512_shuffle_f32x4::<ODD>(even[0], even[1]),
            _mm512_shuffle_f32x4::<ODD>(odd[0], odd[1]),
        ];
        for (quarter, column) in columns.into_iter().enumerate() {
            // SAFETY: each row has 16 numbers.
            unsafe { _mm512_storeu_ps(all[4 * quarter + c].as_mut_ptr(), column) };
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        let rows: [Lanes; LANES] =
            std::array::from_fn(|i| std::array::from_fn(|j| (16 * i + j) as f32));
        for (j, column) in transpose(&rows).iter().enumerate() {
            assert!(
                column.iter().enumerate().all(|(i, x)| *x == (16 * i + j) as f32),
                "{j}: {column:?}"
            );
        }
    }
}
