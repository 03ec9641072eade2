//! Gradient of a minibatch in one kernel: forward pass, loss and backward pass.
//!
//! A cube processes its samples tile by tile with a barrier between layers. Within a tile each unit
//! owns one neuron of a hidden layer: it reads each weight of its column once per tile, keeps the
//! sums of the tile in registers, and accumulates the gradient of its column over all tiles, so
//! that no sum is shared between units. Only the softmax is computed by one unit per sample. Each
//! cube writes a partial gradient; [`super::optimizer_kernels`] sums them in a fixed order.

use super::loss_kernels::*;
use super::neuron::{Neuron, clear, multiply_add, several};
use super::tiles::Tiling;
use crate::device::buffers::Buffer;
use crate::learner::means::SUMS;
use crate::math::exp;
use crate::math::softmax::{logprob, prob};
use crate::model::kernels::{Dense, FeatureSlots, MlpShape, Observer, rounded};
use crate::objective::kl::{divergence, third};
use crate::objective::{Coefficients, Step, by_logit, term};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Alignment of arrays in workgroup memory, bytes: four numbers are loaded at once.
const ALIGNMENT: usize = 16;

/// Portion of a [`Spread`](super::tiles::Spread) handled by a launch: tiles `first..end` of each cube. The cubes'
/// partial gradients start at row `first_row`; between launches they wait there.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Share {
    /// Partial gradients and sums, `[rows, num_params + SUMS * tile]`.
    pub partials: Buffer<f32>,
    /// Cubes of the spread.
    pub cubes: usize,
    /// Tiles per cube.
    pub tiles: usize,
    /// First tile of this launch.
    pub first: usize,
    /// End of this launch's tiles, exclusive.
    pub end: usize,
    /// Row of the spread's first cube.
    pub first_row: usize,
}

/// Computes the features of a tile's samples, starting with number `start`, into `x`,
/// `[features][tile]`. Samples past the last get zeros.
#[cube]
fn observe_tile<O: Observer, I: Float>(
    data: &Experience,
    x: &mut [I],
    start: usize,
    batch: &Batch,
    #[comptime] plan: Plan<O>,
) {
    let unit = UNIT_POS as usize;
    let tile = comptime!(plan.tiling.tile);
    let (sample, share) = (unit % tile, unit / tile);
    let shares = comptime!(plan.tiling.units / plan.tiling.tile);
    let number = start + sample;
    if number < batch.games * data.sizes.learn_steps {
        let step = data.step(batch, number % batch.games, number / batch.games);
        let to = FeatureSlots { first: sample, step: tile.runtime(), share, shares };
        O::observe::<I>(&data.words, &step.words, x, &to, comptime!(plan.observer));
    } else {
        for i in range_stepped(share, comptime!(plan.mlp.features), shares) {
            x[i * tile + sample] = I::cast_from(0.0f32);
        }
    }
}

/// Computes the logits `z`, `[actions][tile]`, from the activations of the last hidden layer,
/// `hidden[first..]`, `[last_inputs][tile]`.
#[cube]
fn logits<I: Float>(
    params: &[f32],
    hidden: &[I],
    first: usize,
    z: &mut [f32],
    #[comptime] tiling: Tiling,
    #[comptime] shape: MlpShape,
) {
    let (tile, actions) = comptime!((tiling.tile, shape.actions));
    let unit = UNIT_POS as usize;
    for index in range_stepped(unit, comptime!(actions * tile), comptime!(tiling.units)) {
        let a = index / tile;
        let s = index % tile;
        let mut logit = rounded::<f32, I>(params, comptime!(shape.last_bias()) + a);
        for k in 0..comptime!(shape.last_inputs()) {
            let at = comptime!(shape.last_weight()) + k * actions + a;
            let w = rounded::<f32, I>(params, at);
            logit += w * f32::cast_from(hidden[first + k * tile + s]);
        }
        z[index] = logit;
    }
}

/// Replaces the logits `z[a * tile + unit]` of sample `number` by the loss's derivatives and adds
/// the sample to `sums`.
#[cube]
fn differentiate<O: Observer>(
    z: &mut [f32],
    sums: &mut Array<f32>,
    data: &Experience,
    number: usize,
    batch: &Batch,
    by: &Coefficients,
    #[comptime] plan: Plan<O>,
) {
    let unit = UNIT_POS as usize;
    let (tile, actions) = comptime!((plan.tiling.tile, plan.mlp.actions));
    let mut counts = false;
    if number < batch.games * data.sizes.learn_steps {
        let game = number % batch.games;
        let at = data.step(batch, game, number / batch.games);
        let sample = data.sample::<O>(&at, batch, plan);
        counts = sample.counts;
        if sample.counts {
            mask_logits::<O>(z, unit, tile, &data.words, &at, plan);
            let soft = softmax(&*z, unit, sample.action, tile, actions);
            let form = comptime!(plan.loss);
            let weight = data.weight(at.env, batch, form);
            let log_ratio = soft.logprob - sample.logprob;
            let own_ratio = exp(log_ratio);
            let mut ratio = own_ratio;
            if comptime!(form.loss_type.ratio_of_game()) {
                ratio = batch.game_ratio(game).ratio;
            }
            let step = Step { ratio, advantage: sample.advantage, logprob: soft.logprob };
            let policy = term(&step, by, comptime!(form.loss_type));
            let mut loss = policy.value - by.entropy * soft.entropy;
            // Derivative by the log-probability of the action taken.
            let mut by_logprob = weight * policy.slope;
            if comptime!(form.loss_type.ratio_of_game()) {
                by_logprob = batch.game_ratio(game).slope;
            }
            // Label smoothing: derivative by the log-probability of every action.
            let mut shared = 0.0f32;
            let each = 1.0 / comptime!(actions as f32);
            if comptime!(form.smoothed) {
                let mut mean = 0.0f32;
                #[unroll]
                for a in 0..actions {
                    mean += each * logprob(z[comptime!(a * tile) + unit], &soft.by);
                }
                let share = by.smoothing * sample.advantage;
                loss -= by.smoothing * policy.value + share * mean;
                by_logprob *= 1.0 - by.smoothing;
                shared = -share * weight;
            }
            if comptime!(form.kl.is_some()) {
                let to_reference = sample.reference - soft.logprob;
                let estimator = comptime!(form.estimator());
                let kl = divergence(to_reference, own_ratio, estimator, comptime!(form.corrected));
                loss += by.kl * kl.value;
                by_logprob += weight * by.kl * kl.slope;
                sums[3] += kl.value;
            }
            sums[0] += third(own_ratio, log_ratio);
            sums[1] += policy.clipped;
            sums[2] += soft.entropy;
            sums[4] += weight * loss;
            #[unroll]
            for a in 0..actions {
                let logit = z[comptime!(a * tile) + unit];
                let taken = select(sample.action == comptime!(a as u32), 1.0f32, 0.0f32);
                z[comptime!(a * tile) + unit] = by_logit(
                    by_logprob,
                    by.entropy * weight,
                    taken,
                    prob(logit, &soft.by),
                    logprob(logit, &soft.by),
                    soft.entropy,
                );
                if comptime!(form.smoothed) {
                    z[comptime!(a * tile) + unit] += shared * (each - prob(logit, &soft.by));
                }
            }
        }
    }
    if !counts {
        #[unroll]
        for a in 0..actions {
            z[comptime!(a * tile) + unit] = 0.0f32;
        }
    }
}

/// Accumulates the gradient of the output weights of hidden unit `unit`, whose activations are
/// `hidden[at..at + tile]`, and writes the loss's derivatives by these activations to `slopes`.
#[cube]
fn backward_head<O: Observer, I: Float>(
    params: &[f32],
    z: &[f32],
    hidden: &[I],
    at: usize,
    weights: &mut Array<f32>,
    slopes: &mut Array<f32>,
    #[comptime] plan: Plan<O>,
) {
    let unit = UNIT_POS as usize;
    let (tile, actions) = comptime!((plan.tiling.tile, plan.mlp.actions));
    let first = comptime!(plan.mlp.last_weight());
    clear(slopes, tile);
    #[unroll]
    for a in 0..actions {
        let w = rounded::<f32, I>(params, comptime!(first + a) + unit * actions);
        multiply_add::<f32>(slopes, z, comptime!(a * tile), w, tile);
        let mut sum = 0.0f32;
        #[unroll]
        for s in 0..tile {
            sum += z[comptime!(a * tile + s)] * f32::cast_from(hidden[at + s]);
        }
        weights[a] += sum;
    }
}

/// Propagates derivatives by the pre-activations of the second layer, `back`, `[second][tile]`, to
/// the activations of neuron `unit` of the first layer, in `slopes`.
#[cube]
fn backward_second<I: Float>(
    params: &[f32],
    back: &[f32],
    slopes: &mut Array<f32>,
    unit: usize,
    #[comptime] layer: Dense,
    #[comptime] tile: usize,
) {
    clear(slopes, tile);
    let step = comptime!(several(layer.outputs));
    let mut k = 0usize;
    while k < layer.outputs {
        let at = comptime!(layer.weight) + unit * layer.outputs + k;
        #[unroll]
        for c in 0..step {
            let w = rounded::<f32, I>(params, at + c);
            multiply_add::<f32>(slopes, back, (k + c) * tile, w, tile);
        }
        k += step;
    }
}

/// Computes the gradient of `tiles` tiles of samples per cube.
///
/// Sample `n` of a minibatch in a part is step `n / games` of its game `n % games`. Buffers:
/// parameters `[num_params]`, at the start of a longer buffer; those of [`Experience`], [`Batch`]
/// and [`Share`].
///
/// Workgroup memory: `(features + first + second) * tile` inputs and `(second + actions + SUMS) *
/// tile` floats.
#[cube(launch_unchecked)]
// Keeps compile-time conditions separate from run-time ones.
#[allow(clippy::collapsible_if)]
pub(super) fn gradient_kernel<O: Observer, I: Float>(
    params: &[f32],
    data: &Experience,
    batch: &Batch,
    share: &mut Share,
    by: Coefficients,
    #[comptime] plan: Plan<O>,
    #[define(I)] _input: ElemType,
) {
    let unit = UNIT_POS as usize;
    let (tiling, shape) = comptime!((plan.tiling, plan.mlp));
    let tile = comptime!(tiling.tile);
    let actions = comptime!(shape.actions);
    let (first, second) = comptime!(shape.layers());
    let deep = comptime!(second.outputs > 0);
    let activation = comptime!(shape.activation);
    // Offset of the last hidden layer's activations.
    let last = comptime!(if deep { first.outputs * tile } else { 0 });
    let cube = CUBE_POS;
    // The grid may have excess cubes, which have neither samples nor a row.
    let has_row = cube < share.cubes;
    let row = (share.first_row + cube) * comptime!(tiling.row(&shape));
    let sums_at = row + comptime!(shape.num_params());

    let mut x = Shared::<[I]>::new_aligned_slice(comptime!(first.inputs * tile), ALIGNMENT);
    let mut hidden = Shared::<[I]>::new_aligned_slice(
        comptime!((first.outputs + second.outputs) * tile),
        ALIGNMENT,
    );
    // Derivatives by the pre-activations of the second layer.
    let mut back =
        Shared::<[f32]>::new_aligned_slice(comptime!(second.outputs.max(1) * tile), ALIGNMENT);
    let mut z = Shared::<[f32]>::new_aligned_slice(comptime!(actions * tile), ALIGNMENT);
    let mut all_sums = Shared::<[f32]>::new_aligned_slice(comptime!(SUMS * tile), ALIGNMENT);

    let mut front = Neuron::new(first, tile);
    let mut middle = Neuron::new(
        comptime!(if deep { second } else { Dense { inputs: 0, ..second } }),
        comptime!(if deep { tile } else { 1 }),
    );
    let mut head = Array::<f32>::new(actions);
    let mut head_bias = 0.0f32;
    let mut slopes = Array::<f32>::new(tile);
    let mut sums = Array::<f32>::new(SUMS);
    clear(&mut head, actions);
    clear(&mut slopes, tile);
    clear(&mut sums, SUMS);
    if has_row && share.first > 0 {
        // Continues the sums of the launch before.
        if unit < first.outputs {
            front.load(&share.partials, row, unit, first);
        }
        if comptime!(deep) {
            if unit < second.outputs {
                middle.load(&share.partials, row, unit, second);
            }
        }
        if unit < comptime!(shape.last_inputs()) {
            #[unroll]
            for a in 0..actions {
                let at = comptime!(shape.last_weight() + a) + unit * actions;
                head[a] = share.partials[row + at];
            }
        }
        if unit < actions {
            head_bias = share.partials[row + comptime!(shape.last_bias()) + unit];
        }
        if unit < tile {
            #[unroll]
            for q in 0..SUMS {
                sums[q] = share.partials[sums_at + comptime!(q * tile) + unit];
            }
        }
    }

    for number in share.first..share.end {
        let start = (cube * share.tiles + number) * tile;
        observe_tile::<O, I>(data, &mut x, start, batch, plan);
        sync_cube();
        if unit < first.outputs {
            front.forward::<I>(params, &x, unit, first, tile);
            front.activate::<I>(&mut hidden, unit * tile, activation, tile);
        }
        sync_cube();
        if comptime!(deep) {
            if unit < second.outputs {
                middle.forward::<I>(params, &hidden, unit, second, tile);
                middle.activate::<I>(&mut hidden, last + unit * tile, activation, tile);
            }
            sync_cube();
        }
        logits::<I>(params, &hidden, last, &mut z, tiling, shape);
        sync_cube();
        if unit < tile {
            differentiate::<O>(&mut z, &mut sums, data, start + unit, batch, &by, plan);
        }
        sync_cube();
        if unit < actions {
            #[unroll]
            for s in 0..tile {
                head_bias += z[unit * tile + s];
            }
        }
        if unit < comptime!(shape.last_inputs()) {
            let at = last + unit * tile;
            backward_head::<O, I>(params, &z, &hidden, at, &mut head, &mut slopes, plan);
            if comptime!(deep) {
                middle.backward(&mut slopes, activation, tile);
            } else {
                front.backward(&mut slopes, activation, tile);
            }
        }
        if comptime!(deep) {
            if unit < second.outputs {
                middle.learn::<I>(&hidden, &slopes, second, tile);
                #[unroll]
                for s in 0..tile {
                    back[unit * tile + s] = slopes[s];
                }
            }
            sync_cube();
            if unit < first.outputs {
                backward_second::<I>(params, &back, &mut slopes, unit, second, tile);
                front.backward(&mut slopes, activation, tile);
            }
        }
        if unit < first.outputs {
            front.learn::<I>(&x, &slopes, first, tile);
        }
        sync_cube();
    }

    if has_row && unit < first.outputs {
        front.store(&mut share.partials, row, unit, first);
    }
    if comptime!(deep) {
        if has_row && unit < second.outputs {
            middle.store(&mut share.partials, row, unit, second);
        }
    }
    if has_row && unit < comptime!(shape.last_inputs()) {
        #[unroll]
        for a in 0..actions {
            let at = comptime!(shape.last_weight() + a) + unit * actions;
            share.partials[row + at] = head[a];
        }
    }
    if has_row && unit < actions {
        share.partials[row + comptime!(shape.last_bias()) + unit] = head_bias;
    }
    if unit < tile {
        #[unroll]
        for q in 0..SUMS {
            all_sums[comptime!(q * tile) + unit] = sums[q];
            if has_row && share.end < share.tiles {
                share.partials[sums_at + comptime!(q * tile) + unit] = sums[q];
            }
        }
    }
    sync_cube();
    if has_row && unit < SUMS && share.end == share.tiles {
        let mut sum = 0.0f32;
        for s in 0..tile {
            sum += all_sums[unit * tile + s];
        }
        share.partials[sums_at + unit] = sum;
    }
}
