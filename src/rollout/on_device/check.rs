//! Comparison of a game's kernels with its native rules on a device.

use super::play_at_random;
use crate::env::{Aspect, CheckOptions, Finding, Rules};
use burn::tensor::Device;

/// Numbers of steps to play; the short run comes first because its report is the most specific.
const STEP_COUNTS: [usize; 2] = [1, 64];

/// Plays `options.episodes` random games natively and in kernels and compares the sums of features
/// and rewards. Returns no findings if they agree. See [`crate::env::check`] for all other checks.
///
/// # Panics
/// If the device has no kernels ([`crate::device::has_kernels`]), or fails.
pub fn check_on_device<G: Rules>(game: G, options: &CheckOptions, device: &Device) -> Vec<Finding> {
    assert!(crate::device::has_kernels(device), "rules are compared on a device with kernels");
    let (games, seed) = (options.episodes.max(1) as usize, options.seed.into());
    for steps in STEP_COUNTS {
        let play = |device: &Device| -> Vec<f32> {
            let sums = play_at_random(game, games, steps, seed, device);
            sums.into_data().try_into_vec().expect("sums are f32")
        };
        let (native, kernel) = (play(&Device::flex()), play(device));
        for (env, (native, kernel)) in native.iter().zip(&kernel).enumerate() {
            let tolerance = 1e-4 * steps as f32 * (1.0 + native.abs() / steps as f32);
            // False if either is NaN.
            let agrees = (native - kernel).abs() <= tolerance;
            if !agrees {
                return vec![Finding::error(
                    Aspect::Kernels,
                    format!(
                        "after {steps} steps the features and rewards of random game {env} sum up to \
                         {native} natively and {kernel} in a kernel: the rules use something that \
                         differs there (overflowing products, a device's sine, state that is not \
                         packed)"
                    ),
                )];
            }
        }
    }
    Vec::new()
}
