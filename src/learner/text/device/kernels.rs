//! Kernels for texts, with a hand-written backward pass.

use super::DevicePass;
use super::tokens::LossTokens;
use crate::device;
use crate::learner::text::differentiation::TokenGrads;
use crate::text::packed::{Gradients, PackedPass, Targets, scattered};
use crate::text::{Arenas, DeviceDecoder, PromptWithCompletions, Retention, sharpness};
use burn::tensor::{Int, Tensor};

/// A pass in kernels.
pub(super) struct KernelPass<'a> {
    on: &'a DeviceDecoder,
    pass: PackedPass<'a>,
}

impl KernelPass<'_> {
    /// The tokens in parts that pass through the head one after the other, with the start and length of each.
    fn targets(
        &self,
        tokens: &LossTokens,
        temperature: f32,
    ) -> impl Iterator<Item = (Targets<'_>, [usize; 2])> {
        let device = self.on.device();
        let (rows, chosen) = (tokens.row_tensor(device), tokens.tokens(device));
        tokens.parts(self.on.vocabulary()).map(move |part| {
            let (start, len) = (part.start, part.len());
            let of_part = |all: &Tensor<1, Int>| all.clone().narrow(0, start, len);
            // Part by part: equal completions share rows, and those of all tokens can be many times the pass.
            let hidden = self.pass.hidden().select(0, of_part(&rows));
            let chosen = of_part(&chosen);
            let candidates = tokens.candidates(part);
            let targets = Targets::new(self.on, hidden, chosen, candidates, sharpness(temperature));
            (targets, [start, len])
        })
    }
}

impl<'a> DevicePass<'a> for KernelPass<'a> {
    fn forward(
        on: &'a DeviceDecoder,
        texts: &[PromptWithCompletions],
        retention: Retention,
    ) -> Self {
        Self { on, pass: PackedPass::forward(on, texts, retention) }
    }

    fn prediction(&self, completion: [usize; 2], at: usize) -> usize {
        self.pass.prediction(completion, at)
    }

    fn evaluate(&self, tokens: &LossTokens, temperature: f32) -> [Vec<f32>; 2] {
        let parts =
            self.targets(tokens, temperature).map(|(targets, _)| targets.logprobs_and_entropies());
        let all = Tensor::cat(parts.collect(), 1);
        let count = tokens.rows.len();
        let mut logprobs = device::fetch(all.reshape([2 * count]));
        let entropies = logprobs.split_off(count);
        [logprobs, entropies]
    }

    fn backward(self, tokens: &LossTokens, temperature: f32, grads: TokenGrads) -> Arenas {
        let device = self.on.device();
        let count = tokens.rows.len();
        let grads = [grads.d_logprobs, grads.entropy_weights].concat();
        let grads = device::upload(grads, device).reshape([2, count]);
        let mut gradients = Gradients::new(self.on);
        let d_tokens = self.targets(tokens, temperature).map(|(targets, [start, len])| {
            targets.backward(grads.clone().narrow(1, start, len), &mut gradients)
        });
        let d_tokens = Tensor::cat(d_tokens.collect(), 0);
        let rows = self.pass.hidden().dims()[0];
        let d_hidden = scattered(d_tokens, &tokens.rows, rows);
        self.pass.backward(d_hidden, &mut gradients);
        gradients.into_arenas()
    }
}
