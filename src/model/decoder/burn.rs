//! The decoder as a Burn module.

use super::products::{Products, single};
use super::rope::Turns;
use super::rotary::{turn, turns_of};
use super::shape::DecoderShape;
use super::steps::{KeysValues, Steps};
use crate::model::orthogonal::{layer, orthogonal};
use crate::model::{FastForm, Model, PolicyConfig, Precision};
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
    #[module(skip)]
    products: Products,
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

/// Matrices of a layer.
const MATRICES: usize = 7;

/// What is added to the products of the layers' matrices: `scale x a b` to `x w` (LoRA, Hu et al. 2021).
#[derive(Clone, Debug)]
pub(crate) struct LowRank {
    /// `a`, `[inputs, r]`, and `b`, `[r, outputs]`, of each matrix that has them: layer by layer queries, keys, values,
    /// output, gate, up, down.
    pub pairs: Vec<Option<[Tensor<2>; 2]>>,
    pub scale: f32,
}

impl LowRank {
    fn add(&self, products: Products, matrix: usize, x: Tensor<3>, y: Tensor<3>) -> Tensor<3> {
        match &self.pairs[matrix] {
            Some([a, b]) => {
                let inner = products.of(x, a.clone().unsqueeze()) * self.scale;
                y + products.of(inner, b.clone().unsqueeze())
            }
            None => y,
        }
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
        Self::with_weights(shape, key, device, orthogonal)
    }

    /// One with all parameters of its linear layers 0, for those that come from elsewhere
    /// ([`unflatten`](crate::model::unflatten)).
    pub fn empty(shape: DecoderShape, device: &Device) -> Self {
        Self::with_weights(shape, 0, device, |inputs, outputs, _, _| vec![0.0; inputs * outputs])
    }

    /// One whose matrices, `[inputs, outputs]` and with this gain and this key, are made by `weights`.
    fn with_weights(
        shape: DecoderShape,
        key: u32,
        device: &Device,
        weights: impl Fn(usize, usize, f64, u32) -> Vec<f32>,
    ) -> Self {
        let linear = |inputs: usize, outputs: usize, gain: f64, key: u32| {
            layer(weights(inputs, outputs, gain, key), outputs, device)
        };
        let (size, kv, inner) = (shape.hidden_size, shape.kv_size(), shape.intermediate_size);
        let queries = shape.query_size();
        let unit = (size as f64).sqrt();
        let added = 1.0 / (2.0 * shape.num_layers as f64).sqrt();
        let input = (!shape.takes_tokens()).then(|| {
            let input = linear(shape.num_features, size, unit, draw(key, 0));
            let bias = weights(1, size, 0.5 * unit, draw(key, 1));
            let bias = Param::from_data(TensorData::new(bias, [size]), device);
            Linear { bias: Some(bias), ..input }
        });
        let embed_tokens = shape.takes_tokens().then(|| {
            let weight = weights(shape.num_actions, size, EMBEDDING, draw(key, 0));
            let weight = TensorData::new(weight, [shape.num_actions, size]);
            Embedding { weight: Param::from_data(weight, device) }
        });
        let head_norm = || shape.qk_norm.then(|| RmsNorm::new(shape.head_dim, device));
        let layers = (0..shape.num_layers).map(|i| {
            let key = draw(key, 3 + i as u32);
            let plain = |inputs: usize, outputs: usize, gain: f64, number: u32| Linear {
                bias: None,
                ..linear(inputs, outputs, gain, draw(key, number))
            };
            let biased = |outputs: usize, number: u32| match shape.qkv_bias {
                true => linear(size, outputs, 1.0, draw(key, number)),
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
        let lm_head = (!shape.tie_word_embeddings)
            .then(|| Linear { bias: None, ..linear(size, shape.num_actions, 0.01, draw(key, 2)) });
        Self {
            input,
            embed_tokens,
            layers: layers.collect(),
            norm: RmsNorm::new(size, device),
            lm_head,
            turns: Turns::new(&shape).tables(device).to_vec(),
            shape,
            products: Products::default(),
        }
    }

    /// What products take their numbers in.
    #[cfg(feature = "general")]
    pub(crate) fn products(&self) -> Products {
        self.products
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
        let steps = Steps::new(&self.shape, starts, memory, self.products);
        let turns = self.turns(steps.positions.clone().int());
        let mut caches = Vec::with_capacity(self.layers.len());
        let x = self.through(x, &turns, None, |i, queries, keys_values| {
            let remembered = memory.map(|memory| self.remembered(memory, i));
            let seen = steps.attend(queries, &keys_values, remembered.as_ref());
            caches.push(keys_values);
            seen
        });
        (x, caches)
    }

    /// What heads are turned by at positions, `[batch, num_steps]`.
    pub(crate) fn turns(&self, positions: Tensor<2, Int>) -> [Tensor<4>; 2] {
        turns_of(std::array::from_fn(|i| &self.turns[i]), positions)
    }

    /// A stream of vectors, `[batch, num_steps, hidden_size]`, after all layers, normed. `see` says what the
    /// queries of a layer find, `[batch, num_steps, query_size]`, and is given its number, and the queries, keys
    /// and values, `[batch, num_steps, heads, head_dim]`, turned by `turns`.
    pub(crate) fn through(
        &self,
        x: Tensor<3>,
        turns: &[Tensor<4>; 2],
        added: Option<&LowRank>,
        mut see: impl FnMut(usize, Tensor<4>, KeysValues) -> Tensor<3>,
    ) -> Tensor<3> {
        let eps = self.shape.rms_norm_eps;
        let mut x = x;
        for (i, layer) in self.layers.iter().enumerate() {
            let apply = |matrix: usize, linear: &Linear, x: Tensor<3>| {
                let y = self.products.linear(linear, x.clone());
                match added {
                    Some(added) => added.add(self.products, i * MATRICES + matrix, x, y),
                    None => y,
                }
            };
            let normed = layer.input_layernorm.forward(x.clone(), eps);
            let of = &layer.self_attn;
            let [queries, keys, values] = [&of.q_proj, &of.k_proj, &of.v_proj];
            let heads = [(0, queries), (1, keys), (2, values)]
                .map(|(matrix, linear)| self.heads(apply(matrix, linear, normed.clone())));
            let [queries, keys, values] = heads;
            let queries = turn(self.normed(&of.q_norm, queries), turns);
            let keys = turn(self.normed(&of.k_norm, keys), turns);
            let seen = see(i, queries, [keys, values]);
            x = x + apply(3, &of.o_proj, seen);
            let normed = layer.post_attention_layernorm.forward(x.clone(), eps);
            let gate = activation::silu(apply(4, &layer.mlp.gate_proj, normed.clone()));
            let up = apply(5, &layer.mlp.up_proj, normed);
            x = x + apply(6, &layer.mlp.down_proj, gate * up);
        }
        self.norm.forward(x, eps)
    }

    /// Vectors as heads: `[batch, num_steps, heads, head_dim]`.
    fn heads(&self, x: Tensor<3>) -> Tensor<4> {
        let [batch, steps, size] = x.dims();
        x.reshape([batch, steps, size / self.shape.head_dim, self.shape.head_dim])
    }

    fn normed(&self, norm: &Option<RmsNorm>, heads: Tensor<4>) -> Tensor<4> {
        match norm {
            Some(norm) => norm.forward(heads, self.shape.rms_norm_eps),
            None => heads,
        }
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
        let input = self.input.as_ref().expect("observations enter, not tokens");
        let input = self.products.linear(input, obs);
        let (hidden, caches) = self.hidden(input, starts, Some(memory));
        (self.head(hidden), caches)
    }

    /// Logits `[batch, num_tokens, vocabulary]` of what comes after each of the tokens
    /// `[batch, num_tokens]`, each row a text from its beginning.
    ///
    /// # Panics
    /// If observations enter the decoder, not tokens.
    pub fn token_logits(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let starts = Tensor::zeros(tokens.dims(), &tokens.device());
        self.head(self.hidden(self.vectors(tokens), starts, None).0)
    }

    /// The vectors of tokens: `[batch, num_tokens, hidden_size]`.
    ///
    /// # Panics
    /// If observations enter the decoder, not tokens.
    pub(crate) fn vectors(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, count] = tokens.dims();
        let table = self.embed_tokens.as_ref().expect("tokens enter, not observations");
        let x = table.weight.val().select(0, tokens.reshape([batch * count]));
        single(x).reshape([batch, count, self.shape.hidden_size])
    }

    /// Logits of normed vectors.
    pub(crate) fn head(&self, hidden: Tensor<3>) -> Tensor<3> {
        match (&self.lm_head, &self.embed_tokens) {
            (Some(head), _) => self.products.linear(head, hidden),
            (None, Some(table)) => {
                self.products.of(hidden, table.weight.val().transpose().unsqueeze())
            }
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

    fn with_precision(&self, precision: Precision) -> Option<Self> {
        Some(Self { products: Products::new(precision), ..self.clone() })
    }
}
