//! Qwen3 (Yang et al. 2025): norms of the heads of queries and keys.

use super::entries::read_count;
use super::{Family, GgufForm, QkNorm, qwen2};

pub(super) static QWEN3: Family = Family {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    gguf: Some(GgufForm {
        architecture: "qwen3",
        qk_norm: QkNorm::PerHead,
        has_qkv_bias: false,
        has_output_and_mlp_bias: false,
        rotates_adjacent_pairs: false,
    }),
    has_rope_per_layer_type: false,
    configure: |config, shape| {
        shape.qk_norm = QkNorm::PerHead;
        shape.head_dim = read_count(config, "head_dim")?.unwrap_or(128);
        qwen2::configure_window(config, shape)
    },
    describe: qwen2::describe_window,
};
