//! Estimators of KL(policy || reference) from sampled actions (Schulman 2020,
//! <http://joschu.net/blog/kl-approx.html>).
//!
//! With `x = ln(reference / policy)`:
//!
//! | estimator | value | expected value | expected gradient |
//! |---|---|---|---|
//! | k1 | `-x` | the divergence | 0: as a loss it only adds noise |
//! | k2 | `x^2 / 2` | an approximation | the divergence's, if the policy is the behaviour policy |
//! | k3 | `e^x - 1 - x` | the divergence | the gradient of the reverse divergence, KL(reference \|\| policy) |
//!
//! The gradients of k1 and k3 are biased, because they ignore the policy's influence on which actions are sampled.
//!
//! Multiplied by the importance ratio `r = policy / behaviour policy` (DeepSeek-V3.2, TRL's
//! `use_bias_correction_kl`), k1 and k3 have the value and the gradient of the divergence in
//! expectation under any behaviour policy. Demonstrations have none, so the settings reject the
//! correction for them. `r` is always the ratio of the step, even for losses with one ratio per
//! game; TRL uses the sequence ratio there.

use super::{KlEstimator, LossConfig};
use crate::math::{MAX_EXPONENT, exp};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

/// A divergence estimate at one step.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct KlEstimate {
    /// Value of the estimate.
    pub value: f32,
    /// Derivative with respect to the log-probability of the action taken.
    pub d_logprob: f32,
}

/// The k3 estimator, `r - 1 - ln r`, from a ratio and its logarithm.
#[cube]
#[inline(always)]
pub fn k3(ratio: f32, log_ratio: f32) -> f32 {
    ratio - 1.0f32 - log_ratio
}

/// Estimates the divergence without the correction by the importance ratio.
#[cube]
#[inline(always)]
fn estimate_uncorrected(to_reference: f32, #[comptime] estimator: KlEstimator) -> KlEstimate {
    match comptime!(estimator) {
        KlEstimator::K1 => KlEstimate { value: -to_reference, d_logprob: 1.0f32.runtime() },
        KlEstimator::K2 => {
            KlEstimate { value: 0.5f32 * to_reference * to_reference, d_logprob: -to_reference }
        }
        KlEstimator::K3 => {
            let ratio = exp(to_reference);
            KlEstimate { value: k3(ratio, to_reference), d_logprob: 1.0f32 - ratio }
        }
    }
}

/// Estimates the divergence from `to_reference = ln(reference / policy)`, multiplied by `ratio` if `is_corrected`.
#[cube]
#[inline(always)]
pub fn estimate_kl(
    to_reference: f32,
    ratio: f32,
    #[comptime] estimator: KlEstimator,
    #[comptime] is_corrected: bool,
) -> KlEstimate {
    let plain = estimate_uncorrected(to_reference, estimator);
    if comptime!(is_corrected) {
        // The derivative of the ratio with respect to the log-probability is the ratio.
        KlEstimate {
            value: ratio * plain.value,
            d_logprob: ratio * (plain.d_logprob + plain.value),
        }
    } else {
        plain
    }
}

/// The exponential, clamped above like [`exp()`] in the other engines, with the same derivative as there: its value.
/// Without the clamp an infinite ratio makes NaN of masked steps and of gradients that clipping stops.
pub(super) fn bounded_exp(x: Tensor<2>) -> Tensor<2> {
    let excess = (x.clone().detach() - MAX_EXPONENT).clamp_min(0.0);
    (x - excess).exp()
}

/// Estimates the divergence at each step, in tensors.
pub(super) fn tensor_estimate(
    config: &LossConfig,
    policy: Tensor<2>,
    reference: Tensor<2>,
    ratio: Tensor<2>,
) -> Tensor<2> {
    let to_reference = reference - policy;
    let plain = match config.kl_estimator {
        KlEstimator::K1 => to_reference.neg(),
        KlEstimator::K2 => to_reference.square() * 0.5,
        KlEstimator::K3 => bounded_exp(to_reference.clone()) - 1.0 - to_reference,
    };
    if config.use_bias_correction_kl { plain * ratio } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: [f32; 3] = [0.5, 0.3, 0.2];
    const REFERENCE: [f32; 3] = [0.2, 0.35, 0.45];
    const BEHAVIOUR: [f32; 3] = [0.3, 0.3, 0.4];

    /// Expected gradient of an estimator with respect to the logits, for actions sampled from `behaviour`.
    fn mean_gradient(behaviour: [f32; 3], estimator: KlEstimator, is_corrected: bool) -> [f32; 3] {
        let mut gradient = [0.0; 3];
        for action in 0..3 {
            let to_reference = (REFERENCE[action] / POLICY[action]).ln();
            let ratio = POLICY[action] / behaviour[action];
            let d_logprob = estimate_kl(to_reference, ratio, estimator, is_corrected).d_logprob;
            for (a, gradient) in gradient.iter_mut().enumerate() {
                let taken = f32::from(u8::from(a == action));
                *gradient += behaviour[action] * d_logprob * (taken - POLICY[a]);
            }
        }
        gradient
    }

    fn assert_close(got: [f32; 3], want: [f32; 3]) {
        let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-6, "{got:?} instead of {want:?}");
    }

    #[test]
    fn expected_gradients_are_as_documented() {
        let kl: f32 = (0..3).map(|a| POLICY[a] * (POLICY[a] / REFERENCE[a]).ln()).sum();
        let forward: [f32; 3] =
            std::array::from_fn(|a| POLICY[a] * ((POLICY[a] / REFERENCE[a]).ln() - kl));
        let reverse: [f32; 3] = std::array::from_fn(|a| POLICY[a] - REFERENCE[a]);
        assert_close(mean_gradient(POLICY, KlEstimator::K1, false), [0.0; 3]);
        assert_close(mean_gradient(POLICY, KlEstimator::K2, false), forward);
        assert_close(mean_gradient(POLICY, KlEstimator::K3, false), reverse);
        for estimator in [KlEstimator::K1, KlEstimator::K3] {
            assert_close(mean_gradient(POLICY, estimator, true), forward);
            assert_close(mean_gradient(BEHAVIOUR, estimator, true), forward);
        }
    }
}
