//! AdamW for one parameter (Loshchilov & Hutter 2019, algorithm 2, as in `torch.optim.AdamW`), and
//! gradient clipping by norm.

use super::at_most;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// AdamW hyperparameters, constant over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the denominator for numerical stability.
    pub epsilon: f64,
    /// Decoupled weight decay coefficient.
    pub weight_decay: f64,
}

/// Factors of one optimizer step, shared by all parameters.
#[derive(CubeType, CubeLaunch, Clone, Copy, Debug)]
pub struct Factors {
    /// `beta1`.
    pub keep1: f32,
    /// `1 - beta1`.
    pub add1: f32,
    /// `beta2`.
    pub keep2: f32,
    /// `1 - beta2`.
    pub add2: f32,
    /// Square root of the second moment's bias correction, `sqrt(1 - beta2^step)`.
    pub correction: f32,
    /// Added to the denominator for numerical stability.
    pub epsilon: f32,
    /// Factor that applies weight decay: `1 - learning_rate * weight_decay`.
    pub decay: f32,
    /// Learning rate over the first moment's bias correction, `learning_rate / (1 - beta1^step)`.
    pub rate: f32,
}

impl Factors {
    /// Computes the factors of step `step`, counted from 1.
    pub fn new(settings: &Settings, learning_rate: f64, step: u64) -> Self {
        let Settings { beta1, beta2, epsilon, weight_decay } = *settings;
        let bias = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            keep1: beta1 as f32,
            add1: (1.0 - beta1) as f32,
            keep2: beta2 as f32,
            add2: (1.0 - beta2) as f32,
            correction: bias(beta2).sqrt() as f32,
            epsilon: epsilon as f32,
            decay: (1.0 - learning_rate * weight_decay) as f32,
            rate: (learning_rate / bias(beta1)) as f32,
        }
    }

    /// The factors as an argument of kernels.
    pub fn launch(&self) -> FactorsLaunch {
        FactorsLaunch::new(
            self.keep1,
            self.add1,
            self.keep2,
            self.add2,
            self.correction,
            self.epsilon,
            self.decay,
            self.rate,
        )
    }
}

/// A parameter and its Adam moments.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct ParamState {
    /// Value of the parameter.
    pub param: f32,
    /// First moment: running mean of gradients.
    pub first: f32,
    /// Second moment: running mean of squared gradients.
    pub second: f32,
}

/// Performs one AdamW step with `gradient`.
#[cube]
#[inline(always)]
pub fn step(before: &ParamState, gradient: f32, by: &Factors) -> ParamState {
    let first = before.first * by.keep1 + gradient * by.add1;
    let second = before.second * by.keep2 + gradient * gradient * by.add2;
    let root = second.sqrt() / by.correction + by.epsilon;
    ParamState { param: before.param * by.decay - first / root * by.rate, first, second }
}

/// Factor that scales a gradient of norm `norm` to at most `max_norm`; the formula of
/// `torch.nn.utils.clip_grad_norm_`.
#[cube]
#[inline(always)]
pub fn clip_scale(norm: f32, max_norm: f32) -> f32 {
    at_most(1.0f32, 1.0f32 / (norm + 1e-6f32) * max_norm)
}
