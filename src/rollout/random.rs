//! Games played at random: what the rules alone cost, without a policy.

use super::seats::Seat;
use super::table::{PlayedLanes, Table};
use super::{RolloutKeys, action_key, action_uniform};
use crate::draws::draw;
use crate::env::Rules;
use crate::policy::LANES;
use rayon::prelude::*;

/// Plays `num_steps` steps of `num_envs` games by uniformly random actions on the CPU's threads, with
/// every observation made, and gives the sum of all rewards and features: a number that nothing can
/// leave out.
pub fn play_at_random<G: Rules>(game: G, num_envs: usize, num_steps: usize, seed: u64) -> f64 {
    let keys = RolloutKeys::new(seed);
    let blocks: Vec<f64> = (0..num_envs.div_ceil(LANES))
        .into_par_iter()
        .map(|block| {
            let first = block * LANES;
            let last = num_envs.min(first + LANES);
            let seats: Vec<Seat<G>> =
                (first..last).map(|env| Seat::new(draw(keys.level, env as u32), game)).collect();
            let mut table = Table::new(game, &seats);
            let mut played = PlayedLanes::default();
            let mut obs = vec![[0.0; LANES]; game.num_features()];
            let action_keys: [u32; LANES] =
                std::array::from_fn(|lane| action_key(keys.action, (first + lane) as u32));
            let mut sums = [0.0f32; LANES];
            for t in 0..num_steps {
                table.observe(game, &mut obs);
                for feature in &obs {
                    sums.iter_mut().zip(feature).for_each(|(sum, x)| *sum += x);
                }
                let actions = action_keys.map(|key| {
                    let u = action_uniform(key, t as u32);
                    (u * game.num_actions() as f32) as u32
                });
                table.play(game, &actions, &mut played);
                sums.iter_mut().zip(&played.rewards).for_each(|(sum, x)| *sum += x);
            }
            sums[..last - first].iter().map(|sum| f64::from(*sum)).sum()
        })
        .collect();
    blocks.iter().sum()
}
