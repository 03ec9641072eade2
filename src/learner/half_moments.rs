//! AdamW's moments in bf16, in half the memory.

use super::optimizer::{Moments, StepSettings, each_portion};
use crate::math::adamw::{Factors, Moving, step};
use crate::model::saved::Numbers;
use crate::rng::draw;
use multiversion::multiversion;

/// Adam moments of parameters in host memory, in bf16.
///
/// A step computes in f32 and rounds the new moments up or down at random, in proportion to their distance (stochastic
/// rounding; Gupta et al. 2015), so that a running mean keeps changes smaller than the spacing of bf16. With rounding to the
/// nearest, a second moment would not change at all: a step changes it by about 0.1 %, and bf16 numbers are 0.4 to 0.8 %
/// apart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HalfMoments {
    first_moment: Vec<u16>,
    second_moment: Vec<u16>,
    steps: u64,
    /// Key of the draws of all steps.
    key: u32,
}

impl HalfMoments {
    /// Rounds moments to the nearest, exactly if they were in bf16 before.
    pub fn new(moments: &Moments, key: u32) -> Self {
        // Half of the spacing rounds to the nearest.
        let rounded = |values: &[f32]| values.iter().map(|x| rounded(*x, 1 << 15)).collect();
        Self {
            first_moment: rounded(&moments.first_moment),
            second_moment: rounded(&moments.second_moment),
            steps: moments.steps,
            key,
        }
    }

    /// The moments in f32, exactly.
    pub fn widened(&self) -> Moments {
        let widened = |values: &[u16]| values.iter().map(|x| widened(*x)).collect();
        Moments {
            first_moment: widened(&self.first_moment),
            second_moment: widened(&self.second_moment),
            steps: self.steps,
        }
    }

    /// The first and the second moment, as files keep them.
    pub fn numbers(&self) -> [Numbers<'_>; 2] {
        [Numbers::Bf16(&self.first_moment), Numbers::Bf16(&self.second_moment)]
    }

    /// Number of steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Performs [`Moments::step`].
    pub fn step(&mut self, params: &mut [f32], gradient: &[f32], scale: f32, by: &StepSettings) {
        self.steps += 1;
        let key = draw(draw(self.key, (self.steps >> 32) as u32), self.steps as u32);
        let moments = (&mut self.first_moment[..], &mut self.second_moment[..]);
        each_portion(params, gradient, moments, by, self.steps, |factors, start, part| {
            let (params, gradient, (first, second)) = part;
            apply(factors, (scale, key, start as u32), params, gradient, first, second);
        });
    }
}

/// Steps slices of equal length, the first of whose parameters has this number.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn apply(
    factors: &Factors,
    (scale, key, start): (f32, u32, u32),
    params: &mut [f32],
    gradient: &[f32],
    first_moment: &mut [u16],
    second_moment: &mut [u16],
) {
    let moments = first_moment.iter_mut().zip(second_moment);
    let all = params.iter_mut().zip(gradient).zip(moments).enumerate();
    for (i, ((param, gradient), (first, second))) in all {
        let before = Moving { param: *param, first: widened(*first), second: widened(*second) };
        let after = step(&before, gradient * scale, factors);
        let drawn = draw(key, start.wrapping_add(i as u32));
        *param = after.param;
        *first = rounded(after.first, drawn & 0xffff);
        *second = rounded(after.second, drawn >> 16);
    }
}

/// A number in bf16 as f32.
#[inline(always)]
fn widened(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// Rounds to bf16: away from 0 if the lower half of the bits and `share`, below 2^16, carry. NaN stays NaN.
#[inline(always)]
fn rounded(x: f32, share: u32) -> u16 {
    let rounded = (x.to_bits().wrapping_add(share) >> 16) as u16;
    if x.is_nan() { 0x7fc0 } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TrainConfig;

    #[test]
    fn rounding_is_exact_or_right_on_average() {
        for x in [0.0f32, -0.0, 1.0, -2.5, f32::INFINITY] {
            for share in [0, 1, 1 << 15, 0xffff] {
                assert_eq!(widened(rounded(x, share)).to_bits(), x.to_bits(), "{x}");
            }
        }
        for x in [1.001f32, -0.3, 7.123e-5, 1e-39] {
            let all = (0..1 << 16).map(|share| f64::from(widened(rounded(x, share))));
            let mean = all.sum::<f64>() / f64::from(1 << 16);
            assert!((mean / f64::from(x) - 1.0).abs() < 1e-6, "{mean} instead of {x}");
        }
        for bits in [f32::NAN.to_bits(), 0x7fff_ffff, 0xffff_ffff, 0x7f80_0001] {
            let nan = f32::from_bits(bits);
            assert!([0, 1, 0xffff].iter().all(|share| widened(rounded(nan, *share)).is_nan()));
        }
    }

    /// A second moment of bf16 follows the one of f32, although a step changes it by less than its spacing.
    #[test]
    fn small_changes_are_kept() {
        let mut config = TrainConfig::for_game("any").optimizer;
        config.weight_decay = 0.0;
        let count = 70_000;
        let (mut params, mut wanted) = (vec![1.0f32; count], vec![1.0f32; count]);
        let mut want = Moments::new(count);
        let mut half = HalfMoments::new(&want, 7);
        let by = StepSettings { learning_rate: 1e-4, config: &config, spared: &[] };
        for i in 0..300u32 {
            let gradient: Vec<f32> =
                (0..count as u32).map(|at| 1e-3 * (1.0 + (draw(i, at) % 8) as f32)).collect();
            half.step(&mut params, &gradient, 1.0, &by);
            want.step(&mut wanted, &gradient, 1.0, &by);
        }
        let got = half.widened();
        let mean = |values: &[f32]| values.iter().map(|x| f64::from(*x)).sum::<f64>();
        for (got, want) in [
            (&got.first_moment, &want.first_moment),
            (&got.second_moment, &want.second_moment),
            (&params, &wanted),
        ] {
            assert!((mean(got) / mean(want) - 1.0).abs() < 1e-3);
            let apart = got.iter().zip(want).map(|(a, b)| (a / b - 1.0).abs());
            assert!(apart.fold(0.0, f32::max) < 0.2);
        }
        assert_eq!(HalfMoments::new(&got, 7), half);
    }
}
