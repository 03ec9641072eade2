//! Whether the kernels of a game play what its native rules do, on a device.

use super::play_at_random;
use crate::env::{CheckOptions, Finding, Rules, Subject};
use burn::tensor::Device;

/// Steps that are played, the short run first: it says most where it differs already.
const STEPS: [usize; 2] = [1, 64];

/// Plays `options.episodes` games at random natively and in kernels, and compares what was seen and
/// earned: nothing is found where the rules are the same. The rest of a game is checked by
/// [`crate::env::check`].
///
/// # Panics
/// If the device has no kernels ([`crate::device::has_kernels`]), or fails.
pub fn check_on_device<G: Rules>(game: G, options: &CheckOptions, device: &Device) -> Vec<Finding> {
    assert!(crate::device::has_kernels(device), "rules are compared on a device with kernels");
    let (games, seed) = (options.episodes.max(1) as usize, options.seed.into());
    for steps in STEPS {
        let sums = |device: &Device| -> Vec<f32> {
            let sums = play_at_random(game, games, steps, seed, device);
            sums.into_data().try_into_vec().expect("sums are f32")
        };
        let (native, kernel) = (sums(&Device::flex()), sums(device));
        for (env, (native, kernel)) in native.iter().zip(&kernel).enumerate() {
            let tolerance = 1e-4 * steps as f32 * (1.0 + native.abs() / steps as f32);
            // Also where either is no number.
            let alike = (native - kernel).abs() <= tolerance;
            if !alike {
                return vec![Finding::error(
                    Subject::Kernels,
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
