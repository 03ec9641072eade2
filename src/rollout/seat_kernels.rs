//! What the rollout kernels share: seats as words, the draw of an action, the record of a step.

use super::seats::HEADER;
use super::{branch_member, branch_step, staggered_time};
use crate::config::{RolloutConfig, Start};
use crate::device::buffers::place;
use crate::env::bits::{from_bits, to_bits};
use crate::env::{Episode, Played, Rules, Words, new_game};
pub(super) use crate::math::softmax::{Choice as Drawn, choose as draw_action};
use crate::rng::draw;
use burn::backend::{DType, Shape};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Device;
use burn_cubecl::tensor::CubeTensor;

/// Quantities of a step that one buffer holds, each `[num_steps, num_envs]`.
pub(super) const LOGPROBS: usize = 0;
pub(super) const REWARDS: usize = 1;
pub(super) const TERMINATED: usize = 2;
pub(super) const TRUNCATED: usize = 3;
pub(super) const SCORES: usize = 4;
/// Their number. Behind them, where the game has masks, comes whether each of its actions is legal.
pub(super) const QUANTITIES: usize = 5;

/// Steps of all games together in one launch, about: so few that no launch outlasts the patience of a
/// driver or a browser, and so many that a launch costs little beside them.
const LAUNCH_STEPS: usize = 1 << 22;

/// Games that a cube plays: few where there are few, so that they reach all of a GPU's processors.
pub(super) fn cube_units(num_envs: usize) -> u32 {
    if num_envs < 32 * 1024 { 32 } else { 64 }
}

/// Steps of each of so many games in one launch.
pub(super) fn steps_per_launch(num_envs: usize) -> usize {
    (LAUNCH_STEPS / num_envs).max(1)
}

/// Where the games of an iteration come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Deal {
    /// New levels.
    Level,
    /// New levels, somewhere in the course of their episode.
    Staggered,
    /// Where the last iteration says to go on.
    Branch,
    /// Nowhere new: the iteration has begun, and they are at their seats.
    Seats,
}

impl Deal {
    /// That of an iteration; `going_on` says whether there was one before.
    pub fn of(config: &RolloutConfig, going_on: bool) -> Self {
        match (config.start, going_on) {
            (Start::Level, _) => Self::Level,
            (Start::Branch, false) => Self::Staggered,
            (Start::Branch, true) => Self::Branch,
        }
    }
}

/// Word `w` of the state whose words lie at `at`, `stride` places from one to the next, after `first`
/// other words; zero where the game has no such word.
#[cube]
fn state_word<G: Rules>(
    words: &[u32],
    #[comptime] w: usize,
    #[comptime] first: usize,
    at: usize,
    stride: usize,
    #[comptime] game: G,
) -> u32 {
    if comptime!(w < game.num_words()) {
        words[comptime!(first + w) * stride + at]
    } else {
        0u32.runtime()
    }
}

/// The state whose words lie so.
#[cube]
pub(super) fn load_state<G: Rules>(
    words: &[u32],
    #[comptime] first: usize,
    at: usize,
    stride: usize,
    #[comptime] game: G,
) -> G::State {
    let packed = Words {
        w0: state_word::<G>(words, 0usize, first, at, stride, game),
        w1: state_word::<G>(words, 1usize, first, at, stride, game),
        w2: state_word::<G>(words, 2usize, first, at, stride, game),
        w3: state_word::<G>(words, 3usize, first, at, stride, game),
        w4: state_word::<G>(words, 4usize, first, at, stride, game),
        w5: state_word::<G>(words, 5usize, first, at, stride, game),
        w6: state_word::<G>(words, 6usize, first, at, stride, game),
        w7: state_word::<G>(words, 7usize, first, at, stride, game),
    };
    G::unpack(&packed, game)
}

#[cube]
fn store_word<G: Rules>(
    words: &mut [u32],
    value: u32,
    #[comptime] w: usize,
    #[comptime] first: usize,
    at: usize,
    stride: usize,
    #[comptime] game: G,
) {
    if comptime!(w < game.num_words()) {
        words[comptime!(first + w) * stride + at] = value;
    }
}

/// The inverse of [`load_state`].
#[cube]
pub(super) fn store_state<G: Rules>(
    words: &mut [u32],
    state: &G::State,
    #[comptime] first: usize,
    at: usize,
    stride: usize,
    #[comptime] game: G,
) {
    let packed = G::pack(state, game);
    store_word::<G>(words, packed.w0, 0usize, first, at, stride, game);
    store_word::<G>(words, packed.w1, 1usize, first, at, stride, game);
    store_word::<G>(words, packed.w2, 2usize, first, at, stride, game);
    store_word::<G>(words, packed.w3, 3usize, first, at, stride, game);
    store_word::<G>(words, packed.w4, 4usize, first, at, stride, game);
    store_word::<G>(words, packed.w5, 5usize, first, at, stride, game);
    store_word::<G>(words, packed.w6, 6usize, first, at, stride, game);
    store_word::<G>(words, packed.w7, 7usize, first, at, stride, game);
}

/// The state of game `env` at its seat.
#[cube]
pub(crate) fn seated_state<G: Rules>(
    seats: &[u32],
    env: usize,
    num_envs: usize,
    #[comptime] game: G,
) -> G::State {
    load_state::<G>(seats, HEADER, env, num_envs, game)
}

/// Where game `env` stands in its episode.
#[cube]
pub(crate) fn seated_episode(seats: &[u32], env: usize, num_envs: usize) -> Episode {
    Episode {
        level: seats[env],
        time: seats[num_envs + env],
        score: from_bits(seats[2 * num_envs + env]),
    }
}

/// Puts a game down at its seat.
#[cube]
pub(super) fn seat<G: Rules>(
    seats: &mut [u32],
    state: &G::State,
    episode: &Episode,
    env: usize,
    num_envs: usize,
    #[comptime] game: G,
) {
    seats[env] = episode.level;
    seats[num_envs + env] = episode.time;
    seats[2 * num_envs + env] = to_bits(episode.score);
    store_state::<G>(seats, state, HEADER, env, num_envs, game);
}

/// The state that a game of `group` starts an iteration from; `branches` is `[seat_words, num_groups]`.
#[cube]
pub(super) fn dealt_state<G: Rules>(
    branches: &[u32],
    group: usize,
    num_groups: usize,
    level_key: u32,
    #[comptime] deal: Deal,
    #[comptime] game: G,
) -> G::State {
    if comptime!(deal == Deal::Branch) {
        seated_state::<G>(branches, group, num_groups, game)
    } else {
        new_game::<G>(draw(level_key, group as u32), game)
    }
}

/// The episode that goes with [`dealt_state`].
#[cube]
pub(super) fn dealt_episode<G: Rules>(
    branches: &[u32],
    group: usize,
    num_groups: usize,
    level_key: u32,
    #[comptime] deal: Deal,
    #[comptime] game: G,
) -> Episode {
    let level = draw(level_key, group as u32);
    if comptime!(deal == Deal::Branch) {
        let left = seated_episode(branches, group, num_groups);
        Episode { level, time: left.time, score: left.score }
    } else {
        let time = if comptime!(deal == Deal::Staggered) {
            staggered_time(level, comptime!(game.max_steps()))
        } else {
            0u32.runtime()
        };
        Episode { level, time, score: 0.0f32.runtime() }
    }
}

/// Writes the record of a step at place `at` of `[num_steps, num_envs]`, whose size is `stride`.
#[cube]
pub(super) fn store_step(
    actions: &mut [i32],
    quantities: &mut [f32],
    drawn: &Drawn,
    played: &Played,
    at: usize,
    stride: usize,
) {
    actions[at] = drawn.action as i32;
    quantities[comptime!(LOGPROBS) * stride + at] = drawn.logprob;
    quantities[comptime!(REWARDS) * stride + at] = played.reward;
    quantities[comptime!(TERMINATED) * stride + at] = select(played.terminated, 1.0f32, 0.0f32);
    quantities[comptime!(TRUNCATED) * stride + at] = select(played.truncated, 1.0f32, 0.0f32);
    quantities[comptime!(SCORES) * stride + at] = played.score;
}

/// Puts the game down as its group's branch point if it is that after step `t`.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn store_branch<G: Rules>(
    branches: &mut [u32],
    state: &G::State,
    episode: &Episode,
    env: usize,
    t: usize,
    branch_key: u32,
    num_groups: usize,
    group_size: usize,
    learn_steps: u32,
    #[comptime] game: G,
) {
    let group = env / group_size;
    let member = branch_member(branch_key, group as u32, group_size as u32);
    let step = branch_step(branch_key, group as u32, learn_steps);
    if env == group * group_size + member as usize && t + 1 == step as usize {
        seat::<G>(branches, state, episode, group, num_groups, game);
    }
}

/// Seats `[seat_words, count]` on a device, from words in host memory.
pub(super) fn upload_seats(words: &[u32], count: usize, device: &Device) -> CubeTensor {
    let probe = place(device);
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let handle = probe.client.create_from_slice(&bytes);
    let shape = Shape::from(vec![words.len() / count, count]);
    CubeTensor::new_contiguous(probe.client, probe.device, shape, handle, DType::I32)
}

/// The words of seats on a device; none where there are no seats.
pub(super) async fn download_seats(seats: Option<&CubeTensor>) -> Vec<u32> {
    let Some(seats) = seats else { return Vec::new() };
    let read = seats.client.read_async(vec![seats.handle.clone()]).await;
    let buffers = read.unwrap_or_else(|error| panic!("the device failed: {error:?}"));
    let words = buffers[0].chunks_exact(4);
    words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
