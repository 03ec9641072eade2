//! Games played at random: what the rules alone cost, without a policy.

use super::native::observe;
#[cfg(feature = "kernels")]
use super::random_kernels;
use super::seats::Seat;
use super::{RolloutKeys, action_key, action_uniform};
use crate::draws::draw;
use crate::env::Rules;
use crate::policy::LANES;
use burn::tensor::{Device, Tensor};
use rayon::prelude::*;

/// Plays `num_steps` steps of `num_envs` games by uniformly random actions where the games of a rollout
/// are played: on the CPU's threads, or in a kernel where `device` has them.
///
/// Every observation is made. Gives `[num_envs]`, the sum of all rewards and features of each game:
/// numbers that nothing can leave out, and the same on every device but for rounding.
pub fn play_at_random<G: Rules>(
    game: G,
    num_envs: usize,
    num_steps: usize,
    seed: u64,
    device: &Device,
) -> Tensor<1> {
    let keys = RolloutKeys::new(seed);
    #[cfg(feature = "kernels")]
    if crate::device::has_kernels(device) {
        return random_kernels::play(game, num_envs, num_steps, keys, device);
    }
    let sums = native(game, num_envs, num_steps, keys);
    Tensor::from_floats(sums.as_slice(), device)
}

/// The games on the CPU's threads, [`LANES`] at a time.
fn native<G: Rules>(game: G, num_envs: usize, num_steps: usize, keys: RolloutKeys) -> Vec<f32> {
    let mut sums = vec![0.0; num_envs];
    sums.par_chunks_mut(LANES).enumerate().for_each(|(block, sums)| {
        let first = block * LANES;
        let env = |lane: usize| (first + lane) as u32;
        let mut seats: Vec<Seat<G>> =
            (0..sums.len()).map(|lane| Seat::new(draw(keys.level, env(lane)), game)).collect();
        let mut obs = vec![[0.0; LANES]; game.num_features()];
        let action_keys: [u32; LANES] =
            std::array::from_fn(|lane| action_key(keys.action, env(lane)));
        let mut totals = [0.0f32; LANES];
        for t in 0..num_steps {
            observe(game, &seats, &mut obs);
            for feature in &obs {
                totals.iter_mut().zip(feature).for_each(|(total, x)| *total += x);
            }
            for (lane, seat) in seats.iter_mut().enumerate() {
                let u = action_uniform(action_keys[lane], t as u32);
                let action = (u * game.num_actions() as f32) as u32;
                totals[lane] += seat.play(action, game).reward;
            }
        }
        sums.copy_from_slice(&totals[..sums.len()]);
    });
    sums
}
