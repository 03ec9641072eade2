//! Block-wise quantization to 8 bits: numbers in blocks, each with a scale, the largest magnitude of its numbers.
//!
//! A number is kept as the upper 11 bits of its f32 (exponent and three bits of mantissa) minus a base, such that the
//! block's largest number has the largest code. Neighbours are 6 to 12 % apart over the whole range, which ends at the
//! largest number divided by 2^31.75, or by 2^15.75 where a bit is for the sign. Rounding is at random, in proportion
//! to the distance (stochastic rounding; Gupta et al. 2015). Numbers that are already rounded stay the same, and so do
//! their bytes.

/// Length of a block: the numbers that share a scale.
pub const BLOCK: usize = 128;

/// Bits of a number in f32 that are rounded off.
const DROPPED_BITS: u32 = 20;
/// Bits of a NaN, above those of all other numbers without a sign.
const NAN_BITS: u32 = 0x7fc0_0000;

/// A quantized number: `u8` without a sign, `i8` with one. 0 stands for 0, and the largest code for the scale.
pub trait BlockCode: Copy + Default + Send + Sync {
    /// The largest code.
    const MAX_CODE: u32;
    /// Whether a nonzero number below the range becomes the smallest number; otherwise it becomes that or 0, at random.
    const ROUNDS_UP_TO_LEAST: bool;

    /// The code of a magnitude with the sign of `x`.
    fn new(code: u32, x: f32) -> Self;

    /// The code of the magnitude.
    fn code(self) -> u32;

    /// Gives `magnitude` the number's sign.
    fn apply_sign(self, magnitude: f32) -> f32;
}

impl BlockCode for u8 {
    const MAX_CODE: u32 = 255;
    const ROUNDS_UP_TO_LEAST: bool = true;

    #[inline(always)]
    fn new(code: u32, _x: f32) -> u8 {
        code as u8
    }

    #[inline(always)]
    fn code(self) -> u32 {
        u32::from(self)
    }

    #[inline(always)]
    fn apply_sign(self, magnitude: f32) -> f32 {
        magnitude
    }
}

impl BlockCode for i8 {
    const MAX_CODE: u32 = 127;
    const ROUNDS_UP_TO_LEAST: bool = false;

    #[inline(always)]
    fn new(code: u32, x: f32) -> i8 {
        let code = code as i8;
        if x < 0.0 { -code } else { code }
    }

    #[inline(always)]
    fn code(self) -> u32 {
        u32::from(self.unsigned_abs())
    }

    #[inline(always)]
    fn apply_sign(self, magnitude: f32) -> f32 {
        if self < 0 { -magnitude } else { magnitude }
    }
}

/// Number of blocks of `len` numbers; the last one may be shorter.
pub fn num_blocks(len: usize) -> usize {
    len.div_ceil(BLOCK)
}

/// Distance of the number just below code 1 of a block from 0, in rounding steps; the scale is a number in bf16.
#[inline(always)]
fn code_base<B: BlockCode>(scale: u16) -> u32 {
    (u32::from(scale & 0x7fff) >> 4).saturating_sub(B::MAX_CODE)
}

/// Converts the numbers of a block to f32, exactly. `scale` is in bf16.
#[inline(always)]
pub fn dequantize<B: BlockCode>(block: &[B], scale: u16, numbers: &mut [f32]) {
    let base = code_base::<B>(scale);
    for (quantized, x) in block.iter().zip(numbers) {
        let code = quantized.code();
        let bits = if code == 0 { 0 } else { (base + code) << DROPPED_BITS };
        *x = quantized.apply_sign(f32::from_bits(bits));
    }
}

/// Rounds the numbers of a block and returns their scale, in bf16. A number is rounded away from 0 if its distance to
/// the next one is at most its threshold / 2^16 of the spacing; a threshold of 2^15 rounds to the nearest. NaN
/// stays NaN.
///
/// Numbers too small for the block become, at random, 0 or its smallest number. In an unsigned block they always become
/// the smallest number unless they are 0, so that dividing by them is safe.
#[inline(always)]
pub fn quantize<B: BlockCode>(numbers: &[f32], thresholds: &[u32], block: &mut [B]) -> u16 {
    let magnitude_bits = |x: f32| if x.is_nan() { NAN_BITS } else { x.abs().to_bits() };
    let min_code = |bits: u32| u32::from(B::ROUNDS_UP_TO_LEAST && bits > 0);
    let round =
        |bits: u32, threshold: u32| ((bits + (threshold << 4)) >> DROPPED_BITS).max(min_code(bits));
    let pairs = numbers.iter().zip(thresholds);
    let top =
        pairs.clone().map(|(x, threshold)| round(magnitude_bits(*x), *threshold)).fold(0, u32::max);
    let scale = (top << 4) as u16;
    let base = code_base::<B>(scale);
    // Below this number there is only 0.
    let lowest = (base + 1) << DROPPED_BITS;
    let spacing = f32::from_bits(lowest) / 65536.0;
    for ((x, threshold), quantized) in pairs.zip(block) {
        let bits = magnitude_bits(*x);
        let is_within = bits >= lowest || base == 0;
        let code_within = round(bits, *threshold).saturating_sub(base);
        let code_below = min_code(bits) | u32::from(x.abs() > *threshold as f32 * spacing);
        *quantized = B::new(if is_within { code_within } else { code_below }, *x);
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dequantize_block<B: BlockCode>(codes: &[B], scale: u16) -> Vec<f32> {
        let mut numbers = vec![0.0; codes.len()];
        dequantize(codes, scale, &mut numbers);
        numbers
    }

    fn quantize_block<B: BlockCode>(numbers: &[f32], threshold: u32) -> (Vec<B>, u16) {
        let mut codes = vec![B::default(); numbers.len()];
        let scale = quantize(numbers, &vec![threshold; numbers.len()], &mut codes);
        (codes, scale)
    }

    fn round<B: BlockCode>(numbers: &[f32], threshold: u32) -> Vec<f32> {
        let (codes, scale) = quantize_block::<B>(numbers, threshold);
        dequantize_block(&codes, scale)
    }

    /// Asserts that every code of every scale without NaN stays the same.
    fn assert_round_trips<B: BlockCode + PartialEq + std::fmt::Debug>(codes: &[B]) {
        for top in 1..0x7f8u32 {
            // The scale is that of the largest code there can be.
            let largest = top.min(B::MAX_CODE);
            let block: Vec<B> =
                codes.iter().copied().filter(|quantized| quantized.code() <= largest).collect();
            let numbers = dequantize_block(&block, (top << 4) as u16);
            assert!(numbers.iter().all(|x| x.is_finite()));
            for threshold in [0, 1, 0x8000, 0xffff] {
                assert_eq!(quantize_block(&numbers, threshold), (block.clone(), (top << 4) as u16));
            }
        }
        assert_eq!(quantize_block(&[0.0, -0.0], 0xffff), (vec![B::default(); 2], 0));
    }

    #[test]
    fn rounded_numbers_keep_their_bytes() {
        assert_round_trips(&(0..=255).collect::<Vec<u8>>());
        assert_round_trips(&(-127..=127).collect::<Vec<i8>>());
    }

    #[test]
    fn rounding_is_right_on_average() {
        let numbers = [1.0f32, -0.937, 0.3001, -7.77e-3, 1.26e-5, -3.0e-7, 5e-13];
        let mut sums = [0.0f64; 7];
        for threshold in 0..1 << 16 {
            for (sum, x) in sums.iter_mut().zip(round::<i8>(&numbers, threshold)) {
                *sum += f64::from(x);
            }
        }
        let smallest = 1.1 * 2f64.powf(-15.75);
        for (sum, x) in sums.into_iter().zip(numbers) {
            let (mean, x) = (sum / 65536.0, f64::from(x));
            // Probabilities are multiples of 2^-16.
            let spacing = (x.abs() / 8.0).max(smallest);
            assert!((mean - x).abs() <= spacing / 65536.0, "{mean} instead of {x}");
        }
        for threshold in [0, 0x8000, 0xffff] {
            for (got, x) in round::<i8>(&numbers, threshold).into_iter().zip(numbers) {
                let tolerance =
                    if f64::from(x.abs()) < smallest { smallest as f32 } else { x.abs() / 8.0 };
                assert!((got - x).abs() <= tolerance, "{got} instead of {x}");
            }
        }
    }

    #[test]
    fn small_numbers_without_a_sign_stay_above_zero() {
        // The distance between the smallest numbers in f32.
        let spacing = f32::from_bits(1 << DROPPED_BITS);
        for largest in [1e6f32, 1.0, 1e-28, 1e-37, 1e-44] {
            for small in [1.0, 1e-4, 1e-9, 1e-24, 1e-36] {
                let numbers = [largest, largest * small, f32::from_bits(1), 0.0];
                for threshold in [0, 0x8000, 0xffff] {
                    let got = round::<u8>(&numbers, threshold);
                    assert!(got[2] > 0.0 && got[3] == 0.0);
                    assert!(numbers[1] == 0.0 || got[1] > 0.0, "{largest} {small}");
                    let smallest = 1.1 * 2f32.powf(-31.75) * got[0];
                    assert!(got[1] <= (1.125 * numbers[1]).max(smallest).max(spacing));
                }
            }
        }
    }

    #[test]
    fn nothing_hides_numbers_that_are_not_finite() {
        for bits in [f32::NAN.to_bits(), 0x7fff_ffff, 0xffff_ffff, 0x7f80_0001] {
            for threshold in [0, 1, 0xffff] {
                assert!(round::<u8>(&[1.0, f32::from_bits(bits)], threshold)[1].is_nan());
                assert!(round::<i8>(&[f32::from_bits(bits), 1.0], threshold)[0].is_nan());
            }
        }
        assert_eq!(round::<i8>(&[f32::NEG_INFINITY], 0xffff), [f32::NEG_INFINITY]);
        assert_eq!(round::<u8>(&[f32::INFINITY, 2.0], 0)[0], f32::INFINITY);
    }
}
