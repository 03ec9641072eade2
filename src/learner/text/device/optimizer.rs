//! The end of an optimizer step on a device: global norm, clipping and AdamW, one arena of parameters after the other.

use super::DeviceGradient;
use super::optimizer_kernels::{Portions, StepKernels};
use crate::device;
use crate::learner::Moments;
use crate::learner::optimizer::{AdamWTensors, adamw_factors, clip_scale_tensor};
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
            self.moments.each_ref().map(|moment| moment.download(device::fetch));
        Moments { first_moment, second_moment, steps: self.steps }
    }
}

/// The gradient of one optimizer step, with the factors of AdamW.
struct StepInputs {
    gradient: Arenas,
    /// Factors of parameters with weight decay.
    decayed_factors: Factors,
    /// Whether vectors, that is norms and biases, have no weight decay.
    leaves_vectors_undecayed: bool,
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
    let mut gradient = gradient.0.unwrap_or_else(|| state.moments[0].zeros_like());
    let arenas: Vec<Tensor<1>> = gradient.arenas().collect();
    let inputs = StepInputs {
        gradient,
        decayed_factors,
        leaves_vectors_undecayed: !config.decay_norms_and_biases,
    };
    if let Some(portions) = state.portions.clone() {
        let kernels = StepKernels::new(&arenas, portions, max_norm);
        inputs.apply(decoder, state, |arena, before, gradient, factors| {
            kernels.step(arena, before, gradient, factors)
        });
        return kernels.norm();
    }
    let squares = arenas.into_iter().map(|gradient| gradient.square().sum());
    let norm = squares.reduce(|sum, more| sum + more).expect("at least one arena").sqrt();
    let scale = clip_scale_tensor(&norm, max_norm);
    inputs.apply(decoder, state, |_, before, gradient, factors| {
        let gradient = match &scale {
            Some(scale) => gradient * scale.clone(),
            None => gradient,
        };
        before.step(gradient, factors)
    });
    norm
}

impl StepInputs {
    /// Replaces each arena of a decoder's trainable parameters, and of their moments, by
    /// `step_arena(arena, before, gradient, factors)`.
    fn apply(
        mut self,
        decoder: &mut TokenDecoder,
        state: &mut DeviceMoments,
        mut step_arena: impl FnMut(usize, AdamWTensors, Tensor<1>, &Factors) -> AdamWTensors,
    ) {
        let undecayed_factors = Factors { decay: 1.0, ..self.decayed_factors };
        let packing = self.gradient.packing().clone();
        decoder.change_on_device(|arena, params| {
            let gradient = self.gradient.take(arena);
            let [first, second] = state.moments.each_mut().map(|moment| moment.take(arena));
            let is_undecayed = self.leaves_vectors_undecayed && packing.has_vectors(arena);
            let factors = if is_undecayed { &undecayed_factors } else { &self.decayed_factors };
            let before = AdamWTensors { params, first, second };
            let AdamWTensors { params, first, second } =
                step_arena(arena, before, gradient, factors);
            for (moment, changed) in state.moments.iter_mut().zip([first, second]) {
                moment.put(arena, changed);
            }
            params
        });
    }
}
