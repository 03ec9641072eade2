//! One matrix product for the forward pass, the gradient of the inputs and that of the weights.
//!
//! Tiles of the result stay in registers while the inner dimension goes by: each step takes a row of
//! `b` and multiplies it by one number of `a` for each row of the tile (the "outer product" form of
//! Goto & van de Geijn 2008). Nothing is packed: the operands of a block of samples lie in the first
//! two caches.

use crate::math::{at_least, mul_add};
use crate::model::{LANES, Lanes};
use multiversion::{multiversion, target::match_target};

/// Rows of a result come in multiples of this.
pub const ROWS: usize = 4;

/// Inputs of an output that [`narrow`] takes at a time, and outputs.
pub const QUAD: usize = 4;

const _: () = assert!(QUAD * QUAD == LANES, "a quad of inputs of a quad of outputs is a vector");

/// The left operand of a product.
pub trait Left: Copy {
    /// The number in row `i` at the inner index `k`.
    fn at(&self, i: usize, k: usize) -> f32;
}

/// A matrix whose element `[i, k]` is `values[i * row + k * column]`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    /// The numbers.
    pub values: &'a [f32],
    /// From row to row.
    pub row: usize,
    /// From one inner index to the next.
    pub column: usize,
}

/// A matrix whose row `i` begins at `values[starts[i]]`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The numbers.
    pub values: &'a [f32],
    /// Where the rows begin.
    pub starts: &'a [usize],
}

/// A matrix with rows and columns exchanged.
#[derive(Clone, Copy)]
pub struct Transposed<L>(pub L);

impl Left for Strided<'_> {
    #[inline(always)]
    fn at(&self, i: usize, k: usize) -> f32 {
        self.values[i * self.row + k * self.column]
    }
}

impl Left for Rows<'_> {
    #[inline(always)]
    fn at(&self, i: usize, k: usize) -> f32 {
        self.values[self.starts[i] + k]
    }
}

impl<L: Left> Left for Transposed<L> {
    #[inline(always)]
    fn at(&self, i: usize, k: usize) -> f32 {
        self.0.at(k, i)
    }
}

/// What becomes of a product.
#[derive(Clone, Copy)]
pub enum Store<'a> {
    /// `c = bias + a b`, the bias `[columns]` the same for all rows.
    Biased(&'a [f32]),
    /// The same where it is positive, else 0.
    Rectified(&'a [f32]),
    /// `c += a b`.
    Added,
    /// `c *= a b`, element by element.
    Multiplied,
    /// `c = a b` where `c` was positive, else 0.
    Gated,
}

/// Multiplies `a`, `[rows, inner]`, by `b`, `[inner, columns]`, into `c`, `[rows, columns]`; `b` and
/// `c` row-major and without gaps.
///
/// `rows` must be a multiple of [`ROWS`] and `columns` of [`LANES`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn multiply<L: Left>(a: L, b: &[f32], c: &mut [f32], columns: usize, store: Store) {
    // With 32 registers of 16 lanes a tile can be four times as wide.
    match_target! {
        "x86_64+avx512f" => tiles::<L, 4>(a, b, c, columns, store),
        _ => tiles::<L, 1>(a, b, c, columns, store),
    }
}

/// Covers `c` with tiles of [`ROWS`] rows and up to `V` vectors, from left to right.
#[inline(always)]
fn tiles<L: Left, const V: usize>(a: L, b: &[f32], c: &mut [f32], columns: usize, store: Store) {
    let mut j = 0;
    while columns - j >= V * LANES {
        strip::<L, ROWS, V>(a, b, c, columns, j, store);
        j += V * LANES;
    }
    while columns - j >= 2 * LANES {
        strip::<L, ROWS, 2>(a, b, c, columns, j, store);
        j += 2 * LANES;
    }
    while columns - j >= LANES {
        strip::<L, ROWS, 1>(a, b, c, columns, j, store);
        j += LANES;
    }
}

/// The `V` vectors of columns from `j` on, for all rows.
#[inline(always)]
fn strip<L: Left, const R: usize, const V: usize>(
    a: L,
    b: &[f32],
    c: &mut [f32],
    columns: usize,
    j: usize,
    store: Store,
) {
    for (tile, c) in c.chunks_exact_mut(R * columns).enumerate() {
        let mut sums = [[[0.0f32; LANES]; V]; R];
        if let Store::Biased(bias) | Store::Rectified(bias) = store {
            sums = [*vectors(bias, j); R];
        }
        for (k, b) in b.chunks_exact(columns).enumerate() {
            let b: [Lanes; V] = *vectors(b, j);
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = a.at(tile * R + r, k);
                for (sum, b) in sums.iter_mut().zip(&b) {
                    for (sum, b) in sum.iter_mut().zip(b) {
                        *sum = mul_add(x, *b, *sum);
                    }
                }
            }
        }
        match store {
            Store::Biased(_) => combine(c, columns, j, &sums, |_, sum| sum),
            Store::Rectified(_) => combine(c, columns, j, &sums, |_, sum| at_least(0.0, sum)),
            Store::Added => combine(c, columns, j, &sums, |c, sum| c + sum),
            Store::Multiplied => combine(c, columns, j, &sums, |c, sum| c * sum),
            Store::Gated => {
                combine(c, columns, j, &sums, |c, sum| if c > 0.0 { sum } else { 0.0 });
            }
        }
    }
}

/// Puts a tile of sums into the rows of `c` from column `j` on.
#[inline(always)]
fn combine<const R: usize, const V: usize>(
    c: &mut [f32],
    columns: usize,
    j: usize,
    sums: &[[Lanes; V]; R],
    with: impl Fn(f32, f32) -> f32,
) {
    for (c, sums) in c.chunks_exact_mut(columns).zip(sums) {
        let c = c[j..j + V * LANES].iter_mut().zip(sums.as_flattened());
        c.for_each(|(c, sum)| *c = with(*c, *sum));
    }
}

/// `V` vectors of a row from column `j` on.
#[inline(always)]
fn vectors<const V: usize>(row: &[f32], j: usize) -> &[Lanes; V] {
    let (vectors, _) = row[j..j + V * LANES].as_chunks();
    vectors.try_into().expect("V vectors")
}

/// The logits of `samples` rows of `inputs`, `[samples, width]`: `logits`, `[rows, stride]`, of which
/// the first `samples` columns are filled.
///
/// A product with so few columns would leave most of each vector empty. Here a vector holds [`QUAD`]
/// inputs of each of [`QUAD`] outputs, whose sums are added up at the end. `weight`, `[rows / QUAD,
/// width / QUAD][QUAD outputs][QUAD inputs]`, is as [`pack`] made it. `samples` must be a multiple of
/// [`LANES`], the length of `bias`, `[rows]`, and the `width` multiples of [`QUAD`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn narrow(inputs: &[f32], weight: &[f32], bias: &[f32], logits: &mut [f32], stride: usize) {
    // As many independent sums as there are registers for.
    match_target! {
        "x86_64+avx512f" => narrow_tiles::<{ 2 * ROWS }>(inputs, weight, bias, logits, stride),
        _ => narrow_tiles::<ROWS>(inputs, weight, bias, logits, stride),
    }
}

/// [`narrow`], `R` samples at a time.
#[inline(always)]
fn narrow_tiles<const R: usize>(
    inputs: &[f32],
    weight: &[f32],
    bias: &[f32],
    logits: &mut [f32],
    stride: usize,
) {
    let width = weight.len() / bias.len();
    let (biases, _) = bias.as_chunks::<QUAD>();
    let strips = weight.chunks_exact(QUAD * width).zip(biases);
    for ((weight, bias), logits) in strips.zip(logits.chunks_exact_mut(QUAD * stride)) {
        let (weight, _) = weight.as_chunks::<LANES>();
        for (tile, rows) in inputs.chunks_exact(R * width).enumerate() {
            let (rows, _) = rows.as_chunks::<QUAD>();
            let rows: [_; R] = std::array::from_fn(|r| &rows[r * weight.len()..][..weight.len()]);
            let mut sums = [[0.0f32; LANES]; R];
            for (quad, weight) in weight.iter().enumerate() {
                for (sums, row) in sums.iter_mut().zip(rows) {
                    let inputs: Lanes = std::array::from_fn(|i| row[quad][i % QUAD]);
                    for ((sum, x), w) in sums.iter_mut().zip(&inputs).zip(weight) {
                        *sum = mul_add(*x, *w, *sum);
                    }
                }
            }
            for (row, bias) in bias.iter().enumerate() {
                let to = &mut logits[row * stride + tile * R..][..R];
                for (to, sums) in to.iter_mut().zip(&sums) {
                    let s = &sums[row * QUAD..][..QUAD];
                    *to = bias + ((s[0] + s[1]) + (s[2] + s[3]));
                }
            }
        }
    }
}

/// Fills `packed` with `weight`, `[rows, width]`, in the order of [`narrow`].
pub fn pack(weight: &[f32], width: usize, packed: &mut [f32]) {
    for (strip, packed) in packed.chunks_exact_mut(QUAD * width).enumerate() {
        for (i, to) in packed.iter_mut().enumerate() {
            let (quad, row, input) = (i / LANES, i % LANES / QUAD, i % QUAD);
            *to = weight[(strip * QUAD + row) * width + quad * QUAD + input];
        }
    }
}
