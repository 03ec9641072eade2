//! The end of an optimiser step on a device: global norm, clipping and AdamW, one parameter after the other.

use super::Gradient;
#[cfg(feature = "kernels")]
use super::optimizer_kernels::Kernels;
use crate::device;
use crate::learner::Moments;
use crate::learner::optimizer::{clip_tensor, factors};
use crate::math::adamw::Factors;
use crate::settings::OptimizerConfig;
use crate::text::TokenDecoder;
use burn::tensor::Tensor;

/// The optimiser's state on a device.
#[derive(Clone, Debug)]
pub(in crate::learner::text) struct DeviceMoments {
    /// The first and the second moment of each learnt parameter, `[count]`.
    moments: Vec<[Tensor<1>; 2]>,
    /// Number of steps taken.
    steps: u64,
}

impl DeviceMoments {
    /// Uploads moments of a decoder's learnt parameters to its device.
    ///
    /// # Panics
    /// If the decoder is on the CPU.
    pub fn upload(from: &Moments, decoder: &TokenDecoder) -> Self {
        let on = decoder.on_device().expect("a decoder on a device");
        let (sizes, device) = (decoder.sizes(), on.device());
        let mut start = 0;
        let moments = sizes.iter().map(|size| {
            let place = start..start + size;
            start += size;
            [&from.first_moment, &from.second_moment].map(|moment| match from.steps {
                0 => Tensor::zeros([*size], device),
                _ => device::upload(moment[place.clone()].to_vec(), device),
            })
        });
        Self { moments: moments.collect(), steps: from.steps }
    }

    /// Downloads the moments.
    pub fn download(&self) -> Moments {
        let all = |which: usize| -> Vec<f32> {
            let each = self.moments.iter().map(|both| device::fetch(both[which].clone()));
            each.flatten().collect()
        };
        Moments { first_moment: all(0), second_moment: all(1), steps: self.steps }
    }
}

/// The gradient of one optimiser step with its norm, and the way in which a parameter is stepped.
struct Step<'a> {
    gradients: Vec<Tensor<1>>,
    decayed: Factors,
    spared: &'a [bool],
}

/// Performs a step of AdamW with a gradient clipped to `max_norm`, and returns its norm before clipping, `[1]`. Weight decay
/// leaves out the parameters that are `spared`.
///
/// # Panics
/// If the decoder is on the CPU.
pub(in crate::learner::text) fn step(
    decoder: &mut TokenDecoder,
    state: &mut DeviceMoments,
    gradient: Gradient,
    (max_norm, learning_rate): (f64, f64),
    config: &OptimizerConfig,
    spared: &[bool],
) -> Tensor<1> {
    state.steps += 1;
    let decayed = factors(config, learning_rate, state.steps);
    let mut gradients = gradient.0.into_iter();
    let device = state.moments[0][0].device();
    let gradients = state
        .moments
        .iter()
        .map(|[first, _]| gradients.next().flatten().unwrap_or_else(|| first.zeros_like()));
    let step = Step { gradients: gradients.collect(), decayed, spared };
    #[cfg(feature = "kernels")]
    if device::has_kernels(&device) {
        let kernels = Kernels::new(&step.gradients, max_norm);
        step.apply(decoder, state, |values, by| kernels.step(values, by));
        return kernels.norm();
    }
    let squares = step.gradients.iter().map(|gradient| gradient.clone().square().sum());
    let norm = squares.reduce(|sum, more| sum + more);
    let norm = norm.unwrap_or_else(|| Tensor::zeros([1], &device)).sqrt();
    let scale = clip_tensor(&norm, max_norm);
    step.apply(decoder, state, |[gradient, param, first, second], by| {
        let gradient = match &scale {
            Some(scale) => gradient * scale.clone(),
            None => gradient,
        };
        let first = first * by.keep1 + gradient.clone() * by.add1;
        let second = second * by.keep2 + gradient.square() * by.add2;
        let root = second.clone().sqrt() / by.correction + by.epsilon;
        [param * by.decay - first.clone() / root * by.rate, first, second]
    });
    norm
}

impl Step<'_> {
    /// Steps each learnt parameter of a decoder by `step`, which makes a parameter and its moments of its gradient and
    /// the present ones.
    fn apply(
        self,
        decoder: &mut TokenDecoder,
        state: &mut DeviceMoments,
        mut step: impl FnMut([Tensor<1>; 4], &Factors) -> [Tensor<1>; 3],
    ) {
        let undecayed = Factors { decay: 1.0, ..self.decayed };
        let mut gradients = self.gradients.into_iter();
        let mut moments = std::mem::take(&mut state.moments).into_iter();
        decoder.change_on_device(|number, param| {
            let gradient = gradients.next().expect("a gradient of each parameter");
            let [first, second] = moments.next().expect("moments of each parameter");
            let by = if self.spared[number] { &undecayed } else { &self.decayed };
            let [param, first, second] = step([gradient, param, first, second], by);
            state.moments.push([first, second]);
            param
        });
    }
}

/// Downloads the norms of some steps together.
pub(in crate::learner::text) fn norms(all: Vec<Tensor<1>>) -> Vec<f32> {
    if all.is_empty() { Vec::new() } else { device::fetch(Tensor::cat(all, 0)) }
}
