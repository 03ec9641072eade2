//! Kernels for texts, with a hand-written backward pass.

use super::DevicePass;
use super::tokens::LossTokens;
use crate::device;
use crate::learner::text::differentiation::TokenGrads;
use crate::text::packed::{Gradients, PackedPass, Targets, scatter_add_parts};
use crate::text::{
    Arenas, CompletionIndex, DeviceDecoder, PromptWithCompletions, Retention, inverse_temperature,
};
use burn::tensor::{Int, Tensor};
use std::ops::Range;

/// A pass in kernels.
pub(super) struct KernelPass<'a> {
    decoder: &'a DeviceDecoder,
    pass: PackedPass<'a>,
}

impl KernelPass<'_> {
    /// The tokens in parts that pass through the head one after the other, and the range of each part.
    fn targets(
        &self,
        tokens: &LossTokens,
        temperature: f32,
    ) -> impl Iterator<Item = (Range<usize>, Targets<'_>)> {
        let device = self.decoder.device();
        let (rows, chosen) = (tokens.row_tensor(device), tokens.token_tensor(device));
        tokens.split_into_parts(self.decoder.vocab_size()).map(move |part| {
            let narrow = |values: &Tensor<1, Int>| values.clone().narrow(0, part.start, part.len());
            // Part by part: equal completions share rows, so that the rows of all tokens could be many times the pass.
            let hidden = self.pass.hidden().select(0, narrow(&rows));
            let chosen = narrow(&chosen);
            let candidates = tokens.candidates(part.clone());
            let targets = Targets::new(
                self.decoder,
                hidden,
                chosen,
                candidates,
                inverse_temperature(temperature),
            );
            (part, targets)
        })
    }
}

impl<'a> DevicePass<'a> for KernelPass<'a> {
    fn forward(
        decoder: &'a DeviceDecoder,
        prompts: &[PromptWithCompletions],
        retention: Retention,
    ) -> Self {
        Self { decoder, pass: PackedPass::forward(decoder, prompts, retention) }
    }

    fn prediction(&self, completion: CompletionIndex, token_index: usize) -> usize {
        self.pass.prediction(completion, token_index)
    }

    fn evaluate(&self, tokens: &LossTokens, temperature: f32) -> [Vec<f32>; 2] {
        let parts =
            self.targets(tokens, temperature).map(|(_, targets)| targets.logprobs_and_entropies());
        let results = Tensor::cat(parts.collect(), 1);
        let count = tokens.rows.len();
        let mut logprobs = device::read(results.reshape([2 * count]));
        let entropies = logprobs.split_off(count);
        [logprobs, entropies]
    }

    fn backward(self, tokens: &LossTokens, temperature: f32, grads: TokenGrads) -> Arenas {
        let device = self.decoder.device();
        let count = tokens.rows.len();
        let grads = [grads.d_logprobs, grads.entropy_weights].concat();
        let grads = device::upload(grads, device).reshape([2, count]);
        let mut gradients = Gradients::new(self.decoder);
        // Part by part: equal completions share rows, so that the tokens could be many times the rows of the pass.
        let d_tokens = self.targets(tokens, temperature).map(|(part, targets)| {
            let grads = grads.clone().narrow(1, part.start, part.len());
            (targets.backward(grads, &mut gradients), &tokens.rows[part])
        });
        let d_hidden =
            scatter_add_parts(d_tokens, Tensor::zeros(self.pass.hidden().dims(), device));
        self.pass.backward(d_hidden, &mut gradients);
        gradients.into_arenas()
    }
}
