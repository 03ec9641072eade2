//! AdamW of one parameter (Loshchilov & Hutter 2019, algorithm 2, as in `torch.optim.AdamW`), and the
//! scale of a gradient that is too long.

use super::at_most;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// The settings of AdamW that stay the same for a whole run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// The numbers of one step, the same for all parameters.
#[derive(CubeType, CubeLaunch, Clone, Copy, Debug)]
pub struct Factors {
    /// The share of the first moment that is kept.
    pub keep1: f32,
    /// The share of the gradient that is added to it.
    pub add1: f32,
    /// The share of the second moment that is kept.
    pub keep2: f32,
    /// The share of the gradient's square that is added to it.
    pub add2: f32,
    /// The root of the second moment's bias.
    pub correction: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// The share of the parameters that the weight decay leaves.
    pub decay: f32,
    /// The learning rate over the first moment's bias.
    pub rate: f32,
}

impl Factors {
    /// The factors of step number `step`, from 1.
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
}

/// A parameter with its running moments.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct Moving {
    /// The parameter.
    pub param: f32,
    /// The running mean of its gradients.
    pub first: f32,
    /// The running mean of their squares.
    pub second: f32,
}

/// One step along `gradient`.
#[cube]
#[inline(always)]
pub fn step(before: &Moving, gradient: f32, by: &Factors) -> Moving {
    let first = before.first * by.keep1 + gradient * by.add1;
    let second = before.second * by.keep2 + gradient * gradient * by.add2;
    let root = second.sqrt() / by.correction + by.epsilon;
    Moving { param: before.param * by.decay - first / root * by.rate, first, second }
}

/// What a gradient of this norm is multiplied by, so that it is no longer than `max_norm`; the formula of
/// `torch.nn.utils.clip_grad_norm_`.
#[cube]
#[inline(always)]
pub fn clip_scale(norm: f32, max_norm: f32) -> f32 {
    at_most(1.0f32, 1.0f32 / (norm + 1e-6f32) * max_norm)
}
