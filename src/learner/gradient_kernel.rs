//! The gradient of a minibatch in one kernel: forward, loss, backward.
//!
//! A cube works off its share of the samples tile by tile, one barrier between a layer and the next.
//! Inside a tile, each unit has one unit of a hidden layer: it reads every weight of its column once
//! a tile, keeps its sums for the whole tile in registers, and adds up the gradient of its column
//! over all tiles, so that no sum is shared between units. Only the softmax has a unit a sample.
//! Cubes write partial gradients; [`super::optimizer_kernels`] adds them up in a fixed order.

use super::loss_kernels::*;
use crate::math::activation::{activate, slope};
use crate::math::exp;
use crate::math::softmax::{logprob, prob};
use crate::model::kernels::{MlpShape, Observer, rounded};
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
/// Gradients of the first layer's weights that a unit keeps in registers; of more, in local memory.
const REGISTERS: usize = 16;
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

/// `sums[s] += w * values[at + s]` over a tile.
#[cube]
fn multiply_add<V: Float>(
    sums: &mut Array<f32>,
    values: &[V],
    at: usize,
    w: f32,
    #[comptime] tile: usize,
) {
    #[unroll]
    for s in 0..tile {
        sums[s] += w * f32::cast_from(values[at + s]);
    }
}

/// The sum of `values[at + s] * factors[s]` over a tile.
#[cube]
fn dot<V: Float>(values: &[V], at: usize, factors: &Array<f32>, #[comptime] tile: usize) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for s in 0..tile {
        sum += f32::cast_from(values[at + s]) * factors[s];
    }
    sum
}

/// Turns the logits `z[a * tile + unit]` of one sample into the loss's derivatives by them, and adds
/// the sample to `sums`.
#[cube]
#[allow(clippy::too_many_arguments)]
fn differentiate(
    z: &mut [f32],
    sums: &mut Array<f32>,
    words: &[u32],
    values: &[f32],
    advantages: &[f32],
    order: &[u32],
    summary: &[f32],
    number: usize,
    batch: &Batch,
    by: &Coefficients,
    #[comptime] tile: usize,
    #[comptime] shapes: Shapes,
) {
    let unit = UNIT_POS as usize;
    let actions = comptime!(shapes.mlp.actions);
    let mut counts = false;
    if number < batch.games * batch.steps {
        let game = number % batch.games;
        let index = step_index(order, game, number / batch.games, batch);
        let sample = load_sample(words, values, advantages, summary, &index, batch, shapes);
        counts = sample.counts;
        if sample.counts {
            let soft = softmax(&*z, unit, sample.action, tile, actions);
            let form = comptime!(shapes.loss);
            let weight = weight(advantages, summary, index.env, batch, form);
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

/// One cube works off `tiles` tiles of samples and writes the gradient of their loss.
///
/// Sample `n` of a minibatch in a part is step `n / games` of its game `n % games`. Buffers: parameters
/// `[num_params]`, at the start of a longer one; words and values of
/// [`Part`](crate::data::Part); the part of [`RecordingAdvantages::parts`](crate::data::RecordingAdvantages::parts);
/// the order of the games; summary; partial gradients and sums `[rows, num_params + SUMS]`.
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
    let (features, actions) = comptime!((shape.features, shape.actions));
    let (first, second) = comptime!((shape.first, shape.second));
    let deep = comptime!(second > 0);
    let activation = comptime!(shape.activation);
    let last_inputs = comptime!(shape.last_inputs());
    // Where the last hidden layer's activations start.
    let last_at = comptime!(if second > 0 { first * tile } else { 0 });
    let cube = launch.first + CUBE_POS;

    let mut x = Shared::<[I]>::new_slice(comptime!(features * tile));
    let mut hidden = Shared::<[I]>::new_slice(comptime!((first + second) * tile));
    // The derivatives by what enters the second layer's activations.
    let mut back = Shared::<[f32]>::new_slice(comptime!(second.max(1) * tile));
    let mut z = Shared::<[f32]>::new_slice(comptime!(actions * tile));
    let mut all_sums = Shared::<[f32]>::new_slice(comptime!(SUMS * tile));

    // What enters this unit's activations, and the loss's derivatives by that.
    let mut before_first = Array::<f32>::new(tile);
    let mut before_second = Array::<f32>::new(comptime!(if deep { tile } else { 1 }));
    let mut slopes = Array::<f32>::new(tile);
    // Gradients of the weights and biases that this unit has to do with.
    let mut first_weights = Array::<f32>::new(features);
    let mut second_weights = Array::<f32>::new(comptime!(if deep { first } else { 1 }));
    let mut last_weights = Array::<f32>::new(actions);
    let mut first_bias = 0.0f32;
    let mut second_bias = 0.0f32;
    let mut last_bias = 0.0f32;
    let mut sums = Array::<f32>::new(SUMS);
    #[unroll]
    for s in 0..tile {
        before_first[s] = 0.0f32;
        slopes[s] = 0.0f32;
    }
    #[unroll(features <= REGISTERS)]
    for i in 0..features {
        first_weights[i] = 0.0f32;
    }
    if comptime!(deep) {
        #[unroll]
        for s in 0..tile {
            before_second[s] = 0.0f32;
        }
        for j in 0..first {
            second_weights[j] = 0.0f32;
        }
    }
    #[unroll]
    for a in 0..actions {
        last_weights[a] = 0.0f32;
    }
    #[unroll]
    for q in 0..SUMS {
        sums[q] = 0.0f32;
    }

    let total = batch.games * batch.steps;
    for number in 0..launch.tiles {
        let start = (cube * launch.tiles + number) * tile;
        let (sample, share) = (unit % tile, unit / tile);
        let shares = comptime!(tiling.units / tiling.tile);
        if start + sample < total {
            let game = (start + sample) % batch.games;
            let index = step_index(order, game, (start + sample) / batch.games, &batch);
            let (at, stride) = (index.at, index.stride);
            O::observe::<I>(words, at, stride, &mut x, sample, tile, share, shares, observer);
        } else {
            for i in range_stepped(share, features, shares) {
                x[i * tile + sample] = I::cast_from(0.0f32);
            }
        }
        sync_cube();

        // Forward.
        if unit < first {
            let bias = rounded::<f32, I>(params, comptime!(shape.first_bias()) + unit);
            #[unroll]
            for s in 0..tile {
                before_first[s] = bias;
            }
            for i in 0..features {
                let w = rounded::<f32, I>(params, i * first + unit);
                multiply_add::<I>(&mut before_first, &x, i * tile, w, tile);
            }
            #[unroll]
            for s in 0..tile {
                hidden[unit * tile + s] = I::cast_from(activate(before_first[s], activation));
            }
        }
        sync_cube();
        if comptime!(deep) {
            if unit < second {
                let bias = rounded::<f32, I>(params, comptime!(shape.second_bias()) + unit);
                #[unroll]
                for s in 0..tile {
                    before_second[s] = bias;
                }
                for j in 0..first {
                    let at = comptime!(shape.second_weight()) + j * second + unit;
                    let w = rounded::<f32, I>(params, at);
                    multiply_add::<I>(&mut before_second, &hidden, j * tile, w, tile);
                }
                #[unroll]
                for s in 0..tile {
                    let h = activate(before_second[s], activation);
                    hidden[last_at + unit * tile + s] = I::cast_from(h);
                }
            }
            sync_cube();
        }
        for index in range_stepped(unit, comptime!(actions * tile), comptime!(tiling.units)) {
            let a = index / tile;
            let s = index % tile;
            let mut logit = rounded::<f32, I>(params, comptime!(shape.last_bias()) + a);
            for k in 0..last_inputs {
                let at = comptime!(shape.last_weight()) + k * actions + a;
                let w = rounded::<f32, I>(params, at);
                logit += w * f32::cast_from(hidden[last_at + k * tile + s]);
            }
            z[index] = logit;
        }
        sync_cube();

        if unit < tile {
            differentiate(
                &mut z,
                &mut sums,
                words,
                values,
                advantages,
                order,
                summary,
                start + unit,
                &batch,
                &by,
                tile,
                shapes,
            );
        }
        sync_cube();

        // Backward.
        if unit < actions {
            #[unroll]
            for s in 0..tile {
                last_bias += z[unit * tile + s];
            }
        }
        if unit < last_inputs {
            #[unroll]
            for s in 0..tile {
                slopes[s] = 0.0f32;
            }
            #[unroll]
            for a in 0..actions {
                let at = comptime!(shape.last_weight() + a) + unit * actions;
                let w = rounded::<f32, I>(params, at);
                multiply_add::<f32>(&mut slopes, &z, comptime!(a * tile), w, tile);
                let mut sum = 0.0f32;
                #[unroll]
                for s in 0..tile {
                    let h = f32::cast_from(hidden[last_at + unit * tile + s]);
                    sum += z[comptime!(a * tile + s)] * h;
                }
                last_weights[a] += sum;
            }
            #[unroll]
            for s in 0..tile {
                let entered = if comptime!(deep) { before_second[s] } else { before_first[s] };
                slopes[s] *= slope(entered, activation);
            }
        }
        if comptime!(deep) {
            if unit < second {
                #[unroll]
                for s in 0..tile {
                    second_bias += slopes[s];
                }
                for j in 0..first {
                    second_weights[j] += dot::<I>(&hidden, j * tile, &slopes, tile);
                }
                #[unroll]
                for s in 0..tile {
                    back[unit * tile + s] = slopes[s];
                }
            }
            sync_cube();
            if unit < first {
                #[unroll]
                for s in 0..tile {
                    slopes[s] = 0.0f32;
                }
                for k in 0..second {
                    let at = comptime!(shape.second_weight()) + unit * second + k;
                    let w = rounded::<f32, I>(params, at);
                    multiply_add::<f32>(&mut slopes, &back, k * tile, w, tile);
                }
                #[unroll]
                for s in 0..tile {
                    slopes[s] *= slope(before_first[s], activation);
                }
            }
        }
        if unit < first {
            #[unroll]
            for s in 0..tile {
                first_bias += slopes[s];
            }
            #[unroll(features <= REGISTERS)]
            for i in 0..features {
                first_weights[i] += dot::<I>(&x, i * tile, &slopes, tile);
            }
        }
        sync_cube();
    }

    // A grid may have more cubes than were asked for; their samples are none, and they have no row.
    let row = (launch.first_row + cube) * comptime!(shape.num_params() + SUMS);
    let has_row = cube < launch.end;
    if has_row && unit < first {
        #[unroll(features <= REGISTERS)]
        for i in 0..features {
            partials[row + i * first + unit] = first_weights[i];
        }
        partials[row + comptime!(shape.first_bias()) + unit] = first_bias;
    }
    if comptime!(deep) {
        if has_row && unit < second {
            for j in 0..first {
                let at = comptime!(shape.second_weight()) + j * second + unit;
                partials[row + at] = second_weights[j];
            }
            partials[row + comptime!(shape.second_bias()) + unit] = second_bias;
        }
    }
    if has_row && unit < last_inputs {
        #[unroll]
        for a in 0..actions {
            let at = comptime!(shape.last_weight() + a) + unit * actions;
            partials[row + at] = last_weights[a];
        }
    }
    if has_row && unit < actions {
        partials[row + comptime!(shape.last_bias()) + unit] = last_bias;
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
