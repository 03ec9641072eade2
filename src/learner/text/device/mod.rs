//! The gradient of an optimizer step over texts on a device.
//!
//! Texts pass through the layers once forward and once backward ([`DevicePass`]): in kernels where the device runs
//! them, else by autodiff. Between the two, the head processes a part of the tokens at a time, twice: for their
//! log-probabilities, from which the gradient of the loss is computed in host memory, and for the backward pass. So the
//! logits of all tokens never exist at once.

mod autodiff;
mod kernels;
mod optimizer;
mod optimizer_kernels;
mod tokens;

use super::LanguageLearner;
use super::differentiation::{Differentiation, TokenGrads, TokenSums, split_into_parts};
use super::group::{Group, Sample, deduplicate_texts};
use super::shard_sums::ShardSums;
use crate::device;
use crate::settings::Precision;
use crate::text::{
    Arenas, CompletionIndex, DeviceDecoder, PromptWithCompletions, Retention, TokenDecoder,
    max_pass_tokens, upload_decoder,
};
use autodiff::AutodiffPass;
use burn::tensor::Device;
use kernels::KernelPass;
pub(super) use optimizer::{DeviceMoments, step};
use std::ops::Range;
use tokens::LossTokens;

/// Maximum number of tokens of a forward and backward pass, unless a single group has more; fewer if the device has no
/// buffers for them.
const MAX_PASS_TOKENS: usize = 8192;

/// Splits the chosen groups into parts that pass through a decoder together.
fn split_into_device_parts<'a>(
    decoder: &DeviceDecoder,
    groups: &[Group],
    chosen: &'a [usize],
) -> Vec<&'a [usize]> {
    let max_tokens = max_pass_tokens(decoder.module.shape(), decoder.device());
    split_into_parts(groups, chosen, MAX_PASS_TOKENS.min(max_tokens))
}

/// A pass of prompts with their completions through a decoder on a device.
trait DevicePass<'a> {
    /// Computes the forward pass through all layers.
    fn forward(
        decoder: &'a DeviceDecoder,
        prompts: &[PromptWithCompletions],
        retention: Retention,
    ) -> Self;

    /// The row that predicts the token `token_index` of a completion.
    fn prediction(&self, completion: CompletionIndex, token_index: usize) -> usize;

    /// Computes the log-probabilities of tokens at a temperature, and the entropies of their distributions.
    fn evaluate(&self, tokens: &LossTokens, temperature: f32) -> [Vec<f32>; 2];

    /// Computes the gradients of the trainable parameters from the gradients of the tokens.
    fn backward(self, tokens: &LossTokens, temperature: f32, grads: TokenGrads) -> Arenas;
}

/// The decoder on its device, if it has one. For kernels its matrices are rounded to the precision of products, which
/// then read half as much memory.
fn decoder_for_passes(decoder: &TokenDecoder) -> Option<DeviceDecoder> {
    let decoder = upload_decoder(decoder)?;
    Some(if device::has_kernels(decoder.device()) { decoder.round_matrices() } else { decoder })
}

/// Log-probabilities of all tokens, by group, sample and token; `None` if the decoder is on the CPU.
pub(super) fn compute_logprobs(
    decoder: &TokenDecoder,
    groups: &[Group],
    temperature: f32,
) -> Option<Vec<Vec<Vec<f32>>>> {
    let decoder = decoder_for_passes(decoder)?;
    let indices: Vec<usize> = (0..groups.len()).collect();
    let evaluate_part = |part: &[usize]| {
        let groups: Vec<&Group> = part.iter().map(|i| &groups[*i]).collect();
        if device::has_kernels(decoder.device()) {
            part_logprobs::<KernelPass>(&decoder, &groups, temperature)
        } else {
            part_logprobs::<AutodiffPass>(&decoder, &groups, temperature)
        }
    };
    let parts = split_into_device_parts(&decoder, groups, &indices);
    Some(parts.into_iter().flat_map(evaluate_part).collect())
}

/// Log-probabilities of all tokens of groups that pass through the decoder together.
fn part_logprobs<'a, P: DevicePass<'a>>(
    decoder: &'a DeviceDecoder,
    groups: &[&Group],
    temperature: f32,
) -> Vec<Vec<Vec<f32>>> {
    let (texts, completions) = deduplicate_texts(groups);
    let pass = P::forward(decoder, &texts, Retention::Nothing);
    let prediction = |completion, token_index| pass.prediction(completion, token_index);
    let tokens = LossTokens::new(groups, &completions, prediction, |_, _| true);
    // Without completions there is no token to evaluate.
    let [logprobs, _] = if tokens.rows.is_empty() {
        Default::default()
    } else {
        pass.evaluate(&tokens, temperature)
    };
    let mut samples = tokens.split_by_sample(logprobs).into_iter();
    groups.iter().map(|group| samples.by_ref().take(group.samples.len()).collect()).collect()
}

/// Gradients of the trainable parameters; `None` if no loss has reached them yet.
#[derive(Debug, Default)]
pub(super) struct DeviceGradient(Option<Arenas>);

impl DeviceGradient {
    /// Adds gradients that were scaled by `scale`.
    fn add(&mut self, more: Arenas, scale: f32) {
        self.0.get_or_insert_with(|| more.zeros_like()).add(more, scale);
    }

    /// Downloads the gradient of all trainable parameters, `[num_trainable]`.
    pub fn read(self, num_trainable: usize) -> Vec<f32> {
        match self.0 {
            Some(all) => all.download(device::read),
            None => vec![0.0; num_trainable],
        }
    }
}

/// The gradient and the sums of the chosen groups in several shards at once; `None` if the decoder is on the CPU.
pub(super) fn partial_sum(
    differentiation: &Differentiation,
    chosen: &[usize],
    shards: &Range<usize>,
) -> Option<ShardSums> {
    let chosen = differentiation.select_shards(chosen, shards.clone());
    let (gradient, sums) = compute_gradient(differentiation, chosen)?;
    let vector = gradient.read(differentiation.decoder.num_trainable());
    Some(ShardSums::new(shards.clone(), vector, sums))
}

/// The gradient of the chosen groups, which stays on the device, and their sums; `None` if the decoder is on the CPU.
pub(super) fn compute_gradient(
    differentiation: &Differentiation,
    chosen: &[usize],
) -> Option<(DeviceGradient, TokenSums)> {
    let decoder = decoder_for_passes(differentiation.decoder)?;
    let (mut gradient, mut sums) = (DeviceGradient::default(), TokenSums::default());
    let add = if device::has_kernels(decoder.device()) {
        Differentiation::add_device_gradient::<KernelPass>
    } else {
        Differentiation::add_device_gradient::<AutodiffPass>
    };
    for part in split_into_device_parts(&decoder, differentiation.groups, chosen) {
        add(differentiation, &decoder, part, &mut gradient, &mut sums);
    }
    Some((gradient, sums))
}

impl LanguageLearner {
    /// Moves generation and learning to a device, with products in this precision. Weights and moments stay there,
    /// unless other ranks share the run: gradients are then summed in host memory.
    pub fn with_device(self, device: Device, precision: Precision) -> Self {
        let transfer = |decoder: TokenDecoder| decoder.with_device(Some(device.clone()), precision);
        Self { decoder: transfer(self.decoder), reference: self.reference.map(transfer), ..self }
    }
}

impl Differentiation<'_> {
    /// Adds the gradient of the `chosen` groups, which pass through the decoder together, and their sums.
    fn add_device_gradient<'a, P: DevicePass<'a>>(
        &self,
        decoder: &'a DeviceDecoder,
        chosen: &[usize],
        gradient: &mut DeviceGradient,
        sums: &mut TokenSums,
    ) {
        let temperature = self.settings.temperature;
        let groups: Vec<&Group> = chosen.iter().map(|i| &self.groups[*i]).collect();
        let (texts, completions) = deduplicate_texts(&groups);
        let pass = P::forward(decoder, &texts, self.retention());
        let prediction = |completion, token_index| pass.prediction(completion, token_index);
        let is_counted = |sample: &Sample, token: usize| sample.mask[token];
        let tokens = LossTokens::new(&groups, &completions, prediction, is_counted);
        let [logprobs, entropies] = pass.evaluate(&tokens, temperature);

        let logprobs = tokens.split_by_sample(logprobs);
        let references = self.select_references(chosen);
        let grads =
            self.differentiate_samples(&tokens.samples, &logprobs, references.as_deref(), sums);
        let mut grads = tokens.gather_by_token(&grads);
        for (entropy, weight) in entropies.iter().zip(&grads.entropy_weights) {
            sums.entropy += f64::from(*entropy);
            sums.loss -= f64::from(weight * entropy);
        }
        // Scaled into the range of half precision, by a power of two, which does not affect rounding.
        let scale = decoder.loss_scale(grads.d_logprobs.iter().chain(&grads.entropy_weights));
        let TokenGrads { d_logprobs, entropy_weights } = &mut grads;
        d_logprobs.iter_mut().chain(entropy_weights).for_each(|x| *x *= scale);
        gradient.add(pass.backward(&tokens, temperature, grads), scale);
    }
}
