//! The kernel that chooses tokens among the likeliest ones: top-k, top-p and min-p without sorting.
//!
//! Tokens are ordered by falling weight, and by number among equal weights. The tokens that can be drawn are a prefix of
//! this order, and so are those up to a draw. The end of a prefix is found by its weight: first its octave, by a histogram
//! over octaves, then the weight itself by bisection over its bits, among the tokens of that octave alone.

use super::UNITS;
use super::choose::Records;
use super::heads::Progress;
use super::rows::{largest, row_peak, total};
use crate::device::buffers::Buffer;
use crate::math::ln;
use crate::math::softmax::{LEAST_SUM, unnormalized};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Octaves of weights in a histogram; the last one also has all smaller weights.
const OCTAVES: usize = 32;
/// Tokens per word of a mask, which is stored as a float, exactly.
pub(crate) const TOKENS: usize = 24;
/// The bits of the largest weight, 1.
const LARGEST: u32 = 0x3f80_0000;
/// Bits of a weight below its octave.
const MANTISSA: u32 = 23;

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
    pub sharpness: f32,
}

/// Scratch buffers of a choice.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct NarrowScratch {
    /// The weights of all tokens: `[rows, vocabulary]`.
    pub weights: Buffer<f32>,
    /// Lists of the tokens of one octave, a list for each unit: `[rows, vocabulary]`.
    pub lists: Buffer<u32>,
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
    let mut number = (127u32 - (bits >> MANTISSA)) as usize;
    if number >= OCTAVES {
        number = comptime!(OCTAVES - 1).runtime();
    }
    number
}

/// The term that a weight adds to a sum.
#[cube]
fn share(weight: f32, #[comptime] counts: bool) -> f32 {
    let mut share = weight;
    if comptime!(counts) {
        share = 1.0f32;
    }
    share
}

/// Whether a sum has reached a goal, or if `is_strict` has passed it.
#[cube]
fn passes(sum: f32, goal: f32, #[comptime] is_strict: bool) -> bool {
    let mut is_there = sum > goal;
    if comptime!(!is_strict) {
        is_there = sum >= goal;
    }
    is_there
}

/// Finds the largest weight such that the sum over all weights at least as large reaches `goal`, among weights whose bits
/// are at least `floor`; the least of these if the sum never does, since sums in another order round differently. `sums`,
/// `[OCTAVES, UNITS]`, and `bins`, `[OCTAVES]`, are scratch buffers.
#[cube]
fn search(
    scratch: &mut NarrowScratch,
    sums: &mut Shared<[f32]>,
    bins: &mut Shared<[f32]>,
    start: usize,
    vocabulary: usize,
    floor: u32,
    goal: f32,
    #[comptime] counts: bool,
    #[comptime] is_strict: bool,
) -> Place {
    let unit = UNIT_POS as usize;
    for number in 0..OCTAVES {
        sums[number * UNITS + unit] = 0.0f32;
    }
    for i in range_stepped(unit, vocabulary, UNITS) {
        let weight = scratch.weights[start + i];
        let bits = u32::reinterpret(weight);
        if bits >= floor {
            sums[octave(bits) * UNITS + unit] += share(weight, counts);
        }
    }
    sync_cube();
    if unit < OCTAVES {
        let mut sum = 0.0f32;
        for other in 0..UNITS {
            sum += sums[unit * UNITS + other];
        }
        bins[unit] = sum;
    }
    sync_cube();
    let mut above = 0.0f32;
    let mut passed = 0.0f32;
    // The last octave that has weights, if none passes.
    let mut chosen = comptime!(OCTAVES - 1).runtime();
    let mut is_there = false.runtime();
    for number in 0..OCTAVES {
        let sum = passed + bins[number];
        if !is_there && bins[number] > 0.0f32 {
            chosen = number;
            above = passed;
            is_there = passes(sum, goal, is_strict);
        }
        passed = sum;
    }
    sync_cube();
    let mut listed = 0usize.runtime();
    // No weight is above 1.
    let mut least = f32::new(-2.0f32);
    for i in range_stepped(unit, vocabulary, UNITS) {
        let weight = scratch.weights[start + i];
        let bits = u32::reinterpret(weight);
        if bits >= floor && octave(bits) == chosen {
            scratch.lists[start + unit + listed * UNITS] = i as u32;
            listed += 1;
            if -weight > least {
                least = -weight;
            }
        }
    }
    let least = -largest(least);
    // The weight is in `low..high`: at `low` the sum has come to the goal, or never does; at `high` it has not.
    let mut high = LARGEST - ((chosen as u32) << MANTISSA) + (1u32 << MANTISSA);
    let mut low = floor;
    if least < 2.0f32 {
        low = u32::reinterpret(least);
    }
    let mut at_high = above;
    while high - low > 1u32 {
        let middle = low + (high - low) / 2u32;
        let mut sum = 0.0f32;
        for at in 0..listed {
            let weight = scratch.weights[start + scratch.lists[start + unit + at * UNITS] as usize];
            if u32::reinterpret(weight) >= middle {
                sum += share(weight, counts);
            }
        }
        let sum = above + total(sum);
        // All units have read this sum before the next one is written.
        sync_cube();
        if passes(sum, goal, is_strict) {
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
fn tied(
    scratch: &mut NarrowScratch,
    start: usize,
    vocabulary: usize,
    place: &Place,
    before: f32,
) -> usize {
    let unit = UNIT_POS as usize;
    let mut low = 0usize.runtime();
    let mut high = vocabulary - 1;
    while low < high {
        let middle = (low + high) / 2;
        let mut count = 0.0f32;
        for at in 0..place.listed {
            let i = scratch.lists[start + unit + at * UNITS] as usize;
            if i <= middle && u32::reinterpret(scratch.weights[start + i]) == place.bits {
                count += 1.0f32;
            }
        }
        let count = total(count);
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
fn ties(scratch: &mut NarrowScratch, start: usize, place: &Place) -> f32 {
    let mut count = 0.0f32;
    for at in 0..place.listed {
        let i = scratch.lists[start + UNIT_POS as usize + at * UNITS] as usize;
        if u32::reinterpret(scratch.weights[start + i]) == place.bits {
            count += 1.0f32;
        }
    }
    let count = total(count);
    sync_cube();
    count
}

/// Draws a token for each row among those that top-k, top-p and min-p leave; one cube per row.
///
/// Buffers: logits `[rows, vocabulary]`; draws `[steps, rows]`; those of [`NarrowScratch`] and [`Progress`]; tokens `[rows]`;
/// those of [`Records`], whose masks have [`TOKENS`] bits each. Workgroup memory: 41 x [`UNITS`] floats.
#[cube(launch_unchecked)]
pub(crate) fn narrow_kernel(
    logits: &[f32],
    draws: &[f32],
    scratch: &mut NarrowScratch,
    progress: &mut Progress,
    tokens: &mut [i32],
    records: &mut Records,
    by: Narrowing,
    rows: usize,
    vocabulary: usize,
) {
    let row = CUBE_POS;
    if row < rows {
        let (unit, start) = (UNIT_POS as usize, row * vocabulary);
        let number = progress.next();
        if ABSOLUTE_POS == 0 {
            progress.choose(number);
        }
        let mut sums = Shared::<[f32]>::new_slice(comptime!(OCTAVES * UNITS));
        let mut bins = Shared::<[f32]>::new_slice(OCTAVES);
        let most = row_peak(logits, start, vocabulary, by.sharpness);
        for i in range_stepped(unit, vocabulary, UNITS) {
            scratch.weights[start + i] = unnormalized(logits[start + i] * by.sharpness, most);
        }

        // The last token that can be drawn: its weight, and the number of tokens of this weight that can.
        let mut last = 0u32.runtime();
        let mut kept = vocabulary as f32;
        if by.top_k > 0 && by.top_k < vocabulary {
            let goal = by.top_k as f32;
            let place =
                search(scratch, &mut sums, &mut bins, start, vocabulary, last, goal, true, false);
            last = place.bits;
            kept = goal - place.above;
        }
        if by.top_p < 1.0f32 {
            let mut mass = 0.0f32;
            for i in range_stepped(unit, vocabulary, UNITS) {
                let weight = scratch.weights[start + i];
                if u32::reinterpret(weight) > last {
                    mass += weight;
                }
            }
            let mut mass = total(mass);
            if last > 0u32 {
                mass += kept * f32::reinterpret(last);
            }
            let goal = by.top_p * mass;
            let place =
                search(scratch, &mut sums, &mut bins, start, vocabulary, last, goal, false, false);
            let mut some = ((goal - place.above) / f32::reinterpret(place.bits)).ceil();
            if some < 1.0f32 {
                some = 1.0f32;
            }
            if place.bits > last || some < kept {
                kept = some;
            }
            last = place.bits;
        }
        if u32::reinterpret(by.min_p) > last {
            last = u32::reinterpret(by.min_p);
            kept = vocabulary as f32;
        }

        // Sums over the tokens that can be drawn.
        let mut sum = 0.0f32;
        let mut mean = 0.0f32;
        let mut count = 0.0f32;
        let mut larger = 0.0f32;
        for i in range_stepped(unit, vocabulary, UNITS) {
            let weight = scratch.weights[start + i];
            let bits = u32::reinterpret(weight);
            if bits > last {
                larger += 1.0f32;
                sum += weight;
                mean += weight * (logits[start + i] * by.sharpness - most);
            } else if bits == last {
                count += 1.0f32;
            }
        }
        let count = total(count);
        if kept > count {
            kept = count;
        }
        let least = f32::reinterpret(last);
        let mut sum = total(sum);
        let mut mean = total(mean);
        if kept > 0.0f32 {
            sum += kept * least;
            mean += kept * least * ln(least);
        }

        let mut goal = draws[number * rows + row] * sum;
        if goal < LEAST_SUM {
            goal = f32::new(LEAST_SUM);
        }
        let place =
            search(scratch, &mut sums, &mut bins, start, vocabulary, last, goal, false, true);
        let mut before = ((goal - place.above) / f32::reinterpret(place.bits)).floor();
        let mut most_before = ties(scratch, start, &place) - 1.0f32;
        if place.bits == last && kept - 1.0f32 < most_before {
            most_before = kept - 1.0f32;
        }
        if before > most_before {
            before = most_before;
        }
        if before < 0.0f32 {
            before = 0.0f32;
        }
        let token = tied(scratch, start, vocabulary, &place, before);

        // Some tokens of the last weight may be left out.
        let mut end = vocabulary;
        if kept < count {
            // The weight at which there is one more than there are larger ones is the last.
            let goal = total(larger) + 1.0f32;
            let place =
                search(scratch, &mut sums, &mut bins, start, vocabulary, last, goal, true, false);
            end = tied(scratch, start, vocabulary, &place, kept - 1.0f32) + 1;
        }
        let words = vocabulary.div_ceil(TOKENS);
        for word in range_stepped(unit, words, UNITS) {
            let mut mask = 0u32.runtime();
            for bit in 0..TOKENS {
                let i = word * TOKENS + bit;
                if i < vocabulary {
                    let bits =
                        u32::reinterpret(unnormalized(logits[start + i] * by.sharpness, most));
                    if bits > last || (bits == last && i < end) {
                        mask += 1u32 << (bit as u32);
                    }
                }
            }
            records.mask(number, rows, row * words + word, mask);
        }
        if unit == 0 {
            let log_total = ln(sum);
            tokens[row] = token as i32;
            let logprob = logits[start + token] * by.sharpness - most - log_total;
            records.note(number, row, rows, token, logprob, log_total - mean / sum);
        }
    }
}
