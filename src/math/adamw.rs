//! AdamW for one parameter (Loshchilov & Hutter 2019, algorithm 2, as in `torch.optim.AdamW`), and
//! gradient clipping by norm.

use super::at_most;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Hyperparameters of AdamW, constant over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyperparameters {
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
    pub beta1: f32,
    /// `1 - beta1`.
    pub one_minus_beta1: f32,
    /// `beta2`.
    pub beta2: f32,
    /// `1 - beta2`.
    pub one_minus_beta2: f32,
    /// Square root of the second moment's bias correction, `sqrt(1 - beta2^step)`.
    pub bias_correction2_sqrt: f32,
    /// Added to the denominator for numerical stability.
    pub epsilon: f32,
    /// Factor that applies weight decay: `1 - learning_rate * weight_decay`.
    pub decay: f32,
    /// Learning rate over the first moment's bias correction, `learning_rate / (1 - beta1^step)`.
    pub step_size: f32,
}

impl Factors {
    /// Computes the factors of step `step`, counted from 1.
    pub fn new(hyperparameters: &Hyperparameters, learning_rate: f64, step: u64) -> Self {
        let Hyperparameters { beta1, beta2, epsilon, weight_decay } = *hyperparameters;
        let bias_correction = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            bias_correction2_sqrt: bias_correction(beta2).sqrt() as f32,
            epsilon: epsilon as f32,
            decay: (1.0 - learning_rate * weight_decay) as f32,
            step_size: (learning_rate / bias_correction(beta1)) as f32,
        }
    }

    /// The factors as an argument of kernels.
    pub fn launch(&self) -> FactorsLaunch {
        FactorsLaunch::new(
            self.beta1,
            self.one_minus_beta1,
            self.beta2,
            self.one_minus_beta2,
            self.bias_correction2_sqrt,
            self.epsilon,
            self.decay,
            self.step_size,
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
pub fn step(before: &ParamState, gradient: f32, factors: &Factors) -> ParamState {
    let first = before.first * factors.beta1 + gradient * factors.one_minus_beta1;
    let second = before.second * factors.beta2 + gradient * gradient * factors.one_minus_beta2;
    let denominator = second.sqrt() / factors.bias_correction2_sqrt + factors.epsilon;
    ParamState {
        param: before.param * factors.decay - first / denominator * factors.step_size,
        first,
        second,
    }
}

/// Factor that scales a gradient of norm `norm` to at most `max_norm`; the formula of
/// `torch.nn.utils.clip_grad_norm_`.
#[cube]
#[inline(always)]
pub fn clip_scale(norm: f32, max_norm: f32) -> f32 {
    at_most(1.0f32, 1.0f32 / (norm + 1e-6f32) * max_norm)
}
