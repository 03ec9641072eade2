//! A decoder as data: its sizes and switches, from which layout, names and initialization follow.
//!
//! An architecture of language models is a [`Family`], one file and one line of [`FAMILIES`]: how its `config.json`
//! sets the switches of a [`DecoderShape`], and the other way round. Both executors read the shape alone.

mod config;
mod entries;
mod gemma3;
mod init;
mod layout;
mod llama;
pub mod lora;
mod mistral;
mod names;
mod olmo2;
mod olmo3;
mod qwen2;
mod qwen3;
mod rope;
mod smollm3;

pub use config::MAX_HEAD_DIM;
pub use entries::{ConfigError, family_names};
pub use layout::{LayerLayout, LayerNorms, Layout, LinearLayout, Parameter, Projection, QkNorms};
pub use lora::{AdapterConflict, Adapters, LoraConfig};
pub use names::gguf_name;
pub use rope::RopeScaling;

use super::ops::attention::HeadShape;
use super::ops::rope::RopeTable;
use crate::math::Activation;
use std::fmt::{self, Debug, Formatter};

/// The architectures of language models that can be loaded.
pub static FAMILIES: &[&Family] = &[
    &llama::LLAMA,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &mistral::MISTRAL,
    &gemma3::GEMMA3,
    &olmo2::OLMO2,
    &olmo3::OLMO3,
    &smollm3::SMOLLM3,
];

/// An architecture of language models.
pub struct Family {
    /// `model_type` in Hugging Face's `config.json`.
    pub model_type: &'static str,
    /// The class of `transformers` that loads it.
    pub class: &'static str,
    /// The form of its models in GGUF files; `None` if these are neither read nor written.
    pub gguf: Option<GgufForm>,
    /// Whether `rope_parameters` in a `config.json` has a table for each type of layer.
    pub has_rope_per_layer_type: bool,
    /// Sets the switches that this architecture takes from a `config.json` beyond those common to all.
    pub configure: fn(&serde_json::Value, &mut DecoderShape) -> Result<(), ConfigError>,
    /// Adds the entries of a `config.json` beyond those common to all.
    pub describe: fn(&DecoderShape, &mut serde_json::Value),
}

/// Form of an architecture's models in GGUF files, which are read as the family whose `model_type` is `architecture`.
#[derive(Clone, Copy, Debug)]
pub struct GgufForm {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// The norm of queries and keys.
    pub qk_norm: QkNorm,
    /// Whether queries, keys and values may have biases.
    pub has_qkv_bias: bool,
    /// Whether the output projection of attention and the feed-forward block may have biases.
    pub has_output_and_mlp_bias: bool,
    /// Whether rotary embeddings rotate adjacent coordinates of a head together.
    pub rotates_adjacent_pairs: bool,
}

impl Debug for Family {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

/// The sizes and switches of a decoder. The names are those of Hugging Face's configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderShape {
    /// The architecture that it belongs to; ignored by decoders over observations.
    pub family: &'static Family,
    /// The kind of rows that enter.
    pub input: DecoderInput,
    /// Logits of a row: actions, or tokens in the vocabulary.
    pub num_outputs: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Number of heads of queries.
    pub num_heads: usize,
    /// Number of heads of keys and values: a divisor of `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of a layer's feed-forward block.
    pub intermediate_size: usize,
    /// Steps of a game that attention sees, the current one included; for a decoder over tokens, the longest text.
    pub context: usize,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub output_bias: bool,
    /// Whether the projections of the feed-forward block have biases.
    pub mlp_bias: bool,
    /// The places of the norms of a layer.
    pub norm_placement: NormPlacement,
    /// The offset added to the weights of norms: 1 where files hold their differences from 1.
    pub norm_offset: f32,
    /// The constant added to a mean square before its root is taken.
    pub rms_norm_eps: f32,
    /// The norm of queries and keys before they are rotated.
    pub qk_norm: QkNorm,
    /// The activation of the feed-forward block's gate.
    pub activation: Activation,
    /// The factor of token embeddings.
    pub embedding_scale: f32,
    /// Scores are divided by the root of this number; `head_dim` if `None`.
    pub query_pre_attn_scalar: Option<f64>,
    /// Whether the head is the transposed table of token embeddings.
    pub tie_word_embeddings: bool,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// The change of the frequencies for contexts longer than those of pre-training, if any.
    pub rope_scaling: Option<RopeScaling>,
    /// The share of a head that is rotated.
    pub partial_rotary_factor: f64,
    /// Whether each layer rotates queries and keys: `[num_layers]`; all do if `None`.
    pub rope_layers: Option<Vec<bool>>,
    /// The layers whose attention is limited to a window, if any.
    pub sliding: Option<SlidingWindow>,
}

/// The kind of rows that enter a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecoderInput {
    /// Tokens of a vocabulary.
    #[default]
    Tokens,
    /// Observations of a game.
    Observations {
        /// Features of an observation.
        num_features: usize,
    },
}

/// The window of a layer that sees all earlier tokens: more than any text has, and still an `i32` on devices.
pub const UNLIMITED_WINDOW: usize = 1 << 30;

/// The norms of a layer, around its attention and its feed-forward block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before each block.
    #[default]
    Before,
    /// After each block, before its result is added to the stream.
    After,
    /// Before and after each block.
    Around,
}

/// The norm of queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QkNorm {
    /// Queries and keys are not normalized.
    #[default]
    None,
    /// Each head by itself, all with the same weights.
    PerHead,
    /// All heads of a row together.
    AllHeads,
}

/// Sliding-window attention in some of the layers.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    /// Tokens that a query sees, its own included.
    pub size: usize,
    /// Whether each layer has the window: `[num_layers]`.
    pub layers: Vec<bool>,
    /// The base of the rotary frequencies of these layers, which are not scaled; that of all layers if `None`.
    pub rope_theta: Option<f64>,
}

impl Default for DecoderShape {
    /// Llama's switches, and sizes of 0.
    fn default() -> Self {
        Self {
            family: &llama::LLAMA,
            input: DecoderInput::Tokens,
            num_outputs: 0,
            hidden_size: 0,
            num_layers: 0,
            num_heads: 0,
            num_kv_heads: 0,
            head_dim: 0,
            intermediate_size: 0,
            context: 0,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            norm_placement: NormPlacement::Before,
            norm_offset: 0.0,
            rms_norm_eps: 1e-6,
            qk_norm: QkNorm::None,
            activation: Activation::Silu,
            embedding_scale: 1.0,
            query_pre_attn_scalar: None,
            tie_word_embeddings: false,
            rope_theta: 1e4,
            rope_scaling: None,
            partial_rotary_factor: 1.0,
            rope_layers: None,
            sliding: None,
        }
    }
}

impl DecoderShape {
    /// The switches of Qwen2, with sizes of 0: the shape of fresh models.
    pub fn qwen2() -> Self {
        Self { family: &qwen2::QWEN2, qkv_bias: true, tie_word_embeddings: true, ..Self::default() }
    }

    /// Whether tokens enter, instead of observations.
    pub fn takes_tokens(&self) -> bool {
        self.input == DecoderInput::Tokens
    }

    /// Features of an observation.
    ///
    /// # Panics
    /// If tokens enter.
    pub fn num_features(&self) -> usize {
        match self.input {
            DecoderInput::Observations { num_features } => num_features,
            DecoderInput::Tokens => panic!("this decoder takes tokens, not observations"),
        }
    }

    /// Tokens in the vocabulary of a decoder over tokens.
    pub fn vocab_size(&self) -> usize {
        self.num_outputs
    }

    /// Width of a row's queries in a layer.
    pub fn query_size(&self) -> usize {
        self.head_shape().query_size()
    }

    /// Width of a row's keys in a layer, and of its values.
    pub fn kv_size(&self) -> usize {
        self.head_shape().kv_size()
    }

    /// The heads of a layer's attention.
    pub fn head_shape(&self) -> HeadShape {
        HeadShape {
            heads: self.num_heads,
            kv_heads: self.num_kv_heads,
            dim: self.head_dim,
            scale: self.query_pre_attn_scalar.unwrap_or(self.head_dim as f64).powf(-0.5) as f32,
        }
    }

    /// Maximum number of keys that a row sees in a layer, its own included; at most [`UNLIMITED_WINDOW`].
    pub fn window(&self, layer: usize) -> usize {
        match &self.sliding {
            Some(sliding) if sliding.layers[layer] => sliding.size.min(UNLIMITED_WINDOW),
            _ => self.full_window(),
        }
    }

    /// The window of layers without one of their own.
    fn full_window(&self) -> usize {
        if self.takes_tokens() { UNLIMITED_WINDOW } else { self.context }
    }

    /// The distinct windows of the layers: the full one, then that of sliding layers if there are any.
    pub fn windows(&self) -> Vec<usize> {
        let sliding = self.sliding.as_ref().map(|sliding| sliding.size.min(UNLIMITED_WINDOW));
        [self.full_window()].into_iter().chain(sliding).collect()
    }

    /// The index of a layer's window among [`DecoderShape::windows`].
    pub fn window_index(&self, layer: usize) -> usize {
        usize::from(self.sliding.as_ref().is_some_and(|sliding| sliding.layers[layer]))
    }

    /// Rotary tables: that of ordinary layers; then that of sliding layers, if they have their own base; then an
    /// all-zero one, if some layers do not rotate.
    pub fn rope_tables(&self) -> Vec<RopeTable> {
        let sliding_theta = self.sliding.as_ref().and_then(|sliding| sliding.rope_theta);
        let mut tables = vec![rope::rope_table(self, self.rope_theta, self.rope_scaling)];
        tables.extend(sliding_theta.map(|theta| rope::rope_table(self, theta, None)));
        tables.extend(self.rope_layers.is_some().then(|| rope::identity_table(self)));
        tables
    }

    /// The index of a layer's table among [`DecoderShape::rope_tables`].
    pub fn rope_table_index(&self, layer: usize) -> usize {
        let local = self.sliding.as_ref().filter(|sliding| sliding.rope_theta.is_some());
        match &self.rope_layers {
            Some(rotated) if !rotated[layer] => 1 + usize::from(local.is_some()),
            _ => usize::from(local.is_some_and(|sliding| sliding.layers[layer])),
        }
    }

    /// Dimensions of a head that are rotated: an even number.
    pub fn rotary_dim(&self) -> usize {
        (self.head_dim as f64 * self.partial_rotary_factor) as usize / 2 * 2
    }

    /// Size of a game's memory, in floats: the number of the episode's steps so far; then for each layer the
    /// keys of the last `context` steps, `[context, kv_size]`, and their values. Step `i` occupies row `i % context`,
    /// so that nothing moves when a step is added.
    pub fn memory_size(&self) -> usize {
        1 + 2 * self.num_layers * self.cache_size()
    }

    /// Size of a layer's keys in memory, and of its values, in floats.
    pub fn cache_size(&self) -> usize {
        self.context * self.kv_size()
    }

    /// The offset of a layer's keys in memory; its values follow.
    pub fn cache_start(&self, layer: usize) -> usize {
        1 + 2 * layer * self.cache_size()
    }
}
