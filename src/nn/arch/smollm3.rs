//! SmolLM3 (Bakouch et al. 2025): Llama's form, without rotary positions in every fourth layer (NoPE).

use super::config::{describe_sliding, read_sliding_layers, refuse_sliding_layers};
use super::entries::{
    check_layer_list, is_on, read_count, read_entry, read_switch, unsupported_error,
};
use super::rope::read_rope_number;
use super::{ConfigError, Family, SlidingWindow};
use serde_json::Value;

pub(super) static SMOLLM3: Family = Family {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    gguf: None,
    has_rope_per_layer_type: false,
    configure: |config, shape| {
        shape.mlp_bias = is_on(config, "mlp_bias")?;
        shape.tie_word_embeddings = read_switch(config, "tie_word_embeddings")?.unwrap_or(true);
        shape.rope_theta = read_rope_number(config, shape.family, "rope_theta")?.unwrap_or(2e6);
        let rotated = read_rope_layers(config, shape.num_layers)?;
        let size = read_count(config, "sliding_window")?;
        let is_windowed = size.is_some() && is_on(config, "use_sliding_window")?;
        let layers =
            read_sliding_layers(config, shape.num_layers, |layer| is_windowed && !rotated[layer])?;
        if size.is_none() {
            refuse_sliding_layers(config)?;
        }
        shape.sliding = size.filter(|_| layers.contains(&true)).map(|size| SlidingWindow {
            size,
            layers,
            rope_theta: None,
        });
        shape.rope_layers = Some(rotated);
        Ok(())
    },
    describe: |shape, config| {
        describe_sliding(shape, config);
        let rotated = shape.rope_layers.iter().flatten().map(|is_rotated| u8::from(*is_rotated));
        config["no_rope_layers"] = rotated.collect();
        config["use_sliding_window"] = shape.sliding.is_some().into();
        config["mlp_bias"] = shape.mlp_bias.into();
    },
};

/// Whether each layer rotates: the flags of `no_rope_layers`, which are 0 for layers that do not, or else all but
/// every layer of an interval.
fn read_rope_layers(config: &Value, num_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let name = "no_rope_layers";
    let Some(flags) = read_entry(config, name, "a list", Value::as_array)? else {
        let interval = read_count(config, "no_rope_layer_interval")?.unwrap_or(4);
        return match interval {
            0 => Err(unsupported_error("no_rope_layer_interval", 0)),
            _ => Ok((1..=num_layers).map(|layer| layer % interval != 0).collect()),
        };
    };
    let is_rotated = |flag: &Value| match flag.as_u64() {
        Some(flag) => Ok(flag != 0),
        None => Err(unsupported_error(name, flag.clone())),
    };
    let layers = flags.iter().take(num_layers).map(is_rotated).collect::<Result<_, _>>()?;
    check_layer_list(name, layers, num_layers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::arch::DecoderShape;
    use crate::nn::arch::entries::sample_shape;
    use serde_json::json;

    fn shape_with(name: &str, value: Value) -> Result<DecoderShape, ConfigError> {
        let others = json!({ "use_sliding_window": true, name: value });
        sample_shape("smollm3", others)
    }

    #[test]
    fn layers_without_rotation_are_those_of_transformers() {
        let no_window = Value::Null;
        let plain = shape_with("sliding_window", no_window).unwrap();
        assert_eq!((plain.rope_layers, plain.rope_theta), (Some(vec![true; 3]), 2e6));
        assert!(plain.sliding.is_none() && plain.tie_word_embeddings);
        let rotated =
            |name: &str, value: Value| shape_with(name, value).unwrap().rope_layers.unwrap();
        assert_eq!(rotated("no_rope_layer_interval", json!(2)), [true, false, true]);
        // The list may be longer.
        assert_eq!(rotated("no_rope_layers", json!([0, 1, 0, 1])), [false, true, false]);
        for layers in [json!([1, 0]), json!([1, -1, 0]), json!(["1", 0, 1]), json!(1)] {
            let error = shape_with("no_rope_layers", layers).unwrap_err().to_string();
            assert!(error.contains("no_rope_layers"), "{error}");
        }
        assert!(shape_with("no_rope_layer_interval", json!(0)).is_err());
    }

    #[test]
    fn a_window_is_of_the_layers_that_do_not_rotate() {
        let mut config = shape_with("no_rope_layers", json!([1, 0, 1])).unwrap().to_config(&[]);
        config["sliding_window"] = 9.into();
        config["use_sliding_window"] = true.into();
        let shape = DecoderShape::from_config(&config).unwrap();
        assert_eq!(shape.sliding.as_ref().unwrap().layers, [false, true, false]);
        assert_eq!(DecoderShape::from_config(&shape.to_config(&[])).unwrap(), shape);
        assert_eq!([0, 1, 2].map(|layer| shape.rope_table_index(layer)), [0, 1, 0]);
        let unrotated = &shape.rope_tables()[1];
        assert!(unrotated.at(77).all(|rotation| rotation == [1.0, 0.0]));
    }
}
