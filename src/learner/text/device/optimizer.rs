//! The end of an optimizer step on a device: global norm, clipping and AdamW, one arena of parameters after the other.

use super::DeviceGradient;
use super::optimizer_kernels::{Portions, StepKernels};
use crate::device;
use crate::learner::Moments;
use crate::learner::optimizer::{ParamTensors, adamw_factors, clip_scale_tensor};
use crate::learner::text::LanguageUpdateSettings;
use crate::math::adamw::Factors;
use crate::text::{Arenas, TokenDecoder};
use burn::tensor::Tensor;

/// The optimizer's state on a device.
#[derive(Clone, Debug)]
pub(in crate::learner::text) struct DeviceMoments {
    /// The first and the second moment of each trainable parameter.
    moments: [Arenas; 2],
    /// Number of steps taken.
    steps: u64,
    /// Portions of parameters for the kernels' cubes, if the device runs any.
    portions: Option<Portions>,
}

impl DeviceMoments {
    /// Uploads moments of a decoder's trainable parameters to its device.
    ///
    /// # Panics
    /// If the decoder is on the CPU.
    pub fn upload(host: &Moments, decoder: &TokenDecoder) -> Self {
        let device_decoder = decoder.on_device().expect("a decoder on a device");
        let moments = [&host.first_moment, &host.second_moment].map(|moment| {
            let zeros = device_decoder.trainable().zeros_like();
            match host.steps {
                0 => zeros,
                _ => zeros.upload(moment, |values| device::upload(values, device_decoder.device())),
            }
        });
        Self {
            moments,
            steps: host.steps,
            portions: device::has_kernels(device_decoder.device()).then(|| {
                Portions::new(device_decoder.trainable().packing(), device_decoder.device())
            }),
        }
    }

    /// Downloads the moments.
    pub fn download(&self) -> Moments {
        let [first_moment, second_moment] =
            self.moments.each_ref().map(|moment| moment.download(device::read));
        Moments { first_moment, second_moment, steps: self.steps }
    }
}

/// Performs a step of AdamW with a clipped gradient, and returns its norm before clipping, `[1]`.
///
/// # Panics
/// If the decoder is on the CPU.
pub(in crate::learner::text) fn step(
    decoder: &mut TokenDecoder,
    state: &mut DeviceMoments,
    gradient: DeviceGradient,
    learning_rate: f64,
    settings: &LanguageUpdateSettings,
) -> Tensor<1> {
    let (config, max_norm) = (&settings.optimizer, settings.update.max_grad_norm);
    state.steps += 1;
    let decayed_factors = adamw_factors(config, learning_rate, state.steps);
    let undecayed_factors = Factors { decay: 1.0, ..decayed_factors };
    let mut gradient = gradient.0.unwrap_or_else(|| state.moments[0].zeros_like());
    let arenas: Vec<Tensor<1>> = gradient.arenas().collect();
    let portions = state.portions.clone();
    let kernels = portions.map(|portions| StepKernels::new(&arenas, portions, max_norm));
    let (norm, scale) = match &kernels {
        Some(kernels) => (kernels.norm(), None),
        None => {
            let squares = arenas.into_iter().map(|gradient| gradient.square().sum());
            let norm = squares.reduce(|sum, more| sum + more).expect("at least one arena").sqrt();
            let scale = clip_scale_tensor(&norm, max_norm);
            (norm, scale)
        }
    };
    let packing = gradient.packing().clone();
    decoder.change_on_device(|arena, params| {
        let gradient = gradient.take(arena);
        let [first, second] = state.moments.each_mut().map(|moment| moment.take(arena));
        let before = ParamTensors { params, first, second };
        // Vectors are norms and biases.
        let is_decayed = config.decay_norms_and_biases || !packing.has_vectors(arena);
        let factors = if is_decayed { &decayed_factors } else { &undecayed_factors };
        let ParamTensors { params, first, second } = match (&kernels, &scale) {
            (Some(kernels), _) => kernels.step(arena, before, gradient, factors),
            (None, Some(scale)) => before.step(gradient * scale.clone(), factors),
            (None, None) => before.step(gradient, factors),
        };
        for (moment, changed) in state.moments.iter_mut().zip([first, second]) {
            moment.put(arena, changed);
        }
        params
    });
    norm
}
