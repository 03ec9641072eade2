//! Text from a decoder, token by token: on the CPU, or on a device (device.rs).
//!
//! A prompt is gone through once; its completions share what is remembered of it. On the CPU as many completions
//! are under way as there is room for, and one that is finished makes room for the next. A completion follows
//! from its prompt, its key and the weights alone: not from what is beside it, nor from the threads.

#[cfg(feature = "general")]
mod device;
mod sample;
pub mod stop;

pub use sample::{Chosen, Room, Sampling, choose};

use crate::model::language::{Cache, Keep, Pass, Row, TokenDecoder};
use crate::rng::{draw, uniform};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A text to go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens: one or more.
    pub tokens: Vec<u32>,
    /// How many completions are wanted.
    pub completions: usize,
    /// The key of the completions' draws.
    pub key: u32,
}

/// What a decoder has added to a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// Its tokens; the last is the one that ended it, where one did.
    pub tokens: Vec<u32>,
    /// The log-probability of each.
    pub logprobs: Vec<f32>,
    /// The entropy of the choice of each, nats.
    pub entropies: Vec<f32>,
    /// Whether it came to its end, by a token or a text, instead of being cut off.
    pub ended: bool,
}

/// Whether a completion of these tokens is to end, for another reason than its last token.
pub type Stop<'a> = &'a (dyn Fn(&[u32]) -> bool + Sync);
/// Who is told of every token: the number of the prompt, that of the completion, and its tokens so far.
pub type Listener<'a> = &'a (dyn Fn(usize, usize, &[u32]) + Sync);

/// How completions are made.
#[derive(Clone, Copy)]
pub struct Generator<'a> {
    /// By whom.
    pub decoder: &'a TokenDecoder,
    /// How tokens are chosen.
    pub sampling: &'a Sampling,
    /// Completions under way at a time.
    pub slots: usize,
    /// What else ends a completion.
    pub stop: Option<Stop<'a>>,
    /// Who is told of every token.
    pub listener: Option<Listener<'a>>,
}

impl Generator<'_> {
    /// The completions of each prompt, in order.
    ///
    /// # Panics
    /// If a prompt has no tokens.
    pub fn generate(&self, prompts: &[Prompt]) -> Vec<Vec<Completion>> {
        assert!(prompts.iter().all(|prompt| !prompt.tokens.is_empty()), "a prompt has a token");
        #[cfg(feature = "general")]
        if let Some(decoder) = self.decoder.on_device() {
            return device::generate(self, &decoder.acting(), prompts);
        }
        let workers = match self.decoder.is_small() {
            true => rayon::current_num_threads().min(prompts.len()).max(1),
            false => 1,
        };
        let slots = (self.slots / workers).max(1);
        let queue = Queue { prompts, next: AtomicUsize::new(0) };
        let done = Mutex::new(Vec::new());
        let work = |_: usize| {
            let finished = Worker::new(*self, slots).run(&queue);
            done.lock().expect("no worker panics with it").extend(finished);
        };
        match workers {
            1 => work(0),
            _ => (0..workers).into_par_iter().for_each(work),
        }
        let mut all: Vec<Vec<Completion>> =
            prompts.iter().map(|prompt| vec![Completion::default(); prompt.completions]).collect();
        for Finished { prompt, number, completion } in done.into_inner().expect("nobody holds it") {
            all[prompt][number] = completion;
        }
        all
    }
}

/// The prompts that nobody has begun with.
struct Queue<'a> {
    prompts: &'a [Prompt],
    next: AtomicUsize,
}

struct Finished {
    prompt: usize,
    number: usize,
    completion: Completion,
}

/// A completion under way, in the slot of its cache.
struct Active {
    prompt: usize,
    number: usize,
    key: u32,
    completion: Completion,
    /// The number of the prompt's cache.
    before: usize,
}

/// A prompt that has been gone through; its cache comes after those of the slots.
struct Begun {
    tokens: usize,
    /// Completions that are not finished.
    open: usize,
}

/// Who goes through some prompts and makes their completions.
struct Worker<'a> {
    by: Generator<'a>,
    begun: Vec<Begun>,
    /// Of the slots, then of the prompts.
    caches: Vec<Cache>,
    slots: Vec<Option<Active>>,
    /// Completions that have their first token, but no slot yet.
    waiting: VecDeque<Active>,
    finished: Vec<Finished>,
    pass: Pass,
    logits: Vec<f32>,
}

/// Rows that go through the head at a time.
const HEAD_ROWS: usize = 64;

impl<'a> Worker<'a> {
    fn new(by: Generator<'a>, slots: usize) -> Self {
        Self {
            by,
            begun: Vec::new(),
            caches: vec![Cache::default(); slots],
            slots: (0..slots).map(|_| None).collect(),
            waiting: VecDeque::new(),
            finished: Vec::new(),
            pass: Pass::default(),
            logits: Vec::new(),
        }
    }

    fn run(mut self, queue: &Queue) -> Vec<Finished> {
        loop {
            self.admit(queue);
            if self.slots.iter().all(Option::is_none) {
                return self.finished;
            }
            self.step();
        }
    }

    /// Fills the free slots with completions that wait, and with those of prompts that nobody has begun.
    fn admit(&mut self, queue: &Queue) {
        loop {
            let free = self.slots.iter().filter(|slot| slot.is_none()).count();
            for slot in 0..self.slots.len() {
                if self.slots[slot].is_none()
                    && let Some(active) = self.waiting.pop_front()
                {
                    let tokens = self.by.sampling.max_new_tokens;
                    let tokens_before = self.begun[active.before].tokens;
                    let before = (self.slots.len() + active.before, tokens_before);
                    let shape = self.by.decoder.shape();
                    let (heads, layers) = (shape.head_shape(), shape.num_layers);
                    self.caches[slot].begin(&heads, layers, tokens, Some(before));
                    self.slots[slot] = Some(active);
                }
            }
            let free = free.min(self.slots.iter().filter(|slot| slot.is_none()).count());
            let mut taken = Vec::new();
            let mut wanted = 0;
            while wanted < free {
                let number = queue.next.fetch_add(1, Ordering::Relaxed);
                let Some(prompt) = queue.prompts.get(number) else { break };
                wanted += prompt.completions;
                taken.push((number, prompt));
            }
            if taken.is_empty() {
                return;
            }
            self.begin(&taken);
        }
    }

    /// Goes through prompts, and chooses the first token of each of their completions.
    fn begin(&mut self, prompts: &[(usize, &Prompt)]) {
        let decoder = self.by.decoder;
        let mut caches = Vec::new();
        let (mut rows, mut last) = (Vec::new(), Vec::new());
        for (cache, (_, prompt)) in prompts.iter().enumerate() {
            let (shape, tokens) = (decoder.shape(), prompt.tokens.len());
            caches.push(Cache::new(&shape.head_shape(), shape.num_layers, tokens, None));
            let tokens = prompt.tokens.iter().enumerate();
            rows.extend(tokens.map(|(at, token)| Row { token: *token, cache, at }));
            last.push(rows.len() - 1);
        }
        decoder.forward(&rows, &mut caches, Keep::Nothing, &mut self.pass);
        let size = decoder.shape().hidden_size;
        for (((number, prompt), cache), last) in prompts.iter().zip(caches).zip(last) {
            let hidden = &self.pass.hidden()[last * size..][..size];
            decoder.logits(hidden, &mut self.logits);
            let before = self.begun.iter().position(|begun| begun.open == 0);
            let before = before.unwrap_or(self.begun.len());
            let begun = Begun { tokens: prompt.tokens.len(), open: prompt.completions };
            match self.begun.get_mut(before) {
                Some(place) => {
                    (*place, self.caches[self.slots.len() + before]) = (begun, cache);
                }
                None => {
                    self.begun.push(begun);
                    self.caches.push(cache);
                }
            }
            let mut room = Room::default();
            for completion in 0..prompt.completions {
                let key = draw(prompt.key, completion as u32);
                let u = uniform(draw(key, 0));
                let chosen = choose(&self.logits, self.by.sampling, u, &mut room);
                let active = Active {
                    prompt: *number,
                    number: completion,
                    key,
                    completion: Completion::default(),
                    before,
                };
                if let Some(active) = self.add(active, chosen) {
                    self.waiting.push_back(active);
                }
            }
        }
    }

    /// Adds a token to a completion, and gives it back unless that was its last.
    fn add(&mut self, mut active: Active, chosen: Chosen) -> Option<Active> {
        let Active { prompt, number, completion, before, .. } = &mut active;
        completion.tokens.push(chosen.token);
        completion.logprobs.push(chosen.logprob);
        completion.entropies.push(chosen.entropy);
        if let Some(listener) = self.by.listener {
            listener(*prompt, *number, &completion.tokens);
        }
        completion.ended = self.by.sampling.stop_tokens.contains(&chosen.token)
            || self.by.stop.is_some_and(|stop| stop(&completion.tokens));
        if !completion.ended && completion.tokens.len() < self.by.sampling.max_new_tokens {
            return Some(active);
        }
        self.begun[*before].open -= 1;
        let completion = std::mem::take(completion);
        self.finished.push(Finished { prompt: *prompt, number: *number, completion });
        None
    }

    /// Adds a token to every completion under way.
    fn step(&mut self) {
        let decoder = self.by.decoder;
        let row = |(cache, slot): (usize, &Option<Active>)| {
            let tokens = &slot.as_ref()?.completion.tokens;
            Some(Row { token: *tokens.last()?, cache, at: tokens.len() - 1 })
        };
        let rows: Vec<Row> = self.slots.iter().enumerate().filter_map(row).collect();
        decoder.forward(&rows, &mut self.caches, Keep::Nothing, &mut self.pass);
        let (size, vocabulary) = (decoder.shape().hidden_size, decoder.shape().num_actions);
        let mut logits = std::mem::take(&mut self.logits);
        for (number, rows) in rows.chunks(HEAD_ROWS).enumerate() {
            let hidden = &self.pass.hidden()[number * HEAD_ROWS * size..][..rows.len() * size];
            decoder.logits(hidden, &mut logits);
            let pick = |room: &mut Room, (row, logits): (&Row, &[f32])| {
                let active = self.slots[row.cache].as_ref().expect("rows are of active slots");
                let u = uniform(draw(active.key, row.at as u32 + 1));
                choose(logits, self.by.sampling, u, room)
            };
            let all = rows.par_iter().zip(logits.par_chunks_exact(vocabulary));
            let chosen: Vec<Chosen> = if decoder.is_small() {
                let mut room = Room::default();
                let all = rows.iter().zip(logits.chunks_exact(vocabulary));
                all.map(|each| pick(&mut room, each)).collect()
            } else {
                all.map_init(Room::default, pick).collect()
            };
            for (row, chosen) in rows.iter().zip(chosen) {
                let active = self.slots[row.cache].take().expect("rows are of active slots");
                self.slots[row.cache] = self.add(active, chosen);
            }
        }
        self.logits = logits;
    }
}
