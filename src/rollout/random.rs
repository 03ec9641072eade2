//! Random play without a policy, for measuring the cost of the rules.

use super::env_lanes::{EnvLanes, StepResultLanes};
use super::env_state::EnvState;
use super::masks::sample_legal_action;
#[cfg(feature = "kernels")]
use super::on_device::play_at_random_on_device;
use super::{RolloutKeys, action_key, action_uniform};
use crate::env::Rules;
use crate::model::{LANES, Lanes};
use crate::rng::draw;
use burn::tensor::{Device, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

/// Plays `num_steps` steps of `num_envs` games with uniformly random actions, on CPU threads or, if
/// `device` supports them, in a kernel.
///
/// Returns the sum of all rewards and features of each game, `[num_envs]`. The sum keeps the
/// compiler from eliminating observations, and is the same on every device up to rounding.
pub fn play_at_random<G: Rules>(
    game: G,
    num_envs: usize,
    num_steps: usize,
    seed: u64,
    device: &Device,
) -> Tensor<1> {
    let keys = RolloutKeys::new(seed);
    #[cfg(feature = "kernels")]
    if let Some(sums) = play_at_random_on_device(game, num_envs, num_steps, keys, device) {
        return sums;
    }
    Tensor::from_floats(play_natively(game, num_envs, num_steps, keys).as_slice(), device)
}

/// Plays on CPU threads, [`LANES`] games at a time.
fn play_natively<G: Rules>(
    game: G,
    num_envs: usize,
    num_steps: usize,
    keys: RolloutKeys,
) -> Vec<f32> {
    let mut sums = vec![0.0; num_envs];
    sums.par_chunks_mut(LANES).enumerate().for_each(|(block, sums)| {
        let env = |lane: usize| (block * LANES + lane) as u32;
        let envs: Vec<EnvState<G>> =
            (0..sums.len()).map(|lane| EnvState::new(draw(keys.level, env(lane)), game)).collect();
        let mut lanes = EnvLanes::new(&envs);
        let mut results = StepResultLanes::default();
        let mut obs = vec![[0.0; LANES]; game.num_features()];
        let action_keys: [u32; LANES] =
            std::array::from_fn(|lane| action_key(keys.action, env(lane)));
        let mut totals = [0.0f32; LANES];
        for t in 0..num_steps {
            lanes.observe(game, &mut obs);
            let actions = if G::HAS_ILLEGAL_ACTIONS {
                std::array::from_fn(|lane| {
                    let u = action_uniform(action_keys[lane], t as u32);
                    sample_legal_action::<G>(&lanes.env(lane).state, u, game)
                })
            } else {
                draw_actions(&action_keys, t as u32, game.num_actions())
            };
            lanes.step_with_auto_reset(game, &actions, &mut results);
            add_up(&obs, &results.rewards, &mut totals);
        }
        sums.copy_from_slice(&totals[..sums.len()]);
    });
    sums
}

/// Draws a random action per lane.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn draw_actions(keys: &[u32; LANES], t: u32, num_actions: usize) -> [u32; LANES] {
    let mut actions = [0; LANES];
    for (action, key) in actions.iter_mut().zip(keys) {
        *action = (action_uniform(*key, t) * num_actions as f32) as u32;
    }
    actions
}

/// Adds features and rewards to the totals.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn add_up(obs: &[Lanes], rewards: &Lanes, totals: &mut Lanes) {
    // Two independent sums, so that additions do not wait for each other.
    let (mut even, mut odd) = (*totals, *rewards);
    let (pairs, rest) = obs.as_chunks::<2>();
    for pair in pairs {
        let [x, y] = *pair;
        for lane in 0..LANES {
            even[lane] += x[lane];
            odd[lane] += y[lane];
        }
    }
    let last = rest.first().copied().unwrap_or_default();
    for lane in 0..LANES {
        totals[lane] = even[lane] + odd[lane] + last[lane];
    }
}
