//! A decoder as a Burn module.

use super::activation::activate;
use super::attention::{self, KeysValues, Prefix, causal_mask};
use super::products::{ProductPrecision, to_f32};
use super::rope::{Rope, rotate};
use super::steps::Steps;
use crate::nn::Precision;
use crate::nn::arch::{DecoderShape, LayerNorms, NormPlacement, Projection, QkNorm, QkNorms};
use crate::nn::parameters::with_parameters;
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::ops::Range;

/// A decoder-only transformer (Vaswani et al. 2017; Radford et al. 2018) over the tokens of a text or the steps of an
/// episode.
///
/// A layer takes a stream `x` of vectors through two blocks:
///
/// ```text
/// x = x + norm(attention(norm(x)) W_o)
/// x = x + norm((activation(norm(x) W_gate) * (norm(x) W_up)) W_down)
/// ```
///
/// An architecture has some of these norms ([`NormPlacement`]). Of a game, attention sees the `context` steps up to the
/// present one, of the same episode alone; positions are counted from the episode's first step.
#[derive(Module, Debug)]
pub struct Decoder {
    /// The linear layer of observations.
    input: Option<Linear>,
    /// The table of token embeddings.
    embed_tokens: Option<Embedding>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: RmsNorm,
    /// `None` if the head is the table of token embeddings.
    lm_head: Option<Linear>,
    /// The rotations of positions, by each of the shape's tables.
    pub(crate) rope: Vec<Rope>,
    #[module(skip)]
    shape: DecoderShape,
    #[module(skip)]
    pub(crate) products: ProductPrecision,
}

/// A layer of a [`Decoder`], with the names of Hugging Face's files.
#[derive(Module, Debug)]
pub(crate) struct Layer {
    input_layernorm: Option<RmsNorm>,
    self_attn: Attention,
    post_attention_layernorm: Option<RmsNorm>,
    pre_feedforward_layernorm: Option<RmsNorm>,
    mlp: GatedMlp,
    post_feedforward_layernorm: Option<RmsNorm>,
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

/// Token embeddings: `[vocabulary, hidden_size]`.
#[derive(Module, Debug)]
struct Embedding {
    weight: Param<Tensor<2>>,
}

/// The feed-forward block of a layer.
#[derive(Module, Debug)]
struct GatedMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

/// The weights of a norm by the root of the mean square (Zhang and Sennrich 2019).
#[derive(Module, Debug)]
pub(crate) struct RmsNorm {
    weight: Param<Tensor<1>>,
}

impl RmsNorm {
    /// The weights, without the offset that the shape adds to them.
    pub(crate) fn weight(&self) -> Tensor<1> {
        self.weight.val()
    }
}

impl Layer {
    /// The norms around attention and the feed-forward block; `None` where there is none.
    pub(crate) fn norms(&self, placement: NormPlacement) -> LayerNorms<Option<&RmsNorm>> {
        placement.names().map(|name| match name? {
            "input_layernorm" => self.input_layernorm.as_ref(),
            "post_attention_layernorm" => self.post_attention_layernorm.as_ref(),
            "pre_feedforward_layernorm" => self.pre_feedforward_layernorm.as_ref(),
            "post_feedforward_layernorm" => self.post_feedforward_layernorm.as_ref(),
            other => unreachable!("no norm {other}"),
        })
    }

    /// A matrix of the layer.
    pub(crate) fn linear(&self, projection: Projection) -> &Linear {
        match projection {
            Projection::Query => &self.self_attn.q_proj,
            Projection::Key => &self.self_attn.k_proj,
            Projection::Value => &self.self_attn.v_proj,
            Projection::Output => &self.self_attn.o_proj,
            Projection::Gate => &self.mlp.gate_proj,
            Projection::Up => &self.mlp.up_proj,
            Projection::Down => &self.mlp.down_proj,
        }
    }

    /// The norms of queries and keys.
    pub(crate) fn head_norms(&self) -> QkNorms<Option<&RmsNorm>> {
        let Attention { q_norm, k_norm, .. } = &self.self_attn;
        QkNorms { query: q_norm.as_ref(), key: k_norm.as_ref() }
    }
}

/// Low-rank adapters of the layers' matrices: `scale x a b` is added to `x w` (LoRA, Hu et al. 2021).
#[derive(Clone, Debug)]
pub(crate) struct AdapterTensors {
    /// `a`, `[inputs, r]`, and `b`, `[r, outputs]`, of each matrix that has them, by [`Projection::index_in`].
    pub pairs: Vec<Option<[Tensor<2>; 2]>>,
    pub scale: f32,
}

impl AdapterTensors {
    /// The adapter of a layer's matrix; `None` if it has none.
    pub fn pair(&self, (layer, projection): (usize, Projection)) -> Option<&[Tensor<2>; 2]> {
        self.pairs[projection.index_in(layer)].as_ref()
    }
}

impl Decoder {
    /// A decoder with these parameters, in the order of [`DecoderShape::parameters`].
    ///
    /// # Panics
    /// If their number is not that of the shape.
    pub fn from_params(shape: DecoderShape, params: &[f32], device: &Device) -> Self {
        let mut others = params;
        // One tensor of all would be larger than a device binds.
        let decoder = with_parameters(Self::placeholder(shape, device), |count| {
            let numbers = others.split_off(..count).expect("params: [num_params]").to_vec();
            Tensor::from_data(TensorData::new(numbers, [count]), device)
        });
        assert!(others.is_empty(), "params: [num_params]");
        decoder
    }

    /// A decoder whose parameters have no memory, and unspecified values.
    pub(crate) fn placeholder(shape: DecoderShape, device: &Device) -> Self {
        let any = Tensor::<1>::empty([1], device);
        let vector = |count: usize| Param::from_tensor(any.clone().expand([count]));
        let linear = |inputs: usize, outputs: usize, has_bias: bool| Linear {
            weight: Param::from_tensor(any.clone().expand([inputs, outputs])),
            bias: has_bias.then(|| vector(outputs)),
        };
        let size = shape.hidden_size;
        let norm = |size: usize| RmsNorm { weight: vector(size) };
        let names = shape.norm_placement.names();
        let layers = (0..shape.num_layers).map(|_| {
            let linear_of = |projection: Projection| {
                let [inputs, outputs] = projection.sizes(&shape);
                linear(inputs, outputs, projection.has_bias(&shape))
            };
            let named = |name: &str| names.contains(name).then(|| norm(size));
            let qk_norms = shape.qk_norm_sizes();
            Layer {
                input_layernorm: named("input_layernorm"),
                self_attn: Attention {
                    q_proj: linear_of(Projection::Query),
                    k_proj: linear_of(Projection::Key),
                    v_proj: linear_of(Projection::Value),
                    o_proj: linear_of(Projection::Output),
                    q_norm: qk_norms.map(|sizes| norm(sizes.query)),
                    k_norm: qk_norms.map(|sizes| norm(sizes.key)),
                },
                post_attention_layernorm: named("post_attention_layernorm"),
                pre_feedforward_layernorm: named("pre_feedforward_layernorm"),
                mlp: GatedMlp {
                    gate_proj: linear_of(Projection::Gate),
                    up_proj: linear_of(Projection::Up),
                    down_proj: linear_of(Projection::Down),
                },
                post_feedforward_layernorm: named("post_feedforward_layernorm"),
            }
        });
        let layers = layers.collect();
        let tokens = shape.takes_tokens();
        let table = any.clone().expand([shape.num_outputs, size]);
        let rope = shape.rope_tables().iter().map(|table| Rope::new(table, device)).collect();
        Self {
            input: (!tokens).then(|| linear(shape.num_features(), size, true)),
            embed_tokens: tokens.then(|| Embedding { weight: Param::from_tensor(table) }),
            layers,
            norm: norm(size),
            lm_head: (!shape.tie_word_embeddings).then(|| linear(size, shape.num_outputs, false)),
            rope,
            shape,
            products: ProductPrecision::default(),
        }
    }

    /// The same decoder, with products in this precision.
    pub(crate) fn in_precision(&self, precision: Precision) -> Self {
        Self { products: ProductPrecision::new(precision), ..self.clone() }
    }

    /// The sizes and switches of the decoder.
    pub fn shape(&self) -> &DecoderShape {
        &self.shape
    }

    /// The rotations of positions, `[batch, num_steps]`, for each of the shape's tables.
    pub(super) fn rotations(&self, positions: Tensor<2, Int>) -> Vec<[Tensor<4>; 2]> {
        self.rope.iter().map(|table| table.at(positions.clone())).collect()
    }

    /// Runs all layers and the last norm on a stream of vectors, `[batch, num_steps, hidden_size]`. `attend`
    /// computes attention, `[batch, num_steps, query_size]`, from the index of a layer and its queries, keys and
    /// values, `[batch, num_steps, heads, head_dim]`, rotated.
    pub(super) fn run_layers(
        &self,
        mut x: Tensor<3>,
        rotations: &[[Tensor<4>; 2]],
        adapters: Option<&AdapterTensors>,
        mut attend: impl FnMut(usize, Tensor<4>, KeysValues) -> Tensor<3>,
    ) -> Tensor<3> {
        for (i, layer) in self.layers.iter().enumerate() {
            let apply =
                |projection: Projection, x: Tensor<3>| self.apply(adapters, i, projection, x);
            let norms = layer.norms(self.shape.norm_placement);
            let rotations = &rotations[self.shape.rope_table_index(i)];
            let head_norms = layer.head_norms();
            let input = self.apply_optional_norm(norms.before_attention, x.clone());
            // A separate product: values are cached, and a buffer of all three would keep the others alive.
            let values = self.split_heads(apply(Projection::Value, input.clone()));
            let [queries, keys] = self.apply_all(adapters, i, Projection::QUERY_AND_KEY, input);
            let queries = rotate(self.norm_heads(head_norms.query, queries), rotations);
            let keys = rotate(self.norm_heads(head_norms.key, keys), rotations);
            let attended = attend(i, queries, [keys, values]);
            let output = apply(Projection::Output, attended);
            x = x + self.apply_optional_norm(norms.after_attention, output);
            let input = self.apply_optional_norm(norms.before_mlp, x.clone());
            let [gate, up] = self.apply_all(adapters, i, Projection::MLP_INPUTS, input);
            let inner = activate(gate, self.shape.activation) * up;
            let output = apply(Projection::Down, inner);
            x = x + self.apply_optional_norm(norms.after_mlp, output);
        }
        self.apply_norm(&self.norm, x)
    }

    /// The product with a matrix of a layer, its adapter included.
    pub(crate) fn apply(
        &self,
        adapters: Option<&AdapterTensors>,
        layer: usize,
        projection: Projection,
        x: Tensor<3>,
    ) -> Tensor<3> {
        let [y] = self.apply_all(adapters, layer, [projection], x);
        y
    }

    /// The products of one input with matrices of a layer, at most three, their adapters included.
    pub(crate) fn apply_all<const N: usize>(
        &self,
        adapters: Option<&AdapterTensors>,
        layer: usize,
        projections: [Projection; N],
        x: Tensor<3>,
    ) -> [Tensor<3>; N] {
        let linears = projections.map(|projection| self.layers[layer].linear(projection));
        let mut results = self.products.apply_linears(linears, x.clone());
        if let Some(adapters) = adapters {
            for (y, projection) in results.iter_mut().zip(projections) {
                let Some([a, b]) = adapters.pair((layer, projection)) else { continue };
                let inner = self.products.matmul(x.clone(), a.clone().unsqueeze()) * adapters.scale;
                *y = y.clone() + self.products.matmul(inner, b.clone().unsqueeze());
            }
        }
        results
    }

    /// The factors of a norm.
    pub(crate) fn norm_weights(&self, norm: &RmsNorm) -> Tensor<1> {
        match self.shape.norm_offset {
            0.0 => norm.weight.val(),
            offset => norm.weight.val() + offset,
        }
    }

    /// Norms vectors, `[.., size]`.
    fn apply_norm<const D: usize>(&self, norm: &RmsNorm, x: Tensor<D>) -> Tensor<D> {
        let square = x.clone() * x.clone();
        let root = (square.mean_dim(D - 1) + self.shape.rms_norm_eps).sqrt();
        x / root * self.norm_weights(norm).unsqueeze()
    }

    fn apply_optional_norm<const D: usize>(
        &self,
        norm: Option<&RmsNorm>,
        x: Tensor<D>,
    ) -> Tensor<D> {
        match norm {
            Some(norm) => self.apply_norm(norm, x),
            None => x,
        }
    }

    /// Splits vectors into heads: `[batch, num_steps, heads, head_dim]`.
    fn split_heads(&self, x: Tensor<3>) -> Tensor<4> {
        let [batch, steps, size] = x.dims();
        x.reshape([batch, steps, size / self.shape.head_dim, self.shape.head_dim])
    }

    /// Splits queries or keys into heads, normed where there is a norm.
    fn norm_heads(&self, norm: Option<&RmsNorm>, x: Tensor<3>) -> Tensor<4> {
        match self.shape.qk_norm {
            QkNorm::AllHeads => self.split_heads(self.apply_optional_norm(norm, x)),
            QkNorm::PerHead | QkNorm::None => self.apply_optional_norm(norm, self.split_heads(x)),
        }
    }

    /// The keys and values of a layer in memory.
    pub(crate) fn cached_keys_values(&self, memory: &Tensor<2>, layer: usize) -> KeysValues {
        let (shape, batch) = (&self.shape, memory.dims()[0]);
        let (start, count) = (shape.cache_start(layer), shape.cache_size());
        [start, start + count].map(|start| {
            let rows = memory.clone().narrow(1, start, count);
            rows.reshape([batch, shape.context, shape.num_kv_heads, shape.head_dim])
        })
    }

    /// Logits `[batch, num_steps, num_actions]` of observations `[batch, num_steps, num_features]`, and the keys and
    /// values of each layer. `starts`, `[batch, num_steps]`, and `memory` are as in
    /// [`Model::sequence`](crate::model::Model::sequence).
    pub(crate) fn forward(
        &self,
        obs: Tensor<3>,
        starts: Tensor<2>,
        memory: &Tensor<2>,
    ) -> (Tensor<3>, Vec<KeysValues>) {
        let input = self.input.as_ref().expect("this decoder takes observations, not tokens");
        let input = self.products.apply_linear(input, obs);
        let steps = Steps::new(&self.shape, starts, memory, self.products);
        let rotations = self.rotations(steps.positions.clone().int());
        let mut caches = Vec::with_capacity(self.layers.len());
        let hidden = self.run_layers(input, &rotations, None, |i, queries, keys_values| {
            let cached = self.cached_keys_values(memory, i);
            let attended = steps.attend(queries, &keys_values, &cached);
            caches.push(keys_values);
            attended
        });
        (self.logits(hidden), caches)
    }

    /// Logits `[batch, num_tokens, vocabulary]` of the token after each of `tokens`, `[batch, num_tokens]`, each row a
    /// text from its beginning. Without prompts in common and without memory: tests compare faster passes with it.
    ///
    /// # Panics
    /// If observations enter the decoder, not tokens.
    pub fn token_logits(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let ([_, count], device) = (tokens.dims(), tokens.device());
        let positions = Tensor::<1, Int>::arange(0..count as i64, &device).reshape([1, count]);
        let masks = self.masks(0..count, count, &device);
        let rotations = self.rotations(positions);
        let hidden = self.run_layers(self.embed(tokens), &rotations, None, |i, queries, own| {
            self.attend(i, queries, &own, &masks, None)
        });
        self.logits(hidden)
    }

    /// Masks of some of a text's `count` tokens, one for each window: `[1, rows, count]` each.
    pub(super) fn masks(
        &self,
        rows: Range<usize>,
        count: usize,
        device: &Device,
    ) -> Vec<Tensor<3>> {
        let windows = self.shape.windows().into_iter();
        windows.map(|window| causal_mask(rows.clone(), count, window, device)).collect()
    }

    /// The result of a layer's attention, as [`attention::attend`], with one of `masks`, one for each window.
    pub(super) fn attend(
        &self,
        layer: usize,
        queries: Tensor<4>,
        own: &KeysValues,
        masks: &[Tensor<3>],
        prefix: Option<Prefix>,
    ) -> Tensor<3> {
        let mask = masks[self.shape.window_index(layer)].clone();
        let scale = self.shape.head_shape().scale;
        attention::attend(self.products, scale, queries, own, mask, prefix)
    }

    /// The embeddings of tokens: `[batch, num_tokens, hidden_size]`.
    ///
    /// # Panics
    /// If observations enter the decoder, not tokens.
    pub(crate) fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, count] = tokens.dims();
        let x = self.table().select(0, tokens.reshape([batch * count]));
        // Rounded as the operands of products are: generation keeps the table in their precision.
        let x = match self.products.operand_dtype {
            Some(dtype) => to_f32(x.cast(dtype)),
            None => x,
        };
        let x = x.reshape([batch, count, self.shape.hidden_size]);
        if self.shape.embedding_scale == 1.0 { x } else { x * self.shape.embedding_scale }
    }

    /// The matrix of the head, `[hidden_size, vocabulary]`; `None` if it is the table of token embeddings.
    pub(crate) fn lm_head(&self) -> Option<Tensor<2>> {
        self.lm_head.as_ref().map(|head| head.weight.val())
    }

    /// The table of token embeddings: `[vocabulary, hidden_size]`.
    ///
    /// # Panics
    /// If observations enter the decoder, not tokens.
    pub(crate) fn table(&self) -> Tensor<2> {
        self.embed_tokens
            .as_ref()
            .expect("this decoder takes tokens, not observations")
            .weight
            .val()
    }

    /// Logits of normed vectors.
    pub(super) fn logits(&self, hidden: Tensor<3>) -> Tensor<3> {
        match &self.lm_head {
            Some(head) => self.products.apply_linear(head, hidden),
            None => self.products.matmul(hidden, self.table().transpose().unsqueeze()),
        }
    }
}
