//! Games played at random: what the rules alone cost, without a policy.

#[cfg(feature = "kernels")]
use super::random_kernels;
use super::seats::Seat;
use super::table::{PlayedLanes, Table};
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
        let env = |lane: usize| (block * LANES + lane) as u32;
        let seats: Vec<Seat<G>> =
            (0..sums.len()).map(|lane| Seat::new(draw(keys.level, env(lane)), game)).collect();
        let mut table = Table::new(game, &seats);
        let mut played = PlayedLanes::default();
        let mut obs = vec![[0.0; LANES]; game.num_features()];
        let action_keys: [u32; LANES] =
            std::array::from_fn(|lane| action_key(keys.action, env(lane)));
        let mut totals = [0.0f32; LANES];
        for t in 0..num_steps {
            table.observe(game, &mut obs);
            for feature in &obs {
                totals.iter_mut().zip(feature).for_each(|(total, x)| *total += x);
            }
            let actions = action_keys.map(|key| {
                let u = action_uniform(key, t as u32);
                (u * game.num_actions() as f32) as u32
            });
            table.play(game, &actions, &mut played);
            totals.iter_mut().zip(&played.rewards).for_each(|(total, x)| *total += x);
        }
        sums.copy_from_slice(&totals[..sums.len()]);
    });
    sums
}
