//! AdamW on flat parameter vectors, in tensors and in host memory, and clipping by global norm.

use super::moment::MomentFormat;
use crate::math::adamw::{self, Factors, Hyperparameters, ParamState, step};
use crate::rng::draw;
use crate::settings::OptimizerConfig;
use burn::tensor::Tensor;
use multiversion::multiversion;
use rayon::prelude::*;
use std::ops::Range;

/// Parameters that one thread steps at a time.
pub(super) const CHUNK_LEN: usize = 1 << 16;

/// Optimizer state as tensors.
#[derive(Clone, Debug)]
pub struct TensorMoments {
    /// First moment: running mean of gradients, `[num_params]`.
    pub first_moment: Tensor<1>,
    /// Second moment: running mean of squared gradients, `[num_params]`.
    pub second_moment: Tensor<1>,
    /// Number of steps taken.
    pub steps: u64,
}

impl TensorMoments {
    /// Creates the initial state for parameters of this shape.
    pub fn new(params: &Tensor<1>) -> Self {
        let zeros = params.zeros_like();
        Self { first_moment: zeros.clone(), second_moment: zeros, steps: 0 }
    }

    /// Performs a step from `params` with `gradient`, both `[num_params]` (Loshchilov & Hutter
    /// 2019, algorithm 2, as in `torch.optim.AdamW`).
    pub fn step(
        &mut self,
        params: Tensor<1>,
        gradient: Tensor<1>,
        learning_rate: f64,
        config: &OptimizerConfig,
    ) -> Tensor<1> {
        self.steps += 1;
        let factors = adamw_factors(config, learning_rate, self.steps);
        let (first, second) = (self.first_moment.clone(), self.second_moment.clone());
        let after = ParamTensors { params, first, second }.step(gradient, &factors);
        (self.first_moment, self.second_moment) = (after.first, after.second);
        after.params
    }
}

/// Parameters and their moments, which a step of AdamW replaces: of equal shape.
pub(super) struct ParamTensors {
    pub params: Tensor<1>,
    pub first: Tensor<1>,
    pub second: Tensor<1>,
}

impl ParamTensors {
    /// Performs a step of AdamW.
    pub fn step(self, gradient: Tensor<1>, factors: &Factors) -> Self {
        let Self { params, first, second } = self;
        let first = first * factors.beta1 + gradient.clone() * factors.one_minus_beta1;
        let second = second * factors.beta2 + gradient.square() * factors.one_minus_beta2;
        let root = second.clone().sqrt() / factors.bias_correction2_sqrt + factors.epsilon;
        let params = params * factors.decay - first.clone() / root * factors.step_size;
        Self { params, first, second }
    }
}

/// Optimizer state in host memory; moments are numbers in f32 or in bf16.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments<M = f32> {
    /// First moment: running mean of gradients, `[num_params]`.
    pub first_moment: Vec<M>,
    /// Second moment: running mean of squared gradients, `[num_params]`.
    pub second_moment: Vec<M>,
    /// Number of steps taken.
    pub steps: u64,
}

impl Moments {
    /// Creates the initial state in f32.
    pub fn new(num_params: usize) -> Self {
        Self::zeros(num_params)
    }
}

/// Settings of one optimizer step, the same for all parameters but for those without weight decay.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSettings<'a> {
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Decay rates and weight decay.
    pub config: &'a OptimizerConfig,
    /// Parameters without weight decay, in order.
    pub undecayed: &'a [Range<usize>],
    /// Key of the draws by which moments are rounded in all steps.
    pub key: u32,
}

impl<M: MomentFormat> Moments<M> {
    /// Creates the initial state.
    pub(super) fn zeros(num_params: usize) -> Self {
        let zeros = || vec![M::default(); num_params];
        Self { first_moment: zeros(), second_moment: zeros(), steps: 0 }
    }

    /// Converts the moments to another number format, rounding to the nearest.
    pub(super) fn convert<N: MomentFormat>(&self) -> Moments<N> {
        // Half of the spacing rounds to the nearest.
        self.map(|values| values.iter().map(|x| N::round(x.widen(), 1 << 15)).collect())
    }

    /// Replaces each of the two moments by `convert` of it.
    pub(super) fn map<N>(&self, convert: impl Fn(&[M]) -> Vec<N>) -> Moments<N> {
        let [first_moment, second_moment] =
            [&self.first_moment, &self.second_moment].map(|values| convert(values));
        Moments { first_moment, second_moment, steps: self.steps }
    }

    /// Performs [`TensorMoments::step`] in place with `gradient * scale`, on all threads.
    pub(super) fn step(
        &mut self,
        params: &mut [f32],
        gradient: &[f32],
        scale: f32,
        settings: &StepSettings,
    ) {
        self.steps += 1;
        let StepFactors { decayed, undecayed, key } = StepFactors::new(settings, self.steps);
        let Self { first_moment: first, second_moment: second, .. } = self;
        let mut step_range = |range: Range<usize>, factors: &Factors| {
            let params = params[range.clone()].par_chunks_mut(CHUNK_LEN);
            let firsts = first[range.clone()].par_chunks_mut(CHUNK_LEN);
            let seconds = second[range.clone()].par_chunks_mut(CHUNK_LEN);
            let gradient = gradient[range.clone()].par_chunks(CHUNK_LEN);
            let parts = params.zip(gradient).zip(firsts.zip(seconds)).enumerate();
            parts.for_each(|(i, ((params, gradient), (first, second)))| {
                let start = (range.start + i * CHUNK_LEN) as u32;
                let step = SliceStep { factors, scale, key, start };
                step_slice(step, params, gradient, first, second);
            });
        };
        let mut start = 0;
        for range in settings.undecayed {
            step_range(start..range.start, &decayed);
            step_range(range.clone(), &undecayed);
            start = range.end;
        }
        step_range(start..gradient.len(), &decayed);
    }
}

/// Factors of a step, the same for all parameters but for weight decay.
pub(super) struct StepFactors {
    /// Factors of parameters with weight decay.
    pub decayed: Factors,
    /// Factors of parameters without weight decay.
    pub undecayed: Factors,
    /// Key of the draws by which the moments are rounded in this step.
    pub key: u32,
}

impl StepFactors {
    /// Factors of step `step`, counted from 1.
    pub fn new(settings: &StepSettings, step: u64) -> Self {
        let decayed = adamw_factors(settings.config, settings.learning_rate, step);
        let undecayed = Factors { decay: 1.0, ..decayed };
        let key = draw(draw(settings.key, (step >> 32) as u32), step as u32);
        Self { decayed, undecayed, key }
    }
}

/// A step of consecutive parameters, which one thread performs.
#[derive(Clone, Copy)]
pub(super) struct SliceStep<'a> {
    pub factors: &'a Factors,
    /// Factor that clips the gradient.
    pub scale: f32,
    /// Key of the draws by which the moments are rounded.
    pub key: u32,
    /// Index of the first parameter.
    pub start: u32,
}

/// Calls `step` with the factor that clips a gradient to `max_norm`, as [`clip_grad_norm`] does, and returns the norm
/// before clipping.
pub(super) fn clip_and_step(gradient: &[f32], max_norm: f64, step: impl FnOnce(f32)) -> f32 {
    let squares: Vec<f64> = gradient.par_chunks(CHUNK_LEN).map(sum_squares).collect();
    let norm = squares.iter().sum::<f64>().sqrt() as f32;
    step(if max_norm == 0.0 { 1.0 } else { adamw::clip_scale(norm, max_norm as f32) });
    norm
}

/// Performs a step on slices of equal length.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn step_slice<M: MomentFormat>(
    SliceStep { factors, scale, key, start }: SliceStep,
    params: &mut [f32],
    gradient: &[f32],
    first_moment: &mut [M],
    second_moment: &mut [M],
) {
    let moments = first_moment.iter_mut().zip(second_moment);
    let elements = params.iter_mut().zip(gradient).zip(moments).enumerate();
    for (i, ((param, gradient), (first, second))) in elements {
        let before = ParamState { param: *param, first: first.widen(), second: second.widen() };
        let after = step(&before, gradient * scale, factors);
        // The compiler removes the draw where moments are in f32.
        let drawn = draw(key, start.wrapping_add(i as u32));
        *param = after.param;
        *first = M::round(after.first, drawn & 0xffff);
        *second = M::round(after.second, drawn >> 16);
    }
}

/// Factors of step `step`, counted from 1.
pub(super) fn adamw_factors(config: &OptimizerConfig, learning_rate: f64, step: u64) -> Factors {
    let hyperparameters = Hyperparameters {
        beta1: config.adam_beta1,
        beta2: config.adam_beta2,
        epsilon: config.adam_epsilon,
        weight_decay: config.weight_decay,
    };
    Factors::new(&hyperparameters, learning_rate, step)
}

/// Scales a gradient to norm `max_norm` if its norm is larger (0 disables clipping). Returns the
/// gradient and the original norm, `[1]`. The formula of `torch.nn.utils.clip_grad_norm_`.
pub fn clip_grad_norm(gradient: Tensor<1>, max_norm: f64) -> (Tensor<1>, Tensor<1>) {
    let norm = gradient.clone().square().sum().sqrt();
    match clip_scale_tensor(&norm, max_norm) {
        Some(scale) => (gradient * scale, norm),
        None => (gradient, norm),
    }
}

/// Factor by which [`clip_grad_norm`] scales a gradient of this norm, `[1]`; `None` if it does not clip.
pub(super) fn clip_scale_tensor(norm: &Tensor<1>, max_norm: f64) -> Option<Tensor<1>> {
    (max_norm != 0.0).then(|| ((norm.clone() + 1e-6).recip() * max_norm).clamp_max(1.0))
}

/// Sums the squares of values.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn sum_squares(values: &[f32]) -> f64 {
    let (chunks, rest) = values.as_chunks::<16>();
    let mut squares = [0.0f64; 16];
    for chunk in chunks {
        for (sum, x) in squares.iter_mut().zip(chunk) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    let rest: f64 = rest.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    squares.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TrainConfig;
    use burn::tensor::Device;

    /// Compares with `torch.optim.AdamW(lr=0.1, weight_decay=0.01)` from `[1, -2]` with gradients
    /// `[0.5, -1]` and `[0.25, 3]`, recomputed here in double precision.
    #[test]
    fn two_steps_follow_the_formula() {
        let device = Device::flex();
        let config = TrainConfig::for_game("any").optimizer;
        let gradients = [[0.5f64, -1.0], [0.25, 3.0]];
        let mut expected = [1.0f64, -2.0];
        let (mut m, mut v) = ([0.0f64; 2], [0.0f64; 2]);
        for (t, gradient) in gradients.iter().enumerate() {
            for i in 0..2 {
                m[i] = 0.9 * m[i] + 0.1 * gradient[i];
                v[i] = 0.999 * v[i] + 0.001 * gradient[i] * gradient[i];
                let m_hat = m[i] / (1.0 - 0.9f64.powi(t as i32 + 1));
                let v_hat = v[i] / (1.0 - 0.999f64.powi(t as i32 + 1));
                expected[i] -= 0.1 * 0.01 * expected[i];
                expected[i] -= 0.1 * m_hat / (v_hat.sqrt() + 1e-8);
            }
        }
        let mut params = Tensor::<1>::from_floats([1.0, -2.0], &device);
        let mut adam = TensorMoments::new(&params);
        for gradient in gradients {
            let gradient = Tensor::from_floats(gradient.map(|g| g as f32), &device);
            params = adam.step(params, gradient, 0.1, &config);
        }
        let got: Vec<f32> = params.into_data().try_into_vec().unwrap();
        for (got, want) in got.iter().zip(expected) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{got} instead of {want}");
        }
    }

    #[test]
    fn weight_decay_skips_undecayed_parameters() {
        let mut config = TrainConfig::for_game("any").optimizer;
        config.weight_decay = 1.0;
        let step = |undecayed: &[Range<usize>]| {
            let (mut params, gradient) = (vec![2.0f32; 40], vec![0.0; 40]);
            let settings = StepSettings { learning_rate: 0.1, config: &config, undecayed, key: 0 };
            Moments::new(40).step(&mut params, &gradient, 1.0, &settings);
            params
        };
        assert_eq!(step(&[]), [1.8; 40]);
        let found = step(&[3..5, 20..39]);
        let want = |i: usize| if (3..5).contains(&i) || (20..39).contains(&i) { 2.0 } else { 1.8 };
        assert_eq!(found, (0..40).map(want).collect::<Vec<f32>>());
    }

    #[test]
    fn the_gradient_norm_covers_all_parameters() {
        let device = Device::flex();
        let floats = |t: Tensor<1>| t.into_data().try_into_vec::<f32>().unwrap();
        let gradient = || Tensor::<1>::from_floats([3.0, -4.0], &device);
        let (clipped, norm) = clip_grad_norm(gradient(), 1.0);
        assert!((floats(norm)[0] - 5.0).abs() < 1e-6);
        let clipped = floats(clipped);
        assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] + 0.8).abs() < 1e-6);
        assert_eq!(floats(clip_grad_norm(gradient(), 10.0).0), [3.0, -4.0]);
        assert_eq!(floats(clip_grad_norm(gradient(), 0.0).0), [3.0, -4.0]);
    }
}
