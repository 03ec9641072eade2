//! How large a decoder is, which switches it has on, and what it remembers.

use crate::model::Parameter;
use crate::model::PolicyConfig;

/// The sizes and switches of a [`Decoder`](super::Decoder). The names are those of Hugging Face's
/// configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderShape {
    /// Features of an observation; 0 where tokens enter, whose vectors are looked up.
    pub num_features: usize,
    /// Actions; of tokens, the vocabulary.
    pub num_actions: usize,
    /// Numbers of the residual stream.
    pub hidden_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Heads of queries.
    pub num_heads: usize,
    /// Heads of keys and values: a divisor of `num_heads`.
    pub num_kv_heads: usize,
    /// Numbers of a head: an even number.
    pub head_dim: usize,
    /// Units of a layer's gated network.
    pub intermediate_size: usize,
    /// Steps that attention sees: the present one and those before it.
    pub context: usize,
    /// Whether queries, keys and values have biases, as in Qwen2.
    pub qkv_bias: bool,
    /// Whether the heads of queries and keys are normed before they are turned, as in Qwen3.
    pub qk_norm: bool,
    /// Whether the head is the table of the tokens' vectors, turned around.
    pub tie_word_embeddings: bool,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// How the frequencies are changed for contexts longer than those of pre-training, if they are.
    pub rope_scaling: Option<RopeScaling>,
    /// What is added to a mean square before its root is taken.
    pub rms_norm_eps: f32,
}

/// Llama 3's change of the rotary frequencies: slow ones are divided by `factor`, fast ones stay, and those
/// in between are in between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// What the slow frequencies are divided by.
    pub factor: f64,
    /// A frequency is slow if it turns fewer times than this in the original context.
    pub low_freq_factor: f64,
    /// A frequency is fast if it turns more often than this in the original context.
    pub high_freq_factor: f64,
    /// Tokens of the context in pre-training.
    pub original_max_position_embeddings: f64,
}

impl DecoderShape {
    /// That which settings ask for.
    pub fn new(num_features: usize, num_actions: usize, config: &PolicyConfig) -> Self {
        let decoder = &config.own.decoder;
        Self {
            num_features,
            num_actions,
            hidden_size: decoder.hidden_size,
            num_layers: decoder.num_layers,
            num_heads: decoder.num_heads,
            num_kv_heads: decoder.num_kv_heads,
            head_dim: decoder.hidden_size / decoder.num_heads,
            intermediate_size: decoder.intermediate_size,
            context: decoder.context,
            qkv_bias: false,
            qk_norm: false,
            tie_word_embeddings: false,
            rope_theta: 1e4,
            rope_scaling: None,
            rms_norm_eps: 1e-6,
        }
    }

    /// Whether tokens enter, not observations.
    pub fn takes_tokens(&self) -> bool {
        self.num_features == 0
    }

    /// Numbers of a step's queries in a layer.
    pub fn query_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// The number of parameters.
    pub fn num_params(&self) -> usize {
        let shapes = self.parameters();
        shapes.iter().map(|parameter| parameter.shape.iter().product::<usize>()).sum()
    }

    /// Heads of queries that share one of keys and values.
    pub fn heads_of_a_group(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Numbers of a step's keys in a layer, and of its values.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Numbers that a decoder remembers of a game: how many steps of the episode it has seen; then of each
    /// layer the keys of the last `context` steps, `[context, kv_size]`, and their values, likewise. What
    /// belongs to step `i` lies in row `i % context`, so that nothing moves when a step is added.
    pub fn memory_size(&self) -> usize {
        1 + 2 * self.num_layers * self.cache_size()
    }

    /// Numbers of a layer's keys in memory, and of its values.
    pub fn cache_size(&self) -> usize {
        self.context * self.kv_size()
    }

    /// Where a layer's keys begin in memory; its values follow.
    pub fn cache_start(&self, layer: usize) -> usize {
        1 + 2 * layer * self.cache_size()
    }

    /// Names and shapes of the parameters, in the order of [`flatten`](crate::model::flatten).
    pub fn parameters(&self) -> Vec<Parameter> {
        let (size, kv, inner) = (self.hidden_size, self.kv_size(), self.intermediate_size);
        let parameter = |name: String, shape: &[usize]| Parameter { name, shape: shape.to_vec() };
        let weight = |name: &str, shape: &[usize]| parameter(format!("{name}.weight"), shape);
        let bias = |name: &str, outputs: usize| parameter(format!("{name}.bias"), &[outputs]);
        let queries = self.query_size();
        let mut all = match self.takes_tokens() {
            true => vec![weight("embed_tokens", &[self.num_actions, size])],
            false => vec![weight("input", &[self.num_features, size]), bias("input", size)],
        };
        for i in 0..self.num_layers {
            let of = |name: &str| format!("layers.{i}.{name}");
            all.push(weight(&of("input_layernorm"), &[size]));
            for (name, outputs) in [("q_proj", queries), ("k_proj", kv), ("v_proj", kv)] {
                let name = of(&format!("self_attn.{name}"));
                all.push(weight(&name, &[size, outputs]));
                all.extend(self.qkv_bias.then(|| bias(&name, outputs)));
            }
            all.push(weight(&of("self_attn.o_proj"), &[queries, size]));
            if self.qk_norm {
                all.push(weight(&of("self_attn.q_norm"), &[self.head_dim]));
                all.push(weight(&of("self_attn.k_norm"), &[self.head_dim]));
            }
            all.push(weight(&of("post_attention_layernorm"), &[size]));
            all.push(weight(&of("mlp.gate_proj"), &[size, inner]));
            all.push(weight(&of("mlp.up_proj"), &[size, inner]));
            all.push(weight(&of("mlp.down_proj"), &[inner, size]));
        }
        all.push(weight("norm", &[size]));
        if !self.tie_word_embeddings {
            all.push(weight("lm_head", &[size, self.num_actions]));
        }
        all
    }
}
