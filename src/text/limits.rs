//! Sizes of a language model that must fit the limits of its device.

use super::generate::row_bytes;
use super::{TokenDecoder, packed};
use crate::device::{buffer_obstacle, workgroup_obstacle};
use crate::nn::Precision;
use crate::nn::arch::Parameter;
use crate::nn::tensors::products::Products;
use burn::tensor::Device;

/// The reason why a decoder has no room on a device if it completes prompts with `tokens` tokens at most, and the way
/// out; `None` if it has.
pub(crate) fn size_obstacle(
    decoder: &TokenDecoder,
    precision: Precision,
    tokens: usize,
    device: &Device,
) -> Option<String> {
    let (shape, adapters) = (decoder.shape(), decoder.adapters());
    let mut parameters = shape.parameters();
    parameters.extend(adapters.into_iter().flat_map(|adapters| adapters.parameters().to_vec()));
    let largest = parameters.iter().max_by_key(|parameter| parameter.count());
    let of_largest = |parameter: &Parameter| {
        let bytes = (parameter.count() * size_of::<f32>()) as u64;
        buffer_obstacle(device, &parameter.name, bytes)
    };
    let of_model = largest.and_then(of_largest).or_else(|| {
        workgroup_obstacle(device, "the model's attention", packed::attention_bytes(shape))
    });
    if let Some(obstacle) = of_model {
        return Some(format!("{obstacle}: use another device, such as the CPU"));
    }
    let bytes = row_bytes(shape, tokens, Products::new(precision).dtype());
    let obstacle = buffer_obstacle(device, "the KV cache of a completion", bytes)?;
    Some(format!("{obstacle}: lower generation.max_new_tokens, or use the CPU"))
}
