//! The parameters of a decoder: names, shapes and offsets in the parameter vector, stated once.

use super::{DecoderShape, NormPlacement, QkNorm};
use std::collections::HashMap;
use std::ops::Range;

/// A parameter of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The path in the module, for instance `layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// The sizes of its axes.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// A parameter of this name and shape.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_vec() }
    }

    /// The parameters of a linear layer: weights `[inputs, outputs]` and biases.
    pub(crate) fn linear(name: &str, inputs: usize, outputs: usize) -> [Self; 2] {
        [
            Self::new(format!("{name}.weight"), &[inputs, outputs]),
            Self::new(format!("{name}.bias"), &[outputs]),
        ]
    }

    /// The number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A matrix of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// `q_proj`.
    Query,
    /// `k_proj`.
    Key,
    /// `v_proj`.
    Value,
    /// `o_proj`.
    Output,
    /// `gate_proj`.
    Gate,
    /// `up_proj`.
    Up,
    /// `down_proj`.
    Down,
}

impl Projection {
    /// All projections, in the order of their parameters.
    pub const ALL: [Self; 7] =
        [Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down];

    /// The projections of the input of attention.
    pub const ATTENTION_INPUTS: [Self; 3] = [Self::Query, Self::Key, Self::Value];
    /// The projections of the input of attention whose results are rotated.
    pub const QUERY_AND_KEY: [Self; 2] = [Self::Query, Self::Key];
    /// The projections of the input of the feed-forward block.
    pub const MLP_INPUTS: [Self; 2] = [Self::Gate, Self::Up];

    /// The names in a block, by Hugging Face and PEFT, in the same order.
    pub const MODULES: [&str; Self::ALL.len()] =
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

    /// The name in its block.
    pub fn module(self) -> &'static str {
        Self::MODULES[self as usize]
    }

    /// The name in a layer.
    pub fn name(self) -> String {
        let block = if Self::ALL[..4].contains(&self) { "self_attn" } else { "mlp" };
        format!("{block}.{}", self.module())
    }

    /// The [`LinearLayout::index`] of this matrix of a layer.
    pub const fn index_in(self, layer: usize) -> usize {
        layer * Self::ALL.len() + self as usize
    }

    /// The numbers of inputs and outputs.
    pub fn sizes(self, shape: &DecoderShape) -> [usize; 2] {
        let (size, inner) = (shape.hidden_size, shape.intermediate_size);
        match self {
            Self::Query => [size, shape.query_size()],
            Self::Key | Self::Value => [size, shape.kv_size()],
            Self::Output => [shape.query_size(), size],
            Self::Gate | Self::Up => [size, inner],
            Self::Down => [inner, size],
        }
    }

    /// Whether its result is added to the stream.
    pub fn adds_to_stream(self) -> bool {
        matches!(self, Self::Output | Self::Down)
    }

    /// Whether it has a bias.
    pub fn has_bias(self, shape: &DecoderShape) -> bool {
        match self {
            Self::Query | Self::Key | Self::Value => shape.qkv_bias,
            Self::Output => shape.output_bias,
            Self::Gate | Self::Up | Self::Down => shape.mlp_bias,
        }
    }
}

/// A value for each of the norms around a layer's two blocks: a name, a place or a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerNorms<T> {
    /// The norm before attention.
    pub before_attention: T,
    /// The norm after attention.
    pub after_attention: T,
    /// The norm before the feed-forward block.
    pub before_mlp: T,
    /// The norm after the feed-forward block.
    pub after_mlp: T,
}

impl<T> LayerNorms<T> {
    /// The result of `change` for each value.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> LayerNorms<U> {
        LayerNorms {
            before_attention: change(self.before_attention),
            after_attention: change(self.after_attention),
            before_mlp: change(self.before_mlp),
            after_mlp: change(self.after_mlp),
        }
    }
}

impl LayerNorms<Option<&str>> {
    /// Whether one of the norms has this name.
    pub(crate) fn contains(self, name: &str) -> bool {
        let Self { before_attention, after_attention, before_mlp, after_mlp } = self;
        [before_attention, after_attention, before_mlp, after_mlp].contains(&Some(name))
    }
}

/// A value for each of the norms of queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QkNorms<T> {
    /// The norm of queries.
    pub query: T,
    /// The norm of keys.
    pub key: T,
}

impl NormPlacement {
    /// The names of a layer's norms; `None` where there is none.
    pub fn names(self) -> LayerNorms<Option<&'static str>> {
        let (input, after) = (Some("input_layernorm"), Some("post_attention_layernorm"));
        let last = Some("post_feedforward_layernorm");
        let [before_attention, after_attention, before_mlp, after_mlp] = match self {
            Self::Before => [input, None, after, None],
            Self::After => [None, after, None, last],
            Self::Around => [input, after, Some("pre_feedforward_layernorm"), last],
        };
        LayerNorms { before_attention, after_attention, before_mlp, after_mlp }
    }
}

impl DecoderShape {
    /// The number of parameters.
    pub fn num_params(&self) -> usize {
        self.parameters().iter().map(Parameter::num_elements).sum()
    }

    /// Names and shapes of the parameters, in the order of the vector of all.
    pub fn parameters(&self) -> Vec<Parameter> {
        let size = self.hidden_size;
        let weight = |name: &str, shape: &[usize]| Parameter::new(format!("{name}.weight"), shape);
        let mut parameters = if self.takes_tokens() {
            vec![weight("embed_tokens", &[self.num_outputs, size])]
        } else {
            Parameter::linear("input", self.num_features(), size).to_vec()
        };
        for i in 0..self.num_layers {
            let push_norm = |parameters: &mut Vec<Parameter>, name: Option<&str>, size: usize| {
                parameters.extend(name.map(|name| weight(&format!("layers.{i}.{name}"), &[size])));
            };
            let push_linears = |parameters: &mut Vec<Parameter>, projections: &[Projection]| {
                for projection in projections {
                    let [inputs, outputs] = projection.sizes(self);
                    let name = format!("layers.{i}.{}", projection.name());
                    let [weight, bias] = Parameter::linear(&name, inputs, outputs);
                    parameters.push(weight);
                    parameters.extend(projection.has_bias(self).then_some(bias));
                }
            };
            let names = self.norm_placement.names();
            push_norm(&mut parameters, names.before_attention, size);
            push_linears(&mut parameters, &Projection::ALL[..4]);
            if let Some(sizes) = self.qk_norm_sizes() {
                push_norm(&mut parameters, Some("self_attn.q_norm"), sizes.query);
                push_norm(&mut parameters, Some("self_attn.k_norm"), sizes.key);
            }
            push_norm(&mut parameters, names.after_attention, size);
            push_norm(&mut parameters, names.before_mlp, size);
            push_linears(&mut parameters, &Projection::ALL[4..]);
            push_norm(&mut parameters, names.after_mlp, size);
        }
        parameters.push(weight("norm", &[size]));
        if !self.tie_word_embeddings {
            parameters.push(weight("lm_head", &[size, self.num_outputs]));
        }
        parameters
    }

    /// The number of weights of the norms of queries and of keys, if there are any.
    pub fn qk_norm_sizes(&self) -> Option<QkNorms<usize>> {
        match self.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead => Some(QkNorms { query: self.head_dim, key: self.head_dim }),
            QkNorm::AllHeads => Some(QkNorms { query: self.query_size(), key: self.kv_size() }),
        }
    }
}

/// The places of a linear layer's parameters.
#[derive(Clone, Debug)]
pub struct LinearLayout {
    /// `[inputs, outputs]`; `[outputs, inputs]` if it is transposed.
    pub weight: Range<usize>,
    /// `[outputs]`; empty without a bias.
    pub bias: Range<usize>,
    /// Elements of an input row.
    pub inputs: usize,
    /// Elements of an output row.
    pub outputs: usize,
    /// Whether the weight is stored transposed: it is the table of token embeddings.
    pub is_transposed: bool,
    /// Index of the matrix in the decoder, which also indexes packed copies and adapters.
    pub index: usize,
}

/// The places of a layer's parameters; the range of a missing parameter is empty.
#[derive(Clone, Debug)]
pub struct LayerLayout {
    /// The offset of the first parameter.
    pub start: usize,
    /// The norms around attention and the feed-forward block.
    pub norms: LayerNorms<Range<usize>>,
    /// The matrices, in the order of [`Projection::ALL`].
    pub linears: [LinearLayout; 7],
    /// The norms of queries and of keys.
    pub qk_norms: QkNorms<Range<usize>>,
}

/// The places of all parameters in their vector.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The table of token embeddings; empty where observations enter.
    pub embed_tokens: Range<usize>,
    /// The linear layer of observations, if they enter.
    pub input: Option<LinearLayout>,
    /// The layers.
    pub layers: Vec<LayerLayout>,
    /// The last norm.
    pub norm: Range<usize>,
    /// The head; the embedding table, if they are tied.
    pub head: LinearLayout,
}

impl Layout {
    /// The layout of a shape's [`parameters`](DecoderShape::parameters).
    pub fn new(shape: &DecoderShape) -> Self {
        let mut end = 0;
        let places = shape.parameters().into_iter().map(|parameter| {
            let start = end;
            end += parameter.num_elements();
            (parameter.name, start..end)
        });
        let places: HashMap<String, Range<usize>> = places.collect();
        let place = |name: String| places.get(&name).cloned().unwrap_or(0..0);
        let linear = |name: &str, index: usize, [inputs, outputs]: [usize; 2]| LinearLayout {
            weight: place(format!("{name}.weight")),
            bias: place(format!("{name}.bias")),
            inputs,
            outputs,
            is_transposed: false,
            index,
        };
        let count = Projection::ALL.len();
        let layers = (0..shape.num_layers).map(|layer| {
            let norm = |name: &str| place(format!("layers.{layer}.{name}.weight"));
            let linears = Projection::ALL.map(|projection| {
                let name = format!("layers.{layer}.{}", projection.name());
                linear(&name, projection.index_in(layer), projection.sizes(shape))
            });
            let norms = shape.norm_placement.names().map(|name| name.map_or(0..0, norm));
            let first = if norms.before_attention.is_empty() {
                &linears[0].weight
            } else {
                &norms.before_attention
            };
            LayerLayout {
                start: first.start,
                norms,
                qk_norms: QkNorms {
                    query: norm("self_attn.q_norm"),
                    key: norm("self_attn.k_norm"),
                },
                linears,
            }
        });
        let layers: Vec<LayerLayout> = layers.collect();
        let embed_tokens = place("embed_tokens.weight".into());
        let sizes = [shape.hidden_size, shape.num_outputs];
        let mut head = linear("lm_head", count * shape.num_layers, sizes);
        if shape.tie_word_embeddings {
            (head.weight, head.is_transposed) = (embed_tokens.clone(), true);
        }
        let input = (!shape.takes_tokens()).then(|| {
            let sizes = [shape.num_features(), shape.hidden_size];
            linear("input", count * shape.num_layers + 1, sizes)
        });
        Self { embed_tokens, input, layers, norm: place("norm.weight".into()), head }
    }

    /// All matrices, by [`LinearLayout::index`].
    pub fn linears(&self) -> impl Iterator<Item = &LinearLayout> {
        let layers = self.layers.iter().flat_map(|layer| &layer.linears);
        layers.chain([&self.head]).chain(&self.input)
    }
}
