//! OLMo 2 (OLMo Team 2024): norms after the blocks, and of queries and keys over all heads.

use super::{Family, NormPlacement, QkNorm};

pub(super) static OLMO2: Family = Family {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    gguf: None,
    has_rope_per_layer_type: false,
    configure: |config, shape| {
        shape.norm_placement = NormPlacement::After;
        shape.qk_norm = QkNorm::AllHeads;
        if config["rms_norm_eps"].is_null() {
            shape.rms_norm_eps = 1e-5;
        }
        Ok(())
    },
    describe: |_, _| {},
};
