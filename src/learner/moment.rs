//! Number formats of AdamW's moments: f32, or bf16 in half the memory.

use bytemuck::TransparentWrapper;

/// Number format of a moment in host memory.
pub trait MomentFormat: Copy + Default + Send {
    /// The number in f32, exactly.
    fn widen(self) -> f32;

    /// Rounds a number away from 0 if the distance to the next number is at most `threshold` / 2^16 of the spacing.
    fn round(x: f32, threshold: u32) -> Self;
}

impl MomentFormat for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn round(x: f32, _threshold: u32) -> f32 {
        x
    }
}

/// A number in bf16: the upper half of an f32's bits.
///
/// A step computes in f32 and rounds the new moments up or down at random, in proportion to their distance (stochastic
/// rounding; Gupta et al. 2015), so that a running mean keeps changes smaller than the spacing of bf16. With rounding
/// to the nearest, a second moment would not change at all: a step changes it by about 0.1 %, and bf16 numbers are 0.4
/// to 0.8 % apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(transparent)]
pub struct Bf16Moment(u16);

// SAFETY: the number is its bits alone, and any bits are a number.
unsafe impl TransparentWrapper<u16> for Bf16Moment {}

impl MomentFormat for Bf16Moment {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// NaN stays NaN.
    #[inline(always)]
    fn round(x: f32, threshold: u32) -> Self {
        let rounded = (x.to_bits().wrapping_add(threshold) >> 16) as u16;
        Self(if x.is_nan() { 0x7fc0 } else { rounded })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::optimizer::{Moments, StepSettings};
    use crate::rng::draw;
    use crate::settings::TrainConfig;

    #[test]
    fn rounding_is_exact_or_right_on_average() {
        for x in [0.0f32, -0.0, 1.0, -2.5, f32::INFINITY] {
            for threshold in [0, 1, 1 << 15, 0xffff] {
                assert_eq!(Bf16Moment::round(x, threshold).widen().to_bits(), x.to_bits(), "{x}");
            }
        }
        for x in [1.001f32, -0.3, 7.123e-5, 1e-39] {
            let all =
                (0..1 << 16).map(|threshold| f64::from(Bf16Moment::round(x, threshold).widen()));
            let mean = all.sum::<f64>() / f64::from(1 << 16);
            assert!((mean / f64::from(x) - 1.0).abs() < 1e-6, "{mean} instead of {x}");
        }
        for bits in [f32::NAN.to_bits(), 0x7fff_ffff, 0xffff_ffff, 0x7f80_0001] {
            let nan = f32::from_bits(bits);
            for threshold in [0, 1, 0xffff] {
                assert!(Bf16Moment::round(nan, threshold).widen().is_nan());
            }
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
        let mut half = want.convert::<Bf16Moment>();
        let settings =
            StepSettings { learning_rate: 1e-4, config: &config, undecayed: &[], key: 7 };
        for i in 0..300u32 {
            let gradient: Vec<f32> =
                (0..count as u32).map(|at| 1e-3 * (1.0 + (draw(i, at) % 8) as f32)).collect();
            half.step(&mut params, &gradient, 1.0, &settings);
            want.step(&mut wanted, &gradient, 1.0, &settings);
        }
        let got: Moments = half.convert();
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
        assert_eq!(got.convert(), half);
    }
}
