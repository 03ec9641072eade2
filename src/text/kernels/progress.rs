//! The progress of a batch of completions, which the kernels of a step read and advance.

use crate::device::buffers::Buffer;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Progress of a batch of completions. It is on the device, so that recorded launches of a step can be replayed
/// unchanged.
///
/// Cubes run in any order, so no kernel reads a count that it writes: the choosing kernel reads the input index and
/// writes the chosen one, the rotation kernel the reverse.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Progress {
    /// Index of the last token chosen; index of the token that passes through the layers, -1 before the first; then the
    /// number of tokens of each prompt: `[2 + num_prompts]`.
    pub counts: Buffer<i32>,
    /// Completions of a prompt.
    pub completions_per_prompt: usize,
}

/// Number of indices in [`Progress::counts`], before the lengths of the prompts.
const NUM_INDICES: usize = 2;
const CHOSEN: usize = 0;
const INPUT: usize = 1;

#[cube]
impl Progress {
    /// Number of tokens in the prompt of a row.
    pub fn prompt_length(&self, row: usize) -> usize {
        self.counts[NUM_INDICES + row / self.completions_per_prompt] as usize
    }

    /// Index of the token that passes through the layers: the number of tokens of each completion before it.
    pub fn input_index(&self) -> usize {
        self.counts[INPUT] as usize
    }

    /// Index of the last token chosen.
    pub fn chosen_index(&self) -> usize {
        self.counts[CHOSEN] as usize
    }

    /// Sets the index of the token that passes through the layers.
    pub fn set_input_index(&mut self, index: usize) {
        self.counts[INPUT] = index as i32;
    }

    /// Index of the token to choose.
    pub fn next_index(&self) -> usize {
        (self.counts[INPUT] + 1) as usize
    }

    /// Sets the index of the last token chosen.
    pub fn set_chosen_index(&mut self, index: usize) {
        self.counts[CHOSEN] = index as i32;
    }
}
