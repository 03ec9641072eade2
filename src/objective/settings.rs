//! The settings of a loss, and the numbers that engines take them as.

use super::{KlEstimator, LossType};
use burn::cubecl;
use burn::cubecl::prelude::*;
use serde::{Deserialize, Serialize};

/// The loss of an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossConfig {
    /// Which ratio is clipped, and how the terms are averaged.
    pub loss_type: LossType,
    /// The ratio is clipped below `1 - clip_eps_low`, 0 to 1. TRL's `epsilon` sets both this and, where
    /// no `epsilon_high` is given beside it, the bound above.
    pub clip_eps_low: f64,
    /// The ratio is clipped above `1 + clip_eps_high` (TRL: `epsilon_high`), 0 or more.
    pub clip_eps_high: f64,
    /// Dual clip: the unclipped ratio counts at most this where the advantage is negative
    /// (TRL: `delta`). More than `1 + clip_eps_high`, or 0 for none.
    pub dual_clip: f64,
    /// How soon the gate of `sapo` closes where the advantage is positive, above 0.
    #[serde(default = "sapo_temperature_pos")]
    pub sapo_temperature_pos: f64,
    /// The same where the advantage is not positive.
    #[serde(default = "sapo_temperature_neg")]
    pub sapo_temperature_neg: f64,
    /// Weight of the divergence from the initial policy (TRL: `beta`). With 0 no reference policy
    /// is held.
    pub kl_coef: f64,
    /// The estimator of that divergence.
    pub kl_estimator: KlEstimator,
    /// Whether that estimate is multiplied by the ratio, so that its gradient is the divergence's, and
    /// stays so when the policy is no longer the one that acted.
    #[serde(default)]
    pub use_bias_correction_kl: bool,
    /// Weight of the policy's entropy at the first iteration.
    pub entropy_coef: f64,
    /// Its weight at the last iteration; in between it changes linearly.
    pub entropy_coef_final: f64,
    /// Share of what is right that all actions have alike, 0 to below 1, where the run learns from data
    /// (PyTorch: `label_smoothing` of `CrossEntropyLoss`).
    #[serde(default)]
    pub label_smoothing: f64,
}

/// TRL's default.
fn sapo_temperature_pos() -> f64 {
    1.0
}

/// TRL's default.
fn sapo_temperature_neg() -> f64 {
    1.05
}

impl LossConfig {
    /// `dapo` without entropy or divergence, and otherwise TRL's defaults.
    pub fn new() -> Self {
        Self {
            loss_type: LossType::Dapo,
            clip_eps_low: 0.2,
            clip_eps_high: 0.2,
            dual_clip: 0.0,
            sapo_temperature_pos: sapo_temperature_pos(),
            sapo_temperature_neg: sapo_temperature_neg(),
            kl_coef: 0.0,
            kl_estimator: KlEstimator::K3,
            use_bias_correction_kl: false,
            entropy_coef: 0.0,
            entropy_coef_final: 0.0,
            label_smoothing: 0.0,
        }
    }
}

impl Default for LossConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// What of a loss an engine is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// The loss.
    pub loss_type: LossType,
    /// The estimator of the divergence from the reference policy, if there is one.
    pub kl: Option<KlEstimator>,
    /// Whether the estimate is multiplied by the ratio.
    pub corrected: bool,
    /// Whether all actions have a share of what is right.
    pub smoothed: bool,
}

impl Form {
    /// The form that the settings ask for.
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
    /// Its upper bound.
    pub high: f32,
    /// The dual clip; beyond all ratios where there is none.
    pub dual_clip: f32,
    /// The temperature of `sapo` for positive advantages.
    pub temperature_pos: f32,
    /// The temperature of `sapo` for the others.
    pub temperature_neg: f32,
    /// The weight of the entropy.
    pub entropy: f32,
    /// The weight of the divergence from the reference policy.
    pub kl: f32,
    /// The share of what is right that all actions have alike.
    pub smoothing: f32,
}

impl Coefficients {
    /// The coefficients that the settings ask for, with this weight of the entropy.
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
