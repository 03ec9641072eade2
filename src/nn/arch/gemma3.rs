//! Gemma 3 (Gemma Team 2025), text alone: norms around the blocks, a GELU gate, scaled embeddings, and local attention
//! with different rotary frequencies in most layers.

use super::config::{
    activation_name, describe_sliding, read_activation, read_sliding_layers, read_window_size,
};
use super::entries::{check_off, read_count, read_number, read_switch};
use super::rope::{read_rope_number, read_sliding_theta};
use super::{Family, NormPlacement, QkNorm, SlidingWindow};
use crate::math::Activation;

pub(super) static GEMMA3: Family = Family {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    gguf: None,
    has_rope_per_layer_type: true,
    configure: |config, shape| {
        for name in
            ["attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"]
        {
            check_off(config, name)?;
        }
        shape.norm_placement = NormPlacement::Around;
        shape.norm_offset = 1.0;
        shape.qk_norm = QkNorm::PerHead;
        shape.activation =
            read_activation(config, "hidden_activation")?.unwrap_or(Activation::Gelu);
        shape.embedding_scale = (shape.hidden_size as f64).sqrt() as f32;
        shape.query_pre_attn_scalar =
            Some(read_number(config, "query_pre_attn_scalar")?.unwrap_or(256.0));
        shape.head_dim = read_count(config, "head_dim")?.unwrap_or(256);
        shape.tie_word_embeddings = read_switch(config, "tie_word_embeddings")?.unwrap_or(true);
        shape.rope_theta = read_rope_number(config, shape.family, "rope_theta")?.unwrap_or(1e6);
        let pattern = read_count(config, "sliding_window_pattern")?.unwrap_or(6).max(1);
        let theta = read_sliding_theta(config)?.or(read_number(config, "rope_local_base_freq")?);
        shape.sliding = Some(SlidingWindow {
            size: read_window_size(config)?.unwrap_or(4096),
            layers: read_sliding_layers(config, shape.num_layers, |i| (i + 1) % pattern != 0)?,
            rope_theta: Some(theta.unwrap_or(1e4)),
        });
        Ok(())
    },
    describe: |shape, config| {
        describe_sliding(shape, config);
        let local = shape.sliding.as_ref().and_then(|sliding| sliding.rope_theta);
        config["rope_local_base_freq"] = local.into();
        config["query_pre_attn_scalar"] = shape.query_pre_attn_scalar.into();
        config["hidden_activation"] = activation_name(shape.activation).into();
    },
};

#[cfg(test)]
mod tests {
    use crate::nn::arch::entries::sample_shape;
    use serde_json::json;

    #[test]
    fn the_pattern_of_windows_has_one_name() {
        let layers = |name: &str| {
            let others = json!({ "num_hidden_layers": 6, name: 2 });
            let shape = sample_shape("gemma3_text", others).unwrap();
            shape.sliding.unwrap().layers
        };
        let sixth = [true, true, true, true, true, false];
        assert_eq!(layers("sliding_window_pattern"), [true, false, true, false, true, false]);
        // `transformers` writes this one beside `layer_types`, and does not read it.
        assert_eq!(layers("_sliding_window_pattern"), sixth);
    }
}
