//! Environments of a rollout between iterations, in host memory.

use super::{
    BranchEpisode, RolloutKeys, branch_episode, branch_member, branch_step, staggered_time,
};
use crate::env::bits::{from_bits, to_bits};
use crate::env::{
    Episode, PackedState, Rules, StepResult, initial_state, num_words, step_with_auto_reset,
};
use crate::rng::draw;
use crate::settings::{GroupStart, RolloutConfig};

/// Words of an environment before the game's state: level, time and score of the episode; for a branch point, the
/// fields of [`BranchEpisode`].
pub(crate) const HEADER_WORDS: usize = 3;

/// Number of words of a saved environment: level, time and score of the episode, then the packed
/// state.
pub fn env_words<G: Rules>(game: G) -> usize {
    HEADER_WORDS + num_words(game)
}

/// The error for saved environments of the wrong size.
#[derive(Debug, thiserror::Error)]
#[error(
    "the saved games are {found} words, but {expected} are needed for {count} groups of `{game}`"
)]
pub struct EnvStatesError {
    /// Name of the game.
    pub game: &'static str,
    /// Number of groups in this run.
    pub count: usize,
    /// Required number of words.
    pub expected: usize,
    /// Number of words passed.
    pub found: usize,
}

/// An environment: the state of a game and its episode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnvState<G: Rules, E = Episode> {
    pub state: G::State,
    pub episode: E,
}

/// An environment from which a group continues.
pub(crate) type BranchEnv<G> = EnvState<G, BranchEpisode>;

/// Episodes that are saved as words.
pub(crate) trait EpisodeWords: Copy {
    /// Converts the episode to words.
    fn to_words(self) -> [u32; HEADER_WORDS];

    /// Reads the episode from its words.
    fn from_words(words: [u32; HEADER_WORDS]) -> Self;
}

impl EpisodeWords for Episode {
    fn to_words(self) -> [u32; HEADER_WORDS] {
        [self.level, self.time, to_bits(self.score)]
    }

    fn from_words([level, time, score]: [u32; HEADER_WORDS]) -> Self {
        Self { level, time, score: from_bits(score) }
    }
}

impl EpisodeWords for BranchEpisode {
    fn to_words(self) -> [u32; HEADER_WORDS] {
        [self.steps_ahead, self.time, to_bits(self.score)]
    }

    fn from_words([steps_ahead, time, score]: [u32; HEADER_WORDS]) -> Self {
        Self { steps_ahead, time, score: from_bits(score) }
    }
}

impl<G: Rules> EnvState<G> {
    /// Creates an environment at the start of a level.
    pub fn new(level: u32, game: G) -> Self {
        let episode = Episode { level, time: 0, score: 0.0 };
        Self { state: initial_state::<G>(level, game), episode }
    }

    /// Plays one step.
    pub fn step_with_auto_reset(&mut self, action: u32, game: G) -> StepResult {
        step_with_auto_reset::<G>(&mut self.state, &mut self.episode, action, game)
    }

    /// The environment as a branch point after `steps` steps of an iteration, with the arguments of [`branch_episode`].
    pub fn branch(self, elapsed: u32, steps: usize) -> BranchEnv<G> {
        let episode = branch_episode(&self.episode, elapsed, steps as u32);
        EnvState { state: self.state, episode }
    }
}

/// Legal actions of a state as a bit mask, bit 0 for action 0.
pub(super) fn legal_bits<G: Rules>(state: &G::State, game: G) -> u32 {
    (0..game.num_actions()).fold(0, |bits, a| bits | u32::from(G::is_legal(state, a, game)) << a)
}

/// Creates the environments at the start of the iteration with the given keys. `branches` are the
/// branch points of the previous iteration, one per group; empty before the first.
pub(crate) fn start_envs<G: Rules>(
    game: G,
    config: &RolloutConfig,
    keys: RolloutKeys,
    branches: &[BranchEnv<G>],
) -> Vec<EnvState<G>> {
    let groups = (0..config.num_groups).map(|group| {
        let level = draw(keys.level, keys.first_group + group as u32);
        if config.start == GroupStart::Branch && !branches.is_empty() {
            let EnvState { state, episode } = branches[group];
            return EnvState { state, episode: episode.take(level) };
        }
        let mut env = EnvState::new(level, game);
        if config.start == GroupStart::Branch {
            env.episode.time = staggered_time(level, game.max_steps());
        }
        env
    });
    groups.flat_map(|env| std::iter::repeat_n(env, config.group_size)).collect()
}

/// Steps of each game's current episode that were played before the iteration, `[num_envs]`; empty if all games start
/// episodes.
pub(crate) fn elapsed_steps<G: Rules>(
    config: &RolloutConfig,
    branches: &[BranchEnv<G>],
) -> Vec<u32> {
    if config.start == GroupStart::Level {
        return Vec::new();
    }
    let steps = branches.iter().map(|branch| branch.episode.steps_played());
    steps.flat_map(|steps| std::iter::repeat_n(steps, config.group_size)).collect()
}

/// Place of a group's branch point in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BranchPoint {
    /// Number of steps of the iteration before it.
    pub step: usize,
    /// Index of the game.
    pub env: usize,
}

/// Draws the branch points of an iteration, one per group; empty if games start at levels.
pub(crate) fn draw_branch_points(config: &RolloutConfig, keys: RolloutKeys) -> Vec<BranchPoint> {
    if config.start == GroupStart::Level {
        return Vec::new();
    }
    let (steps, group_size) = (config.learn_steps as u32, config.group_size as u32);
    let groups = 0..config.num_groups as u32;
    let branch_point = |group| {
        let index = keys.first_group + group;
        BranchPoint {
            step: branch_step(keys.branch, index, steps) as usize,
            env: (group * group_size + branch_member(keys.branch, index, group_size)) as usize,
        }
    };
    groups.map(branch_point).collect()
}

/// Packs environments to words `[env_words, number of environments]`.
pub(crate) fn pack_envs<G: Rules, E: EpisodeWords>(game: G, envs: &[EnvState<G, E>]) -> Vec<u32> {
    let (count, words_per_env) = (envs.len(), env_words(game));
    let mut words = vec![0; words_per_env * count];
    for (env, EnvState { state, episode }) in envs.iter().enumerate() {
        let header = episode.to_words().into_iter();
        for (w, word) in header.chain(state.words()).take(words_per_env).enumerate() {
            words[w * count + env] = word;
        }
    }
    words
}

/// Unpacks environments written by [`pack_envs`]: `count` of them, or none.
pub(crate) fn unpack_envs<G: Rules, E: EpisodeWords>(
    game: G,
    count: usize,
    words: &[u32],
) -> Result<Vec<EnvState<G, E>>, EnvStatesError> {
    check_num_words(game, count, words)?;
    let (count, words_per_env) = (if words.is_empty() { 0 } else { count }, env_words(game));
    let envs = (0..count).map(|env| {
        let at = |w: usize| if w < words_per_env { words[w * count + env] } else { 0 };
        EnvState {
            state: G::State::unpack(|w| at(HEADER_WORDS + w)),
            episode: E::from_words(std::array::from_fn(at)),
        }
    });
    Ok(envs.collect())
}

/// Checks the number of saved words: those of `count` environments, or none.
pub(crate) fn check_num_words<G: Rules>(
    game: G,
    count: usize,
    words: &[u32],
) -> Result<(), EnvStatesError> {
    let expected = env_words(game) * count;
    if words.is_empty() || words.len() == expected {
        Ok(())
    } else {
        Err(EnvStatesError { game: G::NAME, count, expected, found: words.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Catch;

    #[test]
    fn the_steps_of_an_episode_are_counted_from_branch_to_branch() {
        let at = |time| {
            let env = EnvState::<Catch>::new(0x9abc_def0, Catch::default());
            EnvState { episode: Episode { time, ..env.episode }, ..env }
        };
        // An episode that began the run at time 7, after 3 steps and after 4 more.
        let first = at(10).branch(0, 3).episode;
        assert_eq!((first.steps_ahead, first.steps_played()), (7, 3));
        let second = at(14).branch(first.steps_played(), 4).episode;
        assert_eq!((second.steps_ahead, second.steps_played()), (7, 7));
        // One that began in the second of 4 steps, and one that begins with the next step.
        let [early, late] = [2, 0].map(|time| at(time).branch(7, 4).episode);
        assert_eq!([early.steps_ahead, late.steps_ahead], [0, 0]);
        assert_eq!([early.steps_played(), late.steps_played()], [2, 0]);
        // Nor is there a panic where a checkpoint is damaged.
        assert_eq!(BranchEpisode { steps_ahead: u32::MAX, ..first }.steps_played(), 0);
    }
}
