//! Generation on a device: a batch of completions decodes one token per step. Kernels choose the tokens on the device,
//! and they are read back a block of steps at a time; without kernels they are chosen on the host.

use super::decode::{BLOCK, Decode};
use super::token_step::{KernelBatch, TokenStep};
use super::{Chosen, Completion, Generator, Prompt, Sampling, Scratch, choose};
use crate::device;
use crate::nn::arch::DecoderShape;
use crate::rng::{draw, uniform};
use crate::text::packed;
use crate::text::{Completions, DeviceDecoder, Prompts, integers};
use burn::backend::DType;
use std::ops::Range;

/// The size of the largest buffer that a completion of at most `tokens` tokens decodes in, bytes: its keys or its values of
/// a layer, which are of this type, or its logits.
pub(crate) fn row_bytes(shape: &DecoderShape, tokens: usize, dtype: DType) -> u64 {
    let cache = [tokens, shape.kv_size(), dtype.size()];
    let logits = [shape.num_actions, size_of::<f32>()];
    let bytes = |sizes: &[usize]| sizes.iter().map(|size| *size as u64).product::<u64>();
    bytes(&cache).max(bytes(&logits))
}

/// Completions that decode at a time: as many as there are slots, if buffers of `most` bytes hold that many of
/// [`row_bytes`].
fn rows(slots: usize, row_bytes: u64, most: Option<u64>) -> usize {
    let fitting = most.map_or(u64::MAX, |most| most / row_bytes);
    slots.min(usize::try_from(fitting).unwrap_or(usize::MAX)).max(1)
}

/// Generates the completions of each prompt, in order.
pub(super) fn generate(
    generator: &Generator,
    decoder: &DeviceDecoder,
    prompts: &[Prompt],
) -> Vec<Vec<Completion>> {
    let kernels = TokenStep::new(decoder);
    let Sampling { max_new_tokens, .. } = *generator.sampling;
    let model = &decoder.decoder;
    let row_bytes = row_bytes(model.shape(), max_new_tokens, model.products.dtype());
    let rows = rows(generator.slots, row_bytes, device::largest_buffer(decoder.device()));
    let mut all = Vec::with_capacity(prompts.len());
    // Prompts in one batch have equally many completions.
    for same in prompts.chunk_by(|a, b| a.completions == b.completions) {
        let members = same[0].completions;
        if members == 0 {
            all.extend(same.iter().map(|_| Vec::new()));
            continue;
        }
        for part in same.chunks((rows / members).max(1)) {
            let tokens: Vec<&[u32]> = part.iter().map(|prompt| &prompt.tokens[..]).collect();
            let prefilled = match &kernels {
                Some(_) => packed::prefill(decoder, &tokens),
                None => decoder.prompts(&tokens),
            };
            let mut completions = vec![Vec::new(); part.len()];
            // Those of a single prompt may be more than the rows.
            for start in (0..members).step_by(rows) {
                let own = start..members.min(start.saturating_add(rows));
                let batch = Batch::new(generator, all.len(), part, own);
                let prompts = prefilled.clone();
                let some = if let Some(kernels) = &kernels {
                    let draws = device::upload(batch.draws.clone(), decoder.device());
                    let draws = draws.reshape([max_new_tokens, batch.rows()]);
                    let sampling = generator.sampling;
                    batch.run(KernelBatch::new(kernels, decoder, sampling, prompts, draws))
                } else {
                    let tensors = TensorBatch::new(decoder, &batch, prompts);
                    batch.run(tensors)
                };
                completions.iter_mut().zip(some).for_each(|(all, some)| all.extend(some));
            }
            all.extend(completions);
        }
    }
    all
}

/// A batch of prompts, with some completions of each.
struct Batch<'a> {
    generator: &'a Generator<'a>,
    /// The index of the first prompt among all.
    first: usize,
    /// The indices of the completions among those of their prompt.
    members: Range<usize>,
    /// The draws of all tokens: `[max_new_tokens, rows]`.
    draws: Vec<f32>,
    completions: Vec<Completion>,
}

impl<'a> Batch<'a> {
    fn new(
        generator: &'a Generator<'a>,
        first: usize,
        prompts: &[Prompt],
        members: Range<usize>,
    ) -> Self {
        let keys: Vec<u32> = prompts
            .iter()
            .flat_map(|prompt| members.clone().map(|member| draw(prompt.key, member as u32)))
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
        self.completions.chunks(self.members.len()).map(<[Completion]>::to_vec).collect()
    }

    /// Appends a block of tokens to the completions. Returns whether all of them have ended.
    fn take_over(&mut self, block: Vec<Vec<Chosen>>) -> bool {
        let members = self.members.len();
        for step in block {
            for (row, (completion, chosen)) in self.completions.iter_mut().zip(step).enumerate() {
                if !completion.ended {
                    let number = self.members.start + row % members;
                    let place = [self.first + row / members, number];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_decode_as_many_at_a_time_as_the_largest_buffer_holds() {
        let shape = DecoderShape {
            num_actions: 40,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 8,
            ..DecoderShape::default()
        };
        assert_eq!(row_bytes(&shape, 100, DType::F32), 100 * 2 * 8 * 4);
        assert_eq!(row_bytes(&shape, 100, DType::F16), 100 * 2 * 8 * 2);
        assert_eq!(row_bytes(&shape, 1, DType::F32), 40 * 4);
        assert_eq!(rows(64, 6400, None), 64);
        assert_eq!(rows(64, 6400, Some(64 * 6400)), 64);
        assert_eq!(rows(64, 6400, Some(64 * 6400 - 1)), 63);
        assert_eq!(rows(64, 6400, Some(6399)), 1);
    }
}
