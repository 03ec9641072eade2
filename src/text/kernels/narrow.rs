//! The kernel that chooses tokens among the likeliest ones: top-k, top-p and min-p without sorting.
//!
//! Tokens are ordered by falling weight, and by number among equal weights. The tokens that can be drawn are a prefix
//! of this order, and so are those up to a draw. The end of a prefix is found by its weight: first its octave, by a
//! histogram over octaves, then the weight itself by bisection over its bits, among the tokens of that octave alone.

use super::UNITS;
use super::choose::Choices;
use super::progress::Progress;
use super::rows::{cube_max, largest_logit};
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

/// Settings that narrow the choice of a token.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Narrowing {
    /// The number of the likeliest tokens that can be drawn; 0 for all.
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
pub(crate) struct NarrowScratch {
    /// The weights of all tokens: `[rows, vocabulary]`.
    pub weights: Buffer<f32>,
    /// Lists of the tokens of one octave, a list for each unit: `[rows, vocabulary]`.
    pub lists: Buffer<u32>,
}

/// A row of logits, with the workgroup memory of searches among their weights.
#[derive(CubeType)]
struct LogitRow {
    /// Place of the first logit, and of the first number of [`NarrowScratch`].
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

/// A position in the order of tokens.
#[derive(CubeType, Clone, Copy)]
struct Place {
    /// The bits of the weight there.
    bits: u32,
    /// The sum over larger weights.
    above: f32,
    /// The tokens of the octave of the weight that are in the unit's list.
    listed: usize,
}

/// The octave of a weight, counted from the largest.
#[cube]
fn octave(bits: u32) -> usize {
    let mut number = (127u32 - (bits >> MANTISSA_BITS)) as usize;
    if number >= OCTAVES {
        number = comptime!(OCTAVES - 1).runtime();
    }
    number
}

/// The term that a weight adds to a sum.
#[cube]
fn share(weight: f32, #[comptime] kind: SearchKind) -> f32 {
    let mut share = weight;
    if comptime!(kind == SearchKind::Count) {
        share = 1.0f32;
    }
    share
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
/// bits are at least `floor`; the smallest of these if the sum never does, since sums in another order round
/// differently.
#[cube]
fn search(
    scratch: &mut NarrowScratch,
    row: &mut LogitRow,
    floor: u32,
    goal: f32,
    #[comptime] kind: SearchKind,
) -> Place {
    let (unit, start) = (UNIT_POS as usize, row.start);
    for number in 0..OCTAVES {
        row.sums[number * UNITS + unit] = 0.0f32;
    }
    for i in range_stepped(unit, row.vocabulary, UNITS) {
        let weight = scratch.weights[start + i];
        let bits = u32::reinterpret(weight);
        if bits >= floor {
            row.sums[octave(bits) * UNITS + unit] += share(weight, kind);
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
    let mut above = 0.0f32;
    let mut passed = 0.0f32;
    // The last octave that has weights, if none passes.
    let mut chosen = comptime!(OCTAVES - 1).runtime();
    let mut has_passed = false.runtime();
    for number in 0..OCTAVES {
        let sum = passed + row.octaves[number];
        if !has_passed && row.octaves[number] > 0.0f32 {
            chosen = number;
            above = passed;
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
        if bits >= floor && octave(bits) == chosen {
            scratch.lists[start + unit + listed * UNITS] = i as u32;
            listed += 1;
            if -weight > smallest {
                smallest = -weight;
            }
        }
    }
    let smallest = -cube_max(smallest);
    // The weight is in `low..high`: at `low` the sum has come to the goal, or never does; at `high` it has not.
    let mut high = LARGEST_BITS - ((chosen as u32) << MANTISSA_BITS) + (1u32 << MANTISSA_BITS);
    let mut low = floor;
    if smallest < 2.0f32 {
        low = u32::reinterpret(smallest);
    }
    let mut at_high = above;
    while high - low > 1u32 {
        let middle = low + (high - low) / 2u32;
        let mut sum = 0.0f32;
        for at in 0..listed {
            let weight = scratch.weights[start + scratch.lists[start + unit + at * UNITS] as usize];
            if u32::reinterpret(weight) >= middle {
                sum += share(weight, kind);
            }
        }
        let sum = above + cube_sum(sum, UNITS);
        // All units have read this sum before the next one is written.
        sync_cube();
        if passes(sum, goal, kind) {
            low = middle;
        } else {
            high = middle;
            at_high = sum;
        }
    }
    Place { bits: low, above: at_high, listed }
}

/// Finds the token with a place's weight that has `before` others of this weight before it, by bisection over token
/// numbers.
#[cube]
fn nth_tied_token(
    scratch: &mut NarrowScratch,
    row: &mut LogitRow,
    place: &Place,
    before: f32,
) -> usize {
    let (unit, start) = (UNIT_POS as usize, row.start);
    let mut low = 0usize.runtime();
    let mut high = row.vocabulary - 1;
    while low < high {
        let middle = (low + high) / 2;
        let mut count = 0.0f32;
        for at in 0..place.listed {
            let i = scratch.lists[start + unit + at * UNITS] as usize;
            if i <= middle && u32::reinterpret(scratch.weights[start + i]) == place.bits {
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

/// Number of tokens with a place's weight.
#[cube]
fn count_ties(scratch: &mut NarrowScratch, start: usize, place: &Place) -> f32 {
    let mut count = 0.0f32;
    for at in 0..place.listed {
        let i = scratch.lists[start + UNIT_POS as usize + at * UNITS] as usize;
        if u32::reinterpret(scratch.weights[start + i]) == place.bits {
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

/// Leaves the `top_k` likeliest tokens.
#[cube]
fn top_k_cut(scratch: &mut NarrowScratch, row: &mut LogitRow, cut: &mut Cut, top_k: usize) {
    if top_k > 0 && top_k < row.vocabulary {
        let goal = top_k as f32;
        let place = search(scratch, row, cut.bits, goal, comptime!(SearchKind::Count));
        cut.bits = place.bits;
        cut.ties = goal - place.above;
    }
}

/// Leaves the fewest tokens that have a share `top_p` of the probability of those before the cut.
#[cube]
fn top_p_cut(scratch: &mut NarrowScratch, row: &mut LogitRow, cut: &mut Cut, top_p: f32) {
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
        let place = search(scratch, row, cut.bits, goal, comptime!(SearchKind::Mass));
        let mut ties = ((goal - place.above) / f32::reinterpret(place.bits)).ceil();
        if ties < 1.0f32 {
            ties = 1.0f32;
        }
        if place.bits > cut.bits || ties < cut.ties {
            cut.ties = ties;
        }
        cut.bits = place.bits;
    }
}

/// Sums over the tokens within a cut, of which those with the smallest weight may be only some: their weights, and
/// these times logits relative to the largest. Also returns the number of tokens of the last weight, and this unit's
/// number of tokens of larger weights.
#[cube]
fn sum_drawable(
    logits: &[f32],
    scratch: &mut NarrowScratch,
    row: &LogitRow,
    cut: &mut Cut,
) -> (f32, f32, f32, f32) {
    let mut sum = 0.0f32;
    let mut mean = 0.0f32;
    let mut ties = 0.0f32;
    let mut larger = 0.0f32;
    for i in range_stepped(UNIT_POS as usize, row.vocabulary, UNITS) {
        let weight = scratch.weights[row.start + i];
        let bits = u32::reinterpret(weight);
        if bits > cut.bits {
            larger += 1.0f32;
            sum += weight;
            mean += weight * (logits[row.start + i] * row.inverse_temperature - row.max);
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
    let mut mean = cube_sum(mean, UNITS);
    if cut.ties > 0.0f32 {
        sum += cut.ties * smallest;
        mean += cut.ties * smallest * ln(smallest);
    }
    (sum, mean, ties, larger)
}

/// Draws a token of those that a cut leaves; `goal` is the draw times the sum of their weights.
#[cube]
fn draw(scratch: &mut NarrowScratch, row: &mut LogitRow, cut: &Cut, goal: f32) -> usize {
    let mut goal = goal;
    if goal < MIN_THRESHOLD {
        goal = f32::new(MIN_THRESHOLD);
    }
    let place = search(scratch, row, cut.bits, goal, comptime!(SearchKind::Draw));
    let mut before = ((goal - place.above) / f32::reinterpret(place.bits)).floor();
    let mut most_before = count_ties(scratch, row.start, &place) - 1.0f32;
    if place.bits == cut.bits && cut.ties - 1.0f32 < most_before {
        most_before = cut.ties - 1.0f32;
    }
    if before > most_before {
        before = most_before;
    }
    if before < 0.0f32 {
        before = 0.0f32;
    }
    nth_tied_token(scratch, row, &place, before)
}

/// Computes a word of the mask of the tokens that can be drawn, those of the last weight up to `end`.
#[cube]
fn mask_word(logits: &[f32], row: &LogitRow, cut: &Cut, end: usize, word: usize) -> u32 {
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
/// Buffers: logits `[rows, vocabulary]`; draws `[steps, rows]`; those of [`NarrowScratch`] and [`Progress`]; tokens
/// `[rows]`; those of [`Choices`], whose masks have [`TOKENS_PER_FLOAT_WORD`] bits each. Workgroup memory: 41 x
/// [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn narrow_kernel(
    logits: &[f32],
    draws: &[f32],
    scratch: &mut NarrowScratch,
    progress: &mut Progress,
    tokens: &mut [i32],
    choices: &mut Choices,
    narrowing: Narrowing,
    rows: usize,
    vocabulary: usize,
) {
    let index = CUBE_POS;
    if index < rows {
        let (unit, start) = (UNIT_POS as usize, index * vocabulary);
        let number = progress.next_index();
        if ABSOLUTE_POS == 0 {
            progress.set_chosen(number);
        }
        let mut row = LogitRow {
            start,
            vocabulary,
            inverse_temperature: narrowing.inverse_temperature,
            max: largest_logit(logits, start, vocabulary, narrowing.inverse_temperature),
            sums: Shared::<[f32]>::new_slice(comptime!(OCTAVES * UNITS)),
            octaves: Shared::<[f32]>::new_slice(OCTAVES),
        };
        for i in range_stepped(unit, vocabulary, UNITS) {
            scratch.weights[start + i] =
                unnormalized_prob(logits[start + i] * row.inverse_temperature, row.max);
        }
        let mut cut = Cut { bits: 0u32.runtime(), ties: vocabulary as f32 };
        top_k_cut(scratch, &mut row, &mut cut, narrowing.top_k);
        top_p_cut(scratch, &mut row, &mut cut, narrowing.top_p);
        if u32::reinterpret(narrowing.min_p) > cut.bits {
            cut.bits = u32::reinterpret(narrowing.min_p);
            cut.ties = vocabulary as f32;
        }
        let (sum, mean, ties, larger) = sum_drawable(logits, scratch, &row, &mut cut);
        let token = draw(scratch, &mut row, &cut, draws[number * rows + index] * sum);
        // Some tokens of the last weight may be left out.
        let mut end = vocabulary;
        if cut.ties < ties {
            // The weight at which there is one more than there are larger ones is the last.
            let goal = cube_sum(larger, UNITS) + 1.0f32;
            let place = search(scratch, &mut row, cut.bits, goal, comptime!(SearchKind::Count));
            end = nth_tied_token(scratch, &mut row, &place, cut.ties - 1.0f32) + 1;
        }
        let words = vocabulary.div_ceil(TOKENS_PER_FLOAT_WORD);
        for word in range_stepped(unit, words, UNITS) {
            let mask = mask_word(logits, &row, &cut, end, word);
            choices.write_mask(number, rows, index * words + word, mask);
        }
        if unit == 0 {
            let log_total = ln(sum);
            tokens[index] = token as i32;
            let logprob = logits[start + token] * row.inverse_temperature - row.max - log_total;
            let entropy = log_total - mean / sum;
            choices.write(number, index, rows, token, logprob, entropy);
        }
    }
}
