//! Product tiles as plain loops, which the compiler vectorizes.

use super::operands::{Epilogue, QUAD, Rows, Strided, Transpose};
use crate::math::{at_least, mul_add};
use crate::model::{LANES, Lanes};

pub use super::operands::TILE_ROWS;

/// Left operand of a product, read element by element: CPUs multiply by a broadcast memory operand.
pub trait Lhs: Copy {
    /// Element in row `i` at inner index `k`.
    fn at(&self, i: usize, k: usize) -> f32;
}

impl Lhs for Strided<'_> {
    #[inline(always)]
    fn at(&self, i: usize, k: usize) -> f32 {
        self.values[i * self.row_stride + k]
    }
}

impl Lhs for Rows<'_> {
    #[inline(always)]
    fn at(&self, i: usize, k: usize) -> f32 {
        self.values[self.starts[i] + k]
    }
}

impl<L: Lhs> Lhs for Transpose<L> {
    #[inline(always)]
    fn at(&self, i: usize, k: usize) -> f32 {
        self.0.at(k, i)
    }
}

/// Covers `c` from left to right with tiles of [`TILE_ROWS`] rows and up to `V` vectors.
#[inline(always)]
pub fn multiply<L: Lhs, const V: usize>(
    a: L,
    b: &[f32],
    c: &mut [f32],
    columns: usize,
    epilogue: Epilogue,
) {
    let mut j = 0;
    while columns - j >= V * LANES {
        multiply_strip::<L, V>(a, b, c, columns, j, epilogue);
        j += V * LANES;
    }
    while columns - j >= 2 * LANES {
        multiply_strip::<L, 2>(a, b, c, columns, j, epilogue);
        j += 2 * LANES;
    }
    while columns - j >= LANES {
        multiply_strip::<L, 1>(a, b, c, columns, j, epilogue);
        j += LANES;
    }
}

/// Computes `V` vectors of columns from `j` on, for all rows.
#[inline(always)]
fn multiply_strip<L: Lhs, const V: usize>(
    a: L,
    b: &[f32],
    c: &mut [f32],
    columns: usize,
    j: usize,
    epilogue: Epilogue,
) {
    for (tile, c) in c.chunks_exact_mut(TILE_ROWS * columns).enumerate() {
        let mut sums = [[[0.0f32; LANES]; V]; TILE_ROWS];
        if let Epilogue::Bias(bias) | Epilogue::BiasRelu(bias) = epilogue {
            sums = [*vectors(bias, j); TILE_ROWS];
        }
        for (k, b) in b.chunks_exact(columns).enumerate() {
            let b: [Lanes; V] = *vectors(b, j);
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = a.at(tile * TILE_ROWS + r, k);
                for (sum, b) in sums.iter_mut().zip(&b) {
                    for (sum, b) in sum.iter_mut().zip(b) {
                        *sum = mul_add(x, *b, *sum);
                    }
                }
            }
        }
        match epilogue {
            Epilogue::Bias(_) => combine(c, columns, j, &sums, |_, sum| sum),
            Epilogue::BiasRelu(_) => combine(c, columns, j, &sums, |_, sum| at_least(0.0, sum)),
            Epilogue::Add => combine(c, columns, j, &sums, |c, sum| c + sum),
            Epilogue::Multiply => combine(c, columns, j, &sums, |c, sum| c * sum),
            Epilogue::Gate => {
                combine(c, columns, j, &sums, |c, sum| if c > 0.0 { sum } else { 0.0 });
            }
        }
    }
}

/// Combines a tile of sums with the rows of `c` from column `j` on.
#[inline(always)]
fn combine<const V: usize>(
    c: &mut [f32],
    columns: usize,
    j: usize,
    sums: &[[Lanes; V]; TILE_ROWS],
    operation: impl Fn(f32, f32) -> f32,
) {
    for (c, sums) in c.chunks_exact_mut(columns).zip(sums) {
        let c = c[j..j + V * LANES].iter_mut().zip(sums.as_flattened());
        c.for_each(|(c, sum)| *c = operation(*c, *sum));
    }
}

/// `V` vectors of a row from column `j` on.
#[inline(always)]
fn vectors<const V: usize>(row: &[f32], j: usize) -> &[Lanes; V] {
    let (vectors, _) = row[j..j + V * LANES].as_chunks();
    vectors.try_into().expect("V vectors")
}

/// Implements `product::multiply_narrow` for `R` samples at a time.
#[inline(always)]
pub fn multiply_narrow<const R: usize>(
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
