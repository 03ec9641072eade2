//! The settings of a loss, and the coefficients that engines compute with.

use super::LossType;
use crate::schema::{OutOfRange, limit, names, settings};
use burn::cubecl;
use burn::cubecl::prelude::*;

names! {
    /// An estimator of KL(policy || reference), as [`kl`](super::kl) describes.
    pub enum KlEstimator {
        /// `-log r` with `r = reference / policy`. As a loss it needs `use_bias_correction_kl`: without,
        /// its gradient is 0 in the mean.
        K1 = "k1",
        /// `(log r)^2 / 2`, whose gradient is the divergence's in the mean.
        K2 = "k2",
        /// `r - 1 - log r`, which TRL uses. Without `use_bias_correction_kl` its gradient is that of
        /// KL(reference || policy) in the mean.
        K3 = "k3",
    }
}

settings! {
    /// The loss of an update, with TRL's defaults but for `kl_coef`.
    pub struct LossConfig {
        /// Loss, and how its terms are averaged.
        loss_type: LossType = LossType::Dapo;
        /// The probability ratio is clipped below `1 - clip_eps_low`; `epsilon` sets both bounds.
        clip_eps_low: f64 = 0.2, in at_least(0.0).at_most(1.0), alias "epsilon";
        /// The probability ratio is clipped above `1 + clip_eps_high`.
        clip_eps_high: f64 = 0.2, in at_least(0.0), alias "epsilon_high";
        /// Largest ratio where the advantage is negative, above `1 + clip_eps_high`; 0 for none.
        dual_clip: f64 = 0.0, in at_least(0.0), alias "delta";
        /// Temperature of the gate of `sapo` for positive advantages.
        sapo_temperature_pos: f64 = 1.0, in above(0.0);
        /// Temperature of the gate of `sapo` for other advantages.
        sapo_temperature_neg: f64 = 1.05, in above(0.0);
        /// Weight of the KL divergence from the initial policy, for texts that with which rewards begin; with 0 no
        /// copy of it is kept.
        kl_coef: f64 = 0.0, in at_least(0.0), alias "beta";
        /// Estimator of the KL divergence.
        kl_estimator: KlEstimator = KlEstimator::K3;
        /// Weight the KL estimate by the importance ratio (unbiased gradient).
        use_bias_correction_kl: bool = false;
        /// Weight of the policy's entropy at the first iteration.
        entropy_coef: f64 = 0.0, in at_least(0.0);
        /// Weight of the entropy at the last iteration; it changes linearly.
        entropy_coef_final: f64 = 0.0, in at_least(0.0);
        /// Label smoothing, as in PyTorch; only for datasets of games.
        label_smoothing: f64 = 0.0, in at_least(0.0).below(1.0);
    }
    rules = LossConfig::rules;
}

impl LossConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    fn rules(&self) -> Result<(), OutOfRange> {
        limit(
            self.dual_clip == 0.0 || self.dual_clip > 1.0 + self.clip_eps_high,
            "dual_clip",
            self.dual_clip,
            format!("0 (off) or above 1 + clip_eps_high ({})", 1.0 + self.clip_eps_high),
        )
    }
}

/// The part of a loss that an engine is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// The loss.
    pub loss_type: LossType,
    /// The estimator of the divergence from the reference policy, if there is one.
    pub kl: Option<KlEstimator>,
    /// Whether the estimate is multiplied by the ratio.
    pub corrected: bool,
    /// Whether labels are smoothed.
    pub smoothed: bool,
}

impl Form {
    /// The form of a loss with these settings.
    pub fn of(config: &LossConfig) -> Self {
        Self {
            loss_type: config.loss_type,
            kl: (config.kl_coef > 0.0).then_some(config.kl_estimator),
            corrected: config.use_bias_correction_kl,
            smoothed: config.label_smoothing > 0.0,
        }
    }

    /// The estimator of the divergence from the reference policy, where there is one.
    pub fn estimator(&self) -> KlEstimator {
        self.kl.unwrap_or(KlEstimator::K1)
    }
}

/// The numbers of a loss at an iteration.
#[derive(CubeType, CubeLaunch, Clone, Copy, Debug)]
pub struct Coefficients {
    /// The lower bound of the ratio.
    pub low: f32,
    /// The upper bound of the ratio.
    pub high: f32,
    /// The dual clip; `f32::MAX` for none.
    pub dual_clip: f32,
    /// The temperature of `sapo` for positive advantages.
    pub temperature_pos: f32,
    /// The temperature of `sapo` for the others.
    pub temperature_neg: f32,
    /// The weight of the entropy.
    pub entropy: f32,
    /// The weight of the divergence from the reference policy.
    pub kl: f32,
    /// The label smoothing.
    pub smoothing: f32,
}

impl Coefficients {
    /// The coefficients of these settings, with this weight of the entropy.
    pub fn new(config: &LossConfig, entropy_coef: f64) -> Self {
        Self {
            low: (1.0 - config.clip_eps_low) as f32,
            high: (1.0 + config.clip_eps_high) as f32,
            dual_clip: if config.dual_clip > 0.0 { config.dual_clip as f32 } else { f32::MAX },
            temperature_pos: config.sapo_temperature_pos as f32,
            temperature_neg: config.sapo_temperature_neg as f32,
            entropy: entropy_coef as f32,
            kl: config.kl_coef as f32,
            smoothing: config.label_smoothing as f32,
        }
    }
}
