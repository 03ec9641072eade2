//! Mistral (Jiang et al. 2023): Llama's form, with a sliding window in all layers.

use super::config::{
    describe_sliding, read_sliding_layers, read_window_size, refuse_sliding_layers,
};
use super::{Family, SlidingWindow, llama};

pub(super) static MISTRAL: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    gguf: Some(llama::GGUF),
    has_rope_per_layer_type: false,
    configure: |config, shape| {
        (shape.qkv_bias, shape.output_bias) = (false, false);
        let Some(size) = read_window_size(config)? else { return refuse_sliding_layers(config) };
        let layers = read_sliding_layers(config, shape.num_layers, |_| true)?;
        shape.sliding = Some(SlidingWindow { size, layers, rope_theta: None });
        Ok(())
    },
    describe: describe_sliding,
};
