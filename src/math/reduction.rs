//! Sums over the units of a cube, for kernels.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// Sums a number of each unit of a cube, whose number of units is a power of two: by halves, so that the order of the
/// sums, and with it the result, is fixed.
#[cube]
pub fn cube_sum(own: f32, #[comptime] units: usize) -> f32 {
    let unit = UNIT_POS as usize;
    let mut sums = Shared::<[f32]>::new_slice(units);
    sums[unit] = own;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(units.ilog2()) {
        let half = comptime!(units >> (level + 1));
        if unit < half {
            sums[unit] += sums[unit + half];
        }
        sync_cube();
    }
    sums[0]
}
