//! Conversion between the `config.json` of Hugging Face's folders and a shape.

use super::entries::{
    ConfigError, check_layer_list, is_on, read_count, read_entry, read_number, read_text,
    unsupported_error,
};
use super::rope::{
    check_partial_rotary_factor, check_table_size, read_rope_number, read_rope_settings,
    read_scaling,
};
use super::{DecoderShape, FAMILIES, RopeScaling, SlidingWindow};
use crate::math::Activation;
use serde_json::{Value, json};

/// Maximum number of layers.
const MAX_LAYERS: usize = 1 << 10;
/// The largest size of an axis; products of two of them fit 64 bits with room to spare.
const MAX_SIZE: usize = 1 << 24;

/// The largest size of a head, whose rotations are tabulated; known models have up to 512.
pub const MAX_HEAD_DIM: usize = 1 << 12;

impl DecoderShape {
    /// The shape that a `config.json` describes.
    ///
    /// # Errors
    /// If the architecture or one of its settings is not supported, an entry is missing, or sizes do not fit together.
    pub fn from_config(config: &Value) -> Result<Self, ConfigError> {
        let found = read_text(config, "model_type")?.unwrap_or("none");
        let family = FAMILIES.iter().find(|family| family.model_type == found);
        let family = family.ok_or_else(|| ConfigError::Family { found: found.to_string() })?;
        let size =
            |name: &str| read_count(config, name)?.ok_or_else(|| ConfigError::Missing(name.into()));
        let (hidden_size, num_heads) = (size("hidden_size")?, size("num_attention_heads")?);
        let context = read_count(config, "max_position_embeddings")?.unwrap_or(2048);
        let has_bias = is_on(config, "attention_bias")?;
        let mut shape = Self {
            family,
            num_outputs: size("vocab_size")?,
            hidden_size,
            num_layers: size("num_hidden_layers")?,
            num_heads,
            num_kv_heads: read_count(config, "num_key_value_heads")?.unwrap_or(num_heads),
            head_dim: read_count(config, "head_dim")?.unwrap_or(hidden_size / num_heads.max(1)),
            intermediate_size: size("intermediate_size")?,
            context,
            qkv_bias: has_bias,
            output_bias: has_bias,
            tie_word_embeddings: is_on(config, "tie_word_embeddings")?,
            rope_theta: read_rope_number(config, family, "rope_theta")?.unwrap_or(1e4),
            rope_scaling: read_scaling(&read_rope_settings(config, family)?, context)?,
            rms_norm_eps: read_number(config, "rms_norm_eps")?.unwrap_or(1e-6) as f32,
            ..Self::default()
        };
        shape.activation = read_activation(config, "hidden_act")?.unwrap_or(Activation::Silu);
        // Before the family allocates by the number of layers.
        shape.check()?;
        (family.configure)(config, &mut shape)?;
        shape.check()?;
        check_partial_rotary_factor(config, &shape)?;
        Ok(shape)
    }

    /// Checks that sizes fit together, and that all numbers are within what a decoder can have.
    ///
    /// # Errors
    /// [`ConfigError::Sizes`], or [`ConfigError::Value`] with the entry at fault.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_sizes(self)?;
        let partial = self.partial_rotary_factor;
        // Coordinates rotate in pairs.
        let is_odd = !((self.head_dim as f64 * partial) as usize).is_multiple_of(2);
        if !(0.0..=1.0).contains(&partial) || is_odd || self.rotary_dim() == 0 {
            return Err(unsupported_error("partial_rotary_factor", partial));
        }
        for (name, value, bound) in bounded_entries(self) {
            if !(value > bound && value.is_finite()) {
                return Err(unsupported_error(name, value));
            }
        }
        check_table_size(self)?;
        if let Some(rotated) = self.rope_layers.as_ref().filter(|all| all.len() != self.num_layers)
        {
            return Err(unsupported_error("no_rope_layers", rotated.len()));
        }
        match &self.sliding {
            Some(sliding) if sliding.size == 0 || sliding.layers.len() != self.num_layers => {
                Err(unsupported_error("sliding_window", sliding.size))
            }
            _ => Ok(()),
        }
    }

    /// The `config.json` of the shape.
    pub fn to_config(&self, stop_tokens: &[u32]) -> Value {
        // Shortest in decimal: a conversion to f64 would show the rounding.
        let shortest = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
        let mut config = json!({
            "architectures": [self.family.class],
            "model_type": self.family.model_type,
            "vocab_size": self.vocab_size(),
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tie_word_embeddings,
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling,
            "rms_norm_eps": shortest(self.rms_norm_eps),
            "hidden_act": activation_name(self.activation),
            "attention_bias": self.output_bias,
            "torch_dtype": "float32",
            "eos_token_id": stop_tokens.first(),
            "bos_token_id": null,
        });
        (self.family.describe)(self, &mut config);
        config
    }
}

/// Reads the activation of the gate from an entry; `None` if it is absent or null.
pub(super) fn read_activation(
    config: &Value,
    name: &str,
) -> Result<Option<Activation>, ConfigError> {
    match read_text(config, name)? {
        None => Ok(None),
        Some("silu" | "swish") => Ok(Some(Activation::Silu)),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Some(Activation::Gelu)),
        Some(other) => Err(unsupported_error(name, other)),
    }
}

/// The name of an activation in a `config.json`.
pub(super) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Relu => "relu",
        Activation::Tanh => "tanh",
        Activation::Silu => "silu",
        Activation::Gelu => "gelu_pytorch_tanh",
    }
}

/// Checks that sizes are in their ranges and fit together.
fn check_sizes(shape: &DecoderShape) -> Result<(), ConfigError> {
    let DecoderShape { num_heads, num_kv_heads, head_dim, .. } = *shape;
    let sizes = [
        ("vocab_size", shape.vocab_size(), MAX_SIZE),
        ("hidden_size", shape.hidden_size, MAX_SIZE),
        ("num_hidden_layers", shape.num_layers, MAX_LAYERS),
        ("num_attention_heads", num_heads, MAX_SIZE),
        ("num_key_value_heads", num_kv_heads, MAX_SIZE),
        ("head_dim", head_dim, MAX_HEAD_DIM),
        ("intermediate_size", shape.intermediate_size, MAX_SIZE),
        ("max_position_embeddings", shape.context, MAX_SIZE),
    ];
    let mut sizes = sizes.into_iter();
    let wrong = match sizes.find(|(_, size, max)| !(1..=*max).contains(size)) {
        Some((name, size, max)) => format!("`{name}` is {size}, but must be 1 to {max}"),
        None if !num_heads.is_multiple_of(num_kv_heads) => format!(
            "`num_attention_heads` {num_heads} is not a multiple of `num_key_value_heads` {num_kv_heads}"
        ),
        None if !head_dim.is_multiple_of(2) => {
            format!("`head_dim` is {head_dim}, but must be even")
        }
        None if num_heads.saturating_mul(head_dim) > MAX_SIZE => format!(
            "`num_attention_heads` {num_heads} times `head_dim` {head_dim} is more than {MAX_SIZE}"
        ),
        None => return Ok(()),
    };
    Err(ConfigError::Sizes(wrong))
}

/// Entries that are divisors or arguments of roots and logarithms: names, values, and exclusive lower bounds.
fn bounded_entries(shape: &DecoderShape) -> Vec<(&'static str, f64, f64)> {
    let mut entries = vec![
        ("rms_norm_eps", f64::from(shape.rms_norm_eps), 0.0),
        ("rope_theta", shape.rope_theta, 0.0),
    ];
    entries
        .extend(shape.query_pre_attn_scalar.map(|scalar| ("query_pre_attn_scalar", scalar, 0.0)));
    let local = shape.sliding.as_ref().and_then(|sliding| sliding.rope_theta);
    entries.extend(local.map(|theta| ("rope_local_base_freq", theta, 0.0)));
    let (factor, original) = match shape.rope_scaling {
        None => return entries,
        Some(RopeScaling::Linear { factor }) => (factor, None),
        Some(RopeScaling::Dynamic { factor, original_max_position_embeddings: original }) => {
            (factor, Some(original))
        }
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        }) => {
            entries.push(("rope_scaling.low_freq_factor", low, 0.0));
            entries.push(("rope_scaling.high_freq_factor", high, low));
            (factor, Some(original))
        }
        Some(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast,
            beta_slow,
            attention_factor,
            ..
        }) => {
            entries.push(("rope_scaling.beta_fast", beta_fast, 0.0));
            entries.push(("rope_scaling.beta_slow", beta_slow, 0.0));
            entries.push(("rope_scaling.attention_factor", attention_factor, 0.0));
            // Pairs are found by its logarithm.
            entries.push(("rope_theta", shape.rope_theta, 1.0));
            (factor, Some(original))
        }
    };
    entries.push(("rope_scaling.factor", factor, 0.0));
    let name = "rope_scaling.original_max_position_embeddings";
    entries.extend(original.map(|tokens| (name, tokens, 0.0)));
    entries
}

/// Reads the tokens of a sliding window: 4,096 if the entry is absent, as in `transformers`; `None` if it is null.
pub(super) fn read_window_size(config: &Value) -> Result<Option<usize>, ConfigError> {
    match config.get("sliding_window") {
        None => Ok(Some(4096)),
        Some(_) => read_count(config, "sliding_window"),
    }
}

/// Reads whether each layer has a sliding window: from `layer_types`, or by `default` where older files have none.
pub(super) fn read_sliding_layers(
    config: &Value,
    num_layers: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ConfigError> {
    let Some(types) = read_entry(config, "layer_types", "a list", Value::as_array)? else {
        return Ok((0..num_layers).map(default).collect());
    };
    let is_sliding = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(unsupported_error("layer_types", kind.clone())),
    };
    let layers = types.iter().map(is_sliding).collect::<Result<_, _>>()?;
    check_layer_list("layer_types", layers, num_layers)
}

/// Rejects sliding layers if windows have no size or are turned off; `transformers` fails there, too.
pub(super) fn refuse_sliding_layers(config: &Value) -> Result<(), ConfigError> {
    let types = config["layer_types"].as_array();
    if types.into_iter().flatten().any(|kind| *kind == "sliding_attention") {
        return Err(ConfigError::Sizes(
            "`layer_types` has sliding_attention, but `sliding_window` or `use_sliding_window` turns windows off".into(),
        ));
    }
    Ok(())
}

/// Adds the entries of a `config.json` about sliding windows.
pub(super) fn describe_sliding(shape: &DecoderShape, config: &mut Value) {
    config["sliding_window"] = json!(shape.sliding.as_ref().map(|sliding| sliding.size));
    if let Some(SlidingWindow { layers, .. }) = &shape.sliding {
        let name = |sliding: &bool| if *sliding { "sliding_attention" } else { "full_attention" };
        config["layer_types"] = layers.iter().map(name).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::arch::entries::sample_shape;
    use crate::nn::arch::{NormPlacement, QkNorm, UNLIMITED_WINDOW};

    #[test]
    fn numbers_that_attention_cannot_compute_with_are_rejected() {
        let yarn = |name: &str, value: f64| {
            let mut table = json!({ "rope_type": "yarn", "factor": 4.0 });
            table[name] = value.into();
            json!({ "rope_scaling": table })
        };
        let llama3 = |low: f64, high: f64| {
            json!({ "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": 32,
            } })
        };
        let dynamic = |factor: f64, context: usize| {
            let table = json!({ "rope_type": "dynamic", "factor": factor });
            json!({ "max_position_embeddings": context, "rope_scaling": table })
        };
        let partial = |table: &str, factor: f64| {
            let linear =
                json!({ "rope_type": "linear", "factor": 2.0, "partial_rotary_factor": factor });
            json!({ table: linear })
        };
        let theta = json!({ "rope_theta": 1.0, "rope_scaling": { "type": "yarn", "factor": 4.0 } });
        for (family, others, entry) in [
            ("mistral", json!({ "sliding_window": 0 }), "sliding_window"),
            ("gemma3_text", json!({ "sliding_window": 0 }), "sliding_window"),
            ("gemma3_text", json!({ "query_pre_attn_scalar": 0 }), "query_pre_attn_scalar"),
            ("gemma3_text", json!({ "query_pre_attn_scalar": -1 }), "query_pre_attn_scalar"),
            ("gemma3_text", json!({ "rope_local_base_freq": 0 }), "rope_local_base_freq"),
            ("llama", partial("rope_parameters", 0.5), "partial_rotary_factor"),
            ("smollm3", partial("rope_scaling", 0.75), "partial_rotary_factor"),
            ("llama", yarn("beta_fast", 0.0), "rope_scaling.beta_fast"),
            ("llama", yarn("beta_slow", -1.0), "rope_scaling.beta_slow"),
            ("llama", yarn("attention_factor", 0.0), "rope_scaling.attention_factor"),
            ("llama", theta, "rope_theta"),
            ("llama", dynamic(0.0, 64), "rope_scaling.factor"),
            ("llama", dynamic(-1.0, 64), "rope_scaling.factor"),
            ("llama", dynamic(4.0, 1 << 19), "rope_scaling.factor"),
            ("llama", dynamic(0.01, 1 << 21), "rope_scaling.factor"),
            ("llama", llama3(0.0, 4.0), "rope_scaling.low_freq_factor"),
            ("llama", llama3(1.0, 1.0), "rope_scaling.high_freq_factor"),
        ] {
            match sample_shape(family, others) {
                Err(ConfigError::Value { name, .. }) => assert_eq!(name, entry),
                other => panic!("{family}, {entry}: {other:?}"),
            }
        }
        sample_shape("llama", llama3(1.0, 4.0)).unwrap();
        sample_shape("llama", yarn("factor", 4.0)).unwrap();
        sample_shape("llama", partial("rope_parameters", 1.0)).unwrap();
    }

    #[test]
    fn an_entry_at_fault_is_named_and_null_is_none() {
        for (family, entry, value, expected) in [
            ("llama", "rms_norm_eps", json!("x"), "is \"x\", but must be a number"),
            ("llama", "tie_word_embeddings", json!("yes"), "is \"yes\", but must be true or false"),
            ("llama", "num_hidden_layers", json!(-1), "is -1, but must be a positive whole number"),
            ("llama", "num_hidden_layers", json!(0), "is 0, but must be 1 to"),
            (
                "llama",
                "num_attention_heads",
                json!(7),
                "7 is not a multiple of `num_key_value_heads` 2",
            ),
            ("llama", "head_dim", json!(7), "is 7, but must be even"),
            ("llama", "rope_theta", json!("1e4"), "is \"1e4\""),
            ("llama", "rope_scaling", json!("linear"), "is \"linear\""),
            ("llama", "hidden_act", json!(true), "is true, but must be a string"),
            ("mistral", "sliding_window", json!("7"), "is \"7\""),
            ("gemma3_text", "layer_types", json!("full"), "is \"full\""),
        ] {
            let error = sample_shape(family, json!({ entry: value })).unwrap_err().to_string();
            assert!(error.contains(&format!("`{entry}` {expected}")), "{error}");
        }
        let table = json!({ "rope_parameters": { "sliding_attention": 1e4 } });
        let error = sample_shape("gemma3_text", table).unwrap_err().to_string();
        assert!(error.contains("`sliding_attention` is 10000.0, but must be a table"), "{error}");
        let nothing = json!({
            "head_dim": null, "rope_scaling": null, "rope_parameters": null, "sliding_window": null,
            "layer_types": null, "rms_norm_eps": null, "tie_word_embeddings": null, "hidden_act": null,
        });
        for family in FAMILIES {
            sample_shape(family.model_type, nothing.clone()).unwrap();
        }
        let whole = json!({ "rope_theta": 10000, "rms_norm_eps": 1, "query_pre_attn_scalar": 256 });
        assert_eq!(sample_shape("gemma3_text", whole).unwrap().rms_norm_eps, 1.0);
    }

    #[test]
    fn entries_mean_what_they_mean_in_transformers() {
        // Another family's name of the activation has no meaning.
        let other = json!({ "hidden_act": "silu", "hidden_activation": "gelu_new" });
        assert_eq!(sample_shape("llama", other.clone()).unwrap().activation, Activation::Silu);
        assert_eq!(sample_shape("gemma3_text", other).unwrap().activation, Activation::Gelu);
        let silu = json!({ "hidden_activation": "silu" });
        assert_eq!(sample_shape("gemma3_text", silu).unwrap().activation, Activation::Silu);

        let both = json!({
            "rope_scaling": { "rope_type": "linear", "factor": 2.0 },
            "rope_parameters": { "rope_type": "default", "rope_theta": 5e5 },
        });
        let both = sample_shape("llama", both).unwrap();
        assert_eq!(both.rope_scaling, Some(RopeScaling::Linear { factor: 2.0 }));
        assert_eq!(both.rope_theta, 1e4);
        let linear = json!({ "rope_type": "linear", "factor": 4.0 });
        let sliding = json!({ "sliding_attention": linear });
        let name = "rope_parameters.sliding_attention.rope_type";
        match sample_shape("gemma3_text", json!({ "rope_parameters": sliding })) {
            Err(ConfigError::Value { name: found, .. }) => assert_eq!(found, name),
            other => panic!("{name}: {other:?}"),
        }
        let full = json!({ "rope_parameters": { "full_attention": linear } });
        assert!(sample_shape("gemma3_text", full).unwrap().rope_scaling.is_some());

        let theta = |others: Value| sample_shape("gemma3_text", others).unwrap().rope_theta;
        let scaling = json!({ "rope_type": "linear", "factor": 8.0 });
        let scaling_with_base = json!({ "rope_type": "linear", "factor": 8.0, "rope_theta": 2e6 });
        let full = json!({ "full_attention": { "rope_type": "default", "rope_theta": 5e5 } });
        for (others, expected) in [
            (json!({}), 1e6),
            (json!({ "rope_scaling": scaling }), 1e6),
            (json!({ "rope_scaling": scaling, "rope_theta": 3e6 }), 3e6),
            (json!({ "rope_scaling": scaling_with_base }), 2e6),
            (json!({ "rope_parameters": full }), 5e5),
            (json!({ "rope_scaling": scaling, "rope_parameters": full }), 5e5),
            (json!({ "rope_scaling": scaling_with_base, "rope_parameters": full }), 2e6),
        ] {
            assert_eq!(theta(others.clone()), expected, "{others}");
        }

        let heads = |others: Value| sample_shape("qwen3", others).unwrap().head_dim;
        assert_eq!((heads(json!({})), heads(json!({ "head_dim": null }))), (8, 128));

        let window = |family: &str, others: Value| {
            sample_shape(family, others).unwrap().sliding.map(|sliding| sliding.size)
        };
        for (family, others, expected) in [
            ("mistral", json!({}), Some(4096)),
            ("mistral", json!({ "sliding_window": null }), None),
            ("mistral", json!({ "sliding_window": 9 }), Some(9)),
            ("qwen2", json!({ "use_sliding_window": true }), Some(4096)),
            ("qwen3", json!({ "use_sliding_window": true, "sliding_window": null }), None),
            ("qwen3", json!({}), None),
        ] {
            assert_eq!(window(family, others.clone()), expected, "{family}, {others}");
        }
        for (family, switch) in
            [("mistral", true), ("smollm3", true), ("qwen3", true), ("qwen2", false)]
        {
            let error = sample_shape(
                family,
                json!({
                    "sliding_window": null,
                    "use_sliding_window": switch,
                    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                }),
            );
            let error = error.unwrap_err().to_string();
            assert!(error.contains("turns windows off"), "{family}: {error}");
        }
    }

    #[test]
    fn shapes_survive_their_configuration() {
        let scalings = [
            json!({ "rope_type": "linear", "factor": 2.0 }),
            json!({ "rope_type": "dynamic", "factor": 2.0 }),
            json!({ "rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "truncate": false }),
            json!({
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }),
        ];
        for family in FAMILIES {
            for (index, scaling) in scalings.iter().enumerate() {
                let is_odd = index % 2 == 1;
                let others = json!({
                    "rope_scaling": scaling,
                    "rope_theta": 5e5,
                    "rms_norm_eps": 1e-5,
                    "attention_bias": is_odd,
                    "mlp_bias": is_odd,
                    "tie_word_embeddings": is_odd,
                    "use_sliding_window": is_odd,
                    "sliding_window": 7,
                    "max_window_layers": 1,
                    "query_pre_attn_scalar": 9.0,
                });
                let shape = sample_shape(family.model_type, others).unwrap();
                assert_eq!(shape.rope_theta, 5e5);
                assert_eq!(DecoderShape::from_config(&shape.to_config(&[])).unwrap(), shape);
            }
        }
        let wide = sample_shape("mistral", json!({ "sliding_window": 1u64 << 32 })).unwrap();
        assert_eq!(wide.windows(), [UNLIMITED_WINDOW; 2]);
        let plain_shape = |name: &str| sample_shape(name, json!({})).unwrap();
        assert_eq!(plain_shape("gemma3_text").activation, Activation::Gelu);
        assert_eq!(plain_shape("gemma3_text").norm_placement, NormPlacement::Around);
        assert_eq!(plain_shape("olmo2").qk_norm, QkNorm::AllHeads);
    }
}
