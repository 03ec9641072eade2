//! The names of a decoder's parameters in files.

use super::{DecoderShape, NormPlacement};

/// The name of a parameter in GGUF files, after `llama.cpp`'s `gguf-py/gguf/tensor_mapping.py`.
pub fn gguf_name(shape: &DecoderShape, name: &str) -> String {
    match name {
        "embed_tokens.weight" => return "token_embd.weight".to_string(),
        "norm.weight" => return "output_norm.weight".to_string(),
        "lm_head.weight" => return "output.weight".to_string(),
        _ => {}
    }
    let path: Vec<&str> = name.split('.').collect();
    let [.., module, suffix] = path[..] else { return name.to_string() };
    let module = match module {
        "input_layernorm" => "attn_norm",
        "q_proj" => "attn_q",
        "k_proj" => "attn_k",
        "v_proj" => "attn_v",
        "o_proj" => "attn_output",
        "q_norm" => "attn_q_norm",
        "k_norm" => "attn_k_norm",
        "post_attention_layernorm" if shape.norm_placement == NormPlacement::Before => "ffn_norm",
        "post_attention_layernorm" => "post_attention_norm",
        "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "gate_proj" => "ffn_gate",
        "up_proj" => "ffn_up",
        "down_proj" => "ffn_down",
        other => other,
    };
    format!("blk.{}.{module}.{suffix}", path.get(1).copied().unwrap_or_default())
}
