//! Operators on packed rows, one file each, with the forward and the backward pass.
//!
//! A row is a token of a text or a step of a game; rows lie one after the other without gaps. A row's result
//! depends on that row and on earlier rows of its own sequence alone, to the last bit: not on the other rows of a
//! batch, and not on the number of threads. Generation and learning are therefore one arithmetic.

pub mod attention;
pub mod bf16;
pub mod bias;
#[cfg(test)]
pub(crate) mod check;
pub mod embed;
pub mod gate;
pub mod linear;
pub mod lora;
pub mod matmul;
pub mod norm;
pub mod region;
pub mod rope;
pub mod softmax;
pub mod stored;

use crate::math::{LANES, at_least, mul_add};

/// The number of threads that an operator may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// The calling thread alone, as many small passes run in parallel.
    Sequential,
    /// All threads of the pool, as one large pass runs at a time.
    Parallel,
}

/// Whether an operator replaces what is in its destination or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// The result replaces the destination.
    Overwrite,
    /// The result is added to the destination.
    Accumulate,
}

impl WriteMode {
    /// The mode of a part of a sum: that of the whole for the first part, accumulation for those that follow.
    pub(crate) fn accumulate_if(self, follows: bool) -> Self {
        if follows { Self::Accumulate } else { self }
    }

    /// Writes the results of a row.
    #[inline(always)]
    fn write_row(self, row: &mut [f32], results: &[f32]) {
        match self {
            Self::Accumulate => row.iter_mut().zip(results).for_each(|(sum, x)| *sum += x),
            Self::Overwrite => row.copy_from_slice(results),
        }
    }
}

/// Minimum results of a portion; fewer are not worth a separate task.
const MIN_PORTION_RESULTS: usize = 1 << 13;
/// Maximum portions per thread.
const PORTIONS_PER_THREAD: usize = 2;

/// Calls `work` with all rows, or side by side with portions of them. `reads` and `writes` have the same number of
/// rows, each of a width of its own, and a row's result depends on that row alone.
pub(crate) fn for_rows<const R: usize, const W: usize>(
    parallelism: Parallelism,
    rows: usize,
    reads: [&[f32]; R],
    writes: [&mut [f32]; W],
    work: &(impl Fn([&[f32]; R], [&mut [f32]; W]) + Sync),
) {
    let elements: usize = writes.iter().map(|values| values.len()).sum();
    let num_portions = (elements / MIN_PORTION_RESULTS)
        .min(PORTIONS_PER_THREAD * rayon::current_num_threads())
        .min(rows);
    if parallelism == Parallelism::Sequential || num_portions < 2 {
        return work(reads, writes);
    }
    let portion_rows = rows.div_ceil(num_portions);
    let writes = writes.map(|values| {
        let length = values.len() / rows * portion_rows;
        (values, length)
    });
    parallelism.each_chunk(writes, |index, writes| {
        let portion = index * portion_rows..(index * portion_rows + portion_rows).min(rows);
        let portion_range = |values: &[f32]| {
            let width = values.len() / rows;
            portion.start * width..portion.end * width
        };
        work(reads.map(|values| &values[portion_range(values)]), writes);
    });
}

/// The largest of some values, or negative infinity if there are none.
#[inline(always)]
pub(crate) fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(max, x)| *max = at_least(*max, *x));
    }
    lanes.iter_mut().zip(rest).for_each(|(max, x)| *max = at_least(*max, *x));
    lanes.iter().fold(f32::NEG_INFINITY, |max, x| at_least(max, *x))
}

/// The dot product, in [`LANES`] partial sums.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = mul_add(*a, *b, *sum);
        }
    }
    sums.iter().sum()
}
