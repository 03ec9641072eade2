//! Gradient of a minibatch in one kernel: forward pass, loss and backward pass.
//!
//! A cube processes its samples tile by tile with a barrier between layers, which all of its units compute together
//! ([`super::layers`]). Only the softmax is computed by one unit per sample. Each cube accumulates a partial gradient
//! in its row of a buffer, where each number is added to by one unit alone; [`super::optimizer_kernels`] sums the rows
//! in a fixed order.

use super::layers::{Layer, add_gradient, backward, forward};
use super::tiles::Tiling;
use super::update_kernels::{
    ExperienceBuffers, MinibatchPortion, UpdateVariant, mask_logits, softmax,
};
use crate::device::buffers::Buffer;
use crate::learner::means::{APPROX_KL, CLIP_FRACTION, ENTROPY, LOSS, NUM_SUMS, REFERENCE_KL};
use crate::math::exp;
use crate::math::softmax::{logprob, prob};
use crate::model::kernels::{DenseLayout, MlpShape, load_rounded};
use crate::model::{FeatureSlots, Observer};
use crate::objective::kl::{estimate_kl, k3};
use crate::objective::{LossParams, Step, d_logit, term};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Alignment of arrays in workgroup memory, bytes: four numbers are loaded at once.
const ALIGNMENT: usize = 16;

/// Portion of a [`Spread`](super::tiles::Spread) handled by a launch: tiles `first..end` of each cube. The cubes'
/// partial gradients start at row `first_row`; between launches they wait there.
#[derive(CubeType, CubeLaunch)]
pub(super) struct TileRange {
    /// Partial gradients and sums, `[rows, num_params + NUM_SUMS * tile_samples]`.
    pub partials: Buffer<f32>,
    /// Cubes of the spread.
    pub num_cubes: usize,
    pub tiles_per_cube: usize,
    /// First tile of this launch.
    pub first: usize,
    /// End of this launch's tiles, exclusive.
    pub end: usize,
    /// Row of the spread's first cube.
    pub first_row: usize,
}

/// Computes the features of a tile's samples, from index `start` on, into `x`, `[features][stride]`. Samples past the
/// last get zeros.
#[cube]
fn observe_tile<O: Observer>(
    experience: &ExperienceBuffers,
    x: &mut [f32],
    start: usize,
    portion: &MinibatchPortion,
    #[comptime] variant: UpdateVariant<O>,
) {
    let unit = UNIT_POS as usize;
    let (tile_samples, stride) = comptime!((variant.tiling.tile_samples, variant.tiling.stride));
    let (sample, worker) = (unit % tile_samples, unit / tile_samples);
    let num_workers = comptime!(variant.tiling.num_units / variant.tiling.tile_samples);
    let sample_index = start + sample;
    if sample_index < portion.num_games * experience.sizes.learn_steps {
        let game = sample_index % portion.num_games;
        let step = experience.step_index(portion, game, sample_index / portion.num_games);
        let slots = FeatureSlots { first: sample, stride: stride.runtime(), worker, num_workers };
        O::observe::<f32>(&experience.words, &step.words, x, &slots, comptime!(variant.observer));
    } else {
        for i in range_stepped(worker, comptime!(variant.mlp.num_features), num_workers) {
            x[i * stride + sample] = 0.0f32;
        }
    }
}

/// Computes the logits from the activations of the last hidden layer.
#[cube]
fn compute_logits<I: Float>(
    params: &[f32],
    activations: &mut [f32],
    #[comptime] last: Layer,
    #[comptime] tiling: Tiling,
) {
    let (tile_samples, stride) = comptime!((tiling.tile_samples, tiling.stride));
    let DenseLayout { weight, bias, inputs, outputs } = comptime!(last.dense);
    let unit = UNIT_POS as usize;
    for index in range_stepped(unit, comptime!(outputs * tile_samples), comptime!(tiling.num_units))
    {
        let a = index / tile_samples;
        let s = index % tile_samples;
        let mut logit = load_rounded::<f32, I>(params, bias + a);
        for k in 0..inputs {
            let w = load_rounded::<f32, I>(params, weight + k * outputs + a);
            logit += w * activations[(k + comptime!(last.input_row)) * stride + s];
        }
        activations[(a + comptime!(last.neuron_row)) * stride + s] = logit;
    }
}

/// Replaces the logits of a sample, `activations[first + a * stride]`, by the loss's derivatives and adds the sample to
/// `sums`, `[NUM_SUMS][tile_samples]`.
#[cube]
fn differentiate<O: Observer>(
    activations: &mut [f32],
    sums: &mut [f32],
    experience: &ExperienceBuffers,
    sample_index: usize,
    portion: &MinibatchPortion,
    loss_params: &LossParams,
    #[comptime] variant: UpdateVariant<O>,
) {
    let unit = UNIT_POS as usize;
    let Tiling { tile_samples, stride, .. } = comptime!(variant.tiling);
    let actions = comptime!(variant.mlp.num_actions);
    let [_, _, last] = comptime!(layers(&variant.mlp));
    let first = comptime!(last.neuron_row * stride) + unit;
    let mut is_counted = false;
    if sample_index < portion.num_games * experience.sizes.learn_steps {
        let game = sample_index % portion.num_games;
        let step_index = experience.step_index(portion, game, sample_index / portion.num_games);
        let sample = experience.load_sample::<O>(&step_index, portion, variant);
        is_counted = sample.is_counted;
        if sample.is_counted {
            mask_logits::<O>(activations, first, stride, &experience.words, &step_index, variant);
            let distribution = softmax(&*activations, first, sample.action, stride, actions);
            let form = comptime!(variant.loss);
            let weight = experience.weight(step_index.env, portion, form);
            let log_ratio = distribution.logprob - sample.logprob;
            let step_ratio = exp(log_ratio);
            let mut ratio = step_ratio;
            if comptime!(form.loss_type.has_sequence_ratio()) {
                ratio = portion.sequence_ratio(game).ratio;
            }
            let step = Step { ratio, advantage: sample.advantage, logprob: distribution.logprob };
            let policy_term = term(&step, loss_params, comptime!(form.loss_type));
            let mut loss = policy_term.value - loss_params.entropy_coef * distribution.entropy;
            // Derivative with respect to the log-probability of the action taken.
            let mut d_logprob = weight * policy_term.d_logprob;
            if comptime!(form.loss_type.has_sequence_ratio()) {
                d_logprob = portion.sequence_ratio(game).d_logprob;
            }
            // Label smoothing: derivative with respect to the log-probability of every action.
            let mut d_every_logprob = 0.0f32;
            let uniform = 1.0 / comptime!(actions as f32);
            if comptime!(form.has_label_smoothing) {
                let mut mean = 0.0f32;
                #[unroll]
                for a in 0..actions {
                    mean += uniform
                        * logprob(
                            activations[first + comptime!(a * stride)],
                            &distribution.normalizer,
                        );
                }
                let smoothed_advantage = loss_params.label_smoothing * sample.advantage;
                loss -= loss_params.label_smoothing * policy_term.value + smoothed_advantage * mean;
                d_logprob *= 1.0 - loss_params.label_smoothing;
                d_every_logprob = -smoothed_advantage * weight;
            }
            if comptime!(form.kl.is_some()) {
                let to_reference = sample.reference - distribution.logprob;
                let estimator = comptime!(form.estimator());
                let is_corrected = comptime!(form.is_kl_corrected);
                let kl = estimate_kl(to_reference, step_ratio, estimator, is_corrected);
                loss += loss_params.kl_coef * kl.value;
                d_logprob += weight * loss_params.kl_coef * kl.d_logprob;
                sums[comptime!(REFERENCE_KL * tile_samples) + unit] += kl.value;
            }
            sums[comptime!(APPROX_KL * tile_samples) + unit] += k3(step_ratio, log_ratio);
            sums[comptime!(CLIP_FRACTION * tile_samples) + unit] += policy_term.clipped;
            sums[comptime!(ENTROPY * tile_samples) + unit] += distribution.entropy;
            sums[comptime!(LOSS * tile_samples) + unit] += weight * loss;
            #[unroll]
            for a in 0..actions {
                let logit = activations[first + comptime!(a * stride)];
                let taken = select(sample.action == comptime!(a as u32), 1.0f32, 0.0f32);
                activations[first + comptime!(a * stride)] = d_logit(
                    d_logprob,
                    loss_params.entropy_coef * weight,
                    taken,
                    prob(logit, &distribution.normalizer),
                    logprob(logit, &distribution.normalizer),
                    distribution.entropy,
                );
                if comptime!(form.has_label_smoothing) {
                    activations[first + comptime!(a * stride)] +=
                        d_every_logprob * (uniform - prob(logit, &distribution.normalizer));
                }
            }
        }
    }
    if !is_counted {
        #[unroll]
        for a in 0..actions {
            activations[first + comptime!(a * stride)] = 0.0f32;
        }
    }
}

/// Layers of a perceptron with rows one after the other: features, hidden layers, logits.
fn layers(shape: &MlpShape) -> [Layer; 3] {
    let (first, second) = shape.hidden_layers();
    let (weight, bias) = (shape.last_weight(), shape.last_bias());
    let last =
        DenseLayout { weight, bias, inputs: shape.last_inputs(), outputs: shape.num_actions };
    let first_row = first.inputs;
    let second_row = first_row + first.outputs;
    let last_row = second_row + second.outputs;
    [
        Layer { dense: first, input_row: 0, neuron_row: first_row, derivative_row: 0 },
        Layer {
            dense: second,
            input_row: first_row,
            neuron_row: second_row,
            derivative_row: first.outputs,
        },
        Layer {
            dense: last,
            input_row: last_row - last.inputs,
            neuron_row: last_row,
            derivative_row: 0,
        },
    ]
}

/// Adds the gradient of the tiles of `tile_range` to each cube's partial gradient, and completes its sums with the last
/// tile. `I` is the type that parameters and activations are rounded to.
///
/// Sample `n` of a minibatch in a part is step `n / num_games` of its game `n % num_games`. Buffers:
/// parameters `[num_params]`, at the start of a longer buffer; those of [`ExperienceBuffers`], [`MinibatchPortion`]
/// and [`TileRange`].
///
/// Workgroup memory, floats: the activations, later derivatives with respect to them, `stride` for each feature, hidden
/// unit and action; `stride` for each hidden unit again if derivatives of activations are kept;
/// `NUM_SUMS * tile_samples`.
#[cube(launch_unchecked)]
pub(super) fn gradient_kernel<O: Observer, I: Float>(
    params: &[f32],
    experience: &ExperienceBuffers,
    portion: &MinibatchPortion,
    tile_range: &mut TileRange,
    loss_params: LossParams,
    #[comptime] variant: UpdateVariant<O>,
    #[define(I)] _input: ElemType,
) {
    let unit = UNIT_POS as usize;
    let (tiling, shape) = comptime!((variant.tiling, variant.mlp));
    let (tile_samples, stride) = comptime!((tiling.tile_samples, tiling.stride));
    let [first, second, last] = comptime!(layers(&shape));
    let is_deep = comptime!(shape.second_width > 0);
    let activation = comptime!(shape.activation);
    let cube = CUBE_POS;
    // The grid may have excess cubes, which have neither samples nor a row.
    let has_row = cube < tile_range.num_cubes;
    let row = (tile_range.first_row + cube) * comptime!(tiling.row_len(&shape));
    let sums_at = row + comptime!(shape.num_params());

    let mut activations = Shared::<[f32]>::new_aligned_slice(
        comptime!((last.neuron_row + shape.num_actions) * stride),
        ALIGNMENT,
    );
    let derivative_len = comptime!(if tiling.keeps_derivatives {
        (shape.first_width + shape.second_width) * stride
    } else {
        1
    });
    let mut derivatives = Shared::<[f32]>::new_aligned_slice(derivative_len, ALIGNMENT);
    let mut sums =
        Shared::<[f32]>::new_aligned_slice(comptime!(NUM_SUMS * tile_samples), ALIGNMENT);
    if unit < tile_samples {
        #[unroll]
        for q in 0..NUM_SUMS {
            let mut sum = 0.0f32;
            if has_row && tile_range.first > 0 {
                // Continues the sums of the launch before.
                sum = tile_range.partials[sums_at + comptime!(q * tile_samples) + unit];
            }
            sums[comptime!(q * tile_samples) + unit] = sum;
        }
    }

    for tile_index in tile_range.first..tile_range.end {
        let start = (cube * tile_range.tiles_per_cube + tile_index) * tile_samples;
        let is_first = tile_index == 0;
        observe_tile::<O>(experience, &mut activations, start, portion, variant);
        sync_cube();
        forward::<I>(params, &mut activations, &mut derivatives, first, activation, tiling);
        sync_cube();
        if comptime!(is_deep) {
            forward::<I>(params, &mut activations, &mut derivatives, second, activation, tiling);
            sync_cube();
        }
        compute_logits::<I>(params, &mut activations, last, tiling);
        sync_cube();
        if unit < tile_samples {
            differentiate::<O>(
                &mut activations,
                &mut sums,
                experience,
                start + unit,
                portion,
                &loss_params,
                variant,
            );
        }
        sync_cube();
        if has_row {
            add_gradient::<I>(&mut tile_range.partials, &activations, row, is_first, last, tiling);
        }
        sync_cube();
        if comptime!(is_deep) {
            backward::<I>(params, &mut activations, &derivatives, second, last, activation, tiling);
            sync_cube();
            if has_row {
                add_gradient::<I>(
                    &mut tile_range.partials,
                    &activations,
                    row,
                    is_first,
                    second,
                    tiling,
                );
            }
            sync_cube();
            backward::<I>(
                params,
                &mut activations,
                &derivatives,
                first,
                second,
                activation,
                tiling,
            );
        } else {
            backward::<I>(params, &mut activations, &derivatives, first, last, activation, tiling);
        }
        sync_cube();
        if has_row {
            add_gradient::<I>(&mut tile_range.partials, &activations, row, is_first, first, tiling);
        }
        sync_cube();
    }

    if has_row && unit < tile_samples && tile_range.end < tile_range.tiles_per_cube {
        #[unroll]
        for q in 0..NUM_SUMS {
            let at = comptime!(q * tile_samples) + unit;
            tile_range.partials[sums_at + at] = sums[at];
        }
    }
    sync_cube();
    if has_row && unit < NUM_SUMS && tile_range.end == tile_range.tiles_per_cube {
        let mut sum = 0.0f32;
        for s in 0..tile_samples {
            sum += sums[unit * tile_samples + s];
        }
        tile_range.partials[sums_at + unit] = sum;
    }
}
