//! Workers that share a run exchange messages through shared memory.

use grove::parallel::{DEFAULT_TIMEOUT, Link, Team, TeamError};
use js_sys::{Atomics, Int32Array, SharedArrayBuffer, Uint8Array};
use wasm_bindgen::prelude::*;

/// `Atomics` without errors: a binding that may fail allocates on each call, and a wait polls thousands of times.
#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = Atomics)]
    fn load(words: &Int32Array, at: u32) -> i32;
    #[wasm_bindgen(js_namespace = Atomics)]
    fn store(words: &Int32Array, at: u32, value: i32) -> i32;
    #[wasm_bindgen(js_namespace = Atomics)]
    fn notify(words: &Int32Array, at: u32) -> u32;
}

/// Bytes before a box's contents: its state, and padding for alignment.
const HEAD: usize = 8;
/// Polls of a box before its reader sleeps: waking up takes longer than most waits.
const LOOKS: usize = 4_000;

/// Seconds of grace after a timeout, in case the machine itself was asleep.
const AWAKE: u64 = 5;

const EMPTY: i32 = 0;
const FULL: i32 = 1;

/// A worker's place among others.
#[wasm_bindgen]
pub struct Place {
    rank: usize,
    size: usize,
    memory: SharedArrayBuffer,
    words: Int32Array,
}

#[wasm_bindgen]
impl Place {
    /// Rank `rank` of `size`; the memory holds a box for each ordered pair of ranks, all of equal size.
    #[wasm_bindgen(constructor)]
    pub fn new(memory: SharedArrayBuffer, rank: usize, size: usize) -> Place {
        let words = Int32Array::new(&memory);
        Self { rank, size, memory, words }
    }
}

impl Place {
    /// The team of a run with so many shards, one rank for each shard at most; `None` if this rank is left out.
    /// The layout of the boxes does not depend on the size of the team.
    pub fn team(self, shards: usize) -> Option<Team> {
        let ranks = self.size.min(shards);
        (self.rank < ranks).then(|| Team::new(self.rank, ranks, Box::new(self)))
    }

    /// The capacity of a box in bytes.
    fn room(&self) -> usize {
        self.memory.byte_length() as usize / (self.size * self.size) / HEAD * HEAD - HEAD
    }

    /// The offset of the box for messages from one rank to another.
    fn slot(&self, from: usize, to: usize) -> usize {
        (from * self.size + to) * (HEAD + self.room())
    }

    /// Waits until a box has this state; `other` is the rank to blame for a timeout.
    fn wait(&self, slot: usize, state: i32, other: usize) -> Result<(), TeamError> {
        let at = slot as u32 / 4;
        let is_so = || load(&self.words, at) == state;
        if (0..LOOKS).any(|_| is_so()) {
            return Ok(());
        }
        for seconds in [DEFAULT_TIMEOUT.as_secs(), AWAKE] {
            let most = 1e3 * seconds as f64;
            if Atomics::wait_with_timeout(&self.words, at, 1 - state, most).is_err() {
                let reason = "a worker may not wait here".to_string();
                return Err(TeamError::Ended { rank: other, reason });
            }
            if is_so() {
                return Ok(());
            }
        }
        Err(TeamError::TimedOut { rank: other, seconds: DEFAULT_TIMEOUT.as_secs() })
    }

    /// Sets the state of a box and wakes its reader.
    fn set(&self, slot: usize, state: i32) {
        let at = slot as u32 / 4;
        store(&self.words, at, state);
        notify(&self.words, at);
    }

    /// The contents of a box.
    fn bytes(&self, slot: usize, len: usize) -> Uint8Array {
        let start = (slot + HEAD) as u32;
        Uint8Array::new_with_byte_offset_and_length(&self.memory, start, len as u32)
    }
}

impl Link for Place {
    fn exchange(&mut self, outgoing: &[&[u8]], lens: &[usize]) -> Result<Vec<Vec<u8>>, TeamError> {
        let (rank, room) = (self.rank, self.room());
        let mut incoming: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
        let others = || (0..outgoing.len()).filter(|other| *other != rank);
        // A message longer than a box is split.
        let parts = |len: usize| len.div_ceil(room);
        let part = |number: usize, len: usize| number * room..len.min((number + 1) * room);
        let longest = others().map(|other| outgoing[other].len().max(lens[other]));
        for number in 0..parts(longest.max().unwrap_or(0)) {
            for to in others().filter(|to| number < parts(outgoing[*to].len())) {
                let (slot, message) = (self.slot(rank, to), outgoing[to]);
                let message = &message[part(number, message.len())];
                self.wait(slot, EMPTY, to)?;
                self.bytes(slot, message.len()).copy_from(message);
                self.set(slot, FULL);
            }
            for from in others() {
                let len = lens[from];
                if number < parts(len) {
                    let slot = self.slot(from, rank);
                    let message = &mut incoming[from][part(number, len)];
                    self.wait(slot, FULL, from)?;
                    self.bytes(slot, message.len()).copy_to(message);
                    self.set(slot, EMPTY);
                }
            }
        }
        Ok(incoming)
    }
}

// SAFETY: a module in a worker has one thread.
unsafe impl Send for Place {}
