//! Distribution of samples over the units and cubes of the gradient kernel.

use crate::learner::means::SUMS;
use crate::model::kernels::MlpShape;

/// Workgroup memory available on every device, in bytes.
const SHARED_BYTES: usize = 16 * 1024;
/// Maximum samples per tile: the number of sums that a unit keeps in registers.
const MAX_TILE: usize = 16;
/// Maximum units per cube supported by every device.
const MAX_UNITS: usize = 256;
/// Maximum number of cubes: enough to fill a large GPU.
const MAX_CUBES: usize = 2048;
/// Maximum size of partial gradients in floats (32 MiB), small enough for their traffic not to
/// matter.
const MAX_PARTIALS: usize = 1 << 23;

/// Units and samples per cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// Units per cube.
    pub units: usize,
    /// Samples per tile.
    pub tile: usize,
}

impl Tiling {
    /// Tiling for a perceptron whose inputs take `input_bytes` each; `None` if it is too wide for a
    /// cube.
    pub fn new(shape: &MlpShape, input_bytes: usize) -> Option<Self> {
        let widest = shape.first.max(shape.second).max(shape.actions);
        let units = widest.max(64).next_multiple_of(32);
        let inputs = shape.features + shape.first + shape.second;
        let floats = shape.second.max(1) + shape.actions + SUMS;
        let bytes = inputs * input_bytes + floats * size_of::<f32>();
        let tile = MAX_TILE.min((SHARED_BYTES / bytes).checked_ilog2().map_or(0, |n| 1 << n));
        (units <= MAX_UNITS && tile > 0).then_some(Self { units, tile })
    }

    /// Floats of a cube's partial gradient, which its sums follow: one per sample of a tile until the last launch.
    pub fn row(&self, shape: &MlpShape) -> usize {
        shape.num_params() + SUMS * self.tile
    }
}

/// Distribution of a minibatch's samples in a part over cubes of `tiles` tiles.
///
/// Depends on sizes only and not on the device, and so does the order of all sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    /// Number of cubes.
    pub cubes: usize,
    /// Tiles per cube.
    pub tiles: usize,
}

impl Spread {
    /// Distributes `samples` samples.
    pub fn new(shape: &MlpShape, tile: usize, samples: usize) -> Self {
        let most = (MAX_PARTIALS / (shape.num_params() + SUMS)).clamp(1, MAX_CUBES);
        let tiles = samples.div_ceil(tile).div_ceil(most).max(1);
        Self { cubes: samples.div_ceil(tile * tiles), tiles }
    }
}
