//! Operators on packed rows, one file each, with the forward and the backward pass.
//!
//! A row is a token of a text or a step of a game; rows lie one after the other without gaps. A row's result
//! depends on that row and on earlier rows of its own sequence alone, to the last bit: not on the other rows of a
//! batch, and not on the number of threads. Generation and learning are therefore one arithmetic.

pub mod attention;
pub mod bias;
#[cfg(test)]
pub(crate) mod check;
pub mod embed;
pub mod gate;
pub mod half;
pub mod linear;
pub mod lora;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod region;
pub mod rope;

use crate::math::{LANES, mul_add};

/// The number of threads that an operator may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// The calling thread alone: many small passes run side by side.
    Sequential,
    /// All threads of the pool: one large pass runs at a time.
    Parallel,
}

/// Numbers that are computed by one thread at least.
const PORTION: usize = 1 << 13;
/// Portions for each thread at most.
const PORTIONS: usize = 2;

/// Calls `work` with all rows, or side by side with portions of them. `reads` and `writes` have the same number of rows,
/// each of a width of its own, and a row's result depends on that row alone.
pub(crate) fn by_rows<const R: usize, const W: usize>(
    parallelism: Parallelism,
    rows: usize,
    reads: [&[f32]; R],
    writes: [&mut [f32]; W],
    work: &(impl Fn([&[f32]; R], [&mut [f32]; W]) + Sync),
) {
    let numbers: usize = writes.iter().map(|all| all.len()).sum();
    let portions = (numbers / PORTION).min(PORTIONS * rayon::current_num_threads()).min(rows);
    if parallelism == Parallelism::Sequential || portions < 2 {
        return work(reads, writes);
    }
    let some = rows.div_ceil(portions);
    let reads = reads.map(|all| (all, all.len() / rows * some));
    let writes = writes.map(|all| {
        let length = all.len() / rows * some;
        (all, length)
    });
    parallelism.each_chunk(writes, |number, writes| {
        let part = |(all, length): (&'_ [f32], usize)| {
            let start = number * length;
            start..(start + length).min(all.len())
        };
        work(reads.map(|read| &read.0[part(read)]), writes);
    });
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
