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
pub mod linear;
pub mod lora;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod rope;

/// The number of threads that an operator may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// The calling thread alone: many small passes run side by side.
    Sequential,
    /// All threads of the pool: one large pass runs at a time.
    Parallel,
}

use crate::math::{LANES, mul_add};

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
