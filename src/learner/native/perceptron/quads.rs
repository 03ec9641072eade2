//! Product tiles with explicit WebAssembly SIMD, sized for its sixteen registers.

use super::operands::{Epilogue, Rows, Strided, TILE_ROWS, Transpose};
use crate::math::quads::{QUAD, at_least, load, mul_add, splat, store};
use crate::model::LANES;
use std::arch::wasm32::{f32x4_add, f32x4_extract_lane, f32x4_gt, f32x4_mul, v128_and};

/// Vectors per row of a tile of [`TILE_ROWS`] rows.
const VECTORS: usize = 2;
/// Samples per tile of [`multiply_narrow`].
const SAMPLES: usize = 2;

/// Left operand of a product, read by tile columns.
pub trait Lhs: Copy {
    /// Iterates over the first `inner` columns of rows `i..i + R`. Slices with known bounds avoid
    /// checks in the loop.
    fn tile<const R: usize>(self, i: usize, inner: usize) -> impl Iterator<Item = [f32; R]>;
}

impl Lhs for Strided<'_> {
    #[inline(always)]
    fn tile<const R: usize>(self, i: usize, inner: usize) -> impl Iterator<Item = [f32; R]> {
        zip_rows(std::array::from_fn(|r| &self.values[(i + r) * self.row_stride..][..inner]), inner)
    }
}

impl Lhs for Rows<'_> {
    #[inline(always)]
    fn tile<const R: usize>(self, i: usize, inner: usize) -> impl Iterator<Item = [f32; R]> {
        zip_rows(std::array::from_fn(|r| &self.values[self.starts[i + r]..][..inner]), inner)
    }
}

impl Lhs for Transpose<Strided<'_>> {
    #[inline(always)]
    fn tile<const R: usize>(self, i: usize, inner: usize) -> impl Iterator<Item = [f32; R]> {
        let rows = self.0.values.chunks_exact(self.0.row_stride).take(inner);
        rows.map(move |row| *row[i..].first_chunk().expect("R columns"))
    }
}

impl Lhs for Transpose<Rows<'_>> {
    #[inline(always)]
    fn tile<const R: usize>(self, i: usize, inner: usize) -> impl Iterator<Item = [f32; R]> {
        let rows = self.0.starts.iter().take(inner);
        rows.map(move |start| *self.0.values[start + i..].first_chunk().expect("R columns"))
    }
}

/// Iterates over the first `inner` columns of some rows.
#[inline(always)]
fn zip_rows<const R: usize>(rows: [&[f32]; R], inner: usize) -> impl Iterator<Item = [f32; R]> {
    (0..inner).map(move |k| rows.map(|row| row[k]))
}

/// Implements `product::multiply`.
pub fn multiply<L: Lhs>(a: L, b: &[f32], c: &mut [f32], columns: usize, epilogue: Epilogue) {
    let inner = b.len() / columns;
    for j in (0..columns).step_by(VECTORS * QUAD) {
        for (tile, c) in c.chunks_exact_mut(TILE_ROWS * columns).enumerate() {
            let mut sums = [[splat(0.0); VECTORS]; TILE_ROWS];
            if let Epilogue::Bias(bias) | Epilogue::BiasRelu(bias) = epilogue {
                sums = [std::array::from_fn(|v| load(&bias[j + v * QUAD..])); TILE_ROWS];
            }
            for (b, xs) in b.chunks_exact(columns).zip(a.tile::<TILE_ROWS>(tile * TILE_ROWS, inner))
            {
                let b: [_; VECTORS] = std::array::from_fn(|v| load(&b[j + v * QUAD..]));
                for (x, sums) in xs.into_iter().zip(&mut sums) {
                    let x = splat(x);
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = mul_add(x, b, *sum);
                    }
                }
            }
            for (c, sums) in c.chunks_exact_mut(columns).zip(sums) {
                for (c, sum) in c[j..].chunks_exact_mut(QUAD).zip(sums) {
                    let was = load(c);
                    let result = match epilogue {
                        Epilogue::Bias(_) => sum,
                        Epilogue::BiasRelu(_) => at_least(0.0, sum),
                        Epilogue::Add => f32x4_add(was, sum),
                        Epilogue::Multiply => f32x4_mul(was, sum),
                        Epilogue::Gate => v128_and(sum, f32x4_gt(was, splat(0.0))),
                    };
                    store(result, c);
                }
            }
        }
    }
}

/// Implements `product::multiply_narrow`.
pub fn multiply_narrow(
    inputs: &[f32],
    weight: &[f32],
    bias: &[f32],
    logits: &mut [f32],
    stride: usize,
) {
    let width = weight.len() / bias.len();
    let strips = weight.chunks_exact(QUAD * width).zip(bias.chunks_exact(QUAD));
    for ((weight, bias), logits) in strips.zip(logits.chunks_exact_mut(QUAD * stride)) {
        for (tile, rows) in inputs.chunks_exact(SAMPLES * width).enumerate() {
            let mut sums = [[splat(0.0); QUAD]; SAMPLES];
            for (quad, weight) in weight.chunks_exact(LANES).enumerate() {
                let weight: [_; QUAD] = std::array::from_fn(|row| load(&weight[row * QUAD..]));
                for (sample, sums) in sums.iter_mut().enumerate() {
                    let inputs = load(&rows[sample * width + quad * QUAD..]);
                    for (sum, weight) in sums.iter_mut().zip(weight) {
                        *sum = mul_add(inputs, weight, *sum);
                    }
                }
            }
            for (row, bias) in bias.iter().enumerate() {
                let to = &mut logits[row * stride + tile * SAMPLES..][..SAMPLES];
                for (to, sums) in to.iter_mut().zip(&sums) {
                    let s = sums[row];
                    let (a, b) = (f32x4_extract_lane::<0>(s), f32x4_extract_lane::<1>(s));
                    let (c, d) = (f32x4_extract_lane::<2>(s), f32x4_extract_lane::<3>(s));
                    *to = bias + ((a + b) + (c + d));
                }
            }
        }
    }
}
