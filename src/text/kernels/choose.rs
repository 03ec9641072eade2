//! The kernel that chooses tokens among the whole vocabulary.

use super::UNITS;
use super::progress::Progress;
use super::rows::find_max_logit;
use crate::device::buffers::Buffer;
use crate::math::reduction::cube_sum;
use crate::math::softmax::{MIN_THRESHOLD, compute_normalizer, logprob, unnormalized_prob};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Numbers of a choice: the token as a float, its log-probability, and the entropy, nats.
pub(crate) const VALUES_PER_CHOICE: usize = 3;

/// The choices of the last steps, which the host reads back together.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Choices {
    /// The choices of each step, `[VALUES_PER_CHOICE, rows]`, then masks of the tokens that could be drawn,
    /// `[rows, masks]`.
    pub values: Buffer<f32>,
    /// Capacity in steps; the choice of step `n` is at `n` modulo this.
    pub capacity: usize,
    pub values_per_step: usize,
}

#[cube]
impl Choices {
    /// Writes the choice of a row in a step.
    pub fn write(
        &mut self,
        step: usize,
        row: usize,
        rows: usize,
        token: usize,
        logprob: f32,
        entropy: f32,
    ) {
        let index = step % self.capacity * self.values_per_step + row;
        self.values[index] = token as f32;
        self.values[index + rows] = logprob;
        self.values[index + 2 * rows] = entropy;
    }

    /// Writes a mask of a step.
    pub fn write_mask(&mut self, step: usize, rows: usize, index: usize, mask: u32) {
        let first = step % self.capacity * self.values_per_step + VALUES_PER_CHOICE * rows;
        self.values[first + index] = mask as f32;
    }
}

/// Chooses a token of each row by its draw, or the most likely one; one cube per row.
///
/// Buffers: logits `[rows, vocabulary]`; draws `[steps, rows]`; those of [`Progress`]; tokens `[rows]`; those of
/// [`Choices`]. Workgroup memory: 3 x [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn choose_kernel(
    logits: &[f32],
    draws: &[f32],
    progress: &mut Progress,
    tokens: &mut [i32],
    choices: &mut Choices,
    rows: usize,
    vocabulary: usize,
    inverse_temperature: f32,
    #[comptime] is_greedy: bool,
) {
    let row = CUBE_POS;
    if row < rows {
        let (unit, start) = (UNIT_POS as usize, row * vocabulary);
        let step = progress.next_index();
        if ABSOLUTE_POS == 0 {
            progress.set_chosen_index(step);
        }
        let row_max = find_max_logit(logits, start, vocabulary, inverse_temperature);
        // Each unit sums a run of tokens, so that the cumulative sums follow the order of the vocabulary.
        let run = vocabulary.div_ceil(UNITS);
        let begin = unit * run;
        let mut end = begin + run;
        if end > vocabulary {
            end = vocabulary;
        }
        let mut sum = 0.0f32;
        let mut weighted_logit = 0.0f32;
        let mut likeliest = vocabulary;
        for i in begin..end {
            let logit = logits[start + i] * inverse_temperature;
            let weight = unnormalized_prob(logit, row_max);
            sum += weight;
            weighted_logit += weight * (logit - row_max);
            if logit == row_max && likeliest == vocabulary {
                likeliest = i;
            }
        }
        let weighted_logit = cube_sum(weighted_logit, UNITS);
        let mut sums = Shared::<[f32]>::new_slice(UNITS);
        let mut likeliest_of_units = Shared::<[u32]>::new_slice(UNITS);
        sums[unit] = sum;
        likeliest_of_units[unit] = likeliest as u32;
        sync_cube();
        let mut total = 0.0f32;
        for i in 0..UNITS {
            total += sums[i];
        }
        let normalizer = compute_normalizer(row_max, total);
        let mut token = vocabulary - 1;
        // The unit in whose run the token is.
        let mut chosen_unit = UNITS.runtime();
        if comptime!(is_greedy) {
            for i in 0..UNITS {
                if chosen_unit == UNITS && (likeliest_of_units[i] as usize) < vocabulary {
                    chosen_unit = i;
                    token = likeliest_of_units[i] as usize;
                }
            }
        } else {
            let mut target = draws[step * rows + row] * total;
            if target < MIN_THRESHOLD {
                target = f32::new(MIN_THRESHOLD);
            }
            let mut before = 0.0f32;
            let mut passed = 0.0f32;
            for i in 0..UNITS {
                let after = passed + sums[i];
                if chosen_unit == UNITS && after > target {
                    chosen_unit = i;
                    before = passed;
                }
                passed = after;
            }
            if unit == chosen_unit {
                let mut is_found = false;
                for i in begin..end {
                    before += unnormalized_prob(logits[start + i] * inverse_temperature, row_max);
                    if !is_found && before > target {
                        is_found = true;
                        token = i;
                    }
                }
                // Reached by rounding only.
                if !is_found {
                    token = end - 1;
                }
            }
        }
        // No token is found if logits are NaN.
        if chosen_unit == UNITS {
            chosen_unit = 0;
        }
        if unit == chosen_unit {
            tokens[row] = token as i32;
            let logprob = logprob(logits[start + token] * inverse_temperature, &normalizer);
            let entropy = normalizer.log_sum - weighted_logit * normalizer.inverse_sum;
            choices.write(step, row, rows, token, logprob, entropy);
        }
    }
}
