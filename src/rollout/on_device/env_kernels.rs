//! What the rollout kernels share: environments as words, where groups start and go on, the draw of an action.

use super::env_state::HEADER;
use super::{branch_member, branch_step, staggered_time};
use crate::config::{RolloutConfig, Start};
use crate::device::buffers::{Buffer, probe};
use crate::env::bits::{from_bits, to_bits};
use crate::env::{Episode, PackedState, Rules, new_game, num_words};
use crate::math::softmax::ILLEGAL;
pub(super) use crate::math::softmax::{Choice as Drawn, choose as draw_action};
use crate::rng::draw;
use burn::backend::{DType, Shape};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Device;
use burn_cubecl::tensor::CubeTensor;

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
pub(super) enum Origin {
    /// New levels.
    Level,
    /// New levels, somewhere in the course of their episode.
    Staggered,
    /// Where the last iteration says to go on.
    Branch,
    /// Nowhere new: the iteration has begun, and they go on.
    Continued,
}

impl Origin {
    /// Where those of an iteration come from; `going_on` says whether there was one before.
    pub fn of(config: &RolloutConfig, going_on: bool) -> Self {
        match (config.start, going_on) {
            (Start::Level, _) => Self::Level,
            (Start::Branch, false) => Self::Staggered,
            (Start::Branch, true) => Self::Branch,
        }
    }
}

/// Row `row` of words of which each row has `stride`, at place `at`.
#[cube]
fn word(words: &[u32], #[comptime] row: usize, at: usize, stride: usize) -> u32 {
    words[row * stride + at]
}

#[cube]
fn set_word(words: &mut [u32], value: u32, #[comptime] row: usize, at: usize, stride: usize) {
    words[row * stride + at] = value;
}

/// The state whose words lie at place `at` of rows of `stride` words, from row `first` on.
pub(crate) fn load_state<G: Rules>(
    words: &[u32],
    first: usize,
    at: usize,
    stride: usize,
    game: G,
) -> G::State {
    let used = num_words(game);
    G::State::unpack(|w| if w < used { word(words, first + w, at, stride) } else { 0 })
}

/// The kernel side of [`load_state()`].
pub(crate) mod load_state {
    use super::*;

    pub fn expand<G: Rules>(
        scope: &Scope,
        words: &<[u32] as CubeType>::ExpandType,
        first: usize,
        at: NativeExpand<usize>,
        stride: NativeExpand<usize>,
        game: G,
    ) -> <G::State as CubeType>::ExpandType {
        let used = num_words(game);
        let load = |w: usize| match w < used {
            true => word::expand(scope, words, first + w, at, stride),
            false => 0u32.into_expand(scope),
        };
        let packed: Vec<_> = (0..G::State::WORDS).map(load).collect();
        G::State::__expand_unpack(scope, &packed)
    }
}

/// Masks the logits of the actions that are illegal in a state.
#[cube]
pub(super) fn mask_logits<G: Rules>(
    logits: &mut Array<f32>,
    state: &G::State,
    #[comptime] game: G,
) {
    if comptime!(G::MASKED) {
        #[unroll]
        for a in 0..comptime!(game.num_actions()) {
            logits[a] = select(G::legal(state, a, game), logits[a], comptime!(ILLEGAL));
        }
    }
}

/// The inverse of [`load_state()`].
pub(super) fn store_state<G: Rules>(
    words: &mut [u32],
    state: &G::State,
    first: usize,
    at: usize,
    stride: usize,
    game: G,
) {
    let used = num_words(game);
    state.pack(|w, value| {
        if w < used {
            set_word(words, value, first + w, at, stride);
        }
    });
}

/// The kernel side of [`store_state()`].
pub(super) mod store_state {
    use super::*;

    pub fn expand<G: Rules>(
        scope: &Scope,
        words: &mut <[u32] as CubeType>::ExpandType,
        state: &<G::State as CubeType>::ExpandType,
        first: usize,
        at: NativeExpand<usize>,
        stride: NativeExpand<usize>,
        game: G,
    ) {
        let packed = G::State::__expand_pack(scope, state);
        for (w, value) in packed.into_iter().enumerate().take(num_words(game)) {
            set_word::expand(scope, words, value, first + w, at, stride);
        }
    }
}

/// The state of environment `env` of `envs`, `[env_words, num_envs]`.
#[cube]
pub(crate) fn load_env_state<G: Rules>(
    envs: &[u32],
    env: usize,
    num_envs: usize,
    #[comptime] game: G,
) -> G::State {
    load_state::<G>(envs, HEADER, env, num_envs, game)
}

/// Where environment `env` of `envs`, `[env_words, num_envs]`, stands in its episode.
#[cube]
pub(crate) fn load_episode(envs: &[u32], env: usize, num_envs: usize) -> Episode {
    Episode {
        level: envs[env],
        time: envs[num_envs + env],
        score: from_bits(envs[2 * num_envs + env]),
    }
}

/// Writes environment `env` to `envs`, `[env_words, num_envs]`.
#[cube]
pub(super) fn store_env<G: Rules>(
    envs: &mut [u32],
    state: &G::State,
    episode: &Episode,
    env: usize,
    num_envs: usize,
    #[comptime] game: G,
) {
    envs[env] = episode.level;
    envs[num_envs + env] = episode.time;
    envs[2 * num_envs + env] = to_bits(episode.score);
    store_state::<G>(envs, state, HEADER, env, num_envs, game);
}

/// The steps that a launch plays: `first..end`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Steps {
    pub first: usize,
    pub end: usize,
}

/// The groups of an iteration: `count` of them, each of `size` games that come one after the other.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Groups {
    pub count: usize,
    pub size: usize,
    /// The number of the first among those of the run, which draws follow.
    pub first: u32,
}

#[cube]
impl Groups {
    /// The games of all groups.
    pub fn num_envs(&self) -> usize {
        self.count * self.size
    }

    /// The group of a game.
    pub fn of(&self, env: usize) -> usize {
        env / self.size
    }

    /// The number of a group among those of the run.
    pub fn number(&self, group: usize) -> u32 {
        self.first + group as u32
    }

    /// The number of a game among those of the run.
    pub fn env_number(&self, env: usize) -> u32 {
        self.first * self.size as u32 + env as u32
    }
}

impl GroupsLaunch {
    /// The groups of these settings, from this one on.
    pub fn of(config: &RolloutConfig, first: u32) -> Self {
        Self::new(config.num_groups, config.group_size, first)
    }
}

/// Where the groups of an iteration start.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Starts {
    /// Where the last iteration says to go on, `[env_words, num_groups]`; read for
    /// [`Origin::Branch`] alone.
    branches: Buffer<u32>,
    /// What the levels are drawn by.
    level_key: u32,
}

#[cube]
impl Starts {
    /// The state that a game of `group` starts from.
    pub fn state<G: Rules>(
        &self,
        groups: &Groups,
        group: usize,
        #[comptime] origin: Origin,
        #[comptime] game: G,
    ) -> G::State {
        if comptime!(origin == Origin::Branch) {
            load_env_state::<G>(&self.branches, group, groups.count, game)
        } else {
            new_game::<G>(draw(self.level_key, groups.number(group)), game)
        }
    }

    /// The episode that goes with [`Starts::state`].
    pub fn episode<G: Rules>(
        &self,
        groups: &Groups,
        group: usize,
        #[comptime] origin: Origin,
        #[comptime] game: G,
    ) -> Episode {
        let level = draw(self.level_key, groups.number(group));
        if comptime!(origin == Origin::Branch) {
            let left = load_episode(&self.branches, group, groups.count);
            Episode { level, time: left.time, score: left.score }
        } else {
            let time = if comptime!(origin == Origin::Staggered) {
                staggered_time(level, comptime!(game.max_steps()))
            } else {
                0u32.runtime()
            };
            Episode { level, time, score: 0.0f32.runtime() }
        }
    }
}

/// Where the groups of an iteration go on in the next.
#[derive(CubeType, CubeLaunch)]
pub(super) struct BranchPoints {
    /// One environment a group, `[env_words, num_groups]`.
    envs: Buffer<u32>,
    /// Steps that are learnt from; a branch point is in one of them.
    learn_steps: u32,
    /// What the members and steps are drawn by.
    key: u32,
}

#[cube]
impl BranchPoints {
    /// Keeps game `env` as its group's branch point if it is that after step `t`.
    pub fn store<G: Rules>(
        &mut self,
        groups: &Groups,
        state: &G::State,
        episode: &Episode,
        env: usize,
        t: usize,
        #[comptime] game: G,
    ) {
        let group = groups.of(env);
        let number = groups.number(group);
        let member = branch_member(self.key, number, groups.size as u32);
        let step = branch_step(self.key, number, self.learn_steps);
        if env == group * groups.size + member as usize && t + 1 == step as usize {
            store_env::<G>(&mut self.envs, state, episode, group, groups.count, game);
        }
    }
}

/// Environments `[env_words, count]` on a device, from words in host memory.
pub(super) fn upload_envs(words: &[u32], count: usize, device: &Device) -> CubeTensor {
    let probe = probe(device);
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let handle = probe.client.create_from_slice(&bytes);
    let shape = Shape::from(vec![words.len() / count, count]);
    CubeTensor::new_contiguous(probe.client, probe.device, shape, handle, DType::I32)
}

/// The words of environments on a device; none where there are none.
pub(super) async fn download_envs(envs: Option<&CubeTensor>) -> Vec<u32> {
    let Some(envs) = envs else { return Vec::new() };
    let read = envs.client.read_async(vec![envs.handle.clone()]).await;
    let buffers = read.unwrap_or_else(|error| panic!("the device failed: {error:?}"));
    let words = buffers[0].chunks_exact(4);
    words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
