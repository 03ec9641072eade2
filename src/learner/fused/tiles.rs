//! Distribution of samples over the units and cubes of the gradient kernel.

use crate::learner::means::NUM_SUMS;
use crate::model::kernels::MlpShape;

/// Workgroup memory available on every device, in bytes.
const WORKGROUP_BYTES: usize = 16 * 1024;
/// Maximum number of samples for which a unit computes its neurons at a time.
const MAX_UNIT_SAMPLES: usize = 8;
/// Floats between rows in workgroup memory: with them, units that read neighbouring rows read from different banks.
const PADDING: usize = 4;
/// Floats that the alignment of arrays may take.
const ALIGNMENT_FLOATS: usize = 8;
/// Maximum width of a layer.
const MAX_WIDTH: usize = 256;
/// Minimum units per cube.
const MIN_UNITS: usize = 64;
/// Maximum number of cubes: enough to fill a large GPU.
const MAX_CUBES: usize = 2048;
/// Maximum size of partial gradients in floats (32 MiB), small enough for their traffic not to
/// matter.
const MAX_PARTIAL_FLOATS: usize = 1 << 23;
/// Maximum size of the partial gradients of all parts of a minibatch in floats (120 MiB): every WebGPU device binds
/// 128.
const MAX_TOTAL_PARTIAL_FLOATS: usize = 30 << 20;

/// Units and samples per cube, and their place in workgroup memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// Units per cube.
    pub num_units: usize,
    /// Samples per tile.
    pub tile_samples: usize,
    /// Distance from a neuron's samples to those of the next one.
    pub stride: usize,
    /// Whether derivatives of activations are stored separately, because they do not follow from the values.
    pub keeps_derivatives: bool,
}

impl Tiling {
    /// Tiling for a perceptron; `None` if it is too wide for a cube.
    pub fn new(shape: &MlpShape) -> Option<Self> {
        let widest = shape.first_width.max(shape.second_width).max(shape.num_actions);
        let num_units = (widest / 2).max(MIN_UNITS).next_multiple_of(32);
        let keeps_derivatives = !shape.activation.has_derivative_from_value();
        let derivatives =
            if keeps_derivatives { shape.first_width + shape.second_width } else { 0 };
        let rows = shape.num_features
            + shape.first_width
            + shape.second_width
            + shape.num_actions
            + derivatives;
        let fits = |tile_samples: usize, stride: usize| {
            (rows * stride + NUM_SUMS * tile_samples + ALIGNMENT_FLOATS) * size_of::<f32>()
                <= WORKGROUP_BYTES
        };
        let tile_samples = [16, 8, 4, 2, 1].into_iter().find(|count| fits(*count, *count))?;
        let padded = tile_samples + PADDING;
        let has_padding = tile_samples > PADDING && fits(tile_samples, padded);
        let stride = if has_padding { padded } else { tile_samples };
        (widest <= MAX_WIDTH).then_some(Self { num_units, tile_samples, stride, keeps_derivatives })
    }

    /// Number of samples for which a unit computes its neurons at a time.
    pub fn unit_samples(&self) -> usize {
        self.tile_samples.min(MAX_UNIT_SAMPLES)
    }

    /// Floats of a cube's partial gradient, which its sums follow: one per sample of a tile until the last launch.
    pub fn row_len(&self, shape: &MlpShape) -> usize {
        shape.num_params() + NUM_SUMS * self.tile_samples
    }
}

/// Distribution of a minibatch's samples in a part over cubes.
///
/// Depends on sizes only and not on the device, and so does the order of all sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    pub num_cubes: usize,
    pub tiles_per_cube: usize,
}

impl Spread {
    /// Distributes the `samples` samples of one of `parts` parts.
    pub fn new(shape: &MlpShape, tiling: &Tiling, samples: usize, parts: usize) -> Self {
        let tile_samples = tiling.tile_samples;
        let max_by_portion = MAX_PARTIAL_FLOATS / (shape.num_params() + NUM_SUMS);
        let max_by_buffer = MAX_TOTAL_PARTIAL_FLOATS / parts / tiling.row_len(shape);
        let max_cubes = max_by_portion.min(max_by_buffer).clamp(1, MAX_CUBES);
        let tiles_per_cube = samples.div_ceil(tile_samples).div_ceil(max_cubes).max(1);
        Self { num_cubes: samples.div_ceil(tile_samples * tiles_per_cube), tiles_per_cube }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::Activation;

    /// A network of 3 actions, with these numbers of features and of units in its layers.
    fn shape(
        [num_features, first_width, second_width]: [usize; 3],
        activation: Activation,
    ) -> MlpShape {
        MlpShape {
            num_features,
            first_width,
            second_width,
            num_actions: 3,
            activation,
            neurons_per_block: 1,
        }
    }

    #[test]
    fn partial_gradients_of_all_parts_fit_in_a_buffer() {
        let activation = Activation::Relu;
        for sizes in [[100, 256, 256], [16, 32, 10], [8, 16, 0]] {
            let shape = shape(sizes, activation);
            let tiling = Tiling::new(&shape).unwrap();
            for parts in [1, 3, 4, 16, 64] {
                let num_cubes = Spread::new(&shape, &tiling, 1 << 20, parts).num_cubes;
                let bytes = parts * num_cubes * tiling.row_len(&shape) * size_of::<f32>();
                assert!(num_cubes > 0 && bytes < 128 << 20, "{parts} parts: {bytes} bytes");
            }
        }
    }

    #[test]
    fn tiles_are_as_large_as_workgroup_memory_allows() {
        let tiling = |sizes, activation| {
            let shape = shape(sizes, activation);
            let Tiling { num_units, tile_samples, stride, .. } = Tiling::new(&shape)?;
            Some((num_units, tile_samples, stride))
        };
        let relu = |features, first, second| tiling([features, first, second], Activation::Relu);
        assert_eq!(relu(16, 64, 0), Some((64, 16, 20)));
        assert_eq!(relu(16, 64, 64), Some((64, 16, 20)));
        assert_eq!(relu(50, 128, 0), Some((64, 16, 20)));
        assert_eq!(relu(16, 256, 256), Some((128, 4, 4)));
        assert_eq!(relu(16, 128, 128), Some((64, 8, 12)));
        // No room between rows.
        assert_eq!(relu(100, 128, 0), Some((64, 16, 16)));
        // Derivatives have rows, too.
        assert_eq!(tiling([16, 64, 64], Activation::Silu), Some((64, 8, 12)));
        assert_eq!(relu(3800, 200, 0), Some((128, 1, 1)));
        assert!(relu(4000, 200, 0).is_none() && relu(16, 257, 0).is_none());
    }
}
