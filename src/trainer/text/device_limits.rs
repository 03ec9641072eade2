//! Checks that a language model's run, and each of its texts, fit the device.

use super::{LanguageConfig, LanguageEngine, LanguageTrainError};
use crate::device;
use crate::learner::text::Group;
use crate::model::DecoderShape;
use crate::settings::{MomentPrecision, Precision};
use crate::text::TokenDecoder;
use burn::tensor::Device;

/// Checks that a run can use `device`, or the CPU if `None`.
///
/// # Errors
/// If it cannot, with a reason.
#[cfg_attr(not(text_kernels), expect(unused_variables, reason = "no device takes the decoder"))]
pub(super) fn check_device(
    config: &LanguageConfig,
    decoder: &TokenDecoder,
    device: Option<&Device>,
) -> Result<(), String> {
    let LanguageConfig { precision, update, optimizer, .. } = config;
    // The CPU supports bf16 for language models.
    let is_bf16_on_cpu = device.is_none() && *precision == Precision::Bf16;
    if !is_bf16_on_cpu {
        device::check_precision(device, *precision)?;
    }
    let Some(device) = device else { return Ok(()) };
    if cfg!(not(text_kernels)) {
        return Err("this build has no kernels for language models; use the CPU".to_string());
    }
    if optimizer.moments != MomentPrecision::F32 {
        return Err(format!(
            "optimizer.moments is {}, but a device keeps moments in f32; use the CPU, or leave it out",
            optimizer.moments
        ));
    }
    if update.gradient_checkpointing && !device::has_kernels(device) {
        let what = "update.gradient_checkpointing needs the CPU, or a device that runs kernels";
        return Err(what.to_string());
    }
    #[cfg(text_kernels)]
    {
        let generates = !config.is_sft_only() || config.checkpoint.eval_episodes > 0;
        let tokens = if generates { config.generation.max_new_tokens } else { 0 };
        crate::text::check_fits_device(decoder, *precision, tokens, device)
    }
    #[cfg(not(text_kernels))]
    {
        Ok(())
    }
}

/// Maximum number of tokens of a prompt, and of a prompt with its distinct completions.
#[derive(Clone, Copy)]
pub(super) struct TokenLimits {
    pub prompt: usize,
    pub group: usize,
}

impl TokenLimits {
    /// No limit, as on the CPU.
    pub const UNLIMITED: Self = Self { prompt: usize::MAX, group: usize::MAX };

    /// The limits set by the buffers of a device.
    #[cfg(text_kernels)]
    pub fn new(device: &Device, shape: &DecoderShape) -> Self {
        let prompt = crate::text::max_prefill_tokens(shape, device);
        Self { prompt, group: crate::text::max_pass_tokens(shape, device) }
    }
}

impl LanguageEngine {
    /// Checks that there is room for a prompt with its distinct completions, which pass through the decoder together.
    /// `advice` is what the user can do besides using the CPU.
    ///
    /// # Errors
    /// If there is no room.
    pub(super) fn check_group(
        &self,
        group: &Group,
        advice: &str,
    ) -> Result<(), LanguageTrainError> {
        let (tokens, max_tokens) = (group.num_forward_tokens(), self.limits.group);
        if tokens <= max_tokens {
            return Ok(());
        }
        Err(LanguageTrainError::Settings(format!(
            "a prompt with its distinct completions has {tokens} tokens, but the device's buffers hold {max_tokens} \
             of them at a time: {advice}, or use the CPU"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::text::Sample;
    use crate::task::{self, Split};
    use crate::trainer::text::{LanguageTrainer, TINY};

    #[test]
    fn a_text_too_long_for_the_device_is_rejected_with_advice() {
        let found = task::find("sort").unwrap();
        let task = (found.open)((found.defaults)()).unwrap();
        let config = LanguageConfig::for_model(TINY);
        let mut trainer = LanguageTrainer::for_task(task, config, None).unwrap();
        trainer.engine.limits = TokenLimits { prompt: 1, group: 4 };
        let prompt = trainer.engine.task.prompt(Split::Train, 0).unwrap();
        let error = trainer.engine.tokenize_prompt(&prompt, 1).unwrap_err().to_string();
        let end = "but the device's buffers hold 1 of them at a time: leave such prompts out, or use the CPU";
        assert!(error.ends_with(end), "{error}");
        let check = |tokens: [u32; 2]| {
            let sample = |token: u32| Sample { tokens: vec![token; 2], ..Sample::default() };
            let group = Group { prompt: vec![0], samples: tokens.map(sample).to_vec() };
            trainer.engine.check_group(&group, "lower it")
        };
        assert!(check([1, 1]).is_ok());
        let error = check([1, 2]).unwrap_err().to_string();
        let want =
            "a prompt with its distinct completions has 5 tokens, but the device's buffers hold 4";
        assert!(error.starts_with(want) && error.contains("lower it"), "{error}");
    }
}
