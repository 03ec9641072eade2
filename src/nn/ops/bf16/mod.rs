//! The CPU's matrix products of operands in bf16, with sums in f32.
//!
//! Both operands are packed into tiles of 16 rows or columns by 32 elements of the inner dimension, two adjacent ones
//! in a word: the format of the matrix and dot-product instructions of processors. A weight is packed once and takes
//! half the memory that it takes in f32; activations are rounded as they are packed.
//!
//! Each number of a result is summed over the inner dimension in one fixed order, so it depends on its own row and
//! column alone: not on the sizes of the product or the number of threads. The order, and the rounding of subnormal
//! numbers, differ between [`Bf16Instructions`]s.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod output;
mod portable;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod tiles;

pub use tiles::{Side, TiledMatrix, round_to_bf16, to_bf16};

use super::matmul::View;
use super::{Parallelism, WriteMode, for_rows};
use multiversion::multiversion;
use std::sync::OnceLock;

/// The instructions of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Instructions {
    /// Advanced Matrix Extensions: `tdpbf16ps` on tiles in dedicated registers.
    Amx,
    /// The dot products of `avx512_bf16`: `vdpbf16ps`.
    Avx512,
    /// Operands widened to f32, on any processor.
    Portable,
}

impl Bf16Instructions {
    /// The instructions that this processor has and that pass a test of their results, the fastest first.
    pub fn available() -> &'static [Self] {
        static AVAILABLE: OnceLock<Vec<Bf16Instructions>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let all = [Self::Amx, Self::Avx512, Self::Portable];
            all.into_iter()
                .filter(|instructions| instructions.is_available() && instructions.is_exact())
                .collect()
        })
    }

    /// The fastest instructions of this processor.
    pub fn best() -> Self {
        Self::available()[0]
    }

    /// The name of the instructions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx_bf16",
            Self::Avx512 => "avx512_bf16",
            Self::Portable => "f32 instructions",
        }
    }

    fn is_available(self) -> bool {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if self == Self::Amx {
            return amx::is_available();
        }
        #[cfg(target_arch = "x86_64")]
        if self == Self::Avx512 {
            return avx512::is_available();
        }
        self == Self::Portable
    }

    /// Whether a product of small whole numbers, which is exact in any order of summation, equals that of
    /// the portable ones.
    fn is_exact(self) -> bool {
        let [rows, inner, columns] = [35, 70, 37];
        let numbers = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|i| (i * step % 17) as f32 - 8.0).collect()
        };
        let (x, w) = (numbers(rows * inner, 5), numbers(inner * columns, 7));
        let mut right = TiledMatrix::default();
        let view = View::rows(&w, columns).transpose();
        right.pack(Parallelism::Sequential, view, [columns, inner], Side::Right);
        let product = |instructions| {
            let mut y = vec![0.0; rows * columns];
            let products = &mut [(&right, &mut y[..])];
            forward(instructions, Parallelism::Sequential, &x, products, WriteMode::Overwrite);
            y
        };
        self == Self::Portable || product(self) == product(Self::Portable)
    }
}

/// `y = x w`, or `y += x w`, for some weights and results, with `x` `[rows, inner]`, rounded to bf16, and each `y`
/// `[rows, columns]`.
pub fn forward(
    instructions: Bf16Instructions,
    parallelism: Parallelism,
    x: &[f32],
    products: &mut [(&TiledMatrix, &mut [f32])],
    mode: WriteMode,
) {
    if x.is_empty() {
        return;
    }
    match instructions {
        Bf16Instructions::Portable => portable::forward(parallelism, x, products, mode),
        #[cfg(target_arch = "x86_64")]
        Bf16Instructions::Amx | Bf16Instructions::Avx512 => {
            tiled::forward(instructions, parallelism, x, products, mode)
        }
        #[cfg(not(target_arch = "x86_64"))]
        Bf16Instructions::Amx | Bf16Instructions::Avx512 => unreachable!("not available"),
    }
}

/// Adds `x^T dy` to `gradient`, `[inputs, outputs]`, for some pairs of `dy` and `gradient`, with `x` `[rows, inputs]`
/// and each `dy` `[rows, outputs]`, all rounded to bf16.
pub fn weight_grads<const N: usize>(
    instructions: Bf16Instructions,
    parallelism: Parallelism,
    x: &[f32],
    inputs: usize,
    results: [(&[f32], &mut [f32]); N],
) {
    if x.is_empty() {
        return;
    }
    match instructions {
        Bf16Instructions::Portable => portable::weight_grads(parallelism, x, inputs, results),
        #[cfg(target_arch = "x86_64")]
        Bf16Instructions::Amx | Bf16Instructions::Avx512 => {
            tiled::weight_grads(instructions, parallelism, x, inputs, results)
        }
        #[cfg(not(target_arch = "x86_64"))]
        Bf16Instructions::Amx | Bf16Instructions::Avx512 => unreachable!("not available"),
    }
}

/// Rounds numbers to bf16.
pub fn round(parallelism: Parallelism, values: &mut [f32]) {
    for_rows(parallelism, values.len(), [], [values], &|[], [values]| round_all(values));
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn round_all(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = round_to_bf16(*x));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::Draws;

    const BOTH: [Parallelism; 2] = [Parallelism::Sequential, Parallelism::Parallel];

    fn widen(x: f32) -> f64 {
        f64::from(round_to_bf16(x))
    }

    fn pack(values: &[f32], width: usize) -> TiledMatrix {
        let (mut w, inner) = (TiledMatrix::default(), values.len() / width);
        let view = View::rows(values, width).transpose();
        w.pack(Parallelism::Sequential, view, [width, inner], Side::Right);
        w
    }

    fn assert_near(what: &str, got: &[f32], want: impl Fn(usize) -> f64) {
        for (i, got) in got.iter().enumerate() {
            let want = want(i);
            assert!((f64::from(*got) - want).abs() < 2e-5, "{what} {i}: {got} instead of {want}");
        }
    }

    #[test]
    fn products_of_any_shape_are_sums_of_rounded_products() {
        let mut draws = Draws::new(31);
        for [rows, inner, columns] in
            [[1, 1, 1], [2, 33, 65], [3, 64, 17], [7, 5, 90], [16, 32, 16], [37, 95, 130]]
        {
            let (x, w) = (draws.next_numbers(rows * inner), draws.next_numbers(inner * columns));
            let before = draws.next_numbers(rows * columns);
            for instructions in Bf16Instructions::available() {
                for (parallelism, mode) in
                    BOTH.into_iter().zip([WriteMode::Overwrite, WriteMode::Accumulate])
                {
                    let mut y = before.clone();
                    let packed = pack(&w, columns);
                    forward(*instructions, parallelism, &x, &mut [(&packed, &mut y[..])], mode);
                    assert_near(instructions.name(), &y, |at| {
                        let (i, j) = (at / columns, at % columns);
                        let term = |k| widen(x[i * inner + k]) * widen(w[k * columns + j]);
                        let before = match mode {
                            WriteMode::Overwrite => 0.0,
                            WriteMode::Accumulate => f64::from(before[at]),
                        };
                        before + (0..inner).map(term).sum::<f64>()
                    });
                }
            }
        }
    }

    #[test]
    fn gradients_of_weights_are_sums_of_rounded_products() {
        let mut draws = Draws::new(32);
        for [rows, inputs, outputs] in [[1, 1, 1], [33, 17, 40], [70, 64, 19]] {
            let (x, dy) = (draws.next_numbers(rows * inputs), draws.next_numbers(rows * outputs));
            let before = draws.next_numbers(inputs * outputs);
            for instructions in Bf16Instructions::available() {
                for parallelism in BOTH {
                    let mut gradient = before.clone();
                    weight_grads(*instructions, parallelism, &x, inputs, [(&dy, &mut gradient)]);
                    assert_near(instructions.name(), &gradient, |at| {
                        let (i, j) = (at / outputs, at % outputs);
                        let term = |r| widen(x[r * inputs + i]) * widen(dy[r * outputs + j]);
                        f64::from(before[at]) + (0..rows).map(term).sum::<f64>()
                    });
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bytes_alone_and_among_others() {
        let mut draws = Draws::new(33);
        let (rows, inner, columns) = (41, 70, 150);
        let (x, w) = (draws.next_numbers(rows * inner), draws.next_numbers(inner * columns));
        let w = pack(&w, columns);
        for instructions in Bf16Instructions::available() {
            let product = |parallelism, x: &[f32]| {
                let mut y = vec![0.0; x.len() / inner * columns];
                forward(
                    *instructions,
                    parallelism,
                    x,
                    &mut [(&w, &mut y[..])],
                    WriteMode::Overwrite,
                );
                y
            };
            let all = product(Parallelism::Parallel, &x);
            for some in [1, 2, 3, 5, 8, 11, 20] {
                let parts = x.chunks(some * inner);
                let parts: Vec<f32> =
                    parts.flat_map(|x| product(Parallelism::Sequential, x)).collect();
                assert!(parts == all, "{}, {some} rows at a time", instructions.name());
            }
        }
    }
}
