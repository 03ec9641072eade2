//! Generation of text by a decoder, token by token: on the CPU, or on a device (device.rs).
//!
//! A prompt is prefilled once, and its completions share that part of the KV cache. On the CPU a completion decodes
//! in its own slot, and a finished one frees its slot for the next. A completion follows from its prompt, its
//! key and the weights alone, whatever else is in the batch and however many threads there are.

#[cfg(text_kernels)]
mod decode;
#[cfg(text_kernels)]
mod device;
mod sample;
pub mod stop;
#[cfg(text_kernels)]
mod token_step;

pub use sample::{SampledToken, Sampling, SamplingScratch, sample_token};

use crate::rng::{draw, uniform};
use crate::text::{
    CompletionIndex, DecodeBuffers, KvCache, Parallelism, Pool, PrefixCache, Retention, Row,
    TokenDecoder, run_in_region,
};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A prompt and the number of completions to sample for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionRequest {
    /// Tokens of the prompt, at least one.
    pub tokens: Vec<u32>,
    /// Number of completions.
    pub num_completions: usize,
    /// Key of the completions' draws.
    pub key: u32,
}

/// Tokens that a decoder has appended to a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// The tokens, including the one that ended the completion, if any.
    pub tokens: Vec<u32>,
    /// Log-probability of each token, among its candidates.
    pub logprobs: Vec<f32>,
    /// Entropy of the distribution that each token was drawn from, nats.
    pub entropies: Vec<f32>,
    /// Tokens that each token was drawn from, where top-k, top-p or min-p excluded some; an empty list means all. No
    /// lists where nothing can be excluded.
    pub candidates: Vec<Vec<u32>>,
    /// Whether a stop token or a stop text ended the completion; otherwise it was truncated.
    pub has_stopped: bool,
}

impl Completion {
    /// Whether it has ended or has as many tokens as permitted.
    pub fn is_finished(&self, sampling: &Sampling) -> bool {
        self.has_stopped || self.tokens.len() >= sampling.max_new_tokens
    }

    /// Appends a token, checks whether it ends the completion, and calls the listener.
    fn push(&mut self, chosen: SampledToken, generator: &Generator, index: CompletionIndex) {
        self.tokens.push(chosen.token);
        self.logprobs.push(chosen.logprob);
        self.entropies.push(chosen.entropy);
        if generator.sampling.has_filter() {
            self.candidates.push(chosen.candidates);
        }
        self.has_stopped = generator.sampling.stop_tokens.contains(&chosen.token)
            || generator.stop.is_some_and(|stop| stop(&self.tokens));
        if let Some(listener) = generator.listener {
            listener(index, self);
        }
    }
}

/// A stop condition beyond stop tokens, given the tokens of a completion so far.
pub type StopCondition<'a> = &'a (dyn Fn(&[u32]) -> bool + Sync);
/// A callback for every token, given the index of the completion among those of all prompts and the completion so far.
pub type Listener<'a> = &'a (dyn Fn(CompletionIndex, &Completion) + Sync);

/// A sampler of completions: a model with the settings of a batch.
#[derive(Clone, Copy)]
pub struct Generator<'a> {
    /// The model.
    pub decoder: &'a TokenDecoder,
    /// Temperature, truncation of the distribution, and stop tokens.
    pub sampling: &'a Sampling,
    /// Number of completions decoded at a time; does not change the result.
    pub num_slots: usize,
    /// A condition that ends a completion, in addition to its stop tokens.
    pub stop: Option<StopCondition<'a>>,
    /// A callback for every token.
    pub listener: Option<Listener<'a>>,
}

impl Generator<'_> {
    /// Generates the completions of each prompt, in order.
    ///
    /// # Panics
    /// If a prompt has no tokens.
    pub fn generate(&self, prompts: &[CompletionRequest]) -> Vec<Vec<Completion>> {
        assert!(prompts.iter().all(|prompt| !prompt.tokens.is_empty()), "a prompt has a token");
        let new = |prompt: &CompletionRequest| vec![Completion::default(); prompt.num_completions];
        let mut completions: Vec<Vec<Completion>> = prompts.iter().map(new).collect();
        if self.sampling.max_new_tokens == 0 {
            return completions;
        }
        #[cfg(text_kernels)]
        if let Some(decoder) = crate::text::upload_decoder(self.decoder) {
            return device::generate(self, &decoder.round_matrices(), prompts);
        }
        let parallelism = self.decoder.parallelism();
        let num_workers = match parallelism {
            Parallelism::Sequential => rayon::current_num_threads().min(prompts.len()).max(1),
            Parallelism::Parallel => 1,
        };
        let num_slots = (self.num_slots / num_workers).max(1);
        let queue = Queue { prompts, next: AtomicUsize::new(0) };
        let complete_prompts = || {
            self.decoder.decode_buffers.with(|buffers| {
                let mut worker = Worker::new(*self, num_slots, buffers);
                worker.run(&queue);
                worker.finished
            })
        };
        let finished = match num_workers {
            // A thread of the pool distributes work faster than one outside.
            1 => rayon::scope(|_| run_in_region(parallelism, complete_prompts)),
            _ => (0..num_workers).into_par_iter().flat_map_iter(|_| complete_prompts()).collect(),
        };
        for ActiveCompletion { index, completion, .. } in finished {
            completions[index.prompt][index.completion] = completion;
        }
        completions
    }
}

/// Prompts that have not been prefilled.
struct Queue<'a> {
    prompts: &'a [CompletionRequest],
    next: AtomicUsize,
}

/// A completion that is being decoded, in the slot of its cache.
struct ActiveCompletion {
    index: CompletionIndex,
    key: u32,
    completion: Completion,
    /// Index of the prompt among the prefilled ones.
    prefilled_index: usize,
}

/// A prompt whose cache is filled. Caches of prompts come after the caches of the slots.
struct PrefilledPrompt {
    num_tokens: usize,
    /// Number of completions that still need the cache.
    num_pending: usize,
}

/// A worker that prefills prompts and decodes their completions.
struct Worker<'a> {
    generator: Generator<'a>,
    prefilled: Vec<PrefilledPrompt>,
    slots: Vec<Option<ActiveCompletion>>,
    /// Completions that have their first token but no slot yet.
    waiting: VecDeque<ActiveCompletion>,
    finished: Vec<ActiveCompletion>,
    /// Caches of the slots, followed by those of the prefilled prompts.
    buffers: &'a mut DecodeBuffers,
    scratches: Pool<SamplingScratch>,
}

/// Number of rows whose logits are computed together.
const HEAD_ROWS: usize = 64;
/// Number of prompt tokens per prefill: enough for efficient products, and no more, since activations take memory.
const PREFILL_ROWS: usize = 1024;

impl<'a> Worker<'a> {
    fn new(generator: Generator<'a>, num_slots: usize, buffers: &'a mut DecodeBuffers) -> Self {
        buffers.caches.resize_with(num_slots, KvCache::default);
        Self {
            generator,
            prefilled: Vec::new(),
            slots: (0..num_slots).map(|_| None).collect(),
            waiting: VecDeque::new(),
            finished: Vec::new(),
            buffers,
            scratches: Pool::default(),
        }
    }

    fn run(&mut self, queue: &Queue) {
        loop {
            self.admit(queue);
            if self.slots.iter().all(Option::is_none) {
                break;
            }
            self.decode_tokens();
        }
        let DecodeBuffers { caches, spare_prompt_caches, .. } = &mut *self.buffers;
        spare_prompt_caches.extend(caches.drain(self.slots.len()..));
    }

    /// Fills the free slots with waiting completions, and prefills prompts for more.
    fn admit(&mut self, queue: &Queue) {
        loop {
            for slot in 0..self.slots.len() {
                if self.slots[slot].is_none()
                    && let Some(active) = self.waiting.pop_front()
                {
                    let tokens = self.generator.sampling.max_new_tokens;
                    let prefix = PrefixCache {
                        index: self.slots.len() + active.prefilled_index,
                        num_tokens: self.prefilled[active.prefilled_index].num_tokens,
                    };
                    let cache = &mut self.buffers.caches[slot];
                    self.generator.decoder.begin_cache(cache, tokens, Some(prefix));
                    self.slots[slot] = Some(active);
                }
            }
            let free = self.slots.iter().filter(|slot| slot.is_none()).count();
            let mut taken = Vec::new();
            let (mut num_completions, mut rows) = (0, 0);
            while num_completions < free && rows < PREFILL_ROWS {
                let index = queue.next.fetch_add(1, Ordering::Relaxed);
                let Some(prompt) = queue.prompts.get(index) else { break };
                num_completions += prompt.num_completions;
                rows += prompt.tokens.len();
                taken.push((index, prompt));
            }
            if taken.is_empty() {
                return;
            }
            self.prefill(&taken);
        }
    }

    /// Prefills prompts, and chooses the first token of each of their completions.
    fn prefill(&mut self, prompts: &[(usize, &CompletionRequest)]) {
        let decoder = self.generator.decoder;
        let buffers = &mut *self.buffers;
        let mut caches = Vec::new();
        let (mut rows, mut last_rows) = (Vec::new(), Vec::new());
        for (cache, (_, prompt)) in prompts.iter().enumerate() {
            let mut empty = buffers.spare_prompt_caches.pop().unwrap_or_default();
            decoder.begin_cache(&mut empty, prompt.tokens.len(), None);
            caches.push(empty);
            let tokens = prompt.tokens.iter().enumerate();
            rows.extend(tokens.map(|(index, token)| Row { token: *token, cache, index }));
            last_rows.push(rows.len() - 1);
        }
        decoder.forward(&rows, &mut caches, Retention::Nothing, &mut buffers.pass);
        let size = decoder.shape().hidden_size;
        for (((prompt_index, prompt), cache), last) in prompts.iter().zip(caches).zip(last_rows) {
            let buffers = &mut *self.buffers;
            let hidden = &buffers.pass.hidden()[last * size..][..size];
            decoder.compute_logits(hidden, &mut buffers.logits);
            let prefilled_index = self.store_prompt_cache(prompt, cache);
            let mut scratch = self.scratches.take();
            for completion in 0..prompt.num_completions {
                let key = draw(prompt.key, completion as u32);
                let u = uniform(draw(key, 0));
                let chosen =
                    sample_token(&self.buffers.logits, self.generator.sampling, u, &mut scratch);
                let active = ActiveCompletion {
                    index: CompletionIndex { prompt: *prompt_index, completion },
                    key,
                    completion: Completion::default(),
                    prefilled_index,
                };
                if let Some(active) = self.add_token(active, chosen) {
                    self.waiting.push_back(active);
                }
            }
            self.scratches.put(scratch);
        }
    }

    /// Stores the cache of a prompt, replacing one whose completions have all ended if there is one. Returns its index.
    fn store_prompt_cache(&mut self, prompt: &CompletionRequest, cache: KvCache) -> usize {
        let prefilled = PrefilledPrompt {
            num_tokens: prompt.tokens.len(),
            num_pending: prompt.num_completions,
        };
        let DecodeBuffers { caches, spare_prompt_caches, .. } = &mut *self.buffers;
        match self.prefilled.iter().position(|prompt| prompt.num_pending == 0) {
            Some(index) => {
                self.prefilled[index] = prefilled;
                spare_prompt_caches
                    .push(mem::replace(&mut caches[self.slots.len() + index], cache));
                index
            }
            None => {
                self.prefilled.push(prefilled);
                caches.push(cache);
                self.prefilled.len() - 1
            }
        }
    }

    /// Appends a token to a completion, and returns the completion unless it is over.
    fn add_token(
        &mut self,
        mut active: ActiveCompletion,
        chosen: SampledToken,
    ) -> Option<ActiveCompletion> {
        let ActiveCompletion { index, completion, prefilled_index, .. } = &mut active;
        completion.push(chosen, &self.generator, *index);
        if !completion.is_finished(self.generator.sampling) {
            return Some(active);
        }
        self.prefilled[*prefilled_index].num_pending -= 1;
        self.finished.push(active);
        None
    }

    /// Decodes one token of every completion in a slot.
    fn decode_tokens(&mut self) {
        let decoder = self.generator.decoder;
        let row = |(cache, slot): (usize, &Option<ActiveCompletion>)| {
            let tokens = &slot.as_ref()?.completion.tokens;
            Some(Row { token: *tokens.last()?, cache, index: tokens.len() - 1 })
        };
        let rows: Vec<Row> = self.slots.iter().enumerate().filter_map(row).collect();
        let DecodeBuffers { caches, pass, .. } = &mut *self.buffers;
        decoder.forward(&rows, caches, Retention::Nothing, pass);
        let (size, vocabulary) = (decoder.shape().hidden_size, decoder.shape().vocab_size());
        let mut logits = mem::take(&mut self.buffers.logits);
        for (i, rows) in rows.chunks(HEAD_ROWS).enumerate() {
            let hidden = &self.buffers.pass.hidden()[i * HEAD_ROWS * size..][..rows.len() * size];
            decoder.compute_logits(hidden, &mut logits);
            let mut chosen = vec![SampledToken::default(); rows.len()];
            decoder.parallelism().each_mut(&mut chosen, |index, chosen| {
                let active = self.slots[rows[index].cache].as_ref();
                let active = active.expect("rows are of active slots");
                let u = uniform(draw(active.key, rows[index].index as u32 + 1));
                let logits = &logits[index * vocabulary..][..vocabulary];
                self.scratches.with(|scratch| {
                    *chosen = sample_token(logits, self.generator.sampling, u, scratch);
                });
            });
            for (row, chosen) in rows.iter().zip(chosen) {
                let active = self.slots[row.cache].take().expect("rows are of active slots");
                self.slots[row.cache] = self.add_token(active, chosen);
            }
        }
        self.buffers.logits = logits;
    }
}
