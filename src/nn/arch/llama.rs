//! Llama (Touvron et al. 2023), and models in its form such as SmolLM2.

use super::Family;
use super::entries::is_on;
use serde_json::json;

pub(super) static LLAMA: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    gguf: "llama",
    ropes_by_kind: false,
    configure: |config, shape| {
        shape.mlp_bias = is_on(config, "mlp_bias")?;
        Ok(())
    },
    describe: |shape| json!({ "mlp_bias": shape.mlp_bias }),
};
