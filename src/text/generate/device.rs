//! Generation on a device: a batch of completions decodes one token per step. Tokens are sampled on the device, and
//! read back a block of steps at a time.

#[cfg(feature = "kernels")]
use super::token_step::{self, Choices, TokenStep};
use super::{Chosen, Completion, Generator, Prompt, Scratch, choose};
use crate::device;
use crate::math::softmax::LEAST_SUM;
use crate::model::Categorical;
use crate::rng::{draw, uniform};
#[cfg(feature = "kernels")]
use crate::text::packed;
use crate::text::{Completions, DeviceDecoder, Prompts, integers, sharpness};
use burn::tensor::{Int, Tensor};
#[cfg(feature = "kernels")]
use rayon::prelude::*;

/// Decoding steps between two read-backs, which tell which completions have ended.
const BLOCK: usize = 8;
/// Weights of a partial sum, so that the prefix sums of a large vocabulary stay short.
const PART: usize = 256;

/// The completions of each prompt, in order.
pub(super) fn generate(
    generator: &Generator,
    decoder: &DeviceDecoder,
    prompts: &[Prompt],
) -> Vec<Vec<Completion>> {
    let mut all = Vec::with_capacity(prompts.len());
    let stepper = Stepper::new(decoder);
    // Prompts in one batch have equally many completions.
    for same in prompts.chunk_by(|a, b| a.completions == b.completions) {
        let members = same[0].completions;
        if members == 0 {
            all.extend(same.iter().map(|_| Vec::new()));
            continue;
        }
        for part in same.chunks((generator.slots / members).max(1)) {
            let first = all.len();
            all.extend(Batch::new(generator, &stepper, part, members).run(first));
        }
    }
    all
}

/// A decoder and, where the device runs them, the kernels of its token step.
struct Stepper<'a> {
    decoder: &'a DeviceDecoder,
    #[cfg(feature = "kernels")]
    kernels: Option<TokenStep>,
}

impl<'a> Stepper<'a> {
    fn new(decoder: &'a DeviceDecoder) -> Self {
        Self {
            decoder,
            #[cfg(feature = "kernels")]
            kernels: TokenStep::new(decoder),
        }
    }

    /// Takes prompts through all layers.
    fn prompts(&self, prompts: &[&[u32]]) -> Prompts {
        #[cfg(feature = "kernels")]
        if self.kernels.is_some() {
            return packed::prefill(self.decoder, prompts);
        }
        self.decoder.prompts(prompts)
    }

    /// Takes the next token of each row through all layers.
    fn step(
        &self,
        prompts: &Prompts,
        decoding: &mut Completions,
        tokens: Tensor<1, Int>,
    ) -> Tensor<2> {
        #[cfg(feature = "kernels")]
        if let Some(kernels) = &self.kernels {
            return kernels.step(self.decoder, prompts, decoding, tokens);
        }
        self.decoder.step(prompts, decoding, tokens)
    }
}

/// A batch of prompts, each with `members` completions.
struct Batch<'a> {
    generator: &'a Generator<'a>,
    stepper: &'a Stepper<'a>,
    members: usize,
    prompts: Prompts,
    decoding: Completions,
    /// The draws of all tokens: `[max_new_tokens, rows]`.
    draws: Vec<f32>,
    /// A copy of the draws on the device.
    uploaded: Tensor<2>,
    completions: Vec<Completion>,
}

/// A token of each row, `[rows]`, with its log-probability and the entropy of the choice.
struct Tokens {
    tokens: Tensor<1, Int>,
    logprobs: Tensor<1>,
    entropies: Tensor<1>,
    /// The candidates of each row; none where nothing is left out, or masks tell.
    candidates: Vec<Vec<u32>>,
    /// Masks of the candidates, `[rows, masks]`, where a kernel has found them.
    masks: Option<Tensor<2>>,
}

impl<'a> Batch<'a> {
    fn new(
        generator: &'a Generator<'a>,
        stepper: &'a Stepper<'a>,
        prompts: &[Prompt],
        members: usize,
    ) -> Self {
        let decoder = stepper.decoder;
        let (rows, most) = (prompts.len() * members, generator.sampling.max_new_tokens);
        let tokens: Vec<&[u32]> = prompts.iter().map(|prompt| &prompt.tokens[..]).collect();
        let keys: Vec<u32> = prompts
            .iter()
            .flat_map(|prompt| (0..members).map(|member| draw(prompt.key, member as u32)))
            .collect();
        let draws =
            (0..most).flat_map(|at| keys.iter().map(move |key| uniform(draw(*key, at as u32))));
        let draws: Vec<f32> = draws.collect();
        let uploaded = device::upload(draws.clone(), decoder.device()).reshape([most, rows]);
        Self {
            generator,
            stepper,
            members,
            prompts: stepper.prompts(&tokens),
            decoding: decoder.room(rows, most),
            draws,
            uploaded,
            completions: vec![Completion::default(); rows],
        }
    }

    /// All completions, group by group; the first prompt is number `first` of all.
    fn run(mut self, first: usize) -> Vec<Vec<Completion>> {
        let rows = self.completions.len();
        let [groups, size] = self.prompts.last.dims();
        let last = self.prompts.last.clone().reshape([groups, 1, size]);
        let mut hidden = last.expand([groups, self.members, size]).reshape([rows, size]);
        let mut block: Vec<Tokens> = Vec::with_capacity(BLOCK);
        let most = self.generator.sampling.max_new_tokens;
        for at in 0..most {
            let chosen = self.choose(hidden.clone(), at);
            let is_last = at + 1 == most;
            let tokens = chosen.tokens.clone();
            block.push(chosen);
            if (block.len() == BLOCK || is_last) && self.read_back(&mut block, first) {
                break;
            }
            if !is_last {
                hidden = self.stepper.step(&self.prompts, &mut self.decoding, tokens);
            }
        }
        self.completions.chunks(self.members).map(<[Completion]>::to_vec).collect()
    }

    /// Takes the tokens of a block over, and says whether all completions have come to their end.
    fn read_back(&mut self, block: &mut Vec<Tokens>, first: usize) -> bool {
        let rows = self.completions.len();
        let (mut all, mut candidates) = (Vec::new(), Vec::new());
        let mut words = 0;
        for one in block.drain(..) {
            all.extend([one.tokens.float(), one.logprobs, one.entropies]);
            if let Some(masks) = one.masks {
                words = masks.dims()[1];
                all.push(masks.reshape([rows * words]));
            }
            candidates.push(one.candidates);
        }
        // A token's number is exact in 24 bits.
        let all = device::fetch(Tensor::cat(all, 0));
        let Generator { sampling, stop, listener, .. } = self.generator;
        for (step, mut candidates) in candidates.into_iter().enumerate() {
            let all = &all[step * (3 + words) * rows..][..(3 + words) * rows];
            let of = |which: usize| &all[which * rows..][..rows];
            let [tokens, logprobs, entropies] = [of(0), of(1), of(2)];
            #[cfg(feature = "kernels")]
            if words > 0 {
                let vocabulary = self.stepper.decoder.vocabulary();
                let masks = all[3 * rows..].par_chunks_exact(words);
                candidates = masks.map(|row| token_step::candidates(row, vocabulary)).collect();
            }
            for (row, completion) in self.completions.iter_mut().enumerate() {
                if completion.ended {
                    continue;
                }
                completion.tokens.push(tokens[row] as u32);
                completion.logprobs.push(logprobs[row]);
                completion.entropies.push(entropies[row]);
                completion.candidates.extend(candidates.get_mut(row).map(std::mem::take));
                if let Some(listener) = listener {
                    let (prompt, number) = (first + row / self.members, row % self.members);
                    listener(prompt, number, &completion.tokens);
                }
                completion.ended = sampling.stop_tokens.contains(&(tokens[row] as u32))
                    || stop.is_some_and(|stop| stop(&completion.tokens));
            }
        }
        self.completions.iter().all(|completion| completion.ended)
    }

    /// The next token of each row, from normed streams `[rows, hidden_size]`.
    fn choose(&self, hidden: Tensor<2>, at: usize) -> Tokens {
        let sampling = self.generator.sampling;
        let logits = self.stepper.decoder.logits(hidden);
        #[cfg(feature = "kernels")]
        if self.stepper.kernels.is_some() {
            let temperature = sampling.temperature;
            let sharpness = (temperature > 0.0).then(|| sharpness(temperature));
            let Choices { tokens, logprobs, entropies, masks } = match sampling.narrows() {
                true => token_step::narrow(logits, &self.uploaded, at, sampling),
                false => token_step::choose(logits, &self.uploaded, at, sharpness),
            };
            return Tokens { tokens, logprobs, entropies, candidates: Vec::new(), masks };
        }
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
        let logprobs = policy.logprob(tokens.clone());
        Tokens {
            logprobs,
            entropies: policy.entropy(),
            tokens,
            candidates: Vec::new(),
            masks: None,
        }
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
            .map(|(logits, u)| choose(logits, self.generator.sampling, *u, &mut scratch))
            .collect();
        let device = self.stepper.decoder.device();
        let tokens: Vec<i32> = chosen.iter().map(|one| one.token as i32).collect();
        let upload =
            |of: fn(&Chosen) -> f32| device::upload(chosen.iter().map(of).collect(), device);
        Tokens {
            tokens: integers(&tokens, [rows, 1], device).reshape([rows]),
            logprobs: upload(|one| one.logprob),
            entropies: upload(|one| one.entropy),
            candidates: chosen.into_iter().map(|one| one.candidates).collect(),
            masks: None,
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

#[cfg(all(test, feature = "flex"))]
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
