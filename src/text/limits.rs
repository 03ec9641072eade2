//! Limits of devices on the sizes of a language model.

use super::{TokenDecoder, packed};
use crate::device::{check_buffer_fits, check_workgroup_memory, max_addressable_bytes};
use crate::nn::Precision;
use crate::nn::arch::{DecoderShape, Parameter};
use crate::nn::tensors::products::ProductPrecision;
use burn::backend::DType;
use burn::tensor::Device;

/// The number of items of `item_bytes` bytes each that fit in a buffer of at most `max_bytes` bytes, at least 1.
pub(super) fn max_items(item_bytes: u64, max_bytes: Option<u64>) -> usize {
    let items = max_bytes.map_or(u64::MAX, |max_bytes| max_bytes / item_bytes);
    usize::try_from(items).unwrap_or(usize::MAX).max(1)
}

/// Size of the largest buffer needed to decode a completion of at most `tokens` tokens, bytes: keys or values of a
/// layer, which have type `dtype`, or logits.
pub(super) fn completion_bytes(shape: &DecoderShape, tokens: usize, dtype: DType) -> u64 {
    let cache = [tokens, shape.kv_size(), dtype.size()];
    let logits = [shape.vocab_size(), size_of::<f32>()];
    let product = |sizes: &[usize]| sizes.iter().map(|size| *size as u64).product::<u64>();
    product(&cache).max(product(&logits))
}

/// Maximum number of tokens, at least 1, that a device has buffers for when it prefills a prompt.
pub(crate) fn max_prefill_tokens(shape: &DecoderShape, device: &Device) -> usize {
    max_items(packed::forward_bytes(shape), max_addressable_bytes(device))
}

/// Maximum number of tokens, at least 1, that a device has buffers for in a forward and backward pass.
pub(crate) fn max_pass_tokens(shape: &DecoderShape, device: &Device) -> usize {
    max_items(packed::backward_bytes(shape), max_addressable_bytes(device))
}

/// Checks that a decoder fits on a device if its prompts with completions have at most `tokens` tokens.
///
/// # Errors
/// If it does not fit, with the reason and what to change.
pub(crate) fn check_fits_device(
    decoder: &TokenDecoder,
    precision: Precision,
    tokens: usize,
    device: &Device,
) -> Result<(), String> {
    let (shape, adapters) = (decoder.shape(), decoder.adapters());
    let mut parameters = shape.parameters();
    parameters.extend(adapters.into_iter().flat_map(|adapters| adapters.parameters().to_vec()));
    let largest = parameters.iter().max_by_key(|parameter| parameter.num_elements());
    let check_parameter = |parameter: &Parameter| {
        let bytes = (parameter.num_elements() * size_of::<f32>()) as u64;
        check_buffer_fits(device, &parameter.name, bytes)
    };
    let attention_bytes = packed::attention_bytes(shape);
    largest
        .map_or(Ok(()), check_parameter)
        .and_then(|()| check_workgroup_memory(device, "the model's attention", attention_bytes))
        .map_err(|reason| format!("{reason}: use another device, such as the CPU"))?;
    let bytes = completion_bytes(shape, tokens, ProductPrecision::new(precision).dtype());
    check_buffer_fits(device, "the KV cache of a completion", bytes)
        .map_err(|reason| format!("{reason}: lower generation.max_new_tokens, or use the CPU"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_as_many_items_as_fit() {
        let shape = DecoderShape {
            num_outputs: 40,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 8,
            ..DecoderShape::default()
        };
        assert_eq!(completion_bytes(&shape, 100, DType::F32), 100 * 2 * 8 * 4);
        assert_eq!(completion_bytes(&shape, 100, DType::F16), 100 * 2 * 8 * 2);
        assert_eq!(completion_bytes(&shape, 1, DType::F32), 40 * 4);
        assert_eq!(max_items(6400, None), usize::MAX);
        assert_eq!(max_items(6400, Some(64 * 6400)), 64);
        assert_eq!(max_items(6400, Some(64 * 6400 - 1)), 63);
        assert_eq!(max_items(6400, Some(6399)), 1);
    }
}
