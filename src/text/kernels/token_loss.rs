//! Kernels of the loss of tokens: their log-probabilities and entropies, and the gradient of logits.

use super::UNITS;
use super::rows::cube_max;
use crate::math::reduction::cube_sum;
use crate::math::softmax::{compute_normalizer, logprob, unnormalized_prob};
use crate::text::EXCLUSION_OFFSET;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Tokens per word of a mask of candidates.
pub(crate) const TOKENS_PER_WORD: usize = 32;

/// The form of the kernels of tokens; a compile-time value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenForm {
    /// Elements of a row of logits.
    pub vocabulary: usize,
    /// Whether only some tokens of a row can be drawn.
    pub is_masked: bool,
}

/// Loads a logit at the temperature, lowered by [`EXCLUSION_OFFSET`] if its token cannot be drawn.
#[cube]
fn load_logit(
    logits: &mut [f32],
    masks: &[u32],
    row: usize,
    i: usize,
    inverse_temperature: f32,
    #[comptime] form: TokenForm,
) -> f32 {
    let mut x = logits[row * comptime!(form.vocabulary) + i] * inverse_temperature;
    if comptime!(form.is_masked) {
        let word =
            masks[row * comptime!(form.vocabulary.div_ceil(TOKENS_PER_WORD)) + i / TOKENS_PER_WORD];
        if (word >> (i % TOKENS_PER_WORD) as u32) & 1u32 == 0u32 {
            x -= f32::new(EXCLUSION_OFFSET);
        }
    }
    x
}

/// Maximum, sum and mean over a row of logits.
#[derive(CubeType)]
struct RowSums {
    /// The largest logit.
    max: f32,
    /// Sum of the [`unnormalized_prob`]s.
    weight: f32,
    /// Mean logit relative to the largest.
    mean: f32,
}

/// Sums over a row of logits.
#[cube]
fn sum_row(
    logits: &mut [f32],
    masks: &[u32],
    row: usize,
    inverse_temperature: f32,
    #[comptime] form: TokenForm,
) -> RowSums {
    let (unit, vocabulary) = (UNIT_POS as usize, comptime!(form.vocabulary));
    let mut own = load_logit(logits, masks, row, 0, inverse_temperature, form);
    for i in range_stepped(unit, vocabulary, UNITS) {
        let x = load_logit(logits, masks, row, i, inverse_temperature, form);
        if x > own {
            own = x;
        }
    }
    let row_max = cube_max(own);
    let mut sum = 0.0f32;
    let mut mean = 0.0f32;
    for i in range_stepped(unit, vocabulary, UNITS) {
        let x = load_logit(logits, masks, row, i, inverse_temperature, form);
        let weight = unnormalized_prob(x, row_max);
        sum += weight;
        mean += weight * (x - row_max);
    }
    let sum = cube_sum(sum, UNITS);
    RowSums { max: row_max, weight: sum, mean: cube_sum(mean, UNITS) / sum }
}

/// Computes the log-probability of each row's token and the entropy of the choice; one cube per row.
///
/// Buffers: logits `[rows, vocabulary]`; tokens `[rows]`; masks `[rows, words]`; log-probabilities, then entropies,
/// `[2, rows]`. Workgroup memory: 3 x [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn token_logprob_kernel(
    logits: &mut [f32],
    tokens: &[i32],
    masks: &[u32],
    logprobs_and_entropies: &mut [f32],
    rows: usize,
    inverse_temperature: f32,
    #[comptime] form: TokenForm,
) {
    let row = CUBE_POS;
    if row < rows {
        let sums = sum_row(logits, masks, row, inverse_temperature, form);
        if UNIT_POS == 0 {
            let normalizer = compute_normalizer(sums.max, sums.weight);
            let own =
                load_logit(logits, masks, row, tokens[row] as usize, inverse_temperature, form);
            logprobs_and_entropies[row] = logprob(own, &normalizer);
            logprobs_and_entropies[rows + row] = normalizer.log_sum - sums.mean;
        }
    }
}

/// Replaces logits by the gradient of the loss; one cube per row. Its derivative with respect to the token's
/// log-probability is `derivatives[0, row]`, that with respect to the entropy `-derivatives[1, row]`.
///
/// Buffers: logits `[rows, vocabulary]`; tokens `[rows]`; masks `[rows, words]`; derivatives `[2, rows]`. Workgroup
/// memory: 3 x [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn logit_gradient_kernel(
    logits: &mut [f32],
    tokens: &[i32],
    masks: &[u32],
    derivatives: &[f32],
    rows: usize,
    inverse_temperature: f32,
    #[comptime] form: TokenForm,
) {
    let row = CUBE_POS;
    if row < rows {
        let sums = sum_row(logits, masks, row, inverse_temperature, form);
        let normalizer = compute_normalizer(sums.max, sums.weight);
        let entropy = normalizer.log_sum - sums.mean;
        let (d_logprob, entropy_weight) = (derivatives[row], derivatives[rows + row]);
        let token = tokens[row] as usize;
        // All units have read the row before one of them overwrites a logit.
        sync_cube();
        for i in range_stepped(UNIT_POS as usize, comptime!(form.vocabulary), UNITS) {
            let x = load_logit(logits, masks, row, i, inverse_temperature, form);
            let prob = unnormalized_prob(x, sums.max) * normalizer.inverse_sum;
            let mut d =
                entropy_weight * prob * (logprob(x, &normalizer) + entropy) - d_logprob * prob;
            if i == token {
                d += d_logprob;
            }
            logits[row * comptime!(form.vocabulary) + i] = d * inverse_temperature;
        }
    }
}
