//! Workers that share a run: what they tell each other lies in memory that all of them see.

use grove::parallel::{Link, TIMEOUT, Team, TeamError};
use js_sys::{Atomics, Int32Array, SharedArrayBuffer, Uint8Array};
use wasm_bindgen::prelude::*;

/// What cannot fail of `Atomics`: a call that may fail leaves garbage, and many looks are taken.
#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = Atomics)]
    fn load(words: &Int32Array, at: u32) -> i32;
    #[wasm_bindgen(js_namespace = Atomics)]
    fn store(words: &Int32Array, at: u32, value: i32) -> i32;
    #[wasm_bindgen(js_namespace = Atomics)]
    fn notify(words: &Int32Array, at: u32) -> u32;
}

/// Bytes in front of what a box holds: whether it is full, and room to keep what follows aligned.
const HEAD: usize = 8;
/// Looks at a box before its owner is put to sleep: waking up takes longer than most waits.
const LOOKS: usize = 4_000;

/// Seconds that another has after the machine itself has slept through the time that it had.
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
    /// Member `rank` of `size`, whose memory holds a box for each ordered pair of them, all equally large.
    #[wasm_bindgen(constructor)]
    pub fn new(memory: SharedArrayBuffer, rank: usize, size: usize) -> Place {
        let words = Int32Array::new(&memory);
        Self { rank, size, memory, words }
    }
}

impl Place {
    /// The members of a run, of which there may be as many as it has `shards`; `None` if this one is not among
    /// them. Which box is whose does not depend on how many take part.
    pub fn team(self, shards: usize) -> Option<Team> {
        let members = self.size.min(shards);
        (self.rank < members).then(|| Team::new(self.rank, members, Box::new(self)))
    }

    /// Bytes that a box holds.
    fn room(&self) -> usize {
        self.memory.byte_length() as usize / (self.size * self.size) / HEAD * HEAD - HEAD
    }

    /// Where the box begins in which one member leaves something for another.
    fn slot(&self, from: usize, to: usize) -> usize {
        (from * self.size + to) * (HEAD + self.room())
    }

    /// Waits until a box is empty or full, as it should be; `other` is whom it waits for.
    fn wait(&self, slot: usize, state: i32, other: usize) -> Result<(), TeamError> {
        let at = slot as u32 / 4;
        let is_so = || load(&self.words, at) == state;
        if (0..LOOKS).any(|_| is_so()) {
            return Ok(());
        }
        for seconds in [TIMEOUT.as_secs(), AWAKE] {
            let most = 1e3 * seconds as f64;
            if Atomics::wait_with_timeout(&self.words, at, 1 - state, most).is_err() {
                let why = "a worker may not wait here".to_string();
                return Err(TeamError::Gone { rank: other, why });
            }
            if is_so() {
                return Ok(());
            }
        }
        Err(TeamError::Silent { rank: other, seconds: TIMEOUT.as_secs() })
    }

    /// Says that a box is empty or full now.
    fn set(&self, slot: usize, state: i32) {
        let at = slot as u32 / 4;
        store(&self.words, at, state);
        notify(&self.words, at);
    }

    /// The bytes of a box.
    fn bytes(&self, slot: usize, len: usize) -> Uint8Array {
        let start = (slot + HEAD) as u32;
        Uint8Array::new_with_byte_offset_and_length(&self.memory, start, len as u32)
    }
}

impl Link for Place {
    fn exchange(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> Result<(), TeamError> {
        let (rank, room) = (self.rank, self.room());
        let others = || (0..outgoing.len()).filter(|other| *other != rank);
        // What is longer than a box goes in parts.
        let parts = |len: usize| len.div_ceil(room);
        let part = |number: usize, len: usize| number * room..len.min((number + 1) * room);
        let longest = others().map(|other| outgoing[other].len().max(incoming[other].len()));
        for number in 0..parts(longest.max().unwrap_or(0)) {
            for to in others().filter(|to| number < parts(outgoing[*to].len())) {
                let (slot, message) = (self.slot(rank, to), outgoing[to]);
                let message = &message[part(number, message.len())];
                self.wait(slot, EMPTY, to)?;
                self.bytes(slot, message.len()).copy_from(message);
                self.set(slot, FULL);
            }
            for from in others() {
                let len = incoming[from].len();
                if number < parts(len) {
                    let slot = self.slot(from, rank);
                    let message = &mut incoming[from][part(number, len)];
                    self.wait(slot, FULL, from)?;
                    self.bytes(slot, message.len()).copy_to(message);
                    self.set(slot, EMPTY);
                }
            }
        }
        Ok(())
    }
}

// SAFETY: a module in a worker has one thread.
unsafe impl Send for Place {}
