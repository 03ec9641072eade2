//! The gradient and the sums of some shards, which are added up in order.

use super::differentiation::TokenSums;
use crate::parallel::PartialSum;
use std::ops::Range;

/// The gradient and the sums of some shards.
pub(super) struct ShardSums {
    sum: PartialSum,
    /// The largest distance of a ratio from 1: a maximum, so not among the sums.
    max_ratio_distance: f64,
}

impl ShardSums {
    /// Takes the gradient of these shards, `[num_trainable]`, and the sums over their tokens.
    pub fn new(shards: Range<usize>, gradient: Vec<f32>, sums: TokenSums) -> Self {
        Self {
            sum: PartialSum { shards, vector: gradient, numbers: sums.to_additive() },
            max_ratio_distance: sums.max_ratio_distance,
        }
    }

    /// Adds the sums of the shards that follow.
    pub fn add_next(self, next: Self) -> Self {
        Self {
            sum: self.sum.add_next(next.sum),
            max_ratio_distance: self.max_ratio_distance.max(next.max_ratio_distance),
        }
    }

    /// Separates the sum from the maximum, to which `max_ratio_distance` is raised.
    pub fn into_sum(self, max_ratio_distance: &mut f64) -> PartialSum {
        *max_ratio_distance = max_ratio_distance.max(self.max_ratio_distance);
        self.sum
    }
}
