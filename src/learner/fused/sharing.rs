//! Minibatches of a fused update by game, and the counts of their steps over the ranks that share it.

use super::FusedLearner;
use crate::data::summary::{LEARNT_STEPS, SCALE};
use crate::data::{Recording, RecordingAdvantages};
use crate::device;
use crate::device::buffers::cube_tensor;
use crate::parallel::TeamError;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use std::ops::Range;

/// The order in which the minibatches of an update take the games.
pub(super) struct MinibatchOrder {
    /// Games of all minibatches, each sorted by part if there are several parts.
    pub(super) order: Vec<i32>,
    /// Range of each minibatch in `order`.
    pub(super) ranges: Vec<Range<usize>>,
    /// Number of games per minibatch over all ranks.
    pub(super) global_size: usize,
}

impl FusedLearner {
    /// Assigns games to the minibatches of an update; within a minibatch, games are sorted by part
    /// if there are several.
    pub(super) fn order_games(&mut self, recording: &Recording, iteration: u32) -> MinibatchOrder {
        let minibatches = self.context.batches.minibatches(iteration, recording.num_envs);
        let global_size = minibatches[0].global_size;
        let (mut order, mut ranges) =
            (Vec::with_capacity(minibatches.len() * global_size), Vec::new());
        for minibatch in minibatches {
            let first = order.len();
            order.extend_from_slice(minibatch.games());
            if recording.parts.len() > 1 {
                order[first..].sort_unstable();
            }
            ranges.push(first..order.len());
        }
        MinibatchOrder { order, ranges, global_size }
    }

    /// Summary of an update shared by several ranks, `[len]`; the counterpart of
    /// [`launch_count`](super::launches::launch_count).
    pub(super) fn all_reduce_summary(
        &self,
        advantages: &RecordingAdvantages,
        minibatches: &MinibatchOrder,
        len: usize,
    ) -> Result<CubeTensor, TeamError> {
        let device = advantages.summary.device();
        let steps = advantages.learn_steps;
        let lengths = advantages.parts.iter().map(|part| {
            let [_, games] = part.dims();
            part.clone().narrow(0, steps, 1).reshape([games])
        });
        let lengths = device::read(Tensor::cat(lengths.collect(), 0));
        let count = |range: &Range<usize>| -> f64 {
            let games = &minibatches.order[range.clone()];
            games.iter().map(|env| f64::from(lengths[*env as usize])).sum()
        };
        let counts: Vec<f64> = minibatches.ranges.iter().map(count).collect();
        let recording_summary = device::read(advantages.summary.clone());
        let mut summary = vec![recording_summary[LEARNT_STEPS], recording_summary[SCALE]];
        summary.extend(
            self.context.team.all_reduce_counts(&counts)?.iter().map(|count| *count as f32),
        );
        summary.resize(len, 0.0);
        Ok(cube_tensor(device::upload(summary, &device)))
    }
}
