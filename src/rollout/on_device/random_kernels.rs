//! The kernel for random play: one unit plays many steps of one game.

use super::env_kernels::{
    MAX_LOOP_ITERATIONS, StepRange, StepRangeLaunch, games_per_cube, load_env_state, load_episode,
    store_env,
};
use super::masks::sample_legal_action;
use super::{RolloutKeys, action_key, action_uniform, env_words};
use crate::device::buffers::{argument, cube_tensor, uninit};
use crate::device::has_kernels;
use crate::env::{Episode, Rules, initial_state, step_with_auto_reset};
use crate::rng::draw;
use burn::backend::{Cube, DType};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{Device, Tensor};

/// Approximate number of steps of all games per launch: few enough to stay below the timeouts of
/// drivers and browsers, enough to make the launch overhead negligible.
const TOTAL_STEPS_PER_LAUNCH: usize = 1 << 22;

/// Plays some steps of one game and adds its features and rewards to its sum.
///
/// Buffers: the environments `[env_words, num_envs]`, which carry the games from launch to launch;
/// the sums `[num_envs]`. If `is_first`, both are initialized rather than read.
#[cube(launch_unchecked)]
fn random_kernel<G: Rules>(
    envs: &mut [u32],
    sums: &mut [f32],
    num_envs: usize,
    level_key: u32,
    iteration_action_key: u32,
    steps: StepRange,
    #[comptime] is_first: bool,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    if env < num_envs {
        let level = draw(level_key, env as u32);
        let mut state = if comptime!(is_first) {
            initial_state::<G>(level, game)
        } else {
            load_env_state::<G>(&*envs, env, num_envs, game)
        };
        let mut episode = if comptime!(is_first) {
            Episode { level, time: 0u32.runtime(), score: 0.0f32.runtime() }
        } else {
            load_episode(&*envs, env, num_envs)
        };
        let mut sum = if comptime!(is_first) { 0.0f32.runtime() } else { sums[env] };
        let own_action_key = action_key(iteration_action_key, env as u32);
        for t in steps.first..steps.end {
            #[unroll]
            for i in 0..comptime!(game.num_features()) {
                sum += G::feature(&state, i, game);
            }
            let u = action_uniform(own_action_key, t as u32);
            let action = sample_legal_action::<G>(&state, u, game);
            let result = step_with_auto_reset::<G>(&mut state, &mut episode, action, game);
            sum += result.reward;
        }
        sums[env] = sum;
        store_env::<G>(envs, &state, &episode, env, num_envs, game);
    }
}

/// Plays the games of [`super::play_at_random`] on a CubeCL device, without reading back; `None` if the device has no
/// kernels.
pub fn play_at_random_on_device<G: Rules>(
    game: G,
    num_envs: usize,
    num_steps: usize,
    keys: RolloutKeys,
    device: &Device,
) -> Option<Tensor<1>> {
    if !has_kernels(device) {
        return None;
    }
    let sums = cube_tensor(Tensor::<1>::zeros([num_envs], &device.clone().without_autodiff()));
    let envs = uninit(&sums, &[env_words(game), num_envs], DType::I32);
    let dim = CubeDim::new_1d(games_per_cube(num_envs));
    let launch_steps = (TOTAL_STEPS_PER_LAUNCH / num_envs).clamp(1, MAX_LOOP_ITERATIONS);
    let count = cubecl::calculate_cube_count_elemwise(&sums.client, num_envs, dim);
    for first_step in (0..num_steps).step_by(launch_steps) {
        // SAFETY: accesses stay below `num_envs` in both buffers.
        unsafe {
            random_kernel::launch_unchecked::<G>(
                &sums.client,
                count.clone(),
                dim,
                argument(&envs),
                argument(&sums),
                num_envs,
                keys.level,
                keys.action,
                StepRangeLaunch::new(first_step, num_steps.min(first_step + launch_steps)),
                first_step == 0,
                game,
            );
        }
    }
    Some(Tensor::from_primitive::<Cube>(sums))
}
