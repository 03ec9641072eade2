//! Generation on a device: a batch of completions decodes one token per step. Tokens are sampled on the device, and
//! read back a block of steps at a time.

use super::decode::{BLOCK, Decode, Step};
use super::token_step::{KernelBatch, TokenStep};
use super::{Chosen, Completion, Generator, Prompt, Sampling, Scratch, choose};
use crate::device;
use crate::math::softmax::LEAST_SUM;
use crate::model::Categorical;
use crate::rng::{draw, uniform};
use crate::text::packed;
use crate::text::{Completions, DeviceDecoder, Prompts, integers, sharpness};
use burn::tensor::{Int, Tensor};
use std::collections::VecDeque;

/// Weights of a partial sum, so that the prefix sums of a large vocabulary stay short.
const PART: usize = 256;

/// The completions of each prompt, in order.
pub(super) fn generate(
    generator: &Generator,
    decoder: &DeviceDecoder,
    prompts: &[Prompt],
) -> Vec<Vec<Completion>> {
    let kernels = TokenStep::new(decoder);
    let mut all = Vec::with_capacity(prompts.len());
    // Prompts in one batch have equally many completions.
    for same in prompts.chunk_by(|a, b| a.completions == b.completions) {
        let members = same[0].completions;
        if members == 0 {
            all.extend(same.iter().map(|_| Vec::new()));
            continue;
        }
        for part in same.chunks((generator.slots / members).max(1)) {
            let batch = Batch::new(generator, all.len(), part);
            let tokens: Vec<&[u32]> = part.iter().map(|prompt| &prompt.tokens[..]).collect();
            if let Some(kernels) = &kernels {
                let prompts = packed::prefill(decoder, &tokens);
                let draws = batch.draws(decoder);
                let kernels =
                    KernelBatch::new(kernels, decoder, generator.sampling, prompts, draws);
                all.extend(batch.run(kernels));
                continue;
            }
            let tensors = TensorBatch::new(decoder, &batch, decoder.prompts(&tokens));
            all.extend(batch.run(tensors));
        }
    }
    all
}

/// A batch of prompts, each with `members` completions.
struct Batch<'a> {
    generator: &'a Generator<'a>,
    /// The index of the first prompt among all.
    first: usize,
    members: usize,
    /// The draws of all tokens: `[max_new_tokens, rows]`.
    draws: Vec<f32>,
    completions: Vec<Completion>,
}

impl<'a> Batch<'a> {
    fn new(generator: &'a Generator<'a>, first: usize, prompts: &[Prompt]) -> Self {
        let members = prompts[0].completions;
        let keys: Vec<u32> = prompts
            .iter()
            .flat_map(|prompt| (0..members).map(|member| draw(prompt.key, member as u32)))
            .collect();
        let draws = (0..generator.sampling.max_new_tokens)
            .flat_map(|at| keys.iter().map(move |key| uniform(draw(*key, at as u32))));
        let (draws, completions) = (draws.collect(), vec![Completion::default(); keys.len()]);
        Self { generator, first, members, draws, completions }
    }

    /// The draws on the device.
    fn draws(&self, decoder: &DeviceDecoder) -> Tensor<2> {
        let rows = self.completions.len();
        let draws = device::upload(self.draws.clone(), decoder.device());
        draws.reshape([self.generator.sampling.max_new_tokens, rows])
    }

    /// All completions, group by group.
    fn run(mut self, mut tokens: impl Decode) -> Vec<Vec<Completion>> {
        let most = self.generator.sampling.max_new_tokens;
        for start in (0..most).step_by(BLOCK) {
            let steps = BLOCK.min(most - start);
            (0..steps).for_each(|_| tokens.advance());
            if self.take_over(tokens.read(steps)) {
                break;
            }
        }
        self.completions.chunks(self.members).map(<[Completion]>::to_vec).collect()
    }

    /// Adds a block of tokens to the completions, and says whether all have come to their end.
    fn take_over(&mut self, block: Vec<Step>) -> bool {
        for mut step in block {
            for (row, completion) in self.completions.iter_mut().enumerate() {
                if completion.ended {
                    continue;
                }
                let chosen = Chosen {
                    token: step.tokens[row],
                    logprob: step.logprobs[row],
                    entropy: step.entropies[row],
                    candidates: step
                        .candidates
                        .get_mut(row)
                        .map(std::mem::take)
                        .unwrap_or_default(),
                };
                let place = [self.first + row / self.members, row % self.members];
                completion.push(chosen, self.generator, place);
            }
        }
        self.completions.iter().all(|completion| completion.ended)
    }
}

/// A batch in tensors, on a device that runs no kernels.
struct TensorBatch<'a> {
    decoder: &'a DeviceDecoder,
    sampling: &'a Sampling,
    prompts: Prompts,
    decoding: Completions,
    /// The draws of all tokens: `[max_new_tokens, rows]`.
    draws: Vec<f32>,
    /// A copy of the draws on the device.
    uploaded: Tensor<2>,
    /// The last choices, at most [`BLOCK`].
    block: VecDeque<Tokens>,
}

/// A token of each row, `[rows]`, with its log-probability and the entropy of the choice.
struct Tokens {
    tokens: Tensor<1, Int>,
    logprobs: Tensor<1>,
    entropies: Tensor<1>,
    /// The candidates of each row; none where nothing is left out.
    candidates: Vec<Vec<u32>>,
}

impl Decode for TensorBatch<'_> {
    fn advance(&mut self) {
        let rows = self.uploaded.dims()[1];
        let hidden = match self.block.back() {
            Some(last) => self.decoder.step(&self.prompts, &mut self.decoding, last.tokens.clone()),
            None => self.prompts.last_for(rows),
        };
        if self.block.len() == BLOCK {
            self.block.pop_front();
        }
        let number = self.decoding.count;
        self.block.push_back(self.choose(hidden, number));
    }

    fn read(&mut self, steps: usize) -> Vec<Step> {
        let rows = self.uploaded.dims()[1];
        let block = self.block.iter_mut().rev().take(steps).rev();
        let read = |one: &mut Tokens| {
            let Tokens { tokens, logprobs, entropies, candidates } = one;
            let all = [tokens.clone().float(), logprobs.clone(), entropies.clone()];
            // A token's number is exact in 24 bits.
            let all = device::fetch(Tensor::cat(all.to_vec(), 0));
            Step {
                tokens: all[..rows].iter().map(|token| *token as u32).collect(),
                logprobs: all[rows..2 * rows].to_vec(),
                entropies: all[2 * rows..].to_vec(),
                candidates: std::mem::take(candidates),
            }
        };
        block.map(read).collect()
    }
}

impl<'a> TensorBatch<'a> {
    fn new(decoder: &'a DeviceDecoder, batch: &Batch<'a>, prompts: Prompts) -> Self {
        let (rows, sampling) = (batch.completions.len(), batch.generator.sampling);
        Self {
            decoder,
            sampling,
            prompts,
            decoding: decoder.allocate_completions(rows, sampling.max_new_tokens),
            draws: batch.draws.clone(),
            uploaded: batch.draws(decoder),
            block: VecDeque::with_capacity(BLOCK),
        }
    }

    /// Chooses token number `at` of each row, from normed streams `[rows, hidden_size]`.
    fn choose(&self, hidden: Tensor<2>, at: usize) -> Tokens {
        let sampling = self.sampling;
        let logits = self.decoder.logits(hidden);
        if sampling.narrows() {
            return self.choose_here(logits, at);
        }
        let logits = logits * sharpness(sampling.temperature);
        let policy = Categorical::new(logits.clone());
        let tokens = if sampling.temperature == 0.0 {
            let rows = logits.dims()[0];
            logits.argmax(1).reshape([rows])
        } else {
            invert(policy.probabilities(), self.uploaded.clone().narrow(0, at, 1).flatten(0, 1))
        };
        let (logprobs, entropies) = (policy.logprob(tokens.clone()), policy.entropy());
        Tokens { tokens, logprobs, entropies, candidates: Vec::new() }
    }

    /// Chooses the next token of each row in the host's memory, where top-k, top-p and min-p are.
    fn choose_here(&self, logits: Tensor<2>, at: usize) -> Tokens {
        let [rows, vocabulary] = logits.dims();
        let draws = &self.draws[at * rows..][..rows];
        let logits = device::fetch(logits.reshape([rows * vocabulary]));
        let mut scratch = Scratch::default();
        let chosen: Vec<Chosen> = logits
            .chunks_exact(vocabulary)
            .zip(draws)
            .map(|(logits, u)| choose(logits, self.sampling, *u, &mut scratch))
            .collect();
        let device = self.decoder.device();
        let tokens: Vec<i32> = chosen.iter().map(|one| one.token as i32).collect();
        let upload =
            |of: fn(&Chosen) -> f32| device::upload(chosen.iter().map(of).collect(), device);
        Tokens {
            tokens: integers(&tokens, [rows, 1], device).reshape([rows]),
            logprobs: upload(|one| one.logprob),
            entropies: upload(|one| one.entropy),
            candidates: chosen.into_iter().map(|one| one.candidates).collect(),
        }
    }
}

/// The first token of each row at which the sum of the weights, `[rows, vocabulary]`, exceeds the share `u`,
/// `[rows]`, of all.
fn invert(weights: Tensor<2>, u: Tensor<1>) -> Tensor<1, Int> {
    let [rows, vocabulary] = weights.dims();
    let parts = vocabulary.div_ceil(PART);
    let fill = parts * PART - vocabulary;
    let weights = match fill {
        0 => weights,
        _ => Tensor::cat(vec![weights.clone(), Tensor::zeros([rows, fill], &weights.device())], 1),
    };
    let weights = weights.reshape([rows, parts, PART]);
    let sums = weights.clone().sum_dim(2).reshape([rows, parts]).cumsum(1);
    let total = sums.clone().narrow(1, parts - 1, 1);
    let target = (u.reshape([rows, 1]) * total).clamp_min(LEAST_SUM);
    let passed = |sums: Tensor<2>, target: Tensor<2>| {
        let [_, columns] = sums.dims();
        let passed = sums.clone().lower_equal(target.expand([rows, columns])).int();
        // Rounding alone leads beyond the last.
        passed.sum_dim(1).clamp(0, columns as i32 - 1)
    };
    let part = passed(sums.clone(), target.clone());
    // The sum before the part, and the weights in it.
    let before = Tensor::cat(vec![target.zeros_like(), sums], 1).gather(1, part.clone());
    let chosen = part.clone().reshape([rows, 1, 1]).expand([rows, 1, PART]);
    let weights = weights.gather(1, chosen).reshape([rows, PART]);
    let within = passed(weights.cumsum(1), target - before);
    let tokens = part * PART as i32 + within;
    tokens.clamp(0, vocabulary as i32 - 1).reshape([rows])
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn a_token_is_drawn_where_the_sum_of_the_weights_passes_the_draw() {
        let device = Device::flex();
        let vocabulary = 1000;
        let mut weights: Vec<f32> = (0..vocabulary).map(|i| (i as f32 * 0.7).sin().exp()).collect();
        // The least draw takes none of them.
        weights[..300].fill(1e-38);
        let draws = [0.0, 0.25, 0.5, 0.9, 0.999];
        let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        let rows = draws.map(|_| weights.clone()).concat();
        let rows = device::upload(rows, &device).reshape([draws.len(), vocabulary]);
        let found = invert(rows, device::upload(draws.to_vec(), &device));
        let found: Vec<i64> = found.into_data().iter::<i64>().collect();
        for (token, u) in found.into_iter().zip(draws) {
            let mut sum = 0.0;
            let wanted = weights.iter().position(|w| {
                sum += f64::from(*w);
                sum > (f64::from(u) * total).max(1e-30)
            });
            assert_eq!(Some(token as usize), wanted, "{u}");
        }
    }
}
