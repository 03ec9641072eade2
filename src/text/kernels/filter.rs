//! The kernel that chooses tokens among the likeliest ones: top-k, top-p and min-p without sorting.
//!
//! Tokens are ordered by descending weight, and by id among equal weights. The tokens that can be drawn are a prefix of
//! this order, and so are those up to a draw. The end of a prefix is found by its weight: first its octave, by a
//! histogram over octaves, then the weight itself by bisection over its bits, among the tokens of that octave alone.

use super::UNITS;
use super::choose::Choices;
use super::progress::Progress;
use super::rows::{cube_max, find_max_logit};
use crate::device::buffers::Buffer;
use crate::math::ln;
use crate::math::reduction::cube_sum;
use crate::math::softmax::{MIN_THRESHOLD, unnormalized_prob};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Octaves of weights in a histogram; the last one also has all smaller weights.
const OCTAVES: usize = 32;
/// Tokens per word of a mask that is stored as a float, which holds 24 bits exactly.
pub(crate) const TOKENS_PER_FLOAT_WORD: usize = 24;
/// The bits of the largest weight, 1.
const LARGEST_BITS: u32 = 0x3f80_0000;
/// Bits of a weight below its octave.
const MANTISSA_BITS: u32 = 23;

/// Settings that leave some tokens out of the choice.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct TokenFilter {
    /// Number of the likeliest tokens that can be drawn; 0 for all.
    pub top_k: usize,
    /// Share of the probability that the likeliest tokens must reach together; 1 for all tokens.
    pub top_p: f32,
    /// Minimum weight relative to that of the likeliest token.
    pub min_p: f32,
    /// The factor of logits.
    pub inverse_temperature: f32,
}

/// Scratch buffers of a choice.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct FilterScratch {
    /// The weights of all tokens: `[rows, vocabulary]`.
    pub weights: Buffer<f32>,
    /// Lists of the tokens of one octave, a list for each unit: `[rows, vocabulary]`.
    pub lists: Buffer<u32>,
}

/// A row of logits, with the workgroup memory of searches among their weights.
#[derive(CubeType)]
struct LogitRow {
    /// Index of the first logit, and of the row's first element in [`FilterScratch`].
    start: usize,
    vocabulary: usize,
    /// The factor of logits, and the largest logit times this factor.
    inverse_temperature: f32,
    max: f32,
    /// Sums of each octave by each unit: `[OCTAVES, UNITS]`.
    sums: Shared<[f32]>,
    /// Sums of each octave: `[OCTAVES]`.
    octaves: Shared<[f32]>,
}

/// Quantity that a search sums, and whether the sum must reach the goal or exceed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SearchKind {
    /// Number of tokens, until it reaches the goal.
    Count,
    /// Weight of tokens, until it reaches the goal.
    Mass,
    /// Weight of tokens, until it exceeds the goal.
    Draw,
}

/// A weight at which a search has ended.
#[derive(CubeType, Clone, Copy)]
struct FoundWeight {
    bits: u32,
    /// The sum over larger weights.
    sum_above: f32,
    /// The tokens of the octave of the weight that are in the unit's list.
    listed: usize,
}

/// The octave of a weight, counted from the largest.
#[cube]
fn octave_from_bits(bits: u32) -> usize {
    let mut octave = (127u32 - (bits >> MANTISSA_BITS)) as usize;
    if octave >= OCTAVES {
        octave = comptime!(OCTAVES - 1).runtime();
    }
    octave
}

/// The term that a weight adds to a sum.
#[cube]
fn summand(weight: f32, #[comptime] kind: SearchKind) -> f32 {
    let mut summand = weight;
    if comptime!(kind == SearchKind::Count) {
        summand = 1.0f32;
    }
    summand
}

/// Whether a search ends at a sum.
#[cube]
fn passes(sum: f32, goal: f32, #[comptime] kind: SearchKind) -> bool {
    let mut has_passed = sum > goal;
    if comptime!(kind != SearchKind::Draw) {
        has_passed = sum >= goal;
    }
    has_passed
}

/// Finds the largest weight such that the sum over all weights at least as large reaches `goal`, among weights whose
/// bits are at least `min_bits`; the smallest of these if the sum never does, since sums in another order round
/// differently.
#[cube]
fn search(
    scratch: &mut FilterScratch,
    row: &mut LogitRow,
    min_bits: u32,
    goal: f32,
    #[comptime] kind: SearchKind,
) -> FoundWeight {
    let (unit, start) = (UNIT_POS as usize, row.start);
    for octave in 0..OCTAVES {
        row.sums[octave * UNITS + unit] = 0.0f32;
    }
    for i in range_stepped(unit, row.vocabulary, UNITS) {
        let weight = scratch.weights[start + i];
        let bits = u32::reinterpret(weight);
        if bits >= min_bits {
            row.sums[octave_from_bits(bits) * UNITS + unit] += summand(weight, kind);
        }
    }
    sync_cube();
    if unit < OCTAVES {
        let mut sum = 0.0f32;
        for other in 0..UNITS {
            sum += row.sums[unit * UNITS + other];
        }
        row.octaves[unit] = sum;
    }
    sync_cube();
    let mut sum_above = 0.0f32;
    let mut passed = 0.0f32;
    // The last octave that has weights, if none passes.
    let mut chosen_octave = comptime!(OCTAVES - 1).runtime();
    let mut has_passed = false.runtime();
    for octave in 0..OCTAVES {
        let sum = passed + row.octaves[octave];
        if !has_passed && row.octaves[octave] > 0.0f32 {
            chosen_octave = octave;
            sum_above = passed;
            has_passed = passes(sum, goal, kind);
        }
        passed = sum;
    }
    sync_cube();
    let mut listed = 0usize.runtime();
    // No weight is above 1.
    let mut smallest = f32::new(-2.0f32);
    for i in range_stepped(unit, row.vocabulary, UNITS) {
        let weight = scratch.weights[start + i];
        let bits = u32::reinterpret(weight);
        if bits >= min_bits && octave_from_bits(bits) == chosen_octave {
            scratch.lists[start + unit + listed * UNITS] = i as u32;
            listed += 1;
            if -weight > smallest {
                smallest = -weight;
            }
        }
    }
    let smallest = -cube_max(smallest);
    // The weight is in `low..high`: at `low` the sum has come to the goal, or never does; at `high` it has not.
    let mut high =
        LARGEST_BITS - ((chosen_octave as u32) << MANTISSA_BITS) + (1u32 << MANTISSA_BITS);
    let mut low = min_bits;
    if smallest < 2.0f32 {
        low = u32::reinterpret(smallest);
    }
    let mut sum_at_high = sum_above;
    while high - low > 1u32 {
        let middle = low + (high - low) / 2u32;
        let mut sum = 0.0f32;
        for entry in 0..listed {
            let weight =
                scratch.weights[start + scratch.lists[start + unit + entry * UNITS] as usize];
            if u32::reinterpret(weight) >= middle {
                sum += summand(weight, kind);
            }
        }
        let sum = sum_above + cube_sum(sum, UNITS);
        // All units have read this sum before the next one is written.
        sync_cube();
        if passes(sum, goal, kind) {
            low = middle;
        } else {
            high = middle;
            sum_at_high = sum;
        }
    }
    FoundWeight { bits: low, sum_above: sum_at_high, listed }
}

/// Finds the token of the found weight that has `before` others of this weight before it, by bisection over token ids.
#[cube]
fn find_tied_token(
    scratch: &mut FilterScratch,
    row: &mut LogitRow,
    found: &FoundWeight,
    before: f32,
) -> usize {
    let (unit, start) = (UNIT_POS as usize, row.start);
    let mut low = 0usize.runtime();
    let mut high = row.vocabulary - 1;
    while low < high {
        let middle = (low + high) / 2;
        let mut count = 0.0f32;
        for entry in 0..found.listed {
            let i = scratch.lists[start + unit + entry * UNITS] as usize;
            if i <= middle && u32::reinterpret(scratch.weights[start + i]) == found.bits {
                count += 1.0f32;
            }
        }
        let count = cube_sum(count, UNITS);
        sync_cube();
        if count > before {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Counts the tokens of the found weight.
#[cube]
fn count_ties(scratch: &mut FilterScratch, start: usize, found: &FoundWeight) -> f32 {
    let mut count = 0.0f32;
    for entry in 0..found.listed {
        let i = scratch.lists[start + UNIT_POS as usize + entry * UNITS] as usize;
        if u32::reinterpret(scratch.weights[start + i]) == found.bits {
            count += 1.0f32;
        }
    }
    let count = cube_sum(count, UNITS);
    sync_cube();
    count
}

/// The end of the tokens that can be drawn.
#[derive(CubeType)]
struct Cut {
    /// The bits of the weight of the last one.
    bits: u32,
    /// Number of tokens of this weight that can be drawn.
    ties: f32,
}

/// Narrows a cut to the `top_k` likeliest tokens.
#[cube]
fn cut_top_k(scratch: &mut FilterScratch, row: &mut LogitRow, cut: &mut Cut, top_k: usize) {
    if top_k > 0 && top_k < row.vocabulary {
        let goal = top_k as f32;
        let found = search(scratch, row, cut.bits, goal, comptime!(SearchKind::Count));
        cut.bits = found.bits;
        cut.ties = goal - found.sum_above;
    }
}

/// Narrows a cut to the fewest tokens that have a share `top_p` of the probability of those before it.
#[cube]
fn cut_top_p(scratch: &mut FilterScratch, row: &mut LogitRow, cut: &mut Cut, top_p: f32) {
    if top_p < 1.0f32 {
        let mut mass = 0.0f32;
        for i in range_stepped(UNIT_POS as usize, row.vocabulary, UNITS) {
            let weight = scratch.weights[row.start + i];
            if u32::reinterpret(weight) > cut.bits {
                mass += weight;
            }
        }
        let mut mass = cube_sum(mass, UNITS);
        if cut.bits > 0u32 {
            mass += cut.ties * f32::reinterpret(cut.bits);
        }
        let goal = top_p * mass;
        let found = search(scratch, row, cut.bits, goal, comptime!(SearchKind::Mass));
        let mut ties = ((goal - found.sum_above) / f32::reinterpret(found.bits)).ceil();
        if ties < 1.0f32 {
            ties = 1.0f32;
        }
        if found.bits > cut.bits || ties < cut.ties {
            cut.ties = ties;
        }
        cut.bits = found.bits;
    }
}

/// Sums over the tokens within a cut.
#[derive(CubeType)]
struct DrawableSums {
    /// Sum of their weights.
    weight: f32,
    /// Sum of their weights times their logits relative to the largest.
    weighted_logit: f32,
    /// Number of tokens of the cut's weight, whether they can be drawn or not.
    ties: f32,
    /// This unit's number of tokens of larger weights.
    larger: f32,
}

/// Sums over the tokens within a cut, and limits [`Cut::ties`] to the tokens of this weight that exist.
#[cube]
fn sum_drawable(
    logits: &[f32],
    scratch: &mut FilterScratch,
    row: &LogitRow,
    cut: &mut Cut,
) -> DrawableSums {
    let mut sum = 0.0f32;
    let mut weighted_logit = 0.0f32;
    let mut ties = 0.0f32;
    let mut larger = 0.0f32;
    for i in range_stepped(UNIT_POS as usize, row.vocabulary, UNITS) {
        let weight = scratch.weights[row.start + i];
        let bits = u32::reinterpret(weight);
        if bits > cut.bits {
            larger += 1.0f32;
            sum += weight;
            weighted_logit += weight * (logits[row.start + i] * row.inverse_temperature - row.max);
        } else if bits == cut.bits {
            ties += 1.0f32;
        }
    }
    let ties = cube_sum(ties, UNITS);
    if cut.ties > ties {
        cut.ties = ties;
    }
    let smallest = f32::reinterpret(cut.bits);
    let mut sum = cube_sum(sum, UNITS);
    let mut weighted_logit = cube_sum(weighted_logit, UNITS);
    if cut.ties > 0.0f32 {
        sum += cut.ties * smallest;
        weighted_logit += cut.ties * smallest * ln(smallest);
    }
    DrawableSums { weight: sum, weighted_logit, ties, larger }
}

/// Draws a token of those that a cut leaves; `goal` is the draw times the sum of their weights.
#[cube]
fn draw(scratch: &mut FilterScratch, row: &mut LogitRow, cut: &Cut, goal: f32) -> usize {
    let mut goal = goal;
    if goal < MIN_THRESHOLD {
        goal = f32::new(MIN_THRESHOLD);
    }
    let found = search(scratch, row, cut.bits, goal, comptime!(SearchKind::Draw));
    let mut before = ((goal - found.sum_above) / f32::reinterpret(found.bits)).floor();
    let mut max_before = count_ties(scratch, row.start, &found) - 1.0f32;
    if found.bits == cut.bits && cut.ties - 1.0f32 < max_before {
        max_before = cut.ties - 1.0f32;
    }
    if before > max_before {
        before = max_before;
    }
    if before < 0.0f32 {
        before = 0.0f32;
    }
    find_tied_token(scratch, row, &found, before)
}

/// Computes a word of the mask of the tokens that can be drawn, those of the last weight up to `end`.
#[cube]
fn compute_mask_word(logits: &[f32], row: &LogitRow, cut: &Cut, end: usize, word: usize) -> u32 {
    let mut mask = 0u32.runtime();
    for bit in 0..TOKENS_PER_FLOAT_WORD {
        let i = word * TOKENS_PER_FLOAT_WORD + bit;
        if i < row.vocabulary {
            let bits = u32::reinterpret(unnormalized_prob(
                logits[row.start + i] * row.inverse_temperature,
                row.max,
            ));
            if bits > cut.bits || (bits == cut.bits && i < end) {
                mask += 1u32 << (bit as u32);
            }
        }
    }
    mask
}

/// Draws a token for each row among those that top-k, top-p and min-p leave; one cube per row.
///
/// Buffers: logits `[rows, vocabulary]`; draws `[steps, rows]`; those of [`FilterScratch`] and [`Progress`]; tokens
/// `[rows]`; those of [`Choices`], whose masks have [`TOKENS_PER_FLOAT_WORD`] bits each. Workgroup memory: 41 x
/// [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn filter_kernel(
    logits: &[f32],
    draws: &[f32],
    scratch: &mut FilterScratch,
    progress: &mut Progress,
    tokens: &mut [i32],
    choices: &mut Choices,
    filter: TokenFilter,
    rows: usize,
    vocabulary: usize,
) {
    let index = CUBE_POS;
    if index < rows {
        let (unit, start) = (UNIT_POS as usize, index * vocabulary);
        let step = progress.next_index();
        if ABSOLUTE_POS == 0 {
            progress.set_chosen_index(step);
        }
        let mut row = LogitRow {
            start,
            vocabulary,
            inverse_temperature: filter.inverse_temperature,
            max: find_max_logit(logits, start, vocabulary, filter.inverse_temperature),
            sums: Shared::<[f32]>::new_slice(comptime!(OCTAVES * UNITS)),
            octaves: Shared::<[f32]>::new_slice(OCTAVES),
        };
        for i in range_stepped(unit, vocabulary, UNITS) {
            scratch.weights[start + i] =
                unnormalized_prob(logits[start + i] * row.inverse_temperature, row.max);
        }
        let mut cut = Cut { bits: 0u32.runtime(), ties: vocabulary as f32 };
        cut_top_k(scratch, &mut row, &mut cut, filter.top_k);
        cut_top_p(scratch, &mut row, &mut cut, filter.top_p);
        if u32::reinterpret(filter.min_p) > cut.bits {
            cut.bits = u32::reinterpret(filter.min_p);
            cut.ties = vocabulary as f32;
        }
        let sums = sum_drawable(logits, scratch, &row, &mut cut);
        let token = draw(scratch, &mut row, &cut, draws[step * rows + index] * sums.weight);
        // Some tokens of the last weight may be left out.
        let mut end = vocabulary;
        if cut.ties < sums.ties {
            // The weight at which there is one more than there are larger ones is the last.
            let goal = cube_sum(sums.larger, UNITS) + 1.0f32;
            let found = search(scratch, &mut row, cut.bits, goal, comptime!(SearchKind::Count));
            end = find_tied_token(scratch, &mut row, &found, cut.ties - 1.0f32) + 1;
        }
        let num_words = vocabulary.div_ceil(TOKENS_PER_FLOAT_WORD);
        for word in range_stepped(unit, num_words, UNITS) {
            let mask = compute_mask_word(logits, &row, &cut, end, word);
            choices.write_mask(step, rows, index * num_words + word, mask);
        }
        if unit == 0 {
            let log_total = ln(sums.weight);
            tokens[index] = token as i32;
            let logprob = logits[start + token] * row.inverse_temperature - row.max - log_total;
            let entropy = log_total - sums.weighted_logit / sums.weight;
            choices.write(step, index, rows, token, logprob, entropy);
        }
    }
}
