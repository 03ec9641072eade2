//! The gradient of a minibatch in one kernel: forward, loss, backward.
//!
//! A cube works off its share of the samples tile by tile, one barrier between a layer and the next.
//! Inside a tile, each unit has one unit of a hidden layer: it reads every weight of its column once
//! a tile, keeps its sums for the whole tile in registers, and adds up the gradient of its column
//! over all tiles, so that no sum is shared between units. Only the softmax has a unit a sample.
//! Cubes write partial gradients; [`super::optimizer_kernels`] adds them up in a fixed order.

use super::fused::Shapes;
use super::loss_kernels::*;
use crate::config::LossType;
use crate::policy::kernels::{MlpShape, activate, slope};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Sums that a cube writes after its gradient: those of [`super::loss::Loss::SUMS`], then the loss.
pub(super) const SUMS: usize = 5;
/// Workgroup memory that every device has, in floats.
const SHARED_FLOATS: usize = 16 * 1024 / size_of::<f32>();
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

/// How the samples of a minibatch are spread over cubes, units and tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spread {
    /// Cubes.
    pub cubes: usize,
    /// Units of a cube.
    pub units: usize,
    /// Tiles that a cube works off.
    pub tiles: usize,
    /// Samples of a tile.
    pub tile: usize,
}

impl Spread {
    /// For this many samples; `None` where the perceptron is too wide for a cube.
    ///
    /// It depends on the sizes alone and not on the device, and so do all sums.
    pub fn new(shape: &MlpShape, samples: usize) -> Option<Self> {
        let widest = shape.first.max(shape.second).max(shape.actions);
        let units = widest.max(64).next_multiple_of(32);
        let floats = shape.features + shape.first + shape.second + shape.actions + SUMS;
        let tile = MAX_TILE.min((SHARED_FLOATS / floats).checked_ilog2().map_or(0, |n| 1 << n));
        if units > MAX_UNITS || tile == 0 {
            return None;
        }
        let most = (MAX_PARTIALS / (shape.num_params() + SUMS)).clamp(1, MAX_CUBES);
        let tiles = samples.div_ceil(tile).div_ceil(most).max(1);
        let cubes = samples.div_ceil(tile * tiles).max(1);
        Some(Self { cubes, units, tiles, tile })
    }
}

/// `sums[s] += w * values[at + s]` over a tile.
#[cube]
fn multiply_add(sums: &mut Array<f32>, values: &[f32], at: usize, w: f32, #[comptime] tile: usize) {
    #[unroll]
    for s in 0..tile {
        sums[s] += w * values[at + s];
    }
}

/// The sum of `values[at + s] * factors[s]` over a tile.
#[cube]
fn dot(values: &[f32], at: usize, factors: &Array<f32>, #[comptime] tile: usize) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for s in 0..tile {
        sum += values[at + s] * factors[s];
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
    samples: &[f32],
    order: &[i32],
    facts: &[f32],
    sequences: &[f32],
    number: usize,
    batch: &Batch,
    by: &Coefficients,
    #[comptime] tile: usize,
    #[comptime] shapes: Shapes,
) {
    let unit = UNIT_POS as usize;
    let actions = comptime!(shapes.mlp.actions);
    let mut counts = 0.0f32;
    if number < batch.games * batch.num_steps {
        let game = number % batch.games;
        let env = order[batch.first + game] as usize;
        let at = number / batch.games * batch.num_envs + env;
        let sample = load_sample(samples, at, batch.num_steps * batch.num_envs);
        counts = sample.mask;
        if sample.mask > 0.0f32 {
            let soft = softmax(&*z, unit, sample.action, tile, actions);
            let weight = sample.mask * weight(facts, env, batch, comptime!(shapes.loss.loss_type));
            let log_ratio = soft.logprob - sample.logprob;
            let own_ratio = log_ratio.exp();
            let ratio = if comptime!(shapes.loss.loss_type == LossType::Gspo) {
                sequences[game]
            } else {
                own_ratio
            };
            let mut loss =
                policy_loss(ratio, sample.advantage, soft.logprob, by, comptime!(shapes.loss));
            loss -= by.entropy * soft.entropy;
            // The derivative by the action's log-probability.
            let mut by_logprob = if comptime!(shapes.loss.loss_type == LossType::Gspo) {
                sequences[batch.games + game] * ratio * sample.mask / length(facts, env, batch)
            } else if comptime!(shapes.loss.loss_type == LossType::Cispo) {
                weight * policy_loss(ratio, sample.advantage, 1.0f32.runtime(), by, shapes.loss)
            } else {
                weight * ratio * ratio_slope(ratio, sample.advantage, by, comptime!(shapes.loss))
            };
            if comptime!(shapes.loss.kl.is_some()) {
                let estimator = comptime!(shapes.estimator());
                let to_reference = sample.reference - soft.logprob;
                let divergence = kl(to_reference, estimator);
                loss += by.kl * divergence;
                by_logprob += weight * by.kl * kl_slope(to_reference, estimator);
                sums[3] += sample.mask * divergence;
            }
            sums[0] += sample.mask * (own_ratio - 1.0f32 - log_ratio);
            sums[1] += sample.mask * clipped(ratio, sample.advantage, by, comptime!(shapes.loss));
            sums[2] += sample.mask * soft.entropy;
            sums[4] += weight * loss;
            #[unroll]
            for a in 0..actions {
                let logprob = z[comptime!(a * tile) + unit] - soft.log_total;
                let p = logprob.exp();
                let taken = select(sample.action == comptime!(a as u32), 1.0f32, 0.0f32);
                z[comptime!(a * tile) + unit] =
                    by_logprob * (taken - p) + weight * by.entropy * p * (logprob + soft.entropy);
            }
        }
    }
    if counts <= 0.0f32 {
        #[unroll]
        for a in 0..actions {
            z[comptime!(a * tile) + unit] = 0.0f32;
        }
    }
}

/// One cube works off `tiles` tiles of samples and writes the gradient of their loss.
///
/// Sample `n` of a minibatch is step `n / games` of its game `n % games`. Buffers: parameters
/// `[num_params]`, at the start of a longer one; observations `[num_steps, num_envs, num_features]`;
/// samples `[SAMPLE, num_steps, num_envs]`; the order of the games; facts; `[2, games]` of
/// [`sequence_kernel`], not read but for `gspo`; partial gradients and sums
/// `[cubes, num_params + SUMS]`.
///
/// Workgroup memory: `(features + first + second + actions + SUMS) * tile` floats.
#[cube(launch_unchecked)]
// Conditions of compile time and of run time are kept apart.
#[allow(clippy::too_many_arguments, clippy::collapsible_if)]
pub(super) fn gradient_kernel(
    params: &[f32],
    obs: &[f32],
    samples: &[f32],
    order: &[i32],
    facts: &[f32],
    sequences: &[f32],
    partials: &mut [f32],
    batch: Batch,
    by: Coefficients,
    #[comptime] spread: Spread,
    #[comptime] shapes: Shapes,
) {
    let unit = UNIT_POS as usize;
    let tile = comptime!(spread.tile);
    let shape = comptime!(shapes.mlp);
    let (features, actions) = comptime!((shape.features, shape.actions));
    let (first, second) = comptime!((shape.first, shape.second));
    let deep = comptime!(second > 0);
    let activation = comptime!(shape.activation);
    let last_inputs = comptime!(shape.last_inputs());
    // Where the last hidden layer's activations start.
    let last_at = comptime!(if second > 0 { first * tile } else { 0 });

    let mut x = Shared::<[f32]>::new_slice(comptime!(features * tile));
    let mut hidden = Shared::<[f32]>::new_slice(comptime!((first + second) * tile));
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

    let total = batch.games * batch.num_steps;
    for number in 0..comptime!(spread.tiles) {
        let start = (CUBE_POS * comptime!(spread.tiles) + number) * tile;
        for index in range_stepped(unit, comptime!(features * tile), comptime!(spread.units)) {
            let s = index / features;
            let i = index % features;
            let mut value = 0.0f32;
            if start + s < total {
                let env = order[batch.first + (start + s) % batch.games] as usize;
                let at = (start + s) / batch.games * batch.num_envs + env;
                value = obs[at * features + i];
            }
            x[i * tile + s] = value;
        }
        sync_cube();

        // Forward.
        if unit < first {
            let bias = params[comptime!(shape.first_bias()) + unit];
            #[unroll]
            for s in 0..tile {
                before_first[s] = bias;
            }
            for i in 0..features {
                multiply_add(&mut before_first, &x, i * tile, params[i * first + unit], tile);
            }
            #[unroll]
            for s in 0..tile {
                hidden[unit * tile + s] = activate(before_first[s], activation);
            }
        }
        sync_cube();
        if comptime!(deep) {
            if unit < second {
                let bias = params[comptime!(shape.second_bias()) + unit];
                #[unroll]
                for s in 0..tile {
                    before_second[s] = bias;
                }
                for j in 0..first {
                    let w = params[comptime!(shape.second_weight()) + j * second + unit];
                    multiply_add(&mut before_second, &hidden, j * tile, w, tile);
                }
                #[unroll]
                for s in 0..tile {
                    hidden[last_at + unit * tile + s] = activate(before_second[s], activation);
                }
            }
            sync_cube();
        }
        for index in range_stepped(unit, comptime!(actions * tile), comptime!(spread.units)) {
            let a = index / tile;
            let s = index % tile;
            let mut logit = params[comptime!(shape.last_bias()) + a];
            for k in 0..last_inputs {
                let w = params[comptime!(shape.last_weight()) + k * actions + a];
                logit += w * hidden[last_at + k * tile + s];
            }
            z[index] = logit;
        }
        sync_cube();

        if unit < tile {
            differentiate(
                &mut z,
                &mut sums,
                samples,
                order,
                facts,
                sequences,
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
                let w = params[comptime!(shape.last_weight() + a) + unit * actions];
                multiply_add(&mut slopes, &z, comptime!(a * tile), w, tile);
                let mut sum = 0.0f32;
                #[unroll]
                for s in 0..tile {
                    sum += z[comptime!(a * tile + s)] * hidden[last_at + unit * tile + s];
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
                    second_weights[j] += dot(&hidden, j * tile, &slopes, tile);
                }
                // The activations here were this unit's own and are no longer needed.
                #[unroll]
                for s in 0..tile {
                    hidden[last_at + unit * tile + s] = slopes[s];
                }
            }
            sync_cube();
            if unit < first {
                #[unroll]
                for s in 0..tile {
                    slopes[s] = 0.0f32;
                }
                for k in 0..second {
                    let w = params[comptime!(shape.second_weight()) + unit * second + k];
                    multiply_add(&mut slopes, &hidden, last_at + k * tile, w, tile);
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
                first_weights[i] += dot(&x, i * tile, &slopes, tile);
            }
        }
        sync_cube();
    }

    let row = CUBE_POS * comptime!(shape.num_params() + SUMS);
    if unit < first {
        #[unroll(features <= REGISTERS)]
        for i in 0..features {
            partials[row + i * first + unit] = first_weights[i];
        }
        partials[row + comptime!(shape.first_bias()) + unit] = first_bias;
    }
    if comptime!(deep) {
        if unit < second {
            for j in 0..first {
                let at = comptime!(shape.second_weight()) + j * second + unit;
                partials[row + at] = second_weights[j];
            }
            partials[row + comptime!(shape.second_bias()) + unit] = second_bias;
        }
    }
    if unit < last_inputs {
        #[unroll]
        for a in 0..actions {
            let at = comptime!(shape.last_weight() + a) + unit * actions;
            partials[row + at] = last_weights[a];
        }
    }
    if unit < actions {
        partials[row + comptime!(shape.last_bias()) + unit] = last_bias;
    }
    if unit < tile {
        #[unroll]
        for q in 0..SUMS {
            all_sums[comptime!(q * tile) + unit] = sums[q];
        }
    }
    sync_cube();
    if unit < SUMS {
        let mut sum = 0.0f32;
        for s in 0..tile {
            sum += all_sums[unit * tile + s];
        }
        partials[row + comptime!(shape.num_params()) + unit] = sum;
    }
}
