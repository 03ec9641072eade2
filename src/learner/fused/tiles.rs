//! How samples are spread over the units and cubes of the gradient's kernel.

use crate::model::kernels::MlpShape;

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
