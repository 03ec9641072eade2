//! Generation on a device: a batch of completions decodes one token per step. Kernels choose the tokens on the device,
//! and they are read back a block of steps at a time; without kernels they are chosen on the host.

use super::decode::{BLOCK, Decode};
use super::token_step::{KernelBatch, TokenStep};
use super::{Chosen, Completion, Generator, Prompt, Sampling, Scratch, choose};
use crate::device;
use crate::rng::{draw, uniform};
use crate::text::packed;
use crate::text::{Completions, DeviceDecoder, Prompts, integers};

/// Generates the completions of each prompt, in order.
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
                let draws = device::upload(batch.draws.clone(), decoder.device());
                let draws = draws.reshape([generator.sampling.max_new_tokens, batch.rows()]);
                let decode = KernelBatch::new(kernels, decoder, generator.sampling, prompts, draws);
                all.extend(batch.run(decode));
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

    fn rows(&self) -> usize {
        self.completions.len()
    }

    /// Decodes all completions, and returns them prompt by prompt.
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

    /// Appends a block of tokens to the completions. Returns whether all of them have ended.
    fn take_over(&mut self, block: Vec<Vec<Chosen>>) -> bool {
        for step in block {
            for (row, (completion, chosen)) in self.completions.iter_mut().zip(step).enumerate() {
                if !completion.ended {
                    let place = [self.first + row / self.members, row % self.members];
                    completion.push(chosen, self.generator, place);
                }
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
    rows: usize,
    /// The tokens chosen last: `[rows]`; empty before the first choice.
    last: Vec<i32>,
    /// The choices that have not been read yet.
    block: Vec<Vec<Chosen>>,
    scratch: Scratch,
}

impl<'a> TensorBatch<'a> {
    fn new(decoder: &'a DeviceDecoder, batch: &Batch<'a>, prompts: Prompts) -> Self {
        let (rows, sampling) = (batch.rows(), batch.generator.sampling);
        Self {
            decoder,
            sampling,
            prompts,
            decoding: decoder.allocate_completions(rows, sampling.max_new_tokens),
            draws: batch.draws.clone(),
            rows,
            last: Vec::new(),
            block: Vec::new(),
            scratch: Scratch::default(),
        }
    }
}

impl Decode for TensorBatch<'_> {
    fn advance(&mut self) {
        let rows = self.rows;
        let hidden = match self.last.is_empty() {
            true => self.prompts.last_for(rows),
            false => {
                let tokens = integers(&self.last, [rows, 1], self.decoder.device());
                self.decoder.step(&self.prompts, &mut self.decoding, tokens.reshape([rows]))
            }
        };
        let draws = &self.draws[self.decoding.count * rows..][..rows];
        let logits = self.decoder.logits(hidden);
        let [_, vocabulary] = logits.dims();
        let logits = device::fetch(logits.reshape([rows * vocabulary]));
        let rows = logits.chunks_exact(vocabulary).zip(draws);
        let choose = |(row, u): (&[f32], &f32)| choose(row, self.sampling, *u, &mut self.scratch);
        let chosen: Vec<Chosen> = rows.map(choose).collect();
        self.last = chosen.iter().map(|one| one.token as i32).collect();
        self.block.push(chosen);
    }

    fn read(&mut self, _: usize) -> Vec<Vec<Chosen>> {
        std::mem::take(&mut self.block)
    }
}
