//! The hidden layers of a perceptron for all games of a cube, divided among its units.
//!
//! A unit that computes two hidden layers of its game alone needs the activations of the first, too many for its
//! registers. Here the cube's activations are in workgroup memory, and a unit computes a few neurons for several games,
//! so that each number it reads is a factor of several products. The order of all sums is that of [`mlp_logits`],
//! however many games a cube has.
//!
//! [`mlp_logits`]: crate::model::kernels::mlp_logits

use crate::math::activation::activate;
use crate::model::kernels::{
    DenseLayout, MlpShape, add_to_logits, load_rounded, neuron_block, round_to,
    set_logits_to_biases,
};
use crate::settings::Activation;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Games for which a unit computes its neurons: two vectors of four, each read at once.
const GAMES_PER_UNIT: usize = 2 * GAMES_PER_VECTOR;
const GAMES_PER_VECTOR: usize = 4;
/// Maximum units per cube supported by every device.
const MAX_UNITS_PER_CUBE: usize = 256;

/// Games and units of a cube; a compile-time value of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Workgroup {
    /// Games, each with a unit that plays it.
    pub games: usize,
    /// Units, which all compute the hidden layers if they are shared.
    pub units: usize,
    /// Rows of activations in workgroup memory, `[rows][games]`; 0 if units do not share the layers of their games.
    pub rows: usize,
}

impl Workgroup {
    /// Chooses the largest cube of at most `games` games, a power of two, whose activations fit in `bytes`.
    pub fn new(shape: &MlpShape, games: usize, bytes: usize) -> Self {
        let alone = Self { games, units: games, rows: 0 };
        // With one hidden layer no activation is stored.
        if shape.second_width == 0 {
            return alone;
        }
        let (first, second) = shape.hidden_layers();
        let rows = first.inputs.max(first.outputs).max(second.outputs);
        let shared = |games: usize| {
            let workers = num_columns(&first).max(num_columns(&second)) * (games / GAMES_PER_UNIT);
            Self { games, units: workers.max(games).next_multiple_of(32), rows }
        };
        std::iter::successors(Some(games), |games| Some(games / 2))
            .take_while(|games| *games >= GAMES_PER_UNIT)
            .map(shared)
            .find(|workgroup| {
                workgroup.units <= MAX_UNITS_PER_CUBE
                    && workgroup.num_activations() * size_of::<f32>() <= bytes
            })
            .unwrap_or(alone)
    }

    /// Whether units share the hidden layers.
    pub fn has_shared_layers(&self) -> bool {
        self.rows > 0
    }

    /// Number of activations in workgroup memory.
    pub fn num_activations(&self) -> usize {
        (self.rows * self.games).max(1)
    }

    /// Iterations of a unit's loops in a step of its game.
    pub fn loop_iterations(&self, shape: &MlpShape) -> usize {
        if !self.has_shared_layers() {
            return shape.loop_iterations();
        }
        let inputs = [shape.num_features, shape.first_width, shape.second_width];
        inputs.iter().map(|inputs| inputs / neuron_block(*inputs)).sum()
    }
}

/// Number of columns of units that compute a layer; each column computes several neurons.
fn num_columns(layer: &DenseLayout) -> usize {
    layer.outputs / neuron_block(layer.outputs)
}

/// Replaces the inputs of a layer in `activations`, `[inputs][games]`, by its activations, `[outputs][games]`.
///
/// Neighbouring units have the same neurons and neighbouring games, so that they read neighbouring numbers.
#[cube]
fn compute_hidden_layer<W: Float, I: Float>(
    weights: &[W],
    activations: &mut [f32],
    #[comptime] layer: DenseLayout,
    #[comptime] activation: Activation,
    #[comptime] games: usize,
) {
    let unit = UNIT_POS as usize;
    let units_per_column = comptime!(games / GAMES_PER_UNIT);
    let neurons = comptime!(neuron_block(layer.outputs));
    let columns = comptime!(num_columns(&layer));
    let step = comptime!(neuron_block(layer.inputs));
    // The unit's first game and first neuron; its other neurons are `columns` apart.
    let (first_game, column) =
        (unit % units_per_column * GAMES_PER_VECTOR, unit / units_per_column);
    let works = column < columns;
    let mut sums = Array::<f32>::new(comptime!(neurons * GAMES_PER_UNIT));
    if works {
        #[unroll]
        for n in 0..neurons {
            let bias = load_rounded::<W, I>(weights, comptime!(layer.bias + n * columns) + column);
            #[unroll]
            for g in 0..GAMES_PER_UNIT {
                sums[comptime!(n * GAMES_PER_UNIT + g)] = bias;
            }
        }
        let mut inputs = Array::<f32>::new(GAMES_PER_UNIT);
        let mut k = 0usize;
        while k < layer.inputs {
            #[unroll]
            for c in 0..step {
                let at = (k + c) * games + first_game;
                #[unroll]
                for g in 0..GAMES_PER_VECTOR {
                    inputs[g] = activations[at + g];
                    inputs[comptime!(GAMES_PER_VECTOR + g)] =
                        activations[at + comptime!(games / 2 + g)];
                }
                let row = comptime!(layer.weight) + (k + c) * layer.outputs + column;
                #[unroll]
                for n in 0..neurons {
                    let w = load_rounded::<W, I>(weights, row + comptime!(n * columns));
                    #[unroll]
                    for g in 0..GAMES_PER_UNIT {
                        sums[comptime!(n * GAMES_PER_UNIT + g)] += inputs[g] * w;
                    }
                }
            }
            k += step;
        }
    }
    sync_cube();
    if works {
        #[unroll]
        for n in 0..neurons {
            let at = (column + comptime!(n * columns)) * games + first_game;
            #[unroll]
            for g in 0..GAMES_PER_VECTOR {
                let near = sums[comptime!(n * GAMES_PER_UNIT + g)];
                let far = sums[comptime!(n * GAMES_PER_UNIT + GAMES_PER_VECTOR + g)];
                activations[at + g] = round_to::<I>(activate(near, activation));
                activations[at + comptime!(games / 2 + g)] =
                    round_to::<I>(activate(far, activation));
            }
        }
    }
    sync_cube();
}

/// Replaces the features of a cube's games in `activations`, `[features][games]`, by the activations of the last hidden
/// layer. All units of the cube take part.
#[cube]
pub(super) fn compute_hidden_layers<W: Float, I: Float>(
    weights: &[W],
    activations: &mut [f32],
    #[comptime] games: usize,
    #[comptime] shape: MlpShape,
) {
    let (first, second) = comptime!(shape.hidden_layers());
    let activation = comptime!(shape.activation);
    compute_hidden_layer::<W, I>(weights, activations, first, activation, games);
    compute_hidden_layer::<W, I>(weights, activations, second, activation, games);
}

/// Computes the logits of game `game` of a cube from the activations of the last hidden layer in `activations`,
/// `[last_inputs][games]`.
#[cube]
pub(super) fn compute_last_layer<W: Float, I: Float>(
    weights: &[W],
    activations: &[f32],
    logits: &mut Array<f32>,
    game: usize,
    #[comptime] games: usize,
    #[comptime] shape: MlpShape,
) {
    let block = comptime!(neuron_block(shape.second_width));
    set_logits_to_biases::<W, I>(weights, logits, shape);
    let mut h = Array::<f32>::new(block);
    let mut k = 0usize;
    while k < shape.second_width {
        #[unroll]
        for c in 0..block {
            h[c] = activations[(k + c) * games + game];
        }
        add_to_logits::<W, I>(weights, logits, &h, k, block, shape);
        k += block;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::device::buffers::{argument, cube_tensor, grid, uninit};
    use crate::model::kernels::mlp_logits;
    use burn::backend::{Cube, DType};
    use burn::tensor::{Device, Tensor};

    /// Logits, `[actions, rows]`, of features, `[features, rows]`, by a cube's units together or each alone.
    #[cube(launch_unchecked)]
    fn logits_kernel(
        params: &[f32],
        features: &[f32],
        output: &mut [f32],
        rows: usize,
        #[comptime] workgroup: Workgroup,
        #[comptime] shape: MlpShape,
    ) {
        let unit = UNIT_POS as usize;
        let row = CUBE_POS * comptime!(workgroup.games) + unit;
        let has_row = unit < comptime!(workgroup.games) && row < rows;
        let mut logits = Array::<f32>::new(comptime!(shape.num_actions));
        let mut activations =
            Shared::<[f32]>::new_aligned_slice(comptime!(workgroup.num_activations()), 16usize);
        if comptime!(workgroup.has_shared_layers()) {
            if has_row {
                for i in 0..comptime!(shape.num_features) {
                    activations[i * comptime!(workgroup.games) + unit] = features[i * rows + row];
                }
            }
            sync_cube();
            let games = comptime!(workgroup.games);
            compute_hidden_layers::<f32, f32>(params, &mut activations, games, shape);
            if has_row {
                compute_last_layer::<f32, f32>(
                    params,
                    &activations,
                    &mut logits,
                    unit,
                    games,
                    shape,
                );
            }
        } else if has_row {
            let mut x = Array::<f32>::new(comptime!(shape.num_features));
            #[unroll]
            for i in 0..comptime!(shape.num_features) {
                x[i] = features[i * rows + row];
            }
            mlp_logits::<f32, f32>(params, &x, &mut logits, shape);
        }
        if has_row {
            #[unroll]
            for a in 0..comptime!(shape.num_actions) {
                output[a * rows + row] = logits[a];
            }
        }
    }

    fn compute_logits(
        params: &[f32],
        rows: usize,
        workgroup: Workgroup,
        shape: MlpShape,
        device: &Device,
    ) -> Vec<f32> {
        let params = cube_tensor(device::upload(params.to_vec(), device));
        let feature = |i: usize| ((i * 7919) % 1009) as f32 / 504.5 - 1.0;
        let features = (0..shape.num_features * rows).map(feature).collect();
        let features = cube_tensor(device::upload(features, device));
        let output = uninit(&params, &[shape.num_actions * rows], DType::F32);
        // SAFETY: accesses stay below the numbers of parameters, features, actions and rows; all units reach all
        // barriers.
        unsafe {
            logits_kernel::launch_unchecked(
                &params.client,
                grid(&params, rows.div_ceil(workgroup.games)),
                CubeDim::new_1d(workgroup.units as u32),
                argument(&params),
                argument(&features),
                argument(&output),
                rows,
                workgroup,
                shape,
            );
        }
        device::read(Tensor::<1>::from_primitive::<Cube>(output))
    }

    #[test]
    fn logits_have_the_same_bits_whatever_the_cube() {
        for device in device::adapters() {
            for [num_features, first_width, second_width, num_actions] in
                [[5, 7, 12, 3], [16, 64, 64, 3], [3, 260, 33, 2]]
            {
                let activation = Activation::Silu;
                let shape = MlpShape {
                    num_features,
                    first_width,
                    second_width,
                    num_actions,
                    activation,
                    neurons_per_block: 1,
                };
                let weight = |i: usize| ((i * 104_729) % 2003) as f32 / 5007.5 - 0.2;
                let params: Vec<f32> = (0..shape.num_params()).map(weight).collect();
                let rows = 101;
                let run = |workgroup| compute_logits(&params, rows, workgroup, shape, &device);
                let alone = run(Workgroup { games: 32, units: 32, rows: 0 });
                assert!(alone.iter().any(|z| z.abs() > 1e-3), "{alone:?}");
                let mut cubes = 0;
                for games in [8, 16, 32, 64] {
                    let workgroup = Workgroup::new(&shape, games, 16 * 1024);
                    assert!(workgroup.has_shared_layers() && workgroup.games <= games);
                    if workgroup.games == games {
                        assert_eq!(run(workgroup), alone, "{shape:?}, {workgroup:?}, {device:?}");
                        cubes += 1;
                    }
                }
                assert!(cubes > 0);
            }
        }
    }

    #[test]
    fn workgroups_have_room_on_every_device() {
        let shape = |first_width, second_width| MlpShape {
            num_features: 16,
            first_width,
            second_width,
            num_actions: 3,
            activation: Activation::Tanh,
            neurons_per_block: 1,
        };
        let group = |first, second| {
            let Workgroup { games, units, .. } =
                Workgroup::new(&shape(first, second), 64, 16 * 1024);
            (games, units)
        };
        assert_eq!(group(64, 64), (64, 128));
        assert_eq!(group(256, 256), (16, 128));
        assert_eq!(group(63, 8), (32, 256));
        assert_eq!(group(512, 64), (8, 128));
        // One hidden layer, or a layer too wide.
        assert!([(64, 0), (1024, 1024), (64, 257)].iter().all(|(a, b)| group(*a, *b) == (64, 64)));
    }
}
