//! The CPU's matrix product: tiled, packed, and reproducible to the last bit.
//!
//! A tile of the result stays in registers while the inner dimension is traversed: each step multiplies some
//! vectors of a row of `b` by one number of `a` per row of the tile (the outer-product form of Goto & van de
//! Geijn 2008). `b` is packed into the order in which tiles read it; `a` is packed only where its strides are
//! unfavourable.
//!
//! Each element is summed in the order of the inner dimension with one rounding a step, so it depends on its own
//! row and column alone: not on the sizes of the product, the number of threads or the instruction set.
//!
//! [`PackedMatrix`] owns the storage format of the right operand: callers pack and multiply, and never see its layout.
//! Weights in other formats implement [`WeightColumns`].

mod parts;
mod tiles;

pub use parts::{forward, multiply_block, weight_grad};

use super::{Parallelism, WriteMode};
use crate::math::{LANES, Lanes, map_array};
use multiversion::multiversion;
use std::cell::RefCell;
use tiles::{LeftRows, Strided};

pub(crate) use tiles::{has_avx512, transpose};

/// A matrix whose element `[i, k]` is `values[i * row_stride + k * column_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The storage that contains the matrix.
    pub values: &'a [f32],
    /// Stride between rows.
    pub row_stride: usize,
    /// Stride between columns.
    pub column_stride: usize,
}

impl<'a> View<'a> {
    /// A row-major matrix of this width.
    pub fn rows(values: &'a [f32], width: usize) -> Self {
        Self { values, row_stride: width, column_stride: 1 }
    }

    /// The transpose, without a copy.
    pub fn transpose(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// The rows from index `row` on.
    pub fn rows_from(self, row: usize) -> Self {
        Self { values: &self.values[row * self.row_stride..], ..self }
    }

    /// The columns from index `column` on.
    pub fn columns_from(self, column: usize) -> Self {
        Self { values: &self.values[column * self.column_stride..], ..self }
    }
}

/// The destination of a product: row `i` begins at `values[i * row_stride]`.
#[derive(Debug)]
pub struct Target<'a> {
    /// The storage that contains the destination.
    pub values: &'a mut [f32],
    /// Stride between rows.
    pub row_stride: usize,
    /// Whether the product replaces the destination or is added to it.
    pub mode: WriteMode,
}

impl<'a> Target<'a> {
    /// A row-major destination of this width.
    pub fn rows(values: &'a mut [f32], width: usize, mode: WriteMode) -> Self {
        Self { values, row_stride: width, mode }
    }
}

/// The sizes of a product: rows, inner dimension, columns.
pub type Sizes = [usize; 3];

/// Vectors in a strip of columns.
const STRIP_VECTORS: usize = 3;

/// A right operand packed in reading order: strips of 3 vectors of columns (fewer in the last strip),
/// each `[inner, vectors]`. The last vector is padded with zeros.
#[derive(Clone, Debug, Default)]
pub struct PackedMatrix {
    lanes: Vec<Lanes>,
    inner: usize,
    columns: usize,
}

/// Columns in a strip.
pub const STRIP_COLUMNS: usize = STRIP_VECTORS * LANES;

/// Adjacent strips of a packed operand, restricted to a range of its rows.
#[derive(Clone, Copy, Debug)]
pub struct Strips<'a> {
    lanes: &'a [Lanes],
    /// Rows in the packed operand.
    packed_rows: usize,
    /// First row of the range.
    first_row: usize,
    /// Rows in the range.
    inner: usize,
    columns: usize,
}

/// Adjacent columns of a weight for products in f32.
pub trait WeightColumns: Copy + Send + Sync {
    /// The number of rows: the inner dimension of a product.
    fn inner(self) -> usize;

    /// The number of columns.
    fn columns(self) -> usize;

    /// Chunks of `strips` times [`STRIP_COLUMNS`] columns; the last one may be narrower.
    fn parts(self, strips: usize) -> impl Iterator<Item = Self>;

    /// `y = x w`, or `y += x w`, with `x` `[rows, inner]` and `y` `[rows, columns]`.
    fn multiply(self, x: &[f32], y: &mut [f32], mode: WriteMode);

    /// The number of strips in a block of about `elements` elements, which is expanded at a time.
    fn strips_per_block(self, elements: usize) -> usize;

    /// Packs the columns in f32 into `memory`, unless they are already.
    fn expand_into<'a>(self, parallelism: Parallelism, memory: &'a mut PackedMatrix) -> Strips<'a>
    where
        Self: 'a;
}

impl WeightColumns for Strips<'_> {
    fn inner(self) -> usize {
        self.inner
    }

    fn columns(self) -> usize {
        self.columns
    }

    fn parts(self, strips: usize) -> impl Iterator<Item = Self> {
        let columns = strips * STRIP_COLUMNS;
        self.lanes.chunks((strips * STRIP_VECTORS * self.packed_rows).max(1)).enumerate().map(
            move |(index, lanes)| {
                let columns = columns.min(self.columns - index * columns);
                Self { lanes, columns, ..self }
            },
        )
    }

    fn multiply(self, x: &[f32], y: &mut [f32], mode: WriteMode) {
        let target = Target::rows(y, self.columns, mode);
        matmul_packed(View::rows(x, self.inner), self, target, x.len() / self.inner);
    }

    fn strips_per_block(self, _: usize) -> usize {
        self.columns.div_ceil(STRIP_COLUMNS)
    }

    fn expand_into<'a>(self, _: Parallelism, _: &'a mut PackedMatrix) -> Strips<'a>
    where
        Self: 'a,
    {
        self
    }
}

impl Strips<'_> {
    /// The `columns` columns from strip `first` on: whole strips, or all that remain.
    pub fn strips_from(self, first: usize, columns: usize) -> Self {
        let left = self.columns - first * STRIP_COLUMNS;
        assert!(
            columns == left || columns < left && columns.is_multiple_of(STRIP_COLUMNS),
            "columns: whole strips, or all that remain"
        );
        let lanes = &self.lanes[first * STRIP_VECTORS * self.packed_rows..];
        Self { lanes: &lanes[..columns.div_ceil(LANES) * self.packed_rows], columns, ..self }
    }

    /// The `inner` rows from index `first` on.
    pub fn rows(self, first: usize, inner: usize) -> Self {
        assert!(first + inner <= self.inner, "{inner} rows from {first} on, of {}", self.inner);
        Self { first_row: self.first_row + first, inner, ..self }
    }
}

impl PackedMatrix {
    /// Packs `b`, `[inner, columns]`, into this operand's memory.
    pub fn pack(&mut self, parallelism: Parallelism, b: View, inner: usize, columns: usize) {
        let sizes = [inner, columns];
        self.fill(parallelism, sizes, |index, strip| pack_strip(b, index, strip, sizes));
    }

    /// Makes this an operand `[inner, columns]` whose strips `fill` writes, given the index of each and its memory,
    /// `[inner, vectors]`.
    pub fn fill(
        &mut self,
        parallelism: Parallelism,
        [inner, columns]: [usize; 2],
        fill: impl Fn(usize, &mut [Lanes]) + Sync,
    ) {
        (self.inner, self.columns) = (inner, columns);
        self.lanes.resize(columns.div_ceil(LANES) * inner, [0.0; LANES]);
        let strips = [(&mut self.lanes[..], (STRIP_VECTORS * inner).max(1))];
        parallelism.each_chunk(strips, |index, [strip]| fill(index, strip));
    }

    /// All strips.
    pub fn strips(&self) -> Strips<'_> {
        let Self { lanes, inner, columns } = self;
        Strips { lanes, packed_rows: *inner, first_row: 0, inner: *inner, columns: *columns }
    }
}

/// Packs the columns of one strip.
fn pack_strip(b: View, index: usize, strip: &mut [Lanes], [inner, columns]: [usize; 2]) {
    let (vectors, j) = (strip.len() / inner, index * STRIP_COLUMNS);
    let b = b.columns_from(j);
    match vectors {
        1 => pack_rows_of::<1>(b, strip, columns - j),
        2 => pack_rows_of::<2>(b, strip, columns - j),
        _ => pack_rows_of::<STRIP_VECTORS>(b, strip, columns - j),
    }
}

/// Packs the first columns of a matrix into rows of `V` vectors, padding the last vector.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn pack_rows_of<const V: usize>(b: View, strip: &mut [Lanes], columns: usize) {
    let (rows, _) = strip.as_chunks_mut::<V>();
    let whole =
        if b.column_stride == 1 || b.row_stride == 1 { (columns / LANES).min(V) } else { 0 };
    if b.column_stride == 1 {
        for (k, row) in rows.iter_mut().enumerate() {
            let (from, _) = b.values[k * b.row_stride..].as_chunks::<LANES>();
            match from.first_chunk() {
                // Vectors in registers, where a slice of any length would be a call.
                Some(from) if whole == V => *row = *from,
                _ => row[..whole].copy_from_slice(&from[..whole]),
            }
        }
    } else if b.row_stride == 1 {
        for (vector, columns) in
            (0..whole).map(|vector| (vector, &b.values[vector * LANES * b.column_stride..]))
        {
            let columns: [&[f32]; LANES] =
                std::array::from_fn(|lane| &columns[lane * b.column_stride..][..rows.len()]);
            let (blocks, rest) = rows.as_chunks_mut::<LANES>();
            for (index, block) in blocks.iter_mut().enumerate() {
                let square = map_array(columns, |column| {
                    *column[index * LANES..].first_chunk().expect("a block")
                });
                for (row, lanes) in block.iter_mut().zip(tiles::transpose(&square)) {
                    row[vector] = lanes;
                }
            }
            let first = blocks.len() * LANES;
            for (k, row) in rest.iter_mut().enumerate() {
                row[vector] = map_array(columns, |column| column[first + k]);
            }
        }
    }
    for vector in whole..V {
        for (k, row) in rows.iter_mut().enumerate() {
            row[vector] = [0.0; LANES];
            let first = vector * LANES;
            let width = LANES.min(columns.saturating_sub(first));
            for (lane, to) in row[vector][..width].iter_mut().enumerate() {
                *to = b.values[k * b.row_stride + (first + lane) * b.column_stride];
            }
        }
    }
}

/// Rows of `a` packed at a time: they stay in the cache while `b` is traversed.
const PACKED_ROWS: usize = 64;

/// Maximum number of strips for which a column-major left operand is read in place rather than packed.
const MAX_STRIPS_IN_PLACE: usize = 8;

/// `f32`s in a page of memory.
const PAGE_FLOATS: usize = 1024;

/// Maximum number of rows of a tile.
const MAX_TILE_ROWS: usize = 8;

thread_local! {
    /// The memory of packed operands, for reuse.
    static LEFT: RefCell<Vec<f32>> = RefCell::default();
    static RIGHT: RefCell<PackedMatrix> = RefCell::default();
}

/// `c = a b`, or `c += a b`: `a` is `[rows, inner]`, `b` `[inner, columns]`, no size 0.
pub fn matmul(a: View, b: View, c: Target, [rows, inner, columns]: Sizes) {
    RIGHT.with_borrow_mut(|right| {
        right.pack(Parallelism::Sequential, b, inner, columns);
        matmul_packed(a, right.strips(), c, rows);
    });
}

/// Multiplies by an operand packed earlier: `c = a b`, or `c += a b`, with `a` `[rows, inner]`.
pub fn matmul_packed(a: View, b: Strips, mut c: Target, rows: usize) {
    LEFT.with_borrow_mut(|left| {
        // As many sums as registers hold: with AVX-512 there are 32 of 16 lanes.
        let i = if has_avx512() {
            multiply_tile_rows::<MAX_TILE_ROWS>(a, b, &mut c, [0, rows], left)
        } else {
            0
        };
        let i = multiply_tile_rows::<4>(a, b, &mut c, [i, rows], left);
        let i = multiply_tile_rows::<2>(a, b, &mut c, [i, rows], left);
        multiply_tile_rows::<1>(a, b, &mut c, [i, rows], left);
    });
}

/// Computes whole tiles of `R` rows from row `from` on; returns the first remaining row.
fn multiply_tile_rows<const R: usize>(
    a: View,
    b: Strips,
    c: &mut Target,
    [from, rows]: [usize; 2],
    left: &mut Vec<f32>,
) -> usize {
    let inner = b.inner;
    // Rows are read in place, and so are columns if few strips need them, unless the stride is a multiple of a
    // page: those would compete for the same few cache lines.
    let max_columns_in_place = MAX_STRIPS_IN_PLACE * STRIP_COLUMNS;
    let is_apart = |stride: usize| !stride.is_multiple_of(PAGE_FLOATS);
    let is_read_in_place = match (a.row_stride, a.column_stride) {
        (row, 1) => is_apart(row),
        (1, column) => b.columns <= max_columns_in_place && is_apart(column),
        _ => false,
    };
    let mut i = from;
    while rows - i >= R {
        let tiles = ((rows - i) / R).min(PACKED_ROWS / R);
        let c = Target { values: &mut c.values[i * c.row_stride..], ..*c };
        if is_read_in_place && a.column_stride == 1 {
            let rows = |t: usize| {
                Strided::rows(&a.values[(i + t * R) * a.row_stride..], a.row_stride, inner)
            };
            multiply_panel::<R, _>(rows, tiles, b, c);
        } else if is_read_in_place {
            let columns =
                |t: usize| Strided::columns(&a.values[i + t * R..], a.column_stride, inner);
            multiply_panel::<R, _>(columns, tiles, b, c);
        } else {
            left.resize((tiles * R * inner).max(left.len()), 0.0);
            let (rows, _) = left.as_chunks_mut::<R>();
            for (t, rows) in rows.chunks_mut(inner).take(tiles).enumerate() {
                pack_rows(a.rows_from(i + t * R), rows);
            }
            multiply_panel(|t| &rows[t * inner..][..inner], tiles, b, c);
        }
        i += tiles * R;
    }
    i
}

/// Computes a column of `tiles` tiles of `R` rows each: as many as stay in the cache while all strips are traversed.
#[inline(never)]
fn multiply_panel<const R: usize, A: LeftRows<R>>(
    left: impl Fn(usize) -> A,
    tiles: usize,
    b: Strips,
    c: Target,
) {
    for (index, strip) in b.lanes.chunks((STRIP_VECTORS * b.packed_rows).max(1)).enumerate() {
        let (j, vectors) = (index * STRIP_COLUMNS, strip.len() / b.packed_rows);
        let strip = &strip[b.first_row * vectors..][..b.inner * vectors];
        let c = Target { values: &mut c.values[j..], ..c };
        let width = (b.columns - j).min(STRIP_COLUMNS);
        match vectors {
            1 => multiply_strip::<R, 1, A>(&left, tiles, strip, c, width),
            2 => multiply_strip::<R, 2, A>(&left, tiles, strip, c, width),
            _ => multiply_strip::<R, STRIP_VECTORS, A>(&left, tiles, strip, c, width),
        }
    }
}

/// Computes the tiles of one strip.
#[inline(never)]
fn multiply_strip<const R: usize, const V: usize, A: LeftRows<R>>(
    left: &impl Fn(usize) -> A,
    tiles: usize,
    strip: &[Lanes],
    c: Target,
    width: usize,
) {
    for t in 0..tiles {
        let c = Target { values: &mut c.values[t * R * c.row_stride..], ..c };
        tiles::multiply_tile::<R, V>(left(t), strip, c, width);
    }
}

/// Packs the first `R` rows of `a` column by column.
#[inline(always)]
fn pack_rows<const R: usize>(a: View, panel: &mut [[f32; R]]) {
    let inner = panel.len();
    if a.row_stride == 1 {
        for (k, to) in panel.iter_mut().enumerate() {
            *to = *a.values[k * a.column_stride..].first_chunk().expect("R rows");
        }
    } else if a.column_stride == 1 {
        let rows: [&[f32]; R] = std::array::from_fn(|r| &a.values[r * a.row_stride..][..inner]);
        for (k, to) in panel.iter_mut().enumerate() {
            *to = std::array::from_fn(|r| rows[r][k]);
        }
    } else {
        for (k, to) in panel.iter_mut().enumerate() {
            *to = std::array::from_fn(|r| a.values[r * a.row_stride + k * a.column_stride]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::wave;

    /// The transpose of a row-major matrix.
    fn columns_of(matrix: &[f32], width: usize) -> Vec<f32> {
        (0..width).flat_map(|j| matrix[j..].iter().step_by(width)).copied().collect()
    }

    const SIZES: [Sizes; 7] = [
        [1, 1, 1],
        [7, 5, 3],
        [13, 31, 83],
        [6, 16, 64],
        [25, 2, 144],
        [150, 40, 33],
        [71, 130, 96],
    ];

    #[test]
    fn products_of_any_shape_are_sums_of_products() {
        for [rows, inner, columns] in SIZES {
            let (a, b) = (wave(rows * inner, 0.7), wave(inner * columns, 0.3));
            let (a_columns, b_columns) = (columns_of(&a, inner), columns_of(&b, columns));
            for a in [View::rows(&a, inner), View::rows(&a_columns, rows).transpose()] {
                for (b, mode) in [
                    (View::rows(&b, columns), WriteMode::Overwrite),
                    (View::rows(&b_columns, inner).transpose(), WriteMode::Accumulate),
                ] {
                    let mut c = wave(rows * (columns + 3), 1.1);
                    let before = c.clone();
                    let target = Target::rows(&mut c, columns + 3, mode);
                    matmul(a, b, target, [rows, inner, columns]);
                    for (at, (got, before)) in c.iter().zip(&before).enumerate() {
                        let (i, j) = (at / (columns + 3), at % (columns + 3));
                        let term = |k: usize| {
                            let x = f64::from(a.values[i * a.row_stride + k * a.column_stride]);
                            x * f64::from(b.values[k * b.row_stride + j * b.column_stride])
                        };
                        let want = match (j < columns, mode) {
                            (false, _) => f64::from(*before),
                            (true, WriteMode::Overwrite) => (0..inner).map(term).sum(),
                            (true, WriteMode::Accumulate) => {
                                f64::from(*before) + (0..inner).map(term).sum::<f64>()
                            }
                        };
                        let off = (f64::from(*got) - want).abs();
                        assert!(off < 1e-5, "{rows} x {inner} x {columns}: {got}, not {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_among_others() {
        for [rows, inner, columns] in SIZES {
            let (a, b) = (wave(rows * inner, 0.7), wave(inner * columns, 0.3));
            let some = |first: usize, count: usize| {
                let mut c = vec![0.0; count * columns];
                let a = View::rows(&a, inner).rows_from(first);
                let target = Target::rows(&mut c, columns, WriteMode::Overwrite);
                matmul(a, View::rows(&b, columns), target, [count, inner, columns]);
                c
            };
            let all = some(0, rows);
            for i in 0..rows {
                assert!(all[i * columns..][..columns] == some(i, 1), "row {i} of {rows}");
            }
        }
    }
}
