//! Llama (Touvron et al. 2023), and models in its form such as SmolLM2.

use super::entries::is_on;
use super::{Family, GgufForm, QkNorm};

/// The form in GGUF files.
pub(super) const GGUF: GgufForm = GgufForm {
    architecture: "llama",
    qk_norm: QkNorm::None,
    has_qkv_bias: true,
    has_output_and_mlp_bias: true,
    rotates_adjacent_pairs: true,
};

pub(super) static LLAMA: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    gguf: Some(GGUF),
    has_rope_per_layer_type: false,
    configure: |config, shape| {
        shape.mlp_bias = is_on(config, "mlp_bias")?;
        Ok(())
    },
    describe: |shape, config| config["mlp_bias"] = shape.mlp_bias.into(),
};
