//! Conversion between the `config.json` of Hugging Face's folders and a shape.

use super::{DecoderShape, FAMILIES, RopeScaling, SlidingWindow};
use crate::math::Activation;
use serde_json::{Map, Value, json};

/// A `config.json` that describes no decoder that can be executed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An architecture that is not among [`FAMILIES`].
    #[error("`model_type` {found} is not supported; supported are {}", supported())]
    Family {
        /// The `model_type` of the file.
        found: String,
    },
    /// A missing entry.
    #[error("there is no number `{0}`")]
    Missing(String),
    /// An entry with a value that is not supported.
    #[error("`{name}` {value} is not supported")]
    Value {
        /// The name of the entry.
        name: String,
        /// The value of the entry.
        value: Value,
    },
    /// Sizes that do not fit together.
    #[error("the sizes do not fit together: {0}")]
    Sizes(String),
}

/// The `model_type`s of the architectures that can be loaded, as a list in words.
pub fn supported() -> String {
    FAMILIES.iter().map(|family| family.model_type).collect::<Vec<_>>().join(", ")
}

/// A whole number of a configuration.
pub(super) fn count(config: &Value, name: &str) -> Option<usize> {
    config[name].as_u64().map(|number| usize::try_from(number).unwrap_or(usize::MAX))
}

/// A switch of a configuration, off if it is absent.
pub(super) fn is_on(config: &Value, name: &str) -> bool {
    config[name].as_bool().unwrap_or(false)
}

/// The error of an entry whose value is not supported.
fn unsupported(name: &str, value: impl Into<Value>) -> ConfigError {
    ConfigError::Value { name: name.into(), value: value.into() }
}

/// Checks that an entry is absent, null or `false`.
pub(super) fn refuse(config: &Value, name: &str) -> Result<(), ConfigError> {
    match &config[name] {
        Value::Null | Value::Bool(false) => Ok(()),
        value => Err(unsupported(name, value.clone())),
    }
}

/// The shape that a `config.json` describes.
///
/// # Errors
/// If the architecture or one of its settings is not supported, an entry is missing, or sizes do not fit together.
pub fn from_config(config: &Value) -> Result<DecoderShape, ConfigError> {
    let found = config["model_type"].as_str().unwrap_or("none");
    let family = FAMILIES.iter().find(|family| family.model_type == found);
    let family = family.ok_or_else(|| ConfigError::Family { found: found.to_string() })?;
    let number = |name: &str| count(config, name).ok_or_else(|| ConfigError::Missing(name.into()));
    let (hidden_size, num_heads) = (number("hidden_size")?, number("num_attention_heads")?);
    let rope = rope(config);
    let rotary = |name: &str| rope[name].as_f64().or_else(|| config[name].as_f64());
    let context = count(config, "max_position_embeddings").unwrap_or(2048);
    let mut shape = DecoderShape {
        family,
        num_actions: number("vocab_size")?,
        hidden_size,
        num_layers: number("num_hidden_layers")?,
        num_heads,
        num_kv_heads: count(config, "num_key_value_heads").unwrap_or(num_heads),
        head_dim: count(config, "head_dim").unwrap_or(hidden_size / num_heads.max(1)),
        intermediate_size: number("intermediate_size")?,
        context,
        qkv_bias: is_on(config, "attention_bias"),
        output_bias: is_on(config, "attention_bias"),
        tie_word_embeddings: is_on(config, "tie_word_embeddings"),
        rope_theta: rotary("rope_theta").unwrap_or(1e4),
        rope_scaling: scaling(&rope, context)?,
        partial_rotary_factor: rotary("partial_rotary_factor").unwrap_or(1.0),
        rms_norm_eps: config["rms_norm_eps"].as_f64().unwrap_or(1e-6) as f32,
        ..DecoderShape::default()
    };
    let activation = ["hidden_activation", "hidden_act"].map(|name| config[name].as_str());
    shape.activation = match activation[0].or(activation[1]) {
        None | Some("silu" | "swish") => Activation::Silu,
        Some("gelu_pytorch_tanh" | "gelu_new") => Activation::Gelu,
        Some(other) => return Err(unsupported("hidden_act", other)),
    };
    // Before the family allocates by the number of layers.
    check(&shape)?;
    (family.configure)(config, &mut shape)?;
    check(&shape)?;
    Ok(shape)
}

/// Maximum number of layers.
const MAX_LAYERS: usize = 1 << 10;
/// The largest size of an axis; products of two of them fit 64 bits with room to spare.
const MAX_SIZE: usize = 1 << 24;

/// Checks that sizes fit together, and that all numbers are within what a decoder can have.
///
/// # Errors
/// [`ConfigError::Sizes`], or [`ConfigError::Value`] with the entry at fault.
pub fn check(shape: &DecoderShape) -> Result<(), ConfigError> {
    let DecoderShape { num_heads, num_kv_heads, head_dim, .. } = shape;
    let heads = *num_kv_heads > 0 && num_heads.is_multiple_of(*num_kv_heads);
    let dims = *head_dim > 0 && head_dim.is_multiple_of(2) && shape.rotary_dim() > 0;
    let sizes = [
        shape.num_actions,
        shape.hidden_size,
        shape.intermediate_size,
        shape.context,
        num_heads.saturating_mul(*head_dim),
    ];
    let fit = sizes.iter().all(|size| (1..=MAX_SIZE).contains(size))
        && (1..=MAX_LAYERS).contains(&shape.num_layers);
    let is_partial = (0.0..=1.0).contains(&shape.partial_rotary_factor);
    if !(heads && dims && fit && is_partial) {
        return Err(ConfigError::Sizes(format!(
            "{} tokens, a stream of {}, {} layers, {num_heads} heads, {num_kv_heads} of keys, of {head_dim} numbers, {} \
             inner units, {} positions",
            shape.num_actions,
            shape.hidden_size,
            shape.num_layers,
            shape.intermediate_size,
            shape.context
        )));
    }
    for (name, value, bound) in bounded(shape) {
        if !(value > bound && value.is_finite()) {
            return Err(unsupported(name, value));
        }
    }
    match &shape.sliding {
        Some(sliding) if sliding.size == 0 || sliding.layers.len() != shape.num_layers => {
            Err(unsupported("sliding_window", sliding.size))
        }
        _ => Ok(()),
    }
}

/// Entries that are divisors or arguments of roots and logarithms: names, values, and exclusive lower bounds.
fn bounded(shape: &DecoderShape) -> Vec<(&'static str, f64, f64)> {
    let mut all = vec![
        ("rms_norm_eps", f64::from(shape.rms_norm_eps), 0.0),
        ("rope_theta", shape.rope_theta, 0.0),
    ];
    all.extend(shape.query_pre_attn_scalar.map(|scalar| ("query_pre_attn_scalar", scalar, 0.0)));
    let local = shape.sliding.as_ref().and_then(|sliding| sliding.rope_theta);
    all.extend(local.map(|theta| ("rope_local_base_freq", theta, 0.0)));
    let (factor, original) = match shape.rope_scaling {
        None => return all,
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
            all.push(("rope_scaling.low_freq_factor", low, 0.0));
            all.push(("rope_scaling.high_freq_factor", high, low));
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
            all.push(("rope_scaling.beta_fast", beta_fast, 0.0));
            all.push(("rope_scaling.beta_slow", beta_slow, 0.0));
            all.push(("rope_scaling.attention_factor", attention_factor, 0.0));
            // Pairs are found by its logarithm.
            all.push(("rope_theta", shape.rope_theta, 1.0));
            (factor, Some(original))
        }
    };
    all.push(("rope_scaling.factor", factor, 0.0));
    let name = "rope_scaling.original_max_position_embeddings";
    all.extend(original.map(|tokens| (name, tokens, 0.0)));
    all
}

/// The table of rotary settings, which newer versions of `transformers` call `rope_parameters`. If there is one for each
/// kind of layer, that of full attention.
fn rope(config: &Value) -> Value {
    let table = match (&config["rope_parameters"], &config["rope_scaling"]) {
        (Value::Object(table), _) | (_, Value::Object(table)) => Value::Object(table.clone()),
        _ => return Value::Null,
    };
    match &table["full_attention"] {
        Value::Object(full) => Value::Object(full.clone()),
        _ => table,
    }
}

/// Maximum positions of a table with frequencies by position.
const MOST_POSITIONS: f64 = 1048576.0;

/// The scaling of the rotary frequencies, if there is one.
fn scaling(rope: &Value, context: usize) -> Result<Option<RopeScaling>, ConfigError> {
    let kind = rope["rope_type"].as_str().or_else(|| rope["type"].as_str()).unwrap_or("default");
    let number = |name: &str| {
        rope[name].as_f64().ok_or_else(|| ConfigError::Missing(format!("rope_scaling.{name}")))
    };
    let original = "original_max_position_embeddings";
    Ok(match kind {
        "default" => None,
        "linear" => Some(RopeScaling::Linear { factor: number("factor")? }),
        "dynamic" => Some(dynamic(number("factor")?, context as f64)?),
        "llama3" => Some(RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_position_embeddings: number(original)?,
        }),
        "yarn" => {
            let factor = match (rope["factor"].as_f64(), rope[original].as_f64()) {
                (None, Some(original)) => context as f64 / original,
                _ => number("factor")?,
            };
            Some(yarn(rope, factor, context as f64))
        }
        other => return Err(unsupported("rope_type", other)),
    })
}

/// The dynamic scaling of a context of `original` positions.
fn dynamic(factor: f64, original: f64) -> Result<RopeScaling, ConfigError> {
    match (1.0..=MOST_POSITIONS).contains(&(factor * original)) {
        true => Ok(RopeScaling::Dynamic { factor, original_max_position_embeddings: original }),
        false => Err(unsupported("rope_scaling.factor", factor)),
    }
}

/// YaRN with this factor.
fn yarn(rope: &Value, factor: f64, context: f64) -> RopeScaling {
    let number = |name: &str, default: f64| rope[name].as_f64().unwrap_or(default);
    // The factor of attention by Peng et al. 2023, formula 22.
    let mscale = |weight: f64| if factor > 1.0 { 0.1 * weight * factor.ln() + 1.0 } else { 1.0 };
    let weights = ["mscale", "mscale_all_dim"]
        .map(|name| rope[name].as_f64().filter(|weight| *weight != 0.0));
    let attention_factor = match weights {
        [Some(some), Some(all)] => mscale(some) / mscale(all),
        _ => mscale(1.0),
    };
    RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: number("original_max_position_embeddings", context),
        beta_fast: number("beta_fast", 32.0),
        beta_slow: number("beta_slow", 1.0),
        attention_factor: number("attention_factor", attention_factor),
        truncate: rope["truncate"].as_bool().unwrap_or(true),
    }
}

/// The `config.json` of a shape.
pub fn to_config(shape: &DecoderShape, stop_tokens: &[u32]) -> Value {
    // Shortest in decimal: a conversion to f64 would show the rounding.
    let shortest = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
    let mut config = json!({
        "architectures": [shape.family.class],
        "model_type": shape.family.model_type,
        "vocab_size": shape.num_actions,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "rope_theta": shape.rope_theta,
        "rope_scaling": shape.rope_scaling,
        "partial_rotary_factor": shape.partial_rotary_factor,
        "rms_norm_eps": shortest(shape.rms_norm_eps),
        "hidden_act": match shape.activation {
            Activation::Relu => "relu",
            Activation::Tanh => "tanh",
            Activation::Silu => "silu",
            Activation::Gelu => "gelu_pytorch_tanh",
        },
        "attention_bias": shape.output_bias,
        "torch_dtype": "float32",
        "eos_token_id": stop_tokens.first(),
        "bos_token_id": null,
    });
    let more = (shape.family.describe)(shape);
    if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
        config.extend(more);
    }
    config
}

/// The layers of a model with sliding windows: `layer_types`, or by `default` where older files have none.
pub(super) fn sliding_layers(
    config: &Value,
    layers: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ConfigError> {
    let Some(types) = config["layer_types"].as_array() else {
        return Ok((0..layers).map(default).collect());
    };
    let is_sliding = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(unsupported("layer_types", kind.clone())),
    };
    let all: Vec<bool> = types.iter().map(is_sliding).collect::<Result<_, _>>()?;
    match all.len() == layers {
        true => Ok(all),
        false => Err(ConfigError::Sizes(format!("{layers} layers, {} `layer_types`", all.len()))),
    }
}

/// The entries of a `config.json` about sliding windows.
pub(super) fn describe_sliding(shape: &DecoderShape) -> Map<String, Value> {
    let mut entries = Map::new();
    let Some(SlidingWindow { size, layers, .. }) = &shape.sliding else { return entries };
    let types = layers.iter().map(|is_sliding| match is_sliding {
        true => json!("sliding_attention"),
        false => json!("full_attention"),
    });
    entries.insert("sliding_window".into(), json!(size));
    entries.insert("layer_types".into(), Value::Array(types.collect()));
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::arch::{NormPlacement, QkNorm, UNLIMITED};

    /// The `config.json` of a family, with other entries.
    fn config(model_type: &str, others: Value) -> Value {
        let mut config = json!({
            "model_type": model_type,
            "vocab_size": 11,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 20,
            "max_position_embeddings": 64,
        });
        let (Value::Object(entries), Value::Object(others)) = (&mut config, others) else {
            unreachable!("both are objects")
        };
        entries.extend(others);
        config
    }

    #[test]
    fn numbers_that_attention_cannot_compute_with_are_refused() {
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
        let theta = json!({ "rope_theta": 1.0, "rope_scaling": { "type": "yarn", "factor": 4.0 } });
        for (family, others, entry) in [
            ("mistral", json!({ "sliding_window": 0 }), "sliding_window"),
            ("gemma3_text", json!({ "sliding_window": 0 }), "sliding_window"),
            ("gemma3_text", json!({ "query_pre_attn_scalar": 0 }), "query_pre_attn_scalar"),
            ("gemma3_text", json!({ "query_pre_attn_scalar": -1 }), "query_pre_attn_scalar"),
            ("gemma3_text", json!({ "rope_local_base_freq": 0 }), "rope_local_base_freq"),
            ("llama", yarn("beta_fast", 0.0), "rope_scaling.beta_fast"),
            ("llama", yarn("beta_slow", -1.0), "rope_scaling.beta_slow"),
            ("llama", yarn("attention_factor", 0.0), "rope_scaling.attention_factor"),
            ("llama", theta, "rope_theta"),
            ("llama", llama3(0.0, 4.0), "rope_scaling.low_freq_factor"),
            ("llama", llama3(1.0, 1.0), "rope_scaling.high_freq_factor"),
        ] {
            match from_config(&config(family, others)) {
                Err(ConfigError::Value { name, .. }) => assert_eq!(name, entry),
                other => panic!("{family}, {entry}: {other:?}"),
            }
        }
        from_config(&config("llama", llama3(1.0, 4.0))).unwrap();
        from_config(&config("llama", yarn("factor", 4.0))).unwrap();
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
            for (number, scaling) in scalings.iter().enumerate() {
                let is_odd = number % 2 == 1;
                let others = json!({
                    "rope_scaling": scaling,
                    "rope_theta": 5e5,
                    "partial_rotary_factor": 0.75,
                    "rms_norm_eps": 1e-5,
                    "attention_bias": is_odd,
                    "mlp_bias": is_odd,
                    "tie_word_embeddings": is_odd,
                    "use_sliding_window": is_odd,
                    "sliding_window": 7,
                    "max_window_layers": 1,
                    "query_pre_attn_scalar": 9.0,
                });
                let shape = from_config(&config(family.model_type, others)).unwrap();
                assert_eq!((shape.partial_rotary_factor, shape.rope_theta), (0.75, 5e5));
                assert_eq!(from_config(&to_config(&shape, &[])).unwrap(), shape);
            }
        }
        let wide = config("mistral", json!({ "sliding_window": 1u64 << 32 }));
        assert_eq!(from_config(&wide).unwrap().windows(), [UNLIMITED; 2]);
        let found = |name: &str| from_config(&config(name, json!({}))).unwrap();
        assert_eq!(found("gemma3_text").activation, Activation::Gelu);
        assert_eq!(found("gemma3_text").norms, NormPlacement::Around);
        assert_eq!(found("olmo2").qk_norm, QkNorm::AllHeads);
    }
}
