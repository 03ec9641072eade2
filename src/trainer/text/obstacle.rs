//! The reasons why the run of a language model cannot be on its device.

use super::LanguageConfig;
use crate::device;
use crate::settings::{MomentPrecision, Precision};
use crate::text::TokenDecoder;
use burn::tensor::Device;

/// The reason why a run cannot be on a device, or on the CPU if `None`; `None` if it can.
#[cfg_attr(not(text_kernels), expect(unused_variables, reason = "no device takes the decoder"))]
pub(super) fn obstacle(
    config: &LanguageConfig,
    decoder: &TokenDecoder,
    device: Option<&Device>,
) -> Option<String> {
    let LanguageConfig { precision, update, optimizer, .. } = config;
    // The CPU has bf16 for texts.
    let in_bf16 = device.is_none() && *precision == Precision::Bf16;
    let obstacle = device::precision_obstacle(device, *precision).filter(|_| !in_bf16);
    if obstacle.is_some() {
        return obstacle;
    }
    let device = device?;
    if cfg!(not(text_kernels)) {
        return Some("this build has no kernels for language models; use the CPU".to_string());
    }
    if optimizer.moments != MomentPrecision::F32 {
        let what = "optimizer.moments is bf16, but a device keeps moments in f32; use the CPU, or leave it out";
        return Some(what.to_string());
    }
    if update.gradient_checkpointing && !device::has_kernels(device) {
        let what = "update.gradient_checkpointing needs the CPU, or a device that runs kernels";
        return Some(what.to_string());
    }
    #[cfg(text_kernels)]
    {
        let generates = !config.imitates() || config.checkpoint.eval_episodes > 0;
        let tokens = if generates { config.generation.max_new_tokens } else { 0 };
        crate::text::size_obstacle(decoder, *precision, tokens, device)
    }
    #[cfg(not(text_kernels))]
    {
        None
    }
}
