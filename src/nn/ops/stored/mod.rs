//! Weights in the number format of their file: 4, 8 or 16 bits each, expanded to f32 as products need them.
//!
//! An expanded number is exactly the f32 that the format defines, and products sum in the order of
//! [`matmul`]. Results therefore have the same bits as with weights expanded beforehand. Stored weights take less
//! memory, and less time for products with few rows, whose time goes into reading weights.

mod codes;
mod products;

pub use codes::{Bf16RowPair, NumberFormat};
pub use products::{Strip, expand, multiply};

use super::matmul::{self, PackedMatrix, STRIP_COLUMNS, WeightColumns, transpose};
use super::{Parallelism, WriteMode};
use crate::math::{LANES, Lanes};
use codes::{EightBitRowPair, F16RowPair, FourBitRowPair, RowPair};
use multiversion::multiversion;
use products::STRIPS_AT_A_TIME;
use rayon::prelude::*;
use std::fmt::{self, Debug};
use std::sync::Arc;

/// A weight, `[inner, columns]`, in the number format of its file. Clones share it.
#[derive(Clone)]
pub struct StoredMatrix {
    storage: Arc<dyn Storage>,
    sizes: [usize; 2],
}

/// The codes of a column: of a 4-bit number 0 to 15, of an 8-bit number the bits of an `i8`, of a half-precision number
/// its own bits. The first two also have a scale and an offset for each group of adjacent rows; their elements are
/// `code * scale + offset`.
pub struct Column<'a> {
    /// `[inner]`.
    pub codes: &'a mut [u16],
    /// Scales and offsets: `[groups, 2]`.
    pub scales: &'a mut [[f32; 2]],
}

impl StoredMatrix {
    /// A matrix of these sizes, `[inner, columns]`, whose columns `fill` writes, given the index of each. A scale
    /// holds for `group_size` rows.
    ///
    /// # Panics
    /// If a size is 0, or the group has an odd number of rows.
    pub fn new(
        format: NumberFormat,
        sizes: [usize; 2],
        group_size: usize,
        fill: impl Fn(usize, Column) + Sync,
    ) -> Self {
        let storage = match format {
            NumberFormat::FourBit => StripStorage::<FourBitRowPair>::store(sizes, group_size, fill),
            NumberFormat::EightBit => {
                StripStorage::<EightBitRowPair>::store(sizes, group_size, fill)
            }
            NumberFormat::Bf16 => StripStorage::<Bf16RowPair>::store(sizes, group_size, fill),
            NumberFormat::F16 => StripStorage::<F16RowPair>::store(sizes, group_size, fill),
        };
        Self { storage, sizes }
    }

    /// A matrix of half-precision numbers; `column` gives the bytes of each column, least significant byte first.
    pub fn from_halves<'a>(
        format: NumberFormat,
        sizes: [usize; 2],
        column: impl Fn(usize) -> &'a [u8] + Sync,
    ) -> Self {
        Self::new(format, sizes, sizes[0].next_multiple_of(2), |index, Column { codes, .. }| {
            let halves = column(index).as_chunks().0;
            codes.iter_mut().zip(halves).for_each(|(code, half)| *code = u16::from_le_bytes(*half));
        })
    }

    /// The number of rows: the inner dimension of a product.
    pub fn inner(&self) -> usize {
        self.sizes[0]
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.sizes[1]
    }

    /// Expands rows `2 index` and `2 index + 1`, `[2, columns]`, or the first of them, `[1, columns]`.
    pub fn read_row_pair(&self, index: usize, rows: &mut [f32]) {
        self.storage.read_row_pair(index, self.columns(), rows);
    }

    /// Expands a column: `[inner]`.
    pub fn read_column(&self, index: usize, column: &mut [f32]) {
        self.storage.read_column(index, column);
    }

    /// Expands columns `first..first + n` to `[n, inner]`, where `n = values.len() / inner` is [`LANES`] at most.
    ///
    /// # Panics
    /// If `first` is not a multiple of [`LANES`], or there is room for more columns.
    pub fn read_columns(&self, first: usize, values: &mut [f32]) {
        assert!(first.is_multiple_of(LANES) && values.len() <= LANES * self.inner(), "one strip");
        self.storage.read_strip(first / LANES, values);
    }

    /// Whether all elements are finite.
    pub fn is_finite(&self) -> bool {
        self.storage.is_finite()
    }

    /// All columns, for products.
    pub fn strips(&self) -> StoredStrips<'_> {
        StoredStrips::new(&*self.storage, self.sizes)
    }
}

impl Debug for StoredMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredMatrix").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

/// Adjacent strips of columns of a weight whose format is not f32.
#[derive(Clone, Copy)]
pub struct StoredStrips<'a> {
    weight: &'a dyn Expand,
    /// The first strip of [`LANES`] columns.
    first: usize,
    inner: usize,
    columns: usize,
}

impl<'a> StoredStrips<'a> {
    /// All strips of a weight of these sizes, `[inner, columns]`.
    pub fn new(weight: &'a dyn Expand, [inner, columns]: [usize; 2]) -> Self {
        Self { weight, first: 0, inner, columns }
    }
}

impl WeightColumns for StoredStrips<'_> {
    fn inner(self) -> usize {
        self.inner
    }

    fn columns(self) -> usize {
        self.columns
    }

    fn parts(self, strips: usize) -> impl Iterator<Item = Self> {
        let width = (strips * STRIP_COLUMNS).max(1);
        (0..self.columns).step_by(width).map(move |from| Self {
            first: self.first + from / LANES,
            columns: width.min(self.columns - from),
            ..self
        })
    }

    fn multiply(self, x: &[f32], y: &mut [f32], mode: WriteMode) {
        self.weight.multiply(self.first, self.columns, x, y, mode);
    }

    fn strips_per_block(self, elements: usize) -> usize {
        (elements / (self.inner * STRIP_COLUMNS)).max(1)
    }

    fn expand_into<'a>(
        self,
        parallelism: Parallelism,
        memory: &'a mut PackedMatrix,
    ) -> matmul::Strips<'a>
    where
        Self: 'a,
    {
        let sizes @ [inner, _] = [self.inner, self.columns];
        memory.fill(parallelism, sizes, |index, to| {
            let (first, vectors) = (self.first + index * STRIPS_AT_A_TIME, to.len() / inner);
            for v in 0..vectors {
                self.weight.expand(first + v, &mut to[v..], vectors);
            }
        });
        memory.strips()
    }
}

/// A weight that is expanded to f32 for products, in strips of [`LANES`] columns.
pub trait Expand: Send + Sync {
    /// Expands a strip: a vector for each row, `step` apart.
    fn expand(&self, strip: usize, vectors: &mut [Lanes], step: usize);

    /// `y = x w`, or `y += x w`, with `columns` columns from strip `first` on.
    fn multiply(&self, first: usize, columns: usize, x: &[f32], y: &mut [f32], mode: WriteMode);
}

/// The elements of a matrix in one of the formats.
trait Storage: Expand {
    fn read_row_pair(&self, index: usize, columns: usize, values: &mut [f32]);
    fn read_column(&self, index: usize, values: &mut [f32]);
    /// Expands the first columns of a strip, one after the other.
    fn read_strip(&self, index: usize, values: &mut [f32]);
    fn is_finite(&self) -> bool;
}

/// Strips of [`LANES`] columns, padded with columns of zeros.
struct StripStorage<P> {
    /// `[strips, inner / 2]`.
    pairs: Vec<P>,
    /// `[strips, groups]`: scales and offsets.
    scales: Vec<[Lanes; 2]>,
    group_size: usize,
    inner: usize,
}

impl<P: RowPair> StripStorage<P> {
    fn store(
        [inner, columns]: [usize; 2],
        group_size: usize,
        fill: impl Fn(usize, Column) + Sync,
    ) -> Arc<dyn Storage> {
        assert!(
            inner > 0 && columns > 0 && group_size > 0 && group_size.is_multiple_of(2),
            "inner, columns, group_size: at least 1, and the last one even"
        );
        let (strips, groups) = (columns.div_ceil(LANES), inner.div_ceil(group_size));
        let mut pairs = vec![P::default(); strips * inner.div_ceil(2)];
        let mut scales = vec![[[0.0; LANES]; 2]; strips * groups];
        let chunks = pairs.par_chunks_mut(inner.div_ceil(2)).zip(scales.par_chunks_mut(groups));
        chunks.enumerate().for_each(|(strip, (pairs, scales))| {
            let (mut codes, mut column_scales) = (vec![0; inner], vec![[0.0; 2]; groups]);
            for lane in 0..LANES.min(columns - strip * LANES) {
                let column = Column { codes: &mut codes, scales: &mut column_scales };
                fill(strip * LANES + lane, column);
                for (k, code) in codes.iter().enumerate() {
                    pairs[k / 2].set(k % 2, lane, *code);
                }
                for (group, [scale, offset]) in scales.iter_mut().zip(&column_scales) {
                    (group[0][lane], group[1][lane]) = (*scale, *offset);
                }
            }
        });
        Arc::new(Self { pairs, scales, group_size, inner })
    }

    fn strip(&self, index: usize) -> Strip<'_, P> {
        let (pairs, groups) = (self.inner.div_ceil(2), self.inner.div_ceil(self.group_size));
        Strip {
            pairs: &self.pairs[index * pairs..][..pairs],
            scales: &self.scales[index * groups..][..groups],
        }
    }

    /// Expands two adjacent rows of a strip.
    #[inline(always)]
    fn expand_pair(&self, strip: usize, index: usize) -> [Lanes; 2] {
        let strip = self.strip(strip);
        strip.pairs[index].expand(&strip.scales[2 * index / self.group_size])
    }
}

/// [`StoredMatrix::read_row_pair`].
#[multiversion(targets(
    "x86_64+avx512f+avx512vl+avx512bw+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
fn read_row_pair<P: RowPair>(
    storage: &StripStorage<P>,
    index: usize,
    columns: usize,
    values: &mut [f32],
) {
    for (strip, first) in (0..columns).step_by(LANES).enumerate() {
        let width = LANES.min(columns - first);
        for (row, numbers) in values.chunks_mut(columns).zip(storage.expand_pair(strip, index)) {
            row[first..first + width].copy_from_slice(&numbers[..width]);
        }
    }
}

/// [`StoredMatrix::read_column`].
#[multiversion(targets(
    "x86_64+avx512f+avx512vl+avx512bw+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
fn read_column<P: RowPair>(storage: &StripStorage<P>, index: usize, values: &mut [f32]) {
    for (k, values) in values.chunks_mut(2).enumerate() {
        let numbers = storage.expand_pair(index / LANES, k).map(|row| row[index % LANES]);
        values.copy_from_slice(&numbers[..values.len()]);
    }
}

impl<P: RowPair> Storage for StripStorage<P> {
    fn read_row_pair(&self, index: usize, columns: usize, values: &mut [f32]) {
        read_row_pair(self, index, columns, values);
    }

    fn read_column(&self, index: usize, values: &mut [f32]) {
        read_column(self, index, values);
    }

    fn read_strip(&self, index: usize, values: &mut [f32]) {
        let mut rows = vec![[0.0; LANES]; self.inner];
        self.expand(index, &mut rows, 1);
        for first in (0..self.inner).step_by(LANES) {
            let count = LANES.min(self.inner - first);
            let mut square = [[0.0; LANES]; LANES];
            square[..count].copy_from_slice(&rows[first..first + count]);
            for (column, values) in
                transpose(&square).iter().zip(values.chunks_exact_mut(self.inner))
            {
                values[first..first + count].copy_from_slice(&column[..count]);
            }
        }
    }

    fn is_finite(&self) -> bool {
        let strips = self.pairs.len() / self.inner.div_ceil(2);
        (0..strips).into_par_iter().all(|index| {
            let Strip { pairs, scales } = self.strip(index);
            pairs.chunks(self.group_size / 2).zip(scales).all(|(pairs, scales)| {
                let is_finite = |x: &f32| x.is_finite();
                pairs.iter().all(|pair| pair.expand(scales).as_flattened().iter().all(is_finite))
            })
        })
    }
}

impl<P: RowPair> Expand for StripStorage<P> {
    fn expand(&self, strip: usize, vectors: &mut [Lanes], step: usize) {
        expand(self.strip(strip), self.group_size, vectors, step);
    }

    fn multiply(&self, first: usize, columns: usize, x: &[f32], y: &mut [f32], mode: WriteMode) {
        let sizes = [self.inner, self.group_size];
        multiply(sizes, |index| self.strip(first + index), columns, x, y, mode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::Draws;
    use crate::nn::ops::matmul::{Target, View, matmul};
    use ::half::{bf16, f16};

    const FORMATS: [NumberFormat; 4] =
        [NumberFormat::FourBit, NumberFormat::EightBit, NumberFormat::Bf16, NumberFormat::F16];

    /// Stores drawn numbers in a format; returns the matrix and its elements, column by column.
    fn store(
        format: NumberFormat,
        [inner, columns]: [usize; 2],
        group_size: usize,
    ) -> (StoredMatrix, Vec<f32>) {
        let mut draws = Draws::new(9);
        let groups = inner.div_ceil(group_size);
        let numbers = draws.next_numbers(inner * columns);
        let scales = draws.next_numbers(2 * groups * columns);
        // As many bits as the scales of files have.
        let scales: Vec<f32> = scales.iter().map(|x| f16::from_f32(*x).to_f32()).collect();
        let code = |x: f32| match format {
            NumberFormat::FourBit => (x.abs() * 40.0) as u16 % 16,
            NumberFormat::EightBit => (x * 400.0) as i8 as u16,
            NumberFormat::Bf16 => bf16::from_f32(x).to_bits(),
            NumberFormat::F16 => f16::from_f32(x * 1e-5).to_bits(),
        };
        let matrix = StoredMatrix::new(format, [inner, columns], group_size, |j, column| {
            let from = &numbers[j * inner..][..inner];
            column.codes.iter_mut().zip(from).for_each(|(to, x)| *to = code(*x));
            let from = scales[2 * j * groups..][..2 * groups].chunks(2);
            column.scales.iter_mut().zip(from).for_each(|(to, x)| *to = [x[0], x[1]]);
        });
        let want = (0..inner * columns).map(|at| {
            let bits = code(numbers[at]);
            let [scale, offset] =
                [0, 1].map(|i| scales[2 * (at / inner * groups + at % inner / group_size) + i]);
            match format {
                NumberFormat::FourBit => f32::from(bits) * scale + offset,
                NumberFormat::EightBit => f32::from(bits as i8) * scale + offset,
                NumberFormat::Bf16 => bf16::from_bits(bits).to_f32(),
                NumberFormat::F16 => f16::from_bits(bits).to_f32(),
            }
        });
        (matrix, want.collect())
    }

    #[test]
    fn rows_and_columns_are_the_numbers_of_the_format() {
        for format in FORMATS {
            for [inner, columns, group_size] in [[64, 50, 32], [35, 3, 16], [2, 17, 32]] {
                let (matrix, want) = store(format, [inner, columns], group_size);
                let mut column = vec![0.0; inner];
                for (j, want) in want.chunks(inner).enumerate() {
                    matrix.read_column(j, &mut column);
                    assert_eq!(column, want, "{format:?}");
                }
                for (strip, want) in want.chunks(16 * inner).enumerate() {
                    let mut some = vec![0.0; want.len()];
                    matrix.read_columns(16 * strip, &mut some);
                    assert_eq!(some, want, "{format:?}");
                }
                assert!(matrix.is_finite());
                for first in (0..inner).step_by(2) {
                    let mut rows = vec![0.0; 2.min(inner - first) * columns];
                    matrix.read_row_pair(first / 2, &mut rows);
                    for (k, row) in (first..).zip(rows.chunks(columns)) {
                        assert!(row.iter().enumerate().all(|(j, x)| *x == want[j * inner + k]));
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "one strip")]
    fn columns_within_a_strip_are_rejected() {
        store(NumberFormat::EightBit, [4, 20], 2).0.read_columns(1, &mut [0.0; 4]);
    }

    #[test]
    fn products_are_those_of_expanded_weights_to_the_last_bit() {
        let mut draws = Draws::new(10);
        for format in FORMATS {
            for [inner, columns, group_size] in [[64, 150, 32], [35, 49, 16], [96, 16, 32]] {
                let (matrix, numbers) = store(format, [inner, columns], group_size);
                for rows in [1, 2, 3, 4, 5, 9, 70] {
                    let x = draws.next_numbers(rows * inner);
                    for mode in [WriteMode::Overwrite, WriteMode::Accumulate] {
                        let mut want = draws.next_numbers(rows * columns);
                        let before = want.clone();
                        let target = Target::rows(&mut want, columns, mode);
                        let w = View::rows(&numbers, inner).transpose();
                        matmul(View::rows(&x, inner), w, target, [rows, inner, columns]);
                        let mut from = 0;
                        for part in matrix.strips().parts(2) {
                            let width = part.columns();
                            let rows_of = |all: &[f32]| -> Vec<f32> {
                                let rows = all.chunks(columns);
                                rows.flat_map(|row| &row[from..from + width]).copied().collect()
                            };
                            let mut y = rows_of(&before);
                            part.multiply(&x, &mut y, mode);
                            assert!(y == rows_of(&want), "{format:?}, {rows} rows, column {from}");
                            from += width;
                        }
                        assert_eq!(from, columns);
                    }
                }
            }
        }
    }
}
