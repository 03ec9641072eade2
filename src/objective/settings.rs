//! The settings of a loss, and their values in single precision, with which engines compute.

use super::{LossType, PolicyTerm};
use crate::schema::{OutOfRange, ensure, names, settings};
use burn::cubecl;
use burn::cubecl::prelude::*;

names! {
    /// An estimator of KL(policy || reference), as [`kl`](super::kl) describes.
    pub enum KlEstimator {
        /// `-x` with `x = ln(reference / policy)`. As a loss it needs `use_bias_correction_kl`: without,
        /// its expected gradient is 0.
        K1 = "k1",
        /// `x^2 / 2`, whose expected gradient is that of the divergence.
        K2 = "k2",
        /// `e^x - 1 - x`, which TRL uses. Without `use_bias_correction_kl` its expected gradient is
        /// that of KL(reference || policy).
        K3 = "k3",
    }
}

settings! {
    /// The loss of an update, with TRL's defaults except for `use_bias_correction_kl`, which its later versions set.
    pub struct LossConfig {
        /// Loss, and how its terms are averaged.
        loss_type: LossType = LossType::Dapo;
        /// The probability ratio is clipped below `1 - clip_eps_low`; `epsilon` sets both bounds.
        clip_eps_low: f64 = 0.2, in at_least(0.0).at_most(1.0), alias "epsilon";
        /// The probability ratio is clipped above `1 + clip_eps_high`; `cispo` caps it at `clip_eps_high` itself,
        /// where 5 is usual (ScaleRL).
        clip_eps_high: f64 = 0.2, in at_least(0.0), alias "epsilon_high";
        /// Largest ratio where the advantage is negative, above `1 + clip_eps_high`; 0 for none.
        dual_clip: f64 = 0.0, in at_least(0.0), alias "delta";
        /// Temperature of the gate of `sapo` for positive advantages.
        sapo_temperature_pos: f64 = 1.0, in at_least(1e-6_f32 as f64);
        /// Temperature of the gate of `sapo` for other advantages.
        sapo_temperature_neg: f64 = 1.05, in at_least(1e-6_f32 as f64);
        /// Weight of the KL divergence from the initial policy, or for GRPO of language models from the policy at its
        /// first iteration, after SFT; 0 keeps no copy of it.
        kl_coef: f64 = 0.0, in at_least(0.0), alias "beta";
        /// Estimator of the KL divergence.
        kl_estimator: KlEstimator = KlEstimator::K3;
        /// Weight the KL estimate by the importance ratio (unbiased gradient); not for demonstrations, which have no
        /// behaviour policy.
        use_bias_correction_kl: bool = false;
        /// Weight of the policy's entropy at the first iteration; for language models at all iterations of GRPO. The
        /// entropy of games is averaged like the loss, that of language models over the tokens of an optimizer step.
        entropy_coef: f64 = 0.0, in at_least(0.0);
        /// Weight of the entropy at the last iteration; it changes linearly. Only for games.
        entropy_coef_final: f64 = 0.0, in at_least(0.0);
        /// Label smoothing, as in PyTorch, before steps are weighted; only for datasets of games.
        label_smoothing: f64 = 0.0, in at_least(0.0).below(1.0);
    }
    check = LossConfig::check_settings;
}

impl LossConfig {
    /// The upper bound of the probability ratio: `1 + clip_eps_high`, or that number itself for `cispo`, as in TRL.
    pub fn upper_bound(&self) -> f64 {
        match self.loss_type.policy_term() {
            PolicyTerm::Cispo => self.clip_eps_high,
            PolicyTerm::Clip | PolicyTerm::Sapo | PolicyTerm::Nll => 1.0 + self.clip_eps_high,
        }
    }

    fn check_settings(&self) -> Result<(), OutOfRange> {
        let is_noise = self.kl_estimator == KlEstimator::K1 && !self.use_bias_correction_kl;
        ensure(
            self.kl_coef == 0.0 || !is_noise,
            "kl_estimator",
            self.kl_estimator,
            "k2 or k3, or k1 with use_bias_correction_kl: the expected gradient of k1 alone is 0",
        )?;
        ensure(
            self.dual_clip == 0.0 || self.dual_clip > 1.0 + self.clip_eps_high,
            "dual_clip",
            self.dual_clip,
            format!("0 (off) or above 1 + clip_eps_high ({})", 1.0 + self.clip_eps_high),
        )
    }
}

/// The part of a loss that an engine is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LossForm {
    /// The loss.
    pub loss_type: LossType,
    /// The estimator of the divergence from the reference policy, if there is one.
    pub kl: Option<KlEstimator>,
    /// Whether the estimate is multiplied by the ratio.
    pub is_kl_corrected: bool,
    /// Whether labels are smoothed.
    pub has_label_smoothing: bool,
}

impl LossForm {
    /// The form of a loss with these settings.
    pub fn new(config: &LossConfig) -> Self {
        Self {
            loss_type: config.loss_type,
            kl: (config.kl_coef > 0.0).then_some(config.kl_estimator),
            is_kl_corrected: config.use_bias_correction_kl,
            has_label_smoothing: config.label_smoothing > 0.0,
        }
    }

    /// The estimator of the divergence from the reference policy; `K1`, unused, without a reference policy.
    pub fn estimator(&self) -> KlEstimator {
        self.kl.unwrap_or(KlEstimator::K1)
    }
}

/// The factors and bounds of a loss at an iteration, in single precision.
#[derive(CubeType, CubeLaunch, Clone, Copy, Debug)]
pub struct LossParams {
    /// The lower bound of the ratio.
    pub min_ratio: f32,
    /// The upper bound of the ratio.
    pub max_ratio: f32,
    /// The dual clip; `f32::MAX` for none.
    pub dual_clip: f32,
    /// The temperature of `sapo` for positive advantages.
    pub sapo_temperature_pos: f32,
    /// The temperature of `sapo` for the others.
    pub sapo_temperature_neg: f32,
    /// The weight of the entropy.
    pub entropy_coef: f32,
    /// The weight of the divergence from the reference policy.
    pub kl_coef: f32,
    /// The label smoothing.
    pub label_smoothing: f32,
}

impl LossParams {
    /// The values of these settings, with this weight of the entropy.
    pub fn new(config: &LossConfig, entropy_coef: f64) -> Self {
        Self {
            min_ratio: (1.0 - config.clip_eps_low) as f32,
            max_ratio: config.upper_bound() as f32,
            dual_clip: if config.dual_clip > 0.0 { config.dual_clip as f32 } else { f32::MAX },
            sapo_temperature_pos: config.sapo_temperature_pos as f32,
            sapo_temperature_neg: config.sapo_temperature_neg as f32,
            entropy_coef: entropy_coef as f32,
            kl_coef: config.kl_coef as f32,
            label_smoothing: config.label_smoothing as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Settings;

    #[test]
    fn a_divergence_without_a_gradient_is_rejected() {
        let mut config = LossConfig { kl_estimator: KlEstimator::K1, ..LossConfig::default() };
        assert!(config.validate().is_ok(), "without a divergence");
        config.kl_coef = 0.1;
        let said = config.validate().unwrap_err().to_string();
        assert!(said.contains("kl_estimator is k1, but must be k2 or k3"), "{said}");
        config.use_bias_correction_kl = true;
        assert!(config.validate().is_ok());
    }

    #[test]
    fn bounds_of_ratios_are_those_of_trl() {
        let high = |loss_type| {
            let config = LossConfig { loss_type, clip_eps_high: 5.0, ..LossConfig::default() };
            LossParams::new(&config, 0.0).max_ratio
        };
        assert_eq!([LossType::Cispo, LossType::Dapo].map(high), [5.0, 6.0]);
    }
}
