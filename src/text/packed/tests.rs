//! Memory of the activations that a pass keeps for its backward pass.

use super::PackedPass;
use super::forward::{Activations, KeptLayer};
use crate::nn::Precision;
use crate::nn::arch::DecoderShape;
use crate::text::{PromptWithCompletions, Retention, TokenDecoder, upload_decoder};
use burn_cubecl::tensor::CubeTensor;

#[test]
fn a_layer_of_64_units_keeps_less_than_8_mib_of_4096_tokens() {
    let Some(device) = crate::device::adapters().into_iter().next() else { return };
    let shape = DecoderShape {
        num_outputs: 8,
        hidden_size: 64,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        intermediate_size: 192,
        context: 128,
        ..DecoderShape::default()
    };
    let params = vec![0.01f32; shape.num_params()];
    let decoder = TokenDecoder::new(shape, params).with_device(Some(device), Precision::F32);
    let decoder = upload_decoder(&decoder).unwrap();
    let prompt = [1u32; 128];
    let texts = [PromptWithCompletions { prompt: &prompt, completions: Vec::new() }];
    let pass = PackedPass::forward(&decoder, &texts, Retention::All);
    for KeptLayer { stream, activations } in &pass.layers {
        let kept = activations.as_ref().unwrap();
        assert!(kept.values.is_none() && kept.up.is_none());
        let Activations {
            queries,
            keys,
            attended,
            log_sum_exp_and_delta,
            stream_after_attention,
            gate,
            ..
        } = kept;
        let all =
            [stream, queries, keys, attended, log_sum_exp_and_delta, stream_after_attention, gate];
        // A part of a buffer would keep all of it.
        let ends = |x: &CubeTensor| [x.handle.offset_start, x.handle.offset_end];
        assert!(all.iter().all(|x| ends(x).iter().all(|end| end.unwrap_or(0) == 0)));
        let numbers: usize = all.iter().map(|x| x.meta.num_elements()).sum();
        assert!(numbers * size_of::<f32>() * (4096 / 128) < 8 << 20, "{numbers} numbers");
    }
}
