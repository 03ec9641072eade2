//! The decoder as a Burn module.

use super::rope::{Turns, turn, turns_of};
use super::shape::DecoderShape;
use crate::model::PolicyConfig;
use crate::model::orthogonal::{layer, linear, orthogonal};
use crate::model::{FastForm, Model};
use crate::rng::draw;
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, TensorData, activation};

/// A decoder-only transformer (Vaswani et al. 2017; Radford et al. 2018) over the steps of an episode.
///
/// A layer, of a stream `x` of vectors:
///
/// ```text
/// x = x + attention(norm(x)) W_o
/// x = x + (silu(norm(x) W_gate) * (norm(x) W_up)) W_down          (SwiGLU, Shazeer 2020)
/// ```
///
/// Attention sees the `context` steps up to the present one, of the same episode alone; positions are
/// counted from the episode's first step.
#[derive(Module, Debug)]
pub struct Decoder {
    input: Linear,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
    /// Cosines and sines of positions ([`Turns::tables`]).
    turns: Vec<Tensor<2>>,
    #[module(skip)]
    shape: DecoderShape,
}

/// A layer of a [`Decoder`]. The names of the parts are those of Llama's and Qwen's files.
#[derive(Module, Debug)]
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

/// The projections of attention.
#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
}

/// The gated network of a layer.
#[derive(Module, Debug)]
struct GatedMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

/// A norm by the root of the mean square (Zhang and Sennrich 2019).
#[derive(Module, Debug)]
struct RmsNorm {
    weight: Param<Tensor<1>>,
}

impl RmsNorm {
    fn new(size: usize, device: &Device) -> Self {
        Self { weight: Param::from_tensor(Tensor::ones([size], device)) }
    }

    /// Of vectors `[batch, num_steps, size]`.
    fn forward(&self, x: Tensor<3>, eps: f32) -> Tensor<3> {
        let square = x.clone() * x.clone();
        let root = (square.mean_dim(2) + eps).sqrt();
        x / root * self.weight.val().unsqueeze()
    }
}

/// Queries that are compared with keys at a time: the scores that a sequence needs grow with its length,
/// not with the square of it.
const QUERIES: usize = 128;

/// What is added to the scores of steps that are not to be seen.
const UNSEEN: f32 = -1e9;

/// Keys and values of some steps: `[batch, num_steps, num_kv_heads, head_dim]` each.
type KeysValues = [Tensor<4>; 2];

impl Decoder {
    /// A decoder with fresh weights on `device`, the same for the same `key`.
    pub fn new(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self {
        Self::of_shape(DecoderShape::new(num_features, num_actions, config), key, device)
    }

    /// As [`Decoder::new`], with these sizes and switches.
    ///
    /// Weights are orthogonal. As in GPT-2, what is added to the stream is scaled down by the root of the
    /// number of additions, so that the stream keeps its size (Radford et al. 2019). The input has a bias
    /// from the start, since the norm of a stream of zeros would blow up its gradient. The head is small,
    /// so that the first policy is close to uniform.
    pub fn of_shape(shape: DecoderShape, key: u32, device: &Device) -> Self {
        let (size, kv, inner) = (shape.hidden_size, shape.kv_size(), shape.intermediate_size);
        let unit = (size as f64).sqrt();
        let added = 1.0 / (2.0 * shape.num_layers as f64).sqrt();
        let mut input = linear(shape.num_features, size, unit, draw(key, 0), device);
        let bias = orthogonal(1, size, 0.5 * unit, draw(key, 1));
        input.bias = Some(Param::from_data(TensorData::new(bias, [size]), device));
        let layers = (0..shape.num_layers).map(|i| {
            let key = draw(key, 3 + i as u32);
            let plain = |inputs: usize, outputs: usize, gain: f64, number: u32| {
                let weight = orthogonal(inputs, outputs, gain, draw(key, number));
                Linear { bias: None, ..layer(weight, outputs, device) }
            };
            let biased = |outputs: usize, number: u32| match shape.qkv_bias {
                true => linear(size, outputs, 1.0, draw(key, number), device),
                false => plain(size, outputs, 1.0, number),
            };
            Layer {
                input_layernorm: RmsNorm::new(size, device),
                self_attn: Attention {
                    q_proj: biased(size, 0),
                    k_proj: biased(kv, 1),
                    v_proj: biased(kv, 2),
                    o_proj: plain(size, size, added, 3),
                },
                post_attention_layernorm: RmsNorm::new(size, device),
                mlp: GatedMlp {
                    gate_proj: plain(size, inner, 1.0, 4),
                    up_proj: plain(size, inner, 1.0, 5),
                    down_proj: plain(inner, size, added, 6),
                },
            }
        });
        let head = orthogonal(size, shape.num_actions, 0.01, draw(key, 2));
        Self {
            input,
            layers: layers.collect(),
            norm: RmsNorm::new(size, device),
            lm_head: Linear { bias: None, ..layer(head, shape.num_actions, device) },
            turns: Turns::new(shape.head_dim(), shape.rope_theta).tables(device).to_vec(),
            shape,
        }
    }

    /// Its sizes and switches.
    pub fn shape(&self) -> &DecoderShape {
        &self.shape
    }

    /// What the last layer leaves of a stream of vectors, `[batch, num_steps, hidden_size]`, normed; and
    /// the keys and values of each layer.
    ///
    /// `starts`, `[batch, num_steps]`, and `memory` are as in [`Model::sequence`].
    pub fn hidden(
        &self,
        x: Tensor<3>,
        starts: Tensor<2>,
        memory: &Tensor<2>,
    ) -> (Tensor<3>, Vec<KeysValues>) {
        let steps = Steps::new(&self.shape, starts, memory);
        let turns =
            turns_of(std::array::from_fn(|i| &self.turns[i]), steps.positions.clone().int());
        let eps = self.shape.rms_norm_eps;
        let mut x = x;
        let mut caches = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let normed = layer.input_layernorm.forward(x.clone(), eps);
            let (queries, keys_values) = self.project(&layer.self_attn, normed, &turns);
            let seen = steps.attend(queries, &keys_values, &self.remembered(memory, i));
            x = x + layer.self_attn.o_proj.forward(seen);
            let normed = layer.post_attention_layernorm.forward(x.clone(), eps);
            let gate = activation::silu(layer.mlp.gate_proj.forward(normed.clone()));
            x = x + layer.mlp.down_proj.forward(gate * layer.mlp.up_proj.forward(normed));
            caches.push(keys_values);
        }
        (self.norm.forward(x, eps), caches)
    }

    /// Queries, `[batch, num_steps, num_heads, head_dim]`, and keys and values of normed vectors.
    fn project(
        &self,
        attention: &Attention,
        x: Tensor<3>,
        turns: &[Tensor<4>; 2],
    ) -> (Tensor<4>, KeysValues) {
        let [batch, steps, _] = x.dims();
        let heads = |layer: &Linear, heads: usize| {
            layer.forward(x.clone()).reshape([batch, steps, heads, self.shape.head_dim()])
        };
        let queries = heads(&attention.q_proj, self.shape.num_heads);
        let keys = heads(&attention.k_proj, self.shape.num_kv_heads);
        let values = heads(&attention.v_proj, self.shape.num_kv_heads);
        (turn(queries, turns), [turn(keys, turns), values])
    }

    /// The keys and values of a layer in memory.
    fn remembered(&self, memory: &Tensor<2>, layer: usize) -> KeysValues {
        let (shape, batch) = (&self.shape, memory.dims()[0]);
        let (start, count) = (shape.cache_start(layer), shape.cache_size());
        [start, start + count].map(|start| {
            let rows = memory.clone().narrow(1, start, count);
            rows.reshape([batch, shape.context, shape.num_kv_heads, shape.head_dim()])
        })
    }

    /// Logits `[batch, num_steps, num_actions]` of observations `[batch, num_steps, num_features]`, and the
    /// keys and values of each layer.
    fn forward(
        &self,
        obs: Tensor<3>,
        starts: Tensor<2>,
        memory: &Tensor<2>,
    ) -> (Tensor<3>, Vec<KeysValues>) {
        let (hidden, caches) = self.hidden(self.input.forward(obs), starts, memory);
        (self.lm_head.forward(hidden), caches)
    }
}

/// Which steps see which: what attention needs to know of a batch of sequences.
struct Steps {
    /// Counted from the first step of the episode: `[batch, num_steps]`.
    positions: Tensor<2>,
    /// Episodes that began in the sequence: `[batch, num_steps]`; 0 in the one that memory is of.
    episodes: Tensor<2>,
    /// Steps that a row of memory is older than the newest: `[batch, context]`.
    ages: Tensor<2>,
    /// Steps that are in memory, or were: `[batch, 1]`.
    remembered: Tensor<2>,
    context: usize,
}

impl Steps {
    fn new(shape: &DecoderShape, starts: Tensor<2>, memory: &Tensor<2>) -> Self {
        let ([batch, steps], device) = (starts.dims(), starts.device());
        let context = shape.context;
        let count_up = |to: usize| Tensor::<1, burn::tensor::Int>::arange(0..to as i64, &device);
        let times = count_up(steps).float().reshape([1, steps]);
        let remembered = memory.clone().narrow(1, 0, 1);
        let episodes = starts.clone().cumsum(1);
        let first = (starts * times.clone()).cummax(1);
        let goes_on = episodes.clone().equal_elem(0.0).float();
        let positions = times - first + goes_on * remembered.clone();
        let rows = count_up(context).reshape([1, context]);
        let newest = remembered.clone().int() + (context as i32 - 1);
        let ages = (newest.expand([batch, context]) - rows.expand([batch, context]))
            .remainder_scalar(context as i32);
        Self { positions, episodes, ages: ages.float(), remembered, context }
    }

    /// What `queries` find: `[batch, num_steps, hidden_size]`.
    fn attend(&self, queries: Tensor<4>, own: &KeysValues, remembered: &KeysValues) -> Tensor<3> {
        let [batch, steps, heads, head_dim] = queries.dims();
        let kv_heads = own[0].dims()[2];
        let group = heads / kv_heads;
        let queries = (queries * (head_dim as f64).powf(-0.5) as f32)
            .reshape([batch, steps, kv_heads, group, head_dim])
            .permute([0, 2, 3, 1, 4]);
        let by_head = |x: &Tensor<4>| x.clone().swap_dims(1, 2);
        let [own, remembered] = [own, remembered].map(|kv| [by_head(&kv[0]), by_head(&kv[1])]);
        let mut found = Vec::with_capacity(steps.div_ceil(QUERIES));
        for from in (0..steps).step_by(QUERIES) {
            let to = (from + QUERIES).min(steps);
            let first = (from + 1).saturating_sub(self.context);
            let part = |x: &Tensor<4>| x.clone().narrow(2, first, to - first);
            let mut mask = self.mask(from..to, first);
            let [mut keys, mut values] = [part(&own[0]), part(&own[1])];
            if from + 1 < self.context {
                mask = Tensor::cat(vec![self.memory_mask(from..to), mask], 2);
                keys = Tensor::cat(vec![remembered[0].clone(), keys], 2);
                values = Tensor::cat(vec![remembered[1].clone(), values], 2);
            }
            let (count, seen) = (to - from, keys.dims()[2]);
            let queries = queries.clone().narrow(3, from, count);
            let queries = queries.reshape([batch, kv_heads, group * count, head_dim]);
            let scores = queries.matmul(keys.swap_dims(2, 3));
            let scores = scores.reshape([batch, kv_heads, group, count, seen])
                + mask.reshape([batch, 1, 1, count, seen]);
            let weights = activation::softmax(scores, 4);
            let weights = weights.reshape([batch, kv_heads, group * count, seen]);
            let part = weights.matmul(values);
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
    fn memory_mask(&self, queries: std::ops::Range<usize>) -> Tensor<3> {
        let [batch, context] = self.ages.dims();
        let (from, count) = (queries.start, queries.len());
        let filled = self.ages.clone().lower(self.remembered.clone().expand([batch, context]));
        let limits: Vec<f32> = queries.map(|t| context as f32 - 1.0 - t as f32).collect();
        let limits = TensorData::new(limits, [1, count, 1]);
        let limits = Tensor::<3>::from_data(limits, &self.ages.device());
        let ages = self.ages.clone().reshape([batch, 1, context]);
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

impl Model for Decoder {
    /// `[batch, memory_size]`, as [`DecoderShape::memory_size`] says.
    type Memory = Tensor<2>;

    fn initial_memory(&self, batch: usize, device: &Device) -> Tensor<2> {
        Tensor::zeros([batch, self.shape.memory_size()], device)
    }

    fn step(&self, obs: Tensor<2>, memory: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let ([batch, features], device) = (obs.dims(), obs.device());
        let (context, kv) = (self.shape.context, self.shape.kv_size());
        let goes_on = Tensor::zeros([batch, 1], &device);
        let (logits, caches) = self.forward(obs.reshape([batch, 1, features]), goes_on, &memory);
        let count = memory.clone().narrow(1, 0, 1);
        let row = count.clone().int().remainder_scalar(context as i32).expand([batch, context]);
        let rows = Tensor::<1, burn::tensor::Int>::arange(0..context as i64, &device);
        let here = row.equal(rows.reshape([1, context]).expand([batch, context])).float();
        let here = here.reshape([batch, context, 1]);
        let elsewhere = -here.clone() + 1.0;
        let mut parts = vec![count + 1.0];
        for (i, new) in caches.into_iter().enumerate() {
            for (new, old) in new.into_iter().zip(self.remembered(&memory, i)) {
                let old = old.reshape([batch, context, kv]) * elsewhere.clone();
                let rows = old + new.reshape([batch, 1, kv]) * here.clone();
                parts.push(rows.reshape([batch, context * kv]));
            }
        }
        (logits.squeeze_dim::<2>(1), Tensor::cat(parts, 1))
    }

    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Tensor<2>) -> Tensor<3> {
        let (logits, _) = self.forward(obs.swap_dims(0, 1), starts.transpose(), &memory);
        logits.swap_dims(0, 1)
    }

    fn fast_form(&self) -> Option<FastForm<'_>> {
        Some(FastForm::Decoder(self))
    }
}
