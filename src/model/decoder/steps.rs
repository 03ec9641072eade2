//! Which steps of a batch of sequences see which, and what they find there, in tensors.

use super::products::Products;
use super::shape::DecoderShape;
use burn::tensor::{Tensor, TensorData, activation};

/// Queries that are compared with keys at a time: the scores that a sequence needs grow with its length,
/// not with the square of it.
const QUERIES: usize = 128;

/// What is added to the scores of steps that are not to be seen.
pub(crate) const UNSEEN: f32 = -1e9;

/// Keys and values of some steps: `[batch, num_steps, num_kv_heads, head_dim]` each.
pub(crate) type KeysValues = [Tensor<4>; 2];

/// Which steps see which: what attention needs to know of a batch of sequences.
pub(super) struct Steps {
    /// Counted from the first step of the episode: `[batch, num_steps]`.
    pub(super) positions: Tensor<2>,
    /// Episodes that began in the sequence: `[batch, num_steps]`; 0 in the one that memory is of.
    episodes: Tensor<2>,
    /// What is in memory, if there is one.
    memory: Option<Remembered>,
    context: usize,
    products: Products,
}

/// Which steps are in memory.
struct Remembered {
    /// Steps that a row of memory is older than the newest: `[batch, context]`.
    ages: Tensor<2>,
    /// Steps that are in memory, or were: `[batch, 1]`.
    count: Tensor<2>,
}

impl Steps {
    pub(super) fn new(
        shape: &DecoderShape,
        starts: Tensor<2>,
        memory: Option<&Tensor<2>>,
        products: Products,
    ) -> Self {
        let ([batch, steps], device) = (starts.dims(), starts.device());
        let context = shape.context;
        let count_up = |to: usize| Tensor::<1, burn::tensor::Int>::arange(0..to as i64, &device);
        let times = count_up(steps).float().reshape([1, steps]);
        let remembered = memory.map(|memory| memory.clone().narrow(1, 0, 1));
        let episodes = starts.clone().cumsum(1);
        let first = (starts * times.clone()).cummax(1);
        let mut positions = times - first;
        let memory = remembered.map(|count| {
            let goes_on = episodes.clone().equal_elem(0.0).float();
            positions = positions.clone() + goes_on * count.clone();
            let rows = count_up(context).reshape([1, context]);
            let newest = count.clone().int() + (context as i32 - 1);
            let ages = (newest.expand([batch, context]) - rows.expand([batch, context]))
                .remainder_scalar(context as i32);
            Remembered { ages: ages.float(), count }
        });
        Self { positions, episodes, memory, context, products }
    }

    /// What `queries` find: `[batch, num_steps, hidden_size]`.
    pub(super) fn attend(
        &self,
        queries: Tensor<4>,
        own: &KeysValues,
        remembered: Option<&KeysValues>,
    ) -> Tensor<3> {
        let [batch, steps, heads, head_dim] = queries.dims();
        let kv_heads = own[0].dims()[2];
        let group = heads / kv_heads;
        let queries = (queries * (head_dim as f64).powf(-0.5) as f32)
            .reshape([batch, steps, kv_heads, group, head_dim])
            .permute([0, 2, 3, 1, 4]);
        let by_head = |x: &Tensor<4>| x.clone().swap_dims(1, 2);
        let own = own.each_ref().map(by_head);
        let remembered = remembered.map(|kv| kv.each_ref().map(by_head));
        let mut found = Vec::with_capacity(steps.div_ceil(QUERIES));
        for from in (0..steps).step_by(QUERIES) {
            let to = (from + QUERIES).min(steps);
            let first = (from + 1).saturating_sub(self.context);
            let part = |x: &Tensor<4>| x.clone().narrow(2, first, to - first);
            let mut mask = self.mask(from..to, first);
            let [mut keys, mut values] = [part(&own[0]), part(&own[1])];
            if let (Some(memory), Some(old)) = (&self.memory, &remembered)
                && from + 1 < self.context
            {
                mask = Tensor::cat(vec![self.memory_mask(memory, from..to), mask], 2);
                keys = Tensor::cat(vec![old[0].clone(), keys], 2);
                values = Tensor::cat(vec![old[1].clone(), values], 2);
            }
            let (count, seen) = (to - from, keys.dims()[2]);
            let queries = queries.clone().narrow(3, from, count);
            let queries = queries.reshape([batch, kv_heads, group * count, head_dim]);
            let scores = self.products.of(queries, keys.swap_dims(2, 3));
            let scores = scores.reshape([batch, kv_heads, group, count, seen])
                + mask.reshape([batch, 1, 1, count, seen]);
            let weights = activation::softmax(scores, 4);
            let weights = weights.reshape([batch, kv_heads, group * count, seen]);
            let part = self.products.of(weights, values);
            found.push(part.reshape([batch, kv_heads, group, count, head_dim]));
        }
        let found = if found.len() == 1 { found.remove(0) } else { Tensor::cat(found, 3) };
        found.permute([0, 3, 1, 2, 4]).reshape([batch, steps, heads * head_dim])
    }

    /// 0 where a step sees another of the sequence, from `first` on: `[batch, queries, keys]`.
    fn mask(&self, queries: std::ops::Range<usize>, first: usize) -> Tensor<3> {
        let (from, count, keys) = (queries.start, queries.len(), queries.end - first);
        let batch = self.episodes.dims()[0];
        let distance = |q: usize, k: usize| (from + q).wrapping_sub(first + k);
        let seen = (0..count)
            .flat_map(|q| (0..keys).map(move |k| f32::from(distance(q, k) < self.context)));
        let seen = TensorData::new(seen.collect::<Vec<f32>>(), [1, count, keys]);
        let seen = Tensor::<3>::from_data(seen, &self.episodes.device());
        let episodes = |from: usize, count: usize, shape: [usize; 3]| {
            self.episodes.clone().narrow(1, from, count).reshape(shape)
        };
        let of_query = episodes(from, count, [batch, count, 1]).expand([batch, count, keys]);
        let of_key = episodes(first, keys, [batch, 1, keys]).expand([batch, count, keys]);
        unseen(of_query.equal(of_key).float() * seen)
    }

    /// 0 where a step sees a row of memory: `[batch, queries, context]`.
    fn memory_mask(&self, memory: &Remembered, queries: std::ops::Range<usize>) -> Tensor<3> {
        let [batch, context] = memory.ages.dims();
        let (from, count) = (queries.start, queries.len());
        let filled = memory.ages.clone().lower(memory.count.clone().expand([batch, context]));
        let limits: Vec<f32> = queries.map(|t| context as f32 - 1.0 - t as f32).collect();
        let limits = TensorData::new(limits, [1, count, 1]);
        let limits = Tensor::<3>::from_data(limits, &memory.ages.device());
        let ages = memory.ages.clone().reshape([batch, 1, context]);
        let near =
            ages.expand([batch, count, context]).lower(limits.expand([batch, count, context]));
        let same = self.episodes.clone().narrow(1, from, count).equal_elem(0.0).float();
        let filled = filled.float().reshape([batch, 1, context]);
        unseen(near.float() * filled * same.reshape([batch, count, 1]))
    }
}

/// 0 where `seen` is 1, [`UNSEEN`] where it is 0.
fn unseen(seen: Tensor<3>) -> Tensor<3> {
    (-seen + 1.0) * UNSEEN
}
