//! Products in bf16 by instructions that multiply tiles.

#[cfg(target_os = "linux")]
use super::amx;
use super::output::Output;
use super::tiles::{Side, TiledMatrix};
use super::{Bf16Instructions, avx512};
use crate::nn::ops::matmul::View;
use crate::nn::ops::{Parallelism, WriteMode};
use std::cell::RefCell;

/// Size in bytes of a part of the left operand, which stays in the L2 cache while the columns are traversed.
const PART_BYTES: usize = 1 << 19;
/// Parts of a product for each thread.
const PARTS_PER_THREAD: usize = 4;

thread_local! {
    /// The memory of operands that are packed for one product, for reuse.
    static OPERANDS: RefCell<[TiledMatrix; 2]> = RefCell::default();
}

/// Products of rows with weights, as [`super::forward`].
pub fn forward(
    instructions: Bf16Instructions,
    parallelism: Parallelism,
    x: &[f32],
    products: &mut [(&TiledMatrix, &mut [f32])],
    mode: WriteMode,
) {
    let Some(inner) = products.first().map(|(w, _)| w.inner()) else { return };
    let [mut left, right] = OPERANDS.take();
    left.pack(parallelism, View::rows(x, inner), [x.len() / inner, inner], Side::Left);
    multiply(instructions, parallelism, &left, products, mode);
    OPERANDS.set([left, right]);
}

/// Gradients of weights, as [`super::weight_grads`].
pub fn weight_grads<const N: usize>(
    instructions: Bf16Instructions,
    parallelism: Parallelism,
    x: &[f32],
    inputs: usize,
    results: [(&[f32], &mut [f32]); N],
) {
    let rows = x.len() / inputs;
    let [mut left, mut right] = OPERANDS.take();
    left.pack(parallelism, View::rows(x, inputs).transpose(), [inputs, rows], Side::Left);
    for (dy, gradient) in results {
        let outputs = gradient.len() / inputs;
        right.pack(parallelism, View::rows(dy, outputs).transpose(), [outputs, rows], Side::Right);
        multiply(
            instructions,
            parallelism,
            &left,
            &mut [(&right, gradient)],
            WriteMode::Accumulate,
        );
    }
    OPERANDS.set([left, right]);
}

/// The products of a packed operand with others.
fn multiply(
    instructions: Bf16Instructions,
    parallelism: Parallelism,
    a: &TiledMatrix,
    products: &mut [(&TiledMatrix, &mut [f32])],
    mode: WriteMode,
) {
    let row_strips = a.num_strips();
    let parts_down = row_strips.div_ceil((PART_BYTES / a.strip_bytes().max(1)).max(2));
    let height = row_strips.div_ceil(parts_down.max(1)).max(1).next_multiple_of(2);
    let column_strips: usize = products.iter().map(|(b, _)| b.num_strips()).sum();
    let parts_across = match parallelism {
        Parallelism::Parallel => {
            (PARTS_PER_THREAD * rayon::current_num_threads()).div_ceil(parts_down.max(1))
        }
        Parallelism::Sequential => 1,
    };
    let width = column_strips.div_ceil(parts_across).max(1).next_multiple_of(avx512::NUM_STRIPS);
    let mut parts = Vec::new();
    let outputs: Vec<(&TiledMatrix, Output)> = products
        .iter_mut()
        .map(|(b, y)| {
            assert_eq!(a.inner(), b.inner(), "inner dimensions");
            (*b, Output::new(y, [a.outer(), b.outer()], mode))
        })
        .collect();
    for i in (0..row_strips).step_by(height) {
        for (index, (b, _)) in outputs.iter().enumerate() {
            let end = b.num_strips();
            let part_from =
                move |j: usize| [i..(i + height).min(row_strips), j..(j + width).min(end)];
            parts.extend((0..end).step_by(width).map(|j| (index, part_from(j))));
        }
    }
    parallelism.each(parts.len(), |at| {
        let (index, part) = &parts[at];
        let (b, to) = &outputs[*index];
        // SAFETY: parts are disjoint, and each is one thread's.
        unsafe {
            match instructions {
                #[cfg(target_os = "linux")]
                Bf16Instructions::Amx => amx::multiply(a, b, part.clone(), to),
                Bf16Instructions::Avx512 => avx512::multiply(a, b, part.clone(), to),
                #[cfg(not(target_os = "linux"))]
                Bf16Instructions::Amx => unreachable!("AMX is used on Linux alone"),
                Bf16Instructions::Portable => unreachable!("it multiplies no tiles"),
            }
        }
    });
}
