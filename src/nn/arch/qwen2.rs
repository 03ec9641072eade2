//! Qwen2 and Qwen2.5 (Yang et al. 2024): biases of queries, keys and values.

use super::config::{
    describe_sliding, read_sliding_layers, read_window_size, refuse_sliding_layers,
};
use super::entries::{is_on, read_count};
use super::{ConfigError, DecoderShape, Family, GgufForm, QkNorm, SlidingWindow};
use serde_json::Value;

pub(super) static QWEN2: Family = Family {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    gguf: Some(GgufForm {
        architecture: "qwen2",
        qk_norm: QkNorm::None,
        has_qkv_bias: true,
        has_output_and_mlp_bias: false,
        rotates_adjacent_pairs: false,
    }),
    has_rope_per_layer_type: false,
    configure: |config, shape| {
        (shape.qkv_bias, shape.output_bias) = (true, false);
        configure_window(config, shape)
    },
    describe: describe_window,
};

/// Sets the window of the layers from `max_window_layers` on, where it is switched on.
pub(super) fn configure_window(
    config: &Value,
    shape: &mut DecoderShape,
) -> Result<(), ConfigError> {
    if !is_on(config, "use_sliding_window")? {
        return refuse_sliding_layers(config);
    }
    let Some(size) = read_window_size(config)? else { return refuse_sliding_layers(config) };
    let first = read_count(config, "max_window_layers")?.unwrap_or(28);
    let layers = read_sliding_layers(config, shape.num_layers, |layer| layer >= first)?;
    shape.sliding = Some(SlidingWindow { size, layers, rope_theta: None });
    Ok(())
}

/// Adds the entries of a `config.json` that [`configure_window`] reads.
pub(super) fn describe_window(shape: &DecoderShape, config: &mut Value) {
    describe_sliding(shape, config);
    config["use_sliding_window"] = shape.sliding.is_some().into();
}
