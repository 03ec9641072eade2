//! Blocks of games in SIMD lanes.
//!
//! States are stored as structure of arrays: the same word of all games is contiguous, so a loop
//! over the games with the rules inlined compiles to vector code.

use super::action_uniform;
use super::env_state::{EnvState, legal_bits};
use crate::data::EpisodeStatus;
use crate::env::{
    Episode, PackedState, Rules, start_next_level, step_episode, step_with_auto_reset,
};
use crate::model::{LANES, Lanes};
use multiversion::multiversion;
use std::marker::PhantomData;

/// Words of [`LANES`] states.
type WordLanes<S> = <S as PackedState>::Rows<LANES>;

/// A block of [`LANES`] environments; unused lanes hold copies of the first.
#[derive(Clone, Debug)]
pub(super) struct EnvLanes<G: Rules> {
    words: WordLanes<G::State>,
    levels: [u32; LANES],
    times: [u32; LANES],
    scores: Lanes,
    game: PhantomData<G>,
}

/// Step results per lane; see [`StepResult`](crate::env::StepResult).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepResultLanes {
    pub rewards: Lanes,
    /// The [`EpisodeStatus`] of each lane as a number.
    statuses: [u32; LANES],
    pub scores: Lanes,
}

impl StepResultLanes {
    /// Episode status of a lane.
    #[inline(always)]
    pub fn status(&self, lane: usize) -> EpisodeStatus {
        let is = |status: EpisodeStatus| self.statuses[lane] == status as u32;
        EpisodeStatus::new(is(EpisodeStatus::Terminated), is(EpisodeStatus::Truncated))
    }

    /// 1 for each lane with this status, else 0.
    #[inline(always)]
    pub fn status_flags(&self, status: EpisodeStatus) -> [u8; LANES] {
        let (mut flags, status) = ([0; LANES], status as u32);
        let lanes = flags.iter_mut().zip(&self.statuses);
        lanes.for_each(|(flag, own)| *flag = u8::from(*own == status));
        flags
    }
}

/// Sums over steps per lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SumLanes {
    /// Rewards of the steps that count.
    pub rewards: Lanes,
    /// Number of steps that count without `auto_reset`.
    pub steps: [u32; LANES],
    /// Number of finished episodes that count.
    pub episodes: Lanes,
    /// Scores of these episodes.
    pub scores: Lanes,
}

impl SumLanes {
    /// Adds the results of a step. With `auto_reset` all steps count; otherwise those up to the first end of an
    /// episode.
    pub fn add(&mut self, results: &StepResultLanes, auto_reset: bool) {
        let ended = results.statuses.map(|status| if status == 0 { 0.0 } else { 1.0 });
        if auto_reset {
            add(&mut self.rewards, &results.rewards);
            add(&mut self.scores, &results.scores);
            add(&mut self.episodes, &ended);
            return;
        }
        for (lane, ended) in ended.into_iter().enumerate() {
            if self.episodes[lane] == 0.0 {
                self.rewards[lane] += results.rewards[lane];
                self.scores[lane] += results.scores[lane];
                self.episodes[lane] += ended;
                self.steps[lane] += 1;
            }
        }
    }
}

fn add(sums: &mut Lanes, values: &Lanes) {
    sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
}

impl<G: Rules> EnvLanes<G> {
    /// Loads up to [`LANES`] environments into lanes.
    pub fn new(envs: &[EnvState<G>]) -> Self {
        let mut lanes = Self {
            words: G::State::zero_rows(),
            levels: [0; LANES],
            times: [0; LANES],
            scores: [0.0; LANES],
            game: PhantomData,
        };
        for lane in 0..LANES {
            lanes.set_env(lane, envs.get(lane).unwrap_or(&envs[0]));
        }
        lanes
    }

    /// Extracts the environment of a lane.
    pub fn env(&self, lane: usize) -> EnvState<G> {
        let episode =
            Episode { level: self.levels[lane], time: self.times[lane], score: self.scores[lane] };
        EnvState { state: gather_lane(&self.words, lane), episode }
    }

    /// Replaces the environment of a lane.
    pub fn set_env(&mut self, lane: usize, env: &EnvState<G>) {
        scatter_lane(&mut self.words, lane, &env.state);
        let Episode { level, time, score } = env.episode;
        (self.levels[lane], self.times[lane], self.scores[lane]) = (level, time, score);
    }

    /// Key of the level of a lane.
    #[inline(always)]
    pub fn level(&self, lane: usize) -> u32 {
        self.levels[lane]
    }

    /// Starts games at the level after each of these; for callers that are themselves compiled for the processor's
    /// vectors.
    #[inline(always)]
    pub fn start_next_levels_inlined(mut levels: [u32; LANES], game: G) -> Self {
        let mut words = G::State::zero_rows();
        with_constants(
            game,
            #[inline(always)]
            |game| {
                for (lane, level) in levels.iter_mut().enumerate() {
                    let mut state: G::State = gather_lane(&words, lane);
                    let mut episode = Episode { level: *level, time: 0, score: 0.0 };
                    start_next_level::<G>(&mut state, &mut episode, game);
                    scatter_lane(&mut words, lane, &state);
                    *level = episode.level;
                }
            },
        );
        Self { words, levels, times: [0; LANES], scores: [0.0; LANES], game: PhantomData }
    }

    /// Replaces the environment of a lane by that of a lane of other games.
    #[inline(always)]
    pub fn copy_env(&mut self, lane: usize, from: &Self, from_lane: usize) {
        for (words, from) in self.words.as_mut().iter_mut().zip(from.words.as_ref()) {
            words[lane] = from[from_lane];
        }
        self.levels[lane] = from.levels[from_lane];
        self.times[lane] = from.times[from_lane];
        self.scores[lane] = from.scores[from_lane];
    }

    /// Computes the features of all games, `[num_features][LANES]`.
    pub fn observe(&self, game: G, obs: &mut [Lanes]) {
        observe(game, self, obs);
    }

    /// [`EnvLanes::observe`] for callers that are compiled for the processor's vectors themselves.
    #[inline(always)]
    pub fn observe_inlined(&self, game: G, obs: &mut [Lanes]) {
        let words = &self.words;
        // Constant indices for the first features, so that each is compiled separately.
        macro_rules! constants {
            ($game:ident, $($i:literal)*) => {
                $(if $i < obs.len() {
                    write_feature($game, words, $i, &mut obs[$i]);
                })*
            };
        }
        with_constants(
            game,
            #[inline(always)]
            |game| {
                constants!(game, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
                for (i, lanes) in obs.iter_mut().enumerate().skip(20) {
                    write_feature(game, words, i, lanes);
                }
            },
        );
    }

    /// Computes the legal actions of each game as a bit mask.
    pub fn write_legal(&self, game: G, bits: &mut [u32; LANES]) {
        write_legal(game, &self.words, bits);
    }

    /// Plays one step of each game.
    pub fn step_with_auto_reset(
        &mut self,
        game: G,
        actions: &[u32; LANES],
        results: &mut StepResultLanes,
    ) {
        step::<G>(game, self, actions, results);
    }

    /// Plays one step of each game, and starts no next level where an episode ended. For callers that are themselves
    /// compiled for the processor's vectors.
    #[inline(always)]
    pub fn step_episode_inlined(
        &mut self,
        game: G,
        actions: &[u32; LANES],
        results: &mut StepResultLanes,
    ) {
        step_inlined::<G, false>(game, self, actions, results);
    }
}

/// Gathers the state of a lane.
#[inline(always)]
fn gather_lane<S: PackedState>(words: &WordLanes<S>, lane: usize) -> S {
    let words = words.as_ref();
    S::unpack(
        #[inline(always)]
        |w| words[w][lane],
    )
}

/// Scatters a state to a lane; the inverse of [`gather_lane`].
#[inline(always)]
fn scatter_lane<S: PackedState>(words: &mut WordLanes<S>, lane: usize, state: &S) {
    let words = words.as_mut();
    state.pack(
        #[inline(always)]
        |w, word| words[w][lane] = word,
    );
}

/// Computes [`action_uniform`] in lanes.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn action_uniforms(keys: &[u32; LANES], t: u32) -> Lanes {
    let mut uniforms = [0.0f32; LANES];
    for (u, key) in uniforms.iter_mut().zip(keys) {
        *u = action_uniform(*key, t);
    }
    uniforms
}

/// Calls `run` with the game's parameters as compile-time constants if they are the common ones
/// ([`Rules`]), so that the rules are specialized as in a kernel.
#[inline(always)]
fn with_constants<G: Rules>(game: G, run: impl FnOnce(G)) {
    match G::COMMON_PARAMETERS {
        Some(common) if common == game => run(common),
        _ => run(game),
    }
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn observe<G: Rules>(game: G, lanes: &EnvLanes<G>, obs: &mut [Lanes]) {
    lanes.observe_inlined(game, obs);
}

#[inline(always)]
fn write_feature<G: Rules>(game: G, words: &WordLanes<G::State>, i: usize, lanes: &mut Lanes) {
    // A local array, which the compiler knows does not alias the words.
    let mut values = [0.0f32; LANES];
    for (lane, x) in values.iter_mut().enumerate() {
        *x = G::feature(&gather_lane::<G::State>(words, lane), i, game);
    }
    *lanes = values;
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn write_legal<G: Rules>(game: G, words: &WordLanes<G::State>, bits: &mut [u32; LANES]) {
    with_constants(
        game,
        #[inline(always)]
        |game| {
            for (lane, bits) in bits.iter_mut().enumerate() {
                *bits = legal_bits(&gather_lane::<G::State>(words, lane), game);
            }
        },
    );
}

#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn step<G: Rules>(
    game: G,
    lanes: &mut EnvLanes<G>,
    actions: &[u32; LANES],
    to: &mut StepResultLanes,
) {
    step_inlined::<G, true>(game, lanes, actions, to);
}

#[inline(always)]
fn step_inlined<G: Rules, const RESTARTS: bool>(
    game: G,
    lanes: &mut EnvLanes<G>,
    actions: &[u32; LANES],
    to: &mut StepResultLanes,
) {
    with_constants(
        game,
        #[inline(always)]
        |game| step_lanes::<G, RESTARTS>(game, lanes, actions, to),
    );
}

/// Steps the lanes in a loop that compilers turn into vector instructions; games that ended restart if `RESTARTS`.
#[inline(always)]
fn step_lanes<G: Rules, const RESTARTS: bool>(
    game: G,
    lanes: &mut EnvLanes<G>,
    actions: &[u32; LANES],
    to: &mut StepResultLanes,
) {
    for (lane, action) in actions.iter().enumerate() {
        let mut state: G::State = gather_lane(&lanes.words, lane);
        let mut episode = Episode {
            level: lanes.levels[lane],
            time: lanes.times[lane],
            score: lanes.scores[lane],
        };
        let result = if RESTARTS {
            step_with_auto_reset::<G>(&mut state, &mut episode, *action, game)
        } else {
            step_episode::<G>(&mut state, &mut episode, *action, game)
        };
        scatter_lane(&mut lanes.words, lane, &state);
        lanes.levels[lane] = episode.level;
        lanes.times[lane] = episode.time;
        lanes.scores[lane] = episode.score;
        to.rewards[lane] = result.reward;
        to.statuses[lane] = u32::from(result.terminated) | u32::from(result.truncated) << 1;
        to.scores[lane] = result.episode_score;
    }
}
