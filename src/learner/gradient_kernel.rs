//! The gradient of a minibatch in one kernel: forward, loss, backward.
//!
//! A cube works off its share of the samples tile by tile, one barrier between a layer and the next.
//! Inside a tile, each unit has one unit of a hidden layer: it reads every weight of its column once
//! a tile, keeps its sums for the whole tile in registers, and adds up the gradient of its column
//! over all tiles, so that no sum is shared between units. Only the softmax has a unit a sample.
//! Cubes write partial gradients; [`super::optimizer_kernels`] adds them up in a fixed order.

use super::loss_kernels::*;
use super::neuron::{Dense, Neuron, clear, layers, multiply_add};
use crate::math::exp;
use crate::math::softmax::{logprob, prob};
use crate::model::kernels::{FeatureSlots, MlpShape, Observer, rounded};
use crate::objective::kl::{divergence, third};
use crate::objective::{Coefficients, Step, by_logit, term};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

/// Sums that a cube writes after its gradient: those of [`Loss::SUMS`](crate::objective::Loss::SUMS), then the loss.
pub(super) const SUMS: usize = 5;
/// Workgroup memory that every device has.
const SHARED_BYTES: usize = 16 * 1024;
/// The most samples of a tile: as many sums as a unit keeps in registers.
const MAX_TILE: usize = 16;
/// The most units of a cube that every device has.
const MAX_UNITS: usize = 256;
/// The most cubes: enough to fill a large GPU.
const MAX_CUBES: usize = 2048;
/// The most floats of partial gradients (32 MiB): few enough to be written and read in passing.
const MAX_PARTIALS: usize = 1 << 23;

/// The units and samples that a cube has at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// Units of a cube.
    pub units: usize,
    /// Samples of a tile.
    pub tile: usize,
}

impl Tiling {
    /// For a perceptron whose inputs take `input_bytes` each; `None` where it is too wide for a cube.
    pub fn new(shape: &MlpShape, input_bytes: usize) -> Option<Self> {
        let widest = shape.first.max(shape.second).max(shape.actions);
        let units = widest.max(64).next_multiple_of(32);
        let inputs = shape.features + shape.first + shape.second;
        let floats = shape.second.max(1) + shape.actions + SUMS;
        let bytes = inputs * input_bytes + floats * size_of::<f32>();
        let tile = MAX_TILE.min((SHARED_BYTES / bytes).checked_ilog2().map_or(0, |n| 1 << n));
        (units <= MAX_UNITS && tile > 0).then_some(Self { units, tile })
    }
}

/// How the samples of a minibatch in a part are spread over cubes: each takes `tiles` tiles.
///
/// It depends on the sizes alone and not on the device, and so do all sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    /// Cubes.
    pub cubes: usize,
    /// Tiles that a cube works off.
    pub tiles: usize,
}

impl Spread {
    /// For this many samples.
    pub fn new(shape: &MlpShape, tile: usize, samples: usize) -> Self {
        let most = (MAX_PARTIALS / (shape.num_params() + SUMS)).clamp(1, MAX_CUBES);
        let tiles = samples.div_ceil(tile).div_ceil(most).max(1);
        Self { cubes: samples.div_ceil(tile * tiles), tiles }
    }
}

/// What a launch does of a [`Spread`]: the cubes from `first` on, whose rows of partial gradients start
/// at `first_row`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Share {
    /// Its first cube.
    pub first: usize,
    /// The cube behind its last.
    pub end: usize,
    /// Tiles that a cube works off.
    pub tiles: usize,
    /// The row that the spread's first cube writes.
    pub first_row: usize,
}

/// Makes the features of a tile's samples from number `start` on, `x` being `[features][tile]`; those of
/// samples behind the last are 0.
#[cube]
fn observe_tile<O: Observer, I: Float>(
    data: &Experience,
    x: &mut [I],
    start: usize,
    batch: &Batch,
    #[comptime] tiling: Tiling,
    #[comptime] features: usize,
    #[comptime] observer: O,
) {
    let unit = UNIT_POS as usize;
    let tile = comptime!(tiling.tile);
    let (sample, share) = (unit % tile, unit / tile);
    let shares = comptime!(tiling.units / tiling.tile);
    let number = start + sample;
    if number < batch.games * batch.steps {
        let step = step_index(data.order, number % batch.games, number / batch.games, batch);
        let to = FeatureSlots { first: sample, step: tile.runtime(), share, shares };
        O::observe::<I>(data.words, &step.words, x, &to, observer);
    } else {
        for i in range_stepped(share, features, shares) {
            x[i * tile + sample] = I::cast_from(0.0f32);
        }
    }
}

/// Computes the logits `z`, `[actions][tile]`, from the last hidden layer's activations
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

/// Turns the logits `z[a * tile + unit]` of one sample, the batch's `number`-th, into the loss's
/// derivatives by them, and adds the sample to `sums`.
#[cube]
fn differentiate<O: Observer>(
    z: &mut [f32],
    sums: &mut Array<f32>,
    data: &Experience,
    summary: &[f32],
    number: usize,
    batch: &Batch,
    by: &Coefficients,
    #[comptime] tile: usize,
    #[comptime] shapes: Shapes,
    #[comptime] observer: O,
) {
    let unit = UNIT_POS as usize;
    let actions = comptime!(shapes.mlp.actions);
    let mut counts = false;
    if number < batch.games * batch.steps {
        let game = number % batch.games;
        let at = step_index(data.order, game, number / batch.games, batch);
        let sample = load_sample(data, summary, &at, batch, shapes);
        counts = sample.counts;
        if sample.counts {
            mask_logits::<O>(z, unit, tile, data, &at, actions, observer);
            let soft = softmax(&*z, unit, sample.action, tile, actions);
            let form = comptime!(shapes.loss);
            let weight = weight(data.advantages, summary, at.env, batch, form);
            let log_ratio = soft.logprob - sample.logprob;
            let own_ratio = exp(log_ratio);
            let mut ratio = own_ratio;
            if comptime!(form.loss_type.ratio_of_game()) {
                ratio = load_game_ratio(summary, game, batch).ratio;
            }
            let step = Step { ratio, advantage: sample.advantage, logprob: soft.logprob };
            let policy = term(&step, by, comptime!(form.loss_type));
            let mut loss = policy.value - by.entropy * soft.entropy;
            // The derivative by the action's log-probability.
            let mut by_logprob = weight * policy.slope;
            if comptime!(form.loss_type.ratio_of_game()) {
                by_logprob = load_game_ratio(summary, game, batch).slope;
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

/// Adds a tile to the gradient of the last layer's weights of input `unit`, whose activations are
/// `hidden[at..at + tile]`, and leaves the loss's derivatives by these activations in `slopes`.
#[cube]
fn backward_head<I: Float>(
    params: &[f32],
    z: &[f32],
    hidden: &[I],
    at: usize,
    weights: &mut Array<f32>,
    slopes: &mut Array<f32>,
    #[comptime] tile: usize,
    #[comptime] shape: MlpShape,
) {
    let unit = UNIT_POS as usize;
    let actions = comptime!(shape.actions);
    clear(slopes, tile, true);
    #[unroll]
    for a in 0..actions {
        let w = rounded::<f32, I>(params, comptime!(shape.last_weight() + a) + unit * actions);
        multiply_add::<f32>(slopes, z, comptime!(a * tile), w, tile);
        let mut sum = 0.0f32;
        #[unroll]
        for s in 0..tile {
            sum += z[comptime!(a * tile + s)] * f32::cast_from(hidden[at + s]);
        }
        weights[a] += sum;
    }
}

/// Leaves the loss's derivatives by the activations of the first layer's neuron `unit` in `slopes`, from
/// those by what entered the second layer's: `back`, `[second][tile]`.
#[cube]
fn backward_second<I: Float>(
    params: &[f32],
    back: &[f32],
    slopes: &mut Array<f32>,
    unit: usize,
    #[comptime] layer: Dense,
    #[comptime] tile: usize,
) {
    clear(slopes, tile, true);
    for k in 0..layer.outputs {
        let at = comptime!(layer.weight) + unit * layer.outputs + k;
        let w = rounded::<f32, I>(params, at);
        multiply_add::<f32>(slopes, back, k * tile, w, tile);
    }
}

/// One cube works off `tiles` tiles of samples and writes the gradient of their loss.
///
/// Sample `n` of a minibatch in a part is step `n / games` of its game `n % games`. Buffers: parameters
/// `[num_params]`, at the start of a longer one; those of [`Experience`]; the update's summary; partial
/// gradients and sums `[rows, num_params + SUMS]`.
///
/// Workgroup memory: `(features + first + second) * tile` inputs and
/// `(second + actions + SUMS) * tile` floats.
#[cube(launch_unchecked)]
// Conditions of compile time and of run time are kept apart.
#[allow(clippy::too_many_arguments, clippy::collapsible_if)]
pub(super) fn gradient_kernel<O: Observer, I: Float>(
    params: &[f32],
    words: &[u32],
    values: &[f32],
    advantages: &[f32],
    order: &[u32],
    summary: &[f32],
    partials: &mut [f32],
    batch: Batch,
    by: Coefficients,
    launch: Share,
    #[comptime] tiling: Tiling,
    #[comptime] shapes: Shapes,
    #[comptime] observer: O,
    #[define(I)] _input: ElemType,
) {
    let unit = UNIT_POS as usize;
    let tile = comptime!(tiling.tile);
    let shape = comptime!(shapes.mlp);
    let actions = comptime!(shape.actions);
    let (first, second) = comptime!(layers(&shape));
    let deep = comptime!(second.outputs > 0);
    let activation = comptime!(shape.activation);
    // Where the last hidden layer's activations start.
    let last = comptime!(if deep { first.outputs * tile } else { 0 });
    let data = Experience::new(words, values, advantages, order);
    let cube = launch.first + CUBE_POS;

    let mut x = Shared::<[I]>::new_slice(comptime!(first.inputs * tile));
    let mut hidden = Shared::<[I]>::new_slice(comptime!((first.outputs + second.outputs) * tile));
    // The derivatives by what enters the second layer's activations.
    let mut back = Shared::<[f32]>::new_slice(comptime!(second.outputs.max(1) * tile));
    let mut z = Shared::<[f32]>::new_slice(comptime!(actions * tile));
    let mut all_sums = Shared::<[f32]>::new_slice(comptime!(SUMS * tile));

    let mut front = Neuron::new(first, tile);
    let mut middle = Neuron::new(
        comptime!(if deep { second } else { Dense { inputs: 0, ..second } }),
        comptime!(if deep { tile } else { 1 }),
    );
    let mut head = Array::<f32>::new(actions);
    let mut head_bias = 0.0f32;
    let mut slopes = Array::<f32>::new(tile);
    let mut sums = Array::<f32>::new(SUMS);
    clear(&mut head, actions, true);
    clear(&mut slopes, tile, true);
    clear(&mut sums, SUMS, true);

    for number in 0..launch.tiles {
        let start = (cube * launch.tiles + number) * tile;
        observe_tile::<O, I>(&data, &mut x, start, &batch, tiling, first.inputs, observer);
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
            let sample = start + unit;
            differentiate::<O>(
                &mut z, &mut sums, &data, summary, sample, &batch, &by, tile, shapes, observer,
            );
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
            backward_head::<I>(params, &z, &hidden, at, &mut head, &mut slopes, tile, shape);
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

    // A grid may have more cubes than were asked for; their samples are none, and they have no row.
    let row = (launch.first_row + cube) * comptime!(shape.num_params() + SUMS);
    let has_row = cube < launch.end;
    if has_row && unit < first.outputs {
        front.store(partials, row, unit, first);
    }
    if comptime!(deep) {
        if has_row && unit < second.outputs {
            middle.store(partials, row, unit, second);
        }
    }
    if has_row && unit < comptime!(shape.last_inputs()) {
        #[unroll]
        for a in 0..actions {
            let at = comptime!(shape.last_weight() + a) + unit * actions;
            partials[row + at] = head[a];
        }
    }
    if has_row && unit < actions {
        partials[row + comptime!(shape.last_bias()) + unit] = head_bias;
    }
    if unit < tile {
        #[unroll]
        for q in 0..SUMS {
            all_sums[comptime!(q * tile) + unit] = sums[q];
        }
    }
    sync_cube();
    if has_row && unit < SUMS {
        let mut sum = 0.0f32;
        for s in 0..tile {
            sum += all_sums[unit * tile + s];
        }
        partials[row + comptime!(shape.num_params()) + unit] = sum;
    }
}
