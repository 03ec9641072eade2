//! The decoder as a Burn module.

use super::rope::Turns;
use super::rotary::{turn, turns_of};
use super::shape::DecoderShape;
use super::steps::{KeysValues, Steps};
use crate::model::PolicyConfig;
use crate::model::orthogonal::{layer, linear, orthogonal};
use crate::model::{FastForm, Model};
use crate::rng::draw;
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

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
    /// Of observations.
    input: Option<Linear>,
    /// Of tokens.
    embed_tokens: Option<Embedding>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// None where it is the table of the tokens' vectors.
    lm_head: Option<Linear>,
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
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
}

/// The vectors of tokens: `[vocabulary, hidden_size]`.
#[derive(Module, Debug)]
struct Embedding {
    weight: Param<Tensor<2>>,
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

    /// Of vectors `[.., size]`.
    fn forward<const D: usize>(&self, x: Tensor<D>, eps: f32) -> Tensor<D> {
        let square = x.clone() * x.clone();
        let root = (square.mean_dim(D - 1) + eps).sqrt();
        x / root * self.weight.val().unsqueeze()
    }
}

/// The norm of the tokens' first vectors, or of as many numbers of all of them as a vector has: small
/// where the table is the head as well, so that the first policy is close to uniform.
const EMBEDDING: f64 = 0.3;

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
        let queries = shape.query_size();
        let unit = (size as f64).sqrt();
        let added = 1.0 / (2.0 * shape.num_layers as f64).sqrt();
        let input = (!shape.takes_tokens()).then(|| {
            let input = linear(shape.num_features, size, unit, draw(key, 0), device);
            let bias = orthogonal(1, size, 0.5 * unit, draw(key, 1));
            let bias = Param::from_data(TensorData::new(bias, [size]), device);
            Linear { bias: Some(bias), ..input }
        });
        let embed_tokens = shape.takes_tokens().then(|| {
            let weight = orthogonal(shape.num_actions, size, EMBEDDING, draw(key, 0));
            let weight = TensorData::new(weight, [shape.num_actions, size]);
            Embedding { weight: Param::from_data(weight, device) }
        });
        let head_norm = || shape.qk_norm.then(|| RmsNorm::new(shape.head_dim, device));
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
                    q_proj: biased(queries, 0),
                    k_proj: biased(kv, 1),
                    v_proj: biased(kv, 2),
                    o_proj: plain(queries, size, added, 3),
                    q_norm: head_norm(),
                    k_norm: head_norm(),
                },
                post_attention_layernorm: RmsNorm::new(size, device),
                mlp: GatedMlp {
                    gate_proj: plain(size, inner, 1.0, 4),
                    up_proj: plain(size, inner, 1.0, 5),
                    down_proj: plain(inner, size, added, 6),
                },
            }
        });
        let lm_head = (!shape.tie_word_embeddings).then(|| {
            let head = orthogonal(size, shape.num_actions, 0.01, draw(key, 2));
            Linear { bias: None, ..layer(head, shape.num_actions, device) }
        });
        Self {
            input,
            embed_tokens,
            layers: layers.collect(),
            norm: RmsNorm::new(size, device),
            lm_head,
            turns: Turns::new(&shape).tables(device).to_vec(),
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
    /// `starts`, `[batch, num_steps]`, and `memory` are as in [`Model::sequence`]; without a memory there
    /// is nothing to go on from.
    pub fn hidden(
        &self,
        x: Tensor<3>,
        starts: Tensor<2>,
        memory: Option<&Tensor<2>>,
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
            let remembered = memory.map(|memory| self.remembered(memory, i));
            let seen = steps.attend(queries, &keys_values, remembered.as_ref());
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
            layer.forward(x.clone()).reshape([batch, steps, heads, self.shape.head_dim])
        };
        let normed = |norm: &Option<RmsNorm>, heads: Tensor<4>| match norm {
            Some(norm) => norm.forward(heads, self.shape.rms_norm_eps),
            None => heads,
        };
        let queries = normed(&attention.q_norm, heads(&attention.q_proj, self.shape.num_heads));
        let keys = normed(&attention.k_norm, heads(&attention.k_proj, self.shape.num_kv_heads));
        let values = heads(&attention.v_proj, self.shape.num_kv_heads);
        (turn(queries, turns), [turn(keys, turns), values])
    }

    /// The keys and values of a layer in memory.
    fn remembered(&self, memory: &Tensor<2>, layer: usize) -> KeysValues {
        let (shape, batch) = (&self.shape, memory.dims()[0]);
        let (start, count) = (shape.cache_start(layer), shape.cache_size());
        [start, start + count].map(|start| {
            let rows = memory.clone().narrow(1, start, count);
            rows.reshape([batch, shape.context, shape.num_kv_heads, shape.head_dim])
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
        let input = self.input.as_ref().expect("observations enter, not tokens").forward(obs);
        let (hidden, caches) = self.hidden(input, starts, Some(memory));
        (self.head(hidden), caches)
    }

    /// Logits `[batch, num_tokens, vocabulary]` of what comes after each of the tokens
    /// `[batch, num_tokens]`, each row a text from its beginning.
    ///
    /// # Panics
    /// If observations enter the decoder, not tokens.
    pub fn token_logits(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let ([batch, count], device) = (tokens.dims(), tokens.device());
        let table = self.embed_tokens.as_ref().expect("tokens enter, not observations");
        let x = table.weight.val().select(0, tokens.reshape([batch * count]));
        let starts = Tensor::zeros([batch, count], &device);
        self.head(self.hidden(x.reshape([batch, count, self.shape.hidden_size]), starts, None).0)
    }

    /// Logits of normed vectors.
    fn head(&self, hidden: Tensor<3>) -> Tensor<3> {
        match (&self.lm_head, &self.embed_tokens) {
            (Some(head), _) => head.forward(hidden),
            (None, Some(table)) => hidden.matmul(table.weight.val().transpose().unsqueeze()),
            (None, None) => unreachable!("a head of its own, or the tokens' vectors"),
        }
    }
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
