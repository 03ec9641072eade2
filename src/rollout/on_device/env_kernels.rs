//! Code shared by the rollout kernels: packed environments, group starts and branch points.

use super::env_state::HEADER_WORDS;
use super::{BranchEpisode, branch_member, branch_step, staggered_time};
use crate::device::buffers::Buffer;
use crate::env::bits::{from_bits, to_bits};
use crate::env::{Episode, PackedState, Rules, initial_state, num_words};
use crate::math::softmax::MASKED_LOGIT;
use crate::rng::draw;
use crate::settings::{GroupStart, RolloutConfig};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Maximum loop iterations of a unit per launch: Mesa's lavapipe leaves every loop of an invocation without an error
/// once they have made 65,535 iterations in total.
pub(super) const MAX_LOOP_ITERATIONS: usize = 60_000;

/// Games per cube; smaller for few games, so that they spread over all of a GPU's processors.
pub(super) fn games_per_cube(num_envs: usize) -> u32 {
    if num_envs < 32 * 1024 { 32 } else { 64 }
}

/// The states in which a launch's games start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// Fresh levels.
    Level,
    /// Fresh levels at spread times within their episodes.
    Staggered,
    /// Branch points of the previous iteration.
    Branch,
    /// States left by the previous launch of the same iteration.
    Continued,
}

impl Origin {
    /// The origin of an iteration's games; `continues` is true if there was a previous iteration.
    pub fn new(config: &RolloutConfig, continues: bool) -> Self {
        match (config.start, continues) {
            (GroupStart::Level, _) => Self::Level,
            (GroupStart::Branch, false) => Self::Staggered,
            (GroupStart::Branch, true) => Self::Branch,
        }
    }
}

/// Reads row `row` at column `at` of a matrix of words with row length `stride`.
#[cube]
fn word(words: &[u32], #[comptime] row: usize, at: usize, stride: usize) -> u32 {
    words[row * stride + at]
}

#[cube]
fn set_word(words: &mut [u32], value: u32, #[comptime] row: usize, at: usize, stride: usize) {
    words[row * stride + at] = value;
}

/// Loads the packed state in column `at` of a matrix of words, from row `first` on.
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

/// Kernel-side form of [`load_state()`].
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
        let load = |w: usize| {
            if w < used {
                word::expand(scope, words, first + w, at, stride)
            } else {
                0u32.into_expand(scope)
            }
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
    if comptime!(G::HAS_ILLEGAL_ACTIONS) {
        #[unroll]
        for a in 0..comptime!(game.num_actions()) {
            logits[a] = select(G::is_legal(state, a, game), logits[a], comptime!(MASKED_LOGIT));
        }
    }
}

/// Stores a packed state; the inverse of [`load_state()`].
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

/// Kernel-side form of [`store_state()`].
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

/// Loads the state of environment `env` from `envs`, `[env_words, num_envs]`.
#[cube]
pub(crate) fn load_env_state<G: Rules>(
    envs: &[u32],
    env: usize,
    num_envs: usize,
    #[comptime] game: G,
) -> G::State {
    load_state::<G>(envs, HEADER_WORDS, env, num_envs, game)
}

/// Loads the episode of environment `env` from `envs`, `[env_words, num_envs]`.
#[cube]
pub(crate) fn load_episode(envs: &[u32], env: usize, num_envs: usize) -> Episode {
    Episode {
        level: envs[env],
        time: envs[num_envs + env],
        score: from_bits(envs[2 * num_envs + env]),
    }
}

/// Loads the episode of a group's branch point from `envs`, `[env_words, num_groups]`.
#[cube]
fn load_branch_episode(envs: &[u32], group: usize, num_groups: usize) -> BranchEpisode {
    BranchEpisode {
        steps_ahead: envs[group],
        time: envs[num_groups + group],
        score: from_bits(envs[2 * num_groups + group]),
    }
}

/// Stores environment `env` to `envs`, `[env_words, num_envs]`.
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
    store_state::<G>(envs, state, HEADER_WORDS, env, num_envs, game);
}

/// Steps played by a launch: `first..end`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct StepRange {
    pub first: usize,
    pub end: usize,
}

/// Groups of an iteration: `count` groups of `size` consecutive games.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Groups {
    pub count: usize,
    pub size: usize,
    /// Run-wide index of the first group, from which draws are derived.
    pub first: u32,
}

#[cube]
impl Groups {
    /// Number of games in all groups.
    pub fn num_envs(&self) -> usize {
        self.count * self.size
    }

    /// Group of a game.
    pub fn group_of(&self, env: usize) -> usize {
        env / self.size
    }

    /// Run-wide index of a group.
    pub fn run_wide_group(&self, group: usize) -> u32 {
        self.first + group as u32
    }

    /// Run-wide index of a game.
    pub fn run_wide_env(&self, env: usize) -> u32 {
        self.first * self.size as u32 + env as u32
    }
}

impl GroupsLaunch {
    /// Launch arguments for the groups of a configuration, starting at run-wide index `first`.
    pub fn from_config(config: &RolloutConfig, first: u32) -> Self {
        Self::new(config.num_groups, config.group_size, first)
    }
}

/// Source of the groups' initial states.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Starts {
    /// Branch points of the previous iteration, `[env_words, num_groups]`; only read for
    /// [`Origin::Branch`].
    branches: Buffer<u32>,
    /// Key of the levels.
    level_key: u32,
}

#[cube]
impl Starts {
    /// Initial state of the games of `group`.
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
            initial_state::<G>(draw(self.level_key, groups.run_wide_group(group)), game)
        }
    }

    /// Episode that belongs to [`Starts::state`].
    pub fn episode<G: Rules>(
        &self,
        groups: &Groups,
        group: usize,
        #[comptime] origin: Origin,
        #[comptime] game: G,
    ) -> Episode {
        let level = draw(self.level_key, groups.run_wide_group(group));
        if comptime!(origin == Origin::Branch) {
            let branch = load_branch_episode(&self.branches, group, groups.count);
            branch.take(level)
        } else {
            let time = if comptime!(origin == Origin::Staggered) {
                staggered_time(level, comptime!(game.max_steps()))
            } else {
                0u32.runtime()
            };
            Episode { level, time, score: 0.0f32.runtime() }
        }
    }

    /// Steps of [`Starts::episode`] that were played before the iteration.
    pub fn elapsed(&self, groups: &Groups, group: usize, #[comptime] origin: Origin) -> u32 {
        if comptime!(origin == Origin::Branch) {
            let branch = load_branch_episode(&self.branches, group, groups.count);
            branch.steps_played()
        } else {
            0u32.runtime()
        }
    }
}

/// Branch points of an iteration, from which the next one starts.
#[derive(CubeType, CubeLaunch)]
pub(super) struct BranchPoints {
    /// One environment per group, `[env_words, num_groups]`.
    envs: Buffer<u32>,
    /// Number of steps to learn from; branch points lie within them.
    learn_steps: u32,
    /// Key of the choice of game and step.
    key: u32,
}

#[cube]
impl BranchPoints {
    /// Whether game `env` after step `t` is its group's branch point.
    pub fn is_branch_point(&self, groups: &Groups, env: usize, t: usize) -> bool {
        let group = groups.group_of(env);
        let run_wide_group = groups.run_wide_group(group);
        let member = branch_member(self.key, run_wide_group, groups.size as u32);
        let step = branch_step(self.key, run_wide_group, self.learn_steps);
        env == group * groups.size + member as usize && t + 1 == step as usize
    }

    /// Stores game `env` as its group's branch point, with its [`branch_episode`](super::branch_episode).
    pub fn store<G: Rules>(
        &mut self,
        groups: &Groups,
        state: &G::State,
        episode: &BranchEpisode,
        env: usize,
        #[comptime] game: G,
    ) {
        let group = groups.group_of(env);
        let count = groups.count;
        self.envs[group] = episode.steps_ahead;
        self.envs[count + group] = episode.time;
        self.envs[2 * count + group] = to_bits(episode.score);
        store_state::<G>(&mut self.envs, state, HEADER_WORDS, group, count, game);
    }
}
