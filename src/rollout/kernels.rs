//! The kernels of the stepwise rollout, and their launch: one unit plays one game.

use super::seats::HEADER;
use super::{action_key, action_uniform, branch_member, branch_step, staggered_time};
use crate::config::{RolloutConfig, Start};
use crate::draws::draw;
use crate::env::bits::{from_bits, to_bits};
use crate::env::{Episode, Rules, Words, new_game, play};
use burn::backend::{Cube, DType, Shape};
use burn::cubecl;
use burn::cubecl::client::Client;
use burn::cubecl::prelude::*;
use burn::tensor::{Device, Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Quantities of a step that one buffer holds, each `[num_steps, num_envs]`.
const LOGPROBS: usize = 0;
const REWARDS: usize = 1;
const ENDS: usize = 2;
const SCORES: usize = 3;
/// Their number.
pub(super) const QUANTITIES: usize = 4;

/// Where the games of an iteration come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Deal {
    /// New levels.
    Level,
    /// New levels, somewhere in the course of their episode.
    Staggered,
    /// Where the last iteration says to go on.
    Branch,
}

/// Word `w` of game `env`.
#[cube]
fn word(seats: &[u32], w: usize, env: usize, num_envs: usize) -> u32 {
    seats[w * num_envs + env]
}

/// Word `w` of game `env`'s state, zero where the game has no such word.
#[cube]
fn state_word<G: Rules>(
    seats: &[u32],
    #[comptime] w: usize,
    env: usize,
    num_envs: usize,
    #[comptime] game: G,
) -> u32 {
    if comptime!(w < game.num_words()) {
        word(seats, comptime!(HEADER + w), env, num_envs)
    } else {
        0u32.runtime()
    }
}

#[cube]
fn load_state<G: Rules>(
    seats: &[u32],
    env: usize,
    num_envs: usize,
    #[comptime] game: G,
) -> G::State {
    let words = Words {
        w0: state_word::<G>(seats, 0usize, env, num_envs, game),
        w1: state_word::<G>(seats, 1usize, env, num_envs, game),
        w2: state_word::<G>(seats, 2usize, env, num_envs, game),
        w3: state_word::<G>(seats, 3usize, env, num_envs, game),
        w4: state_word::<G>(seats, 4usize, env, num_envs, game),
        w5: state_word::<G>(seats, 5usize, env, num_envs, game),
        w6: state_word::<G>(seats, 6usize, env, num_envs, game),
        w7: state_word::<G>(seats, 7usize, env, num_envs, game),
    };
    G::unpack(&words, game)
}

#[cube]
fn load_episode(seats: &[u32], env: usize, num_envs: usize) -> Episode {
    Episode {
        level: word(seats, 0usize, env, num_envs),
        time: word(seats, 1usize, env, num_envs),
        score: from_bits(word(seats, 2usize, env, num_envs)),
    }
}

#[cube]
fn store_word<G: Rules>(
    seats: &mut [u32],
    value: u32,
    #[comptime] w: usize,
    env: usize,
    num_envs: usize,
    #[comptime] game: G,
) {
    if comptime!(w < game.num_words()) {
        seats[comptime!(HEADER + w) * num_envs + env] = value;
    }
}

#[cube]
fn store<G: Rules>(
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
    let words = G::pack(state, game);
    store_word::<G>(seats, words.w0, 0usize, env, num_envs, game);
    store_word::<G>(seats, words.w1, 1usize, env, num_envs, game);
    store_word::<G>(seats, words.w2, 2usize, env, num_envs, game);
    store_word::<G>(seats, words.w3, 3usize, env, num_envs, game);
    store_word::<G>(seats, words.w4, 4usize, env, num_envs, game);
    store_word::<G>(seats, words.w5, 5usize, env, num_envs, game);
    store_word::<G>(seats, words.w6, 6usize, env, num_envs, game);
    store_word::<G>(seats, words.w7, 7usize, env, num_envs, game);
}

/// Writes the features of a game to `obs` and to step `t` of `history`, where that exists.
#[cube]
fn observe<G: Rules>(
    state: &G::State,
    obs: &mut [f32],
    history: &mut [f32],
    env: usize,
    t: usize,
    num_envs: usize,
    num_steps: usize,
    #[comptime] game: G,
) {
    let features = comptime!(game.num_features());
    #[unroll]
    for i in 0..features {
        let x = G::feature(state, i, game);
        obs[env * features + i] = x;
        if t < num_steps {
            history[(t * num_envs + env) * features + i] = x;
        }
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn deal_kernel<G: Rules>(
    branches: &[u32],
    seats: &mut [u32],
    obs: &mut [f32],
    history: &mut [f32],
    level_key: u32,
    num_groups: usize,
    group_size: usize,
    num_steps: usize,
    #[comptime] deal: Deal,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    let num_envs = num_groups * group_size;
    if env < num_envs {
        let group = env / group_size;
        if comptime!(deal == Deal::Branch) {
            let state = load_state::<G>(branches, group, num_groups, game);
            let episode = load_episode(branches, group, num_groups);
            store::<G>(seats, &state, &episode, env, num_envs, game);
            observe::<G>(&state, obs, history, env, 0usize, num_envs, num_steps, game);
        } else {
            let level = draw(level_key, group as u32);
            let state = new_game::<G>(level, game);
            let time = if comptime!(deal == Deal::Staggered) {
                staggered_time(level, comptime!(game.max_steps()))
            } else {
                0u32.runtime()
            };
            let episode = Episode { level, time, score: 0.0f32.runtime() };
            store::<G>(seats, &state, &episode, env, num_envs, game);
            observe::<G>(&state, obs, history, env, 0usize, num_envs, num_steps, game);
        }
    }
}

/// Draws the actions (by the operations of [`crate::policy::sample`]), plays step `t`, observes.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn step_kernel<G: Rules>(
    logits: &[f32],
    seats: &mut [u32],
    obs: &mut [f32],
    history: &mut [f32],
    actions: &mut [i32],
    quantities: &mut [f32],
    branches: &mut [u32],
    iteration_key: u32,
    branch_key: u32,
    t: usize,
    num_groups: usize,
    group_size: usize,
    num_steps: usize,
    learn_steps: u32,
    #[comptime] branch: bool,
    #[comptime] game: G,
) {
    let env = ABSOLUTE_POS;
    let num_envs = num_groups * group_size;
    if env < num_envs {
        let num_actions = comptime!(game.num_actions());
        let first = env * num_actions;
        let mut max = logits[first];
        #[unroll]
        for a in 1..num_actions {
            max = select(logits[first + a] > max, logits[first + a], max);
        }
        let mut total = 0.0f32;
        #[unroll]
        for a in 0..num_actions {
            total += (logits[first + a] - max).exp();
        }
        let threshold = action_uniform(action_key(iteration_key, env as u32), t as u32) * total;
        let mut below = 0u32;
        let mut sum = 0.0f32;
        #[unroll]
        for a in 0..num_actions {
            sum += (logits[first + a] - max).exp();
            below += select(sum <= threshold, 1u32, 0u32);
        }
        let last = comptime!(num_actions as u32 - 1);
        let action = select(below > last, last, below);
        let logprob = logits[first + action as usize] - max - total.ln();

        let mut state = load_state::<G>(&*seats, env, num_envs, game);
        let mut episode = load_episode(&*seats, env, num_envs);
        let played = play::<G>(&mut state, &mut episode, action, game);
        store::<G>(seats, &state, &episode, env, num_envs, game);
        observe::<G>(&state, obs, history, env, t + 1, num_envs, num_steps, game);
        if branch {
            let group = env / group_size;
            let member = branch_member(branch_key, group as u32, group_size as u32);
            let step = branch_step(branch_key, group as u32, learn_steps);
            if env == group * group_size + member as usize && t + 1 == step as usize {
                store::<G>(branches, &state, &episode, group, num_groups, game);
            }
        }

        let at = t * num_envs + env;
        let stride = num_steps * num_envs;
        actions[at] = action as i32;
        quantities[comptime!(LOGPROBS) * stride + at] = logprob;
        quantities[comptime!(REWARDS) * stride + at] = played.reward;
        quantities[comptime!(ENDS) * stride + at] = select(played.ended, 1.0f32, 0.0f32);
        quantities[comptime!(SCORES) * stride + at] = played.score;
    }
}

/// The buffers of an iteration on a device.
pub(super) struct Buffers<G: Rules> {
    game: G,
    config: RolloutConfig,
    client: Client,
    seats: CubeTensor,
    branches: CubeTensor,
    obs: CubeTensor,
    history: CubeTensor,
    actions: CubeTensor,
    quantities: CubeTensor,
}

/// The whole of a tensor's buffer, for a kernel.
fn argument(tensor: &CubeTensor) -> BufferArg {
    let len = tensor.meta.num_elements();
    // SAFETY: the tensors of `Buffers` are contiguous and hold `len` elements of 4 bytes.
    unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), len) }
}

/// The CubeCL tensor behind a Burn tensor.
pub(super) fn cube_tensor<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    tensor
        .try_into_primitive::<Cube>()
        .unwrap_or_else(|e| panic!("the tensor is not on a CubeCL device: {e:?}"))
}

impl<G: Rules> Buffers<G> {
    /// Room for the games of an iteration on `device`.
    pub fn new(game: G, config: &RolloutConfig, device: &Device) -> Self {
        let probe = cube_tensor(Tensor::<1>::zeros([1], device));
        let (client, device) = (probe.client, probe.device);
        let room = |shape: &[usize], dtype: DType| {
            let shape = Shape::from(shape.to_vec());
            let handle = client.empty(shape.num_elements() * size_of::<u32>());
            CubeTensor::new_contiguous(client.clone(), device.clone(), shape, handle, dtype)
        };
        let (words, features) = (super::seat_words(game), game.num_features());
        let (steps, envs) = (config.num_steps, config.num_envs());
        Self {
            seats: room(&[words, envs], DType::I32),
            branches: room(&[words, config.num_groups], DType::I32),
            obs: room(&[envs, features], DType::F32),
            history: room(&[steps, envs, features], DType::F32),
            actions: room(&[steps, envs], DType::I32),
            quantities: room(&[QUANTITIES, steps, envs], DType::F32),
            game,
            config: config.clone(),
            client,
        }
    }

    fn grid(&self) -> (CubeCount, CubeDim) {
        let units = self.config.num_envs();
        let dim = CubeDim::new(&self.client, units);
        (cubecl::calculate_cube_count_elemwise(&self.client, units, dim), dim)
    }

    /// Seats every game; `branches` are those of the last iteration, if the games go on from there.
    pub fn deal(&self, branches: Option<&CubeTensor>, level_key: u32) {
        let deal = match (self.config.start, branches) {
            (Start::Level, _) => Deal::Level,
            (Start::Branch, None) => Deal::Staggered,
            (Start::Branch, Some(_)) => Deal::Branch,
        };
        let (count, dim) = self.grid();
        // Where games do not go on, the kernel reads nothing of the first buffer.
        let branches = branches.unwrap_or(&self.branches);
        // SAFETY: the kernel stays below the number of games or groups in every buffer.
        unsafe {
            deal_kernel::launch_unchecked::<G>(
                &self.client,
                count,
                dim,
                argument(branches),
                argument(&self.seats),
                argument(&self.obs),
                argument(&self.history),
                level_key,
                self.config.num_groups,
                self.config.group_size,
                self.config.num_steps,
                deal,
                self.game,
            );
        }
    }

    /// Plays step `t` by `logits`, `[num_envs, num_actions]`.
    pub fn step(&self, logits: Tensor<2>, t: usize, iteration_key: u32, branch_key: u32) {
        assert_eq!(
            logits.dims(),
            [self.config.num_envs(), self.game.num_actions()],
            "logits: [num_envs, num_actions]"
        );
        let logits = burn_cubecl::kernel::into_contiguous(cube_tensor(logits));
        let (count, dim) = self.grid();
        // SAFETY: the kernel stays below the number of games or groups in every buffer, and `t`
        // below `num_steps`.
        unsafe {
            step_kernel::launch_unchecked::<G>(
                &self.client,
                count,
                dim,
                argument(&logits),
                argument(&self.seats),
                argument(&self.obs),
                argument(&self.history),
                argument(&self.actions),
                argument(&self.quantities),
                argument(&self.branches),
                iteration_key,
                branch_key,
                t,
                self.config.num_groups,
                self.config.group_size,
                self.config.num_steps,
                self.config.learn_steps as u32,
                self.config.start == Start::Branch,
                self.game,
            );
        }
    }

    /// The current observations `[num_envs, num_features]`.
    ///
    /// The tensor shares the buffer that the next step writes to: use it before.
    pub fn obs(&self) -> Tensor<2> {
        Tensor::from_primitive::<Cube>(self.obs.clone())
    }

    /// All observations `[num_steps, num_envs, num_features]`, the actions `[num_steps, num_envs]`,
    /// then log-probabilities, rewards, ends and scores `[QUANTITIES, num_steps, num_envs]`; and
    /// where the groups go on.
    pub fn finish(self) -> (Tensor<3>, Tensor<2, Int>, Tensor<3>, CubeTensor) {
        (
            Tensor::from_primitive::<Cube>(self.history),
            Tensor::from_primitive::<Cube>(self.actions),
            Tensor::from_primitive::<Cube>(self.quantities),
            self.branches,
        )
    }
}

/// Seats `[seat_words, count]` on a device, from words in host memory.
pub(super) fn upload_seats(words: &[u32], count: usize, device: &Device) -> CubeTensor {
    let probe = cube_tensor(Tensor::<1>::zeros([1], device));
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let handle = probe.client.create_from_slice(&bytes);
    let shape = Shape::from(vec![words.len() / count, count]);
    CubeTensor::new_contiguous(probe.client, probe.device, shape, handle, DType::I32)
}

/// The words of seats on a device.
pub(super) fn download_seats(seats: &CubeTensor) -> Vec<u32> {
    let bytes = seats.client.read_one_unchecked(seats.handle.clone());
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
