//! How large a decoder is, which switches it has on, and what it remembers.

use crate::model::Parameter;
use crate::model::PolicyConfig;

/// The sizes and switches of a [`Decoder`](super::Decoder). The names are those of Hugging Face's
/// configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderShape {
    /// Features of an observation.
    pub num_features: usize,
    /// Actions.
    pub num_actions: usize,
    /// Numbers of the residual stream: a multiple of twice the heads.
    pub hidden_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Heads of queries.
    pub num_heads: usize,
    /// Heads of keys and values: a divisor of `num_heads`.
    pub num_kv_heads: usize,
    /// Units of a layer's gated network.
    pub intermediate_size: usize,
    /// Steps that attention sees: the present one and those before it.
    pub context: usize,
    /// Whether queries, keys and values have biases, as in Qwen2.
    pub qkv_bias: bool,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// What is added to a mean square before its root is taken.
    pub rms_norm_eps: f32,
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
            intermediate_size: decoder.intermediate_size,
            context: decoder.context,
            qkv_bias: false,
            rope_theta: 1e4,
            rms_norm_eps: 1e-6,
        }
    }

    /// Numbers of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Heads of queries that share one of keys and values.
    pub fn heads_of_a_group(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Numbers of a step's keys in a layer, and of its values.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim()
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
        let mut all = vec![weight("input", &[self.num_features, size]), bias("input", size)];
        for i in 0..self.num_layers {
            let of = |name: &str| format!("layers.{i}.{name}");
            all.push(weight(&of("input_layernorm"), &[size]));
            for (name, outputs) in [("q_proj", size), ("k_proj", kv), ("v_proj", kv)] {
                let name = of(&format!("self_attn.{name}"));
                all.push(weight(&name, &[size, outputs]));
                all.extend(self.qkv_bias.then(|| bias(&name, outputs)));
            }
            all.push(weight(&of("self_attn.o_proj"), &[size, size]));
            all.push(weight(&of("post_attention_layernorm"), &[size]));
            all.push(weight(&of("mlp.gate_proj"), &[size, inner]));
            all.push(weight(&of("mlp.up_proj"), &[size, inner]));
            all.push(weight(&of("mlp.down_proj"), &[inner, size]));
        }
        all.push(weight("norm", &[size]));
        all.push(weight("lm_head", &[size, self.num_actions]));
        all
    }
}
