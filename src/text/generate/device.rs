//! Generation on a device: a batch of completions decodes one token per step. Kernels choose the tokens on the device,
//! and they are read back a block of steps at a time; without kernels they are chosen on the host.

use super::decode::{Decode, READ_BACK_STEPS};
use super::token_step::{KernelBatch, TokenStep};
use super::{Completion, CompletionRequest, Generator, SampledToken, Sampling, Scratch, choose};
use crate::device;
use crate::nn::arch::DecoderShape;
use crate::rng::{draw, uniform};
use crate::text::limits::{completion_bytes, max_items};
use crate::text::packed;
use crate::text::{CompletionCaches, CompletionIndex, DeviceDecoder, PromptCaches};
use burn::backend::DType;
use std::ops::Range;

/// Maximum sizes of prompts that are prefilled together, by the buffers of a device.
struct PrefillCapacity {
    /// Tokens of a pass.
    tokens: usize,
    /// Tokens of the cache, in which every prompt takes as many as the longest.
    cached_tokens: usize,
}

impl PrefillCapacity {
    /// The capacity of buffers of at most `max_bytes` bytes; keys and values are of this type.
    fn new(shape: &DecoderShape, dtype: DType, max_bytes: Option<u64>) -> Self {
        let cached_bytes = (shape.kv_size() * dtype.size()) as u64;
        Self {
            tokens: max_items(packed::forward_bytes(shape), max_bytes),
            cached_tokens: max_items(cached_bytes, max_bytes),
        }
    }

    /// Counts the prompts, from the first on, that can be prefilled together, at least 1.
    fn count_fitting(&self, prompts: &[CompletionRequest]) -> usize {
        let (mut tokens, mut longest) = (0usize, 0usize);
        let fitting = prompts.iter().enumerate().take_while(|(index, prompt)| {
            tokens += prompt.tokens.len();
            longest = longest.max(prompt.tokens.len());
            tokens <= self.tokens && (*index + 1).saturating_mul(longest) <= self.cached_tokens
        });
        fitting.count().max(1)
    }
}

/// Generates the completions of each prompt, in order.
pub(super) fn generate(
    generator: &Generator,
    decoder: &DeviceDecoder,
    prompts: &[CompletionRequest],
) -> Vec<Vec<Completion>> {
    let token_step = TokenStep::new(decoder);
    let Sampling { max_new_tokens, .. } = *generator.sampling;
    let model = &decoder.module;
    let (shape, dtype) = (model.shape(), model.products.dtype());
    let max_bytes = device::max_addressable_bytes(decoder.device());
    let max_rows = max_items(completion_bytes(shape, max_new_tokens, dtype), max_bytes);
    let rows = generator.num_slots.min(max_rows).max(1);
    let capacity = PrefillCapacity::new(shape, dtype, max_bytes);
    let mut completions = Vec::with_capacity(prompts.len());
    // Prompts in one batch have equally many completions.
    for similar in prompts.chunk_by(|a, b| a.num_completions == b.num_completions) {
        let completions_per_prompt = similar[0].num_completions;
        if completions_per_prompt == 0 {
            completions.extend(similar.iter().map(|_| Vec::new()));
            continue;
        }
        let mut rest = similar;
        while !rest.is_empty() {
            let together = (rows / completions_per_prompt).clamp(1, rest.len());
            let (batch, unbatched) = rest.split_at(capacity.count_fitting(&rest[..together]));
            rest = unbatched;
            let token_step = token_step.as_ref();
            let first_index = completions.len();
            completions.extend(complete(generator, decoder, token_step, first_index, batch, rows));
        }
    }
    completions
}

/// Generates the completions of prompts that have equally many, at most `rows` at a time. `first_index` is the
/// index of the first prompt among all.
fn complete(
    generator: &Generator,
    decoder: &DeviceDecoder,
    token_step: Option<&TokenStep>,
    first_index: usize,
    requests: &[CompletionRequest],
    rows: usize,
) -> Vec<Vec<Completion>> {
    let (completions_per_prompt, sampling) = (requests[0].num_completions, generator.sampling);
    let tokens: Vec<&[u32]> = requests.iter().map(|prompt| &prompt.tokens[..]).collect();
    let prefilled = match token_step {
        Some(_) => packed::prefill(decoder, &tokens),
        None => decoder.prefill(&tokens),
    };
    let mut completions = vec![Vec::new(); requests.len()];
    // A single prompt may have more completions than there are rows.
    for start in (0..completions_per_prompt).step_by(rows) {
        let range = start..completions_per_prompt.min(start.saturating_add(rows));
        let batch = Batch::new(generator, first_index, requests, range);
        let prompts = prefilled.clone();
        let decoded = if let Some(token_step) = token_step {
            let draws = device::upload(batch.draws.clone(), decoder.device());
            let draws = draws.reshape([sampling.max_new_tokens, batch.rows()]);
            batch.run(KernelBatch::new(token_step, decoder, sampling, prompts, draws))
        } else {
            let tensors = TensorBatch::new(decoder, &batch, prompts);
            batch.run(tensors)
        };
        for (completions, more) in completions.iter_mut().zip(decoded) {
            completions.extend(more);
        }
    }
    completions
}

/// A batch of prompts, with some completions of each.
struct Batch<'a> {
    generator: &'a Generator<'a>,
    /// The index of the first prompt among all.
    first_index: usize,
    /// The indices of the completions among all of their prompt.
    completion_indices: Range<usize>,
    /// The draws of all tokens: `[max_new_tokens, rows]`.
    draws: Vec<f32>,
    completions: Vec<Completion>,
}

impl<'a> Batch<'a> {
    fn new(
        generator: &'a Generator<'a>,
        first_index: usize,
        prompts: &[CompletionRequest],
        completion_indices: Range<usize>,
    ) -> Self {
        let keys: Vec<u32> = prompts
            .iter()
            .flat_map(|prompt| completion_indices.clone().map(|i| draw(prompt.key, i as u32)))
            .collect();
        let draws = (0..generator.sampling.max_new_tokens)
            .flat_map(|at| keys.iter().map(move |key| uniform(draw(*key, at as u32))));
        let (draws, completions) = (draws.collect(), vec![Completion::default(); keys.len()]);
        Self { generator, first_index, completion_indices, draws, completions }
    }

    fn rows(&self) -> usize {
        self.completions.len()
    }

    /// Decodes all completions, and returns them prompt by prompt.
    fn run(mut self, mut decode: impl Decode) -> Vec<Vec<Completion>> {
        let max_new_tokens = self.generator.sampling.max_new_tokens;
        for start in (0..max_new_tokens).step_by(READ_BACK_STEPS) {
            let steps = READ_BACK_STEPS.min(max_new_tokens - start);
            (0..steps).for_each(|_| decode.advance());
            if self.append(decode.read(steps)) {
                break;
            }
        }
        self.completions.chunks(self.completion_indices.len()).map(<[Completion]>::to_vec).collect()
    }

    /// Appends a block of tokens to the completions. Returns whether all of them have ended.
    fn append(&mut self, block: Vec<Vec<SampledToken>>) -> bool {
        let completions_per_prompt = self.completion_indices.len();
        for step in block {
            for (row, (completion, chosen)) in self.completions.iter_mut().zip(step).enumerate() {
                if !completion.is_terminated {
                    let index = CompletionIndex {
                        text: self.first_index + row / completions_per_prompt,
                        completion: self.completion_indices.start + row % completions_per_prompt,
                    };
                    completion.push(chosen, self.generator, index);
                }
            }
        }
        self.completions.iter().all(|completion| completion.is_terminated)
    }
}

/// A batch in tensors, on a device that runs no kernels.
struct TensorBatch<'a> {
    decoder: &'a DeviceDecoder,
    sampling: &'a Sampling,
    prompts: PromptCaches,
    completions: CompletionCaches,
    /// The draws of all tokens: `[max_new_tokens, rows]`.
    draws: Vec<f32>,
    rows: usize,
    /// The tokens chosen last: `[rows]`; empty before the first choice.
    last_tokens: Vec<i32>,
    /// The choices that have not been read yet.
    unread: Vec<Vec<SampledToken>>,
    scratch: Scratch,
}

impl<'a> TensorBatch<'a> {
    fn new(decoder: &'a DeviceDecoder, batch: &Batch<'a>, prompts: PromptCaches) -> Self {
        let (rows, sampling) = (batch.rows(), batch.generator.sampling);
        Self {
            decoder,
            sampling,
            prompts,
            completions: decoder.allocate_completions(rows, sampling.max_new_tokens),
            draws: batch.draws.clone(),
            rows,
            last_tokens: Vec::new(),
            unread: Vec::new(),
            scratch: Scratch::default(),
        }
    }
}

impl Decode for TensorBatch<'_> {
    fn advance(&mut self) {
        let rows = self.rows;
        let hidden = if self.last_tokens.is_empty() {
            self.prompts.last_hidden_for(rows)
        } else {
            let tokens = device::upload_indices(&self.last_tokens, self.decoder.device());
            self.decoder.step(&self.prompts, &mut self.completions, tokens)
        };
        let draws = &self.draws[self.completions.num_tokens * rows..][..rows];
        let logits = self.decoder.logits(hidden);
        let [_, vocabulary] = logits.dims();
        let logits = device::fetch(logits.reshape([rows * vocabulary]));
        let logit_rows = logits.chunks_exact(vocabulary).zip(draws);
        let choose_token =
            |(row, u): (&[f32], &f32)| choose(row, self.sampling, *u, &mut self.scratch);
        let chosen: Vec<SampledToken> = logit_rows.map(choose_token).collect();
        self.last_tokens = chosen.iter().map(|choice| choice.token as i32).collect();
        self.unread.push(chosen);
    }

    fn read(&mut self, _: usize) -> Vec<Vec<SampledToken>> {
        std::mem::take(&mut self.unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_prefilled_together_while_buffers_hold_them() {
        let capacity = PrefillCapacity { tokens: 10, cached_tokens: 12 };
        let count = |lengths: &[usize]| {
            let prompt = |tokens: &usize| CompletionRequest {
                tokens: vec![0; *tokens],
                num_completions: 1,
                key: 0,
            };
            capacity.count_fitting(&lengths.iter().map(prompt).collect::<Vec<_>>())
        };
        assert_eq!(count(&[2]), 1);
        assert_eq!(count(&[3, 3, 4, 1]), 3);
        assert_eq!(count(&[5, 1, 1]), 2);
        assert_eq!(count(&[20, 1]), 1);
    }
}
