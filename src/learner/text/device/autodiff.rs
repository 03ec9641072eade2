//! Texts in Burn's tensors, differentiated by autodiff: on devices that run no kernels.

use super::DevicePass;
use super::tokens::LossTokens;
use crate::device;
use crate::learner::text::differentiation::TokenGrads;
use crate::model::Categorical;
use crate::text::{
    Arenas, CompletionIndex, DeviceDecoder, EXCLUSION_OFFSET, HiddenStates, PromptWithCompletions,
    Retention, inverse_temperature,
};
use burn::tensor::Tensor;
use std::ops::Range;

/// A pass in tensors, differentiated by autodiff.
pub(super) struct AutodiffPass {
    /// The decoder; its trainable parameters are leaves of the autodiff graph unless the pass retains nothing.
    decoder: DeviceDecoder,
    states: HiddenStates,
}

impl AutodiffPass {
    /// The distributions of a part of the tokens over their candidates, from hidden states `[len, hidden_size]`.
    fn policy(
        &self,
        tokens: &LossTokens,
        part: Range<usize>,
        hidden: Tensor<2>,
        temperature: f32,
    ) -> Categorical {
        let logits = self.decoder.logits(hidden) * inverse_temperature(temperature);
        let candidates = tokens.candidates(part.clone());
        if candidates.clone().all(<[u32]>::is_empty) {
            return Categorical::new(logits);
        }
        let vocabulary = self.decoder.vocab_size();
        let mut offsets = vec![0.0; part.len() * vocabulary];
        for (row, candidates) in offsets.chunks_exact_mut(vocabulary).zip(candidates) {
            if !candidates.is_empty() {
                row.fill(-EXCLUSION_OFFSET);
                candidates.iter().for_each(|token| row[*token as usize] = 0.0);
            }
        }
        let offsets =
            device::upload(offsets, self.decoder.device()).reshape([part.len(), vocabulary]);
        Categorical::new(logits + offsets)
    }

    /// The hidden states that predict the tokens: `[count, hidden_size]`.
    fn hidden(&self, tokens: &LossTokens) -> Tensor<2> {
        self.states.hidden.clone().select(0, tokens.row_tensor(self.decoder.device()))
    }
}

impl<'a> DevicePass<'a> for AutodiffPass {
    fn forward(
        decoder: &'a DeviceDecoder,
        prompts: &[PromptWithCompletions],
        retention: Retention,
    ) -> Self {
        let decoder = match retention {
            Retention::Nothing => decoder.clone(),
            Retention::Inputs | Retention::All => decoder.with_autodiff(),
        };
        let states = decoder.forward_texts(prompts);
        Self { decoder, states }
    }

    fn prediction(&self, completion: CompletionIndex, token_index: usize) -> usize {
        self.states.prediction(completion, token_index)
    }

    fn evaluate(&self, tokens: &LossTokens, temperature: f32) -> [Vec<f32>; 2] {
        let hidden = self.hidden(tokens).without_autodiff();
        let chosen = tokens.token_tensor(self.decoder.device());
        let parts = tokens.split_into_parts(self.decoder.vocab_size()).map(|part| {
            let (start, len) = (part.start, part.len());
            let hidden = hidden.clone().narrow(0, start, len);
            let policy = self.policy(tokens, part, hidden, temperature);
            let logprobs = policy.logprob(chosen.clone().narrow(0, start, len));
            (logprobs.without_autodiff(), policy.entropy().without_autodiff())
        });
        let (logprobs, entropies): (Vec<_>, Vec<_>) = parts.unzip();
        let mut logprobs = device::read(Tensor::cat([logprobs, entropies].concat(), 0));
        let entropies = logprobs.split_off(tokens.rows.len());
        [logprobs, entropies]
    }

    fn backward(self, tokens: &LossTokens, temperature: f32, grads: TokenGrads) -> Arenas {
        let device = self.decoder.device();
        let hidden = self.hidden(tokens);
        let constant = hidden.clone().without_autodiff();
        let chosen = tokens.token_tensor(device);
        let [d_logprobs, weights] =
            [grads.d_logprobs, grads.entropy_weights].map(|x| device::upload(x, device));
        let mut gradient = self.decoder.trainable().zeros_like();
        let d_hidden = tokens.split_into_parts(self.decoder.vocab_size()).map(|part| {
            let (start, len) = (part.start, part.len());
            let narrow = |x: &Tensor<1>| x.clone().narrow(0, start, len);
            let hidden = constant.clone().narrow(0, start, len).autodiff().require_grad();
            let policy = self.policy(tokens, part, hidden.clone(), temperature);
            let logprobs = policy.logprob(chosen.clone().narrow(0, start, len));
            let loss = logprobs * narrow(&d_logprobs) - policy.entropy() * narrow(&weights);
            let mut grads = loss.sum().backward();
            let d_hidden = hidden.grad_remove(&mut grads).expect("log-probabilities depend on it");
            gradient.add(self.decoder.gradients(&mut grads), 1.0);
            d_hidden
        });
        let d_hidden = Tensor::cat(d_hidden.collect(), 0);
        let mut grads = (hidden * d_hidden).sum().backward();
        gradient.add(self.decoder.gradients(&mut grads), 1.0);
        gradient
    }
}
