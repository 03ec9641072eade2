//! Products of matrices that lie anywhere, for learning on the CPU.
//!
//! A tile of the result stays in registers while the inner dimension goes by: each step takes a row of `b`
//! and multiplies it by one number of `a` for each row of the tile (the "outer product" form of Goto & van
//! de Geijn 2008).

use crate::math::mul_add;
use crate::model::{LANES, Lanes};
use multiversion::{multiversion, target::match_target};

/// A matrix whose element `[i, k]` is `values[i * row + k * column]`.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The numbers.
    pub values: &'a [f32],
    /// From row to row.
    pub row: usize,
    /// From column to column.
    pub column: usize,
}

impl<'a> View<'a> {
    /// Rows without gaps of so many numbers.
    pub fn rows(values: &'a [f32], width: usize) -> Self {
        Self { values, row: width, column: 1 }
    }

    /// Its rows as columns.
    pub fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }
}

/// Where a product goes: row `i` begins at `values[i * row]`.
pub struct Target<'a> {
    /// The numbers.
    pub values: &'a mut [f32],
    /// From row to row.
    pub row: usize,
    /// Whether it is added to what is there.
    pub add: bool,
}

/// Rows, inner numbers and columns of a product.
pub type Sizes = [usize; 3];

/// `c = a b`, or `c += a b`: `a` is `[rows, inner]`, `b` `[inner, columns]`, whose columns lie side by side.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn product(a: View, b: View, c: Target, sizes: Sizes) {
    // With 32 registers of 16 lanes a tile can be larger.
    match_target! {
        "x86_64+avx512f" => tiles::<8, 3>(a, b, c, sizes),
        _ => tiles::<4, 1>(a, b, c, sizes),
    }
}

/// Covers `c` with tiles of up to `R` rows and `V` vectors.
#[inline(always)]
fn tiles<const R: usize, const V: usize>(a: View, b: View, c: Target, sizes: Sizes) {
    let [rows, inner, columns] = sizes;
    let mut j = 0;
    let mut c = c;
    while columns - j >= V * LANES {
        strip::<R, V>(a, b, &mut c, sizes, j);
        j += V * LANES;
    }
    while columns - j >= 2 * LANES {
        strip::<R, 2>(a, b, &mut c, sizes, j);
        j += 2 * LANES;
    }
    while columns - j >= LANES {
        strip::<R, 1>(a, b, &mut c, sizes, j);
        j += LANES;
    }
    if j < columns {
        (0..rows).for_each(|i| narrow(a, b, &mut c, [i, inner, j], columns - j));
    }
}

/// The `V` vectors of columns from `j` on, for all rows.
#[inline(always)]
fn strip<const R: usize, const V: usize>(
    a: View,
    b: View,
    c: &mut Target,
    [rows, inner, _]: Sizes,
    j: usize,
) {
    let mut i = 0;
    while rows - i >= R {
        tile::<R, V>(a, b, c, [i, inner, j]);
        i += R;
    }
    while i < rows {
        tile::<1, V>(a, b, c, [i, inner, j]);
        i += 1;
    }
}

/// The tile from row `i` and column `j` on.
#[inline(always)]
fn tile<const R: usize, const V: usize>(
    a: View,
    b: View,
    c: &mut Target,
    [i, inner, j]: [usize; 3],
) {
    let mut sums = [[[0.0f32; LANES]; V]; R];
    for k in 0..inner {
        let (vectors, _) = b.values[k * b.row + j..][..V * LANES].as_chunks::<LANES>();
        let vectors: [Lanes; V] = *<&[Lanes; V]>::try_from(vectors).expect("V vectors");
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = a.values[(i + r) * a.row + k * a.column];
            for (sum, b) in sums.iter_mut().zip(&vectors) {
                for (sum, b) in sum.iter_mut().zip(b) {
                    *sum = mul_add(x, *b, *sum);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let row = &mut c.values[(i + r) * c.row + j..][..V * LANES];
        store(row, sums.as_flattened(), c.add);
    }
}

/// A row of fewer columns than a vector has.
#[inline(always)]
fn narrow(a: View, b: View, c: &mut Target, [i, inner, j]: [usize; 3], width: usize) {
    let mut sums = [0.0f32; LANES];
    for k in 0..inner {
        let x = a.values[i * a.row + k * a.column];
        let row = &b.values[k * b.row + j..][..width];
        for (sum, b) in sums.iter_mut().zip(row) {
            *sum = mul_add(x, *b, *sum);
        }
    }
    store(&mut c.values[i * c.row + j..][..width], &sums[..width], c.add);
}

#[inline(always)]
fn store(row: &mut [f32], sums: &[f32], add: bool) {
    if add {
        row.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum);
    } else {
        row.copy_from_slice(sums);
    }
}

/// Fills `to`, `[columns, rows]`, with the columns of a matrix `[rows, columns]`.
pub fn transpose(from: View, to: &mut [f32], rows: usize) {
    for (k, to) in to.chunks_exact_mut(rows).enumerate() {
        for (i, to) in to.iter_mut().enumerate() {
            *to = from.values[i * from.row + k * from.column];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_any_shape_are_sums_of_products() {
        let wave = |count: usize, rate: f32| -> Vec<f32> {
            (0..count).map(|i| (i as f32 * rate).sin()).collect()
        };
        for [rows, inner, columns] in
            [[1, 1, 1], [7, 5, 3], [13, 31, 83], [6, 16, 64], [25, 2, 144]]
        {
            let (a, b) = (wave(rows * inner, 0.7), wave(inner * (columns + 2), 0.3));
            let mut turned = vec![0.0; rows * inner];
            transpose(View::rows(&a, inner), &mut turned, rows);
            for (a, add) in
                [(View::rows(&a, inner), false), (View::rows(&turned, rows).transposed(), true)]
            {
                let mut c = wave(rows * (columns + 3), 1.1);
                let before = c.clone();
                let b = View { values: &b, row: columns + 2, column: 1 };
                let target = Target { values: &mut c, row: columns + 3, add };
                product(a, b, target, [rows, inner, columns]);
                for i in 0..rows {
                    for j in 0..columns {
                        let at = i * (columns + 3) + j;
                        let sum: f32 = (0..inner)
                            .map(|k| a.values[i * a.row + k * a.column] * b.values[k * b.row + j])
                            .sum();
                        let want = sum + if add { before[at] } else { 0.0 };
                        assert!((c[at] - want).abs() < 1e-5, "{rows} x {inner} x {columns}");
                    }
                }
            }
        }
    }
}
