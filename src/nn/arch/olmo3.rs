//! OLMo 3 (OLMo Team 2025): OLMo 2's form, with a sliding window in three of four layers, whose rotary frequencies are
//! not scaled.

use super::config::{describe_sliding, read_sliding_layers, read_window_size};
use super::olmo2::OLMO2;
use super::rope::{read_rope_number, read_sliding_theta};
use super::{Family, SlidingWindow};
use serde_json::json;

/// The base of the rotary frequencies where a file has none.
const THETA: f64 = 5e5;

pub(super) static OLMO3: Family = Family {
    model_type: "olmo3",
    class: "Olmo3ForCausalLM",
    gguf: None,
    has_rope_per_layer_type: true,
    configure: |config, shape| {
        (OLMO2.configure)(config, shape)?;
        shape.rope_theta = read_rope_number(config, shape.family, "rope_theta")?.unwrap_or(THETA);
        shape.sliding = Some(SlidingWindow {
            size: read_window_size(config)?.unwrap_or(4096),
            layers: read_sliding_layers(config, shape.num_layers, |layer| (layer + 1) % 4 != 0)?,
            // As in `transformers`, where `rope_theta` is of full attention alone.
            rope_theta: Some(read_sliding_theta(config)?.unwrap_or(THETA)),
        });
        Ok(())
    },
    describe: |shape, config| {
        describe_sliding(shape, config);
        let plain = || json!({ "rope_type": "default" });
        let mut full = shape.rope_scaling.map_or_else(plain, |scaling| json!(scaling));
        full["rope_theta"] = json!(shape.rope_theta);
        let theta = shape.sliding.as_ref().and_then(|sliding| sliding.rope_theta);
        let sliding = json!({ "rope_type": "default", "rope_theta": theta });
        config["rope_parameters"] = json!({ "full_attention": full, "sliding_attention": sliding });
    },
};

#[cfg(test)]
mod tests {
    use crate::nn::arch::entries::sample_shape;
    use crate::nn::arch::{DecoderShape, RopeScaling};
    use serde_json::{Value, json};

    #[test]
    fn full_attention_alone_is_scaled() {
        let found = |mut others: Value| {
            others["num_hidden_layers"] = 4.into();
            let shape = sample_shape("olmo3", others).unwrap();
            assert_eq!(DecoderShape::from_config(&shape.to_config(&[])).unwrap(), shape);
            let sliding = shape.sliding.unwrap();
            assert_eq!((sliding.size, &sliding.layers[..]), (4096, &[true, true, true, false][..]));
            (shape.rope_theta, shape.rope_scaling, sliding.rope_theta.unwrap())
        };
        assert_eq!(found(json!({})), (5e5, None, 5e5));
        let scaling = json!({ "rope_type": "linear", "factor": 2.0 });
        let linear = Some(RopeScaling::Linear { factor: 2.0 });
        let old = json!({ "rope_theta": 1e4, "rope_scaling": scaling });
        assert_eq!(found(old), (1e4, linear, 5e5));
        let full = json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 1e4 });
        let each = json!({ "full_attention": full, "sliding_attention": { "rope_theta": 3e3 } });
        assert_eq!(found(json!({ "rope_parameters": each })), (1e4, linear, 3e3));
    }
}
