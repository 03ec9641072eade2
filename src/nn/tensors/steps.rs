//! Attention over the steps of a batch of games in tensors, within episodes, windows and memory.

use super::attention::{KeysValues, MASKED_SCORE, attend};
use super::products::ProductPrecision;
use crate::nn::arch::DecoderShape;
use burn::tensor::{Tensor, TensorData};

/// Queries of a tile: the memory of the scores grows with the length of a sequence, not with its square.
const TILE_QUERIES: usize = 128;

/// The steps of a batch of sequences, as attention needs to know them.
pub(super) struct Steps {
    /// Positions, counted from the first step of the episode: `[batch, num_steps]`.
    pub(super) positions: Tensor<2>,
    /// The number of episodes begun in the sequence: `[batch, num_steps]`; 0 in that of the memory.
    episodes: Tensor<2>,
    /// The age of each row of memory, 0 for the newest: `[batch, context]`.
    ages: Tensor<2>,
    /// Steps ever remembered of the episode: `[batch, 1]`.
    count: Tensor<2>,
    context: usize,
    products: ProductPrecision,
    /// The factor of the scores.
    scale: f32,
}

impl Steps {
    /// Derives positions, episodes and the ages of remembered steps from the episodes' starts, `[batch, num_steps]`.
    pub(super) fn new(
        shape: &DecoderShape,
        starts: Tensor<2>,
        memory: &Tensor<2>,
        products: ProductPrecision,
    ) -> Self {
        let ([batch, steps], device) = (starts.dims(), starts.device());
        let context = shape.context;
        let count_up = |end: usize| Tensor::<1, burn::tensor::Int>::arange(0..end as i64, &device);
        let times = count_up(steps).float().reshape([1, steps]);
        let count = memory.clone().narrow(1, 0, 1);
        let episodes = starts.clone().cumsum(1);
        let first = (starts * times.clone()).cummax(1);
        let continues = episodes.clone().equal_elem(0.0).float();
        let positions = times - first + continues * count.clone();
        let rows = count_up(context).reshape([1, context]);
        let newest = count.clone().int() + (context as i32 - 1);
        let ages = newest.expand([batch, context]) - rows.expand([batch, context]);
        let ages = ages.remainder_scalar(context as i32).float();
        let scale = shape.head_shape().scale;
        Self { positions, episodes, ages, count, context, products, scale }
    }

    /// The result of attention for `queries`: `[batch, num_steps, query_size]`.
    pub(super) fn attend(
        &self,
        queries: Tensor<4>,
        own: &KeysValues,
        cached: &KeysValues,
    ) -> Tensor<3> {
        let [_, steps, _, _] = queries.dims();
        let mut attended = Vec::with_capacity(steps.div_ceil(TILE_QUERIES));
        for start in (0..steps).step_by(TILE_QUERIES) {
            let end = (start + TILE_QUERIES).min(steps);
            let first = (start + 1).saturating_sub(self.context);
            let part = |x: &Tensor<4>| x.clone().narrow(1, first, end - first);
            let mut mask = self.mask(start..end, first);
            let mut keys_values = own.each_ref().map(part);
            if start + 1 < self.context {
                mask = Tensor::cat(vec![self.memory_mask(start..end), mask], 2);
                keys_values = std::array::from_fn(|i| {
                    Tensor::cat(vec![cached[i].clone(), keys_values[i].clone()], 1)
                });
            }
            let queries = queries.clone().narrow(1, start, end - start);
            attended.push(attend(self.products, self.scale, queries, &keys_values, mask, None));
        }
        if attended.len() == 1 { attended.remove(0) } else { Tensor::cat(attended, 1) }
    }

    /// The mask of the sequence's own keys from `first` on: `[batch, queries, keys]`.
    fn mask(&self, queries: std::ops::Range<usize>, first: usize) -> Tensor<3> {
        let (from, count, keys) = (queries.start, queries.len(), queries.end - first);
        let batch = self.episodes.dims()[0];
        let distance = |q: usize, k: usize| (from + q).wrapping_sub(first + k);
        let visible = (0..count)
            .flat_map(|q| (0..keys).map(move |k| f32::from(distance(q, k) < self.context)));
        let visible = TensorData::new(visible.collect::<Vec<f32>>(), [1, count, keys]);
        let visible = Tensor::<3>::from_data(visible, &self.episodes.device());
        let episodes = |from: usize, count: usize, shape: [usize; 3]| {
            self.episodes.clone().narrow(1, from, count).reshape(shape)
        };
        let query_episodes = episodes(from, count, [batch, count, 1]).expand([batch, count, keys]);
        let key_episodes = episodes(first, keys, [batch, 1, keys]).expand([batch, count, keys]);
        additive_mask(query_episodes.equal(key_episodes).float() * visible)
    }

    /// The mask of the rows of memory: `[batch, queries, context]`.
    fn memory_mask(&self, queries: std::ops::Range<usize>) -> Tensor<3> {
        let [batch, context] = self.ages.dims();
        let (from, count) = (queries.start, queries.len());
        let filled = self.ages.clone().lower(self.count.clone().expand([batch, context]));
        let limits: Vec<f32> = queries.map(|t| context as f32 - 1.0 - t as f32).collect();
        let limits = TensorData::new(limits, [1, count, 1]);
        let limits = Tensor::<3>::from_data(limits, &self.ages.device());
        let ages = self.ages.clone().reshape([batch, 1, context]);
        let near =
            ages.expand([batch, count, context]).lower(limits.expand([batch, count, context]));
        let same = self.episodes.clone().narrow(1, from, count).equal_elem(0.0).float();
        let filled = filled.float().reshape([batch, 1, context]);
        additive_mask(near.float() * filled * same.reshape([batch, count, 1]))
    }
}

/// The mask of attention: 0 where `visible` is 1, and [`MASKED_SCORE`] where it is 0.
fn additive_mask(visible: Tensor<3>) -> Tensor<3> {
    (-visible + 1.0) * MASKED_SCORE
}
