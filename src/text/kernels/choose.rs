//! The kernel that chooses tokens.

use super::UNITS;
use super::rows::{largest, total};
use crate::math::softmax::{LEAST_SUM, logprob, normalizer, unnormalized};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Chooses a token of each row by its draw, or the most likely one; one cube per row.
///
/// Buffers: logits `[rows, vocabulary]`; draws, those of the rows from number `draw` on; tokens `[rows]`; log-probabilities, then entropies in nats,
/// `[2, rows]`. Workgroup memory: 3 x [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn choose_kernel(
    logits: &[f32],
    draws: &[f32],
    tokens: &mut [i32],
    figures: &mut [f32],
    rows: usize,
    vocabulary: usize,
    draw: usize,
    sharpness: f32,
    #[comptime] is_greedy: bool,
) {
    let row = CUBE_POS;
    if row < rows {
        let (unit, start) = (UNIT_POS as usize, row * vocabulary);
        let mut own = logits[start] * sharpness;
        for i in range_stepped(unit, vocabulary, UNITS) {
            let logit = logits[start + i] * sharpness;
            if logit > own {
                own = logit;
            }
        }
        let most = largest(own);
        // Each unit adds up a run of tokens, so that sums grow in the order of the vocabulary.
        let run = vocabulary.div_ceil(UNITS);
        let begin = unit * run;
        let mut end = begin + run;
        if end > vocabulary {
            end = vocabulary;
        }
        let mut sum = 0.0f32;
        let mut mean = 0.0f32;
        let mut peak = vocabulary;
        for i in begin..end {
            let logit = logits[start + i] * sharpness;
            let weight = unnormalized(logit, most);
            sum += weight;
            mean += weight * (logit - most);
            if logit == most && peak == vocabulary {
                peak = i;
            }
        }
        let mean = total(mean);
        let mut sums = Shared::<[f32]>::new_slice(UNITS);
        let mut peaks = Shared::<[u32]>::new_slice(UNITS);
        sums[unit] = sum;
        peaks[unit] = peak as u32;
        sync_cube();
        let mut all = 0.0f32;
        for i in 0..UNITS {
            all += sums[i];
        }
        let by = normalizer(most, all);
        let mut token = vocabulary - 1;
        // The unit in whose run the token is.
        let mut at = UNITS.runtime();
        if comptime!(is_greedy) {
            for i in 0..UNITS {
                if at == UNITS && (peaks[i] as usize) < vocabulary {
                    at = i;
                    token = peaks[i] as usize;
                }
            }
        } else {
            let mut target = draws[draw + row] * all;
            if target < LEAST_SUM {
                target = f32::new(LEAST_SUM);
            }
            let mut before = 0.0f32;
            let mut passed = 0.0f32;
            for i in 0..UNITS {
                let after = passed + sums[i];
                if at == UNITS && after > target {
                    at = i;
                    before = passed;
                }
                passed = after;
            }
            if unit == at {
                let mut is_found = false;
                for i in begin..end {
                    before += unnormalized(logits[start + i] * sharpness, most);
                    if !is_found && before > target {
                        is_found = true;
                        token = i;
                    }
                }
                // Rounding alone finds none.
                if !is_found {
                    token = end - 1;
                }
            }
            if at == UNITS {
                at = 0;
            }
        }
        if unit == at {
            tokens[row] = token as i32;
            figures[row] = logprob(logits[start + token] * sharpness, &by);
            figures[rows + row] = by.log_total - mean * by.share;
        }
    }
}
