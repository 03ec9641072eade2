//! The four kernels of the advantages of a recording.

use crate::data::TRUNCATED;
use crate::data::summary::{
    self, COUNTED_STEPS, ENDED_STEPS, EPISODES, LEARNT_STEPS, REWARD_SUM, SCALE, SCORE_SUM,
    ZERO_VARIANCE_GROUPS,
};
use crate::device::buffers::Buffer;
use crate::settings::{AdvantageScale, CreditEstimator};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// Units per cube of the first three kernels.
pub(super) const UNITS_PER_CUBE: usize = 64;
/// Approximate maximum number of units of the centring kernel; beyond it each unit handles several
/// steps.
pub(super) const MAX_CENTRE_UNITS: usize = 1 << 18;
/// Number of partial sums in the last kernel.
pub(super) const PARTIAL_SUMS: usize = 32;

// Rows of sums have the columns of the summary, but hold a sum of squares in place of the scale.
pub(super) const SQUARES: usize = SCALE;

/// Sizes of a part.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    num_steps: usize,
    learn_steps: usize,
    games: usize,
    group_size: usize,
}

#[cube]
impl Sizes {
    /// Index of the advantage of step `t` of a game.
    fn advantage_index(&self, t: usize, game: usize) -> usize {
        t * self.games + game
    }

    /// Index of the number of counted steps of a game.
    fn length_index(&self, game: usize) -> usize {
        self.learn_steps * self.games + game
    }

    /// Index of the return of a game.
    fn return_index(&self, game: usize) -> usize {
        (self.learn_steps + 1) * self.games + game
    }
}

/// Inputs of the first kernel: the buffers of a [`crate::data::RecordingPart`] and the offsets of their
/// `[num_steps, num_envs]` rows.
#[derive(CubeType, CubeLaunch)]
pub(super) struct RecordedSteps {
    words: Buffer<u32>,
    values: Buffer<f32>,
    /// Scores and steps of the current episodes before the first step, `[2, num_envs]`.
    initial_episodes: Buffer<f32>,
    /// Offset of the actions within the words.
    actions: usize,
    /// Offset of the rewards within the values.
    rewards: usize,
    /// Offset of the scores within the values, if recorded.
    scores: usize,
}

#[cube]
impl RecordedSteps {
    /// Reward of the step at index `at` of a row.
    fn reward(&self, at: usize) -> f32 {
        self.values[self.rewards + at]
    }

    /// Whether the step at index `at` of a row ended an episode.
    fn has_ended(&self, at: usize) -> bool {
        self.words[self.actions + at] >= TRUNCATED
    }

    /// Score after the step at index `at` of a row, if recorded.
    fn score(&self, at: usize) -> f32 {
        self.values[self.scores + at]
    }
}

/// Compile-time variant of the credit kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CreditVariant {
    pub estimator: CreditEstimator,
    /// Whether a game continues with a new episode.
    pub auto_reset: bool,
    /// Whether scores are recorded; otherwise they are sums of rewards.
    pub has_scores: bool,
}

/// Rows of partial sums, one per cube.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Rows {
    /// Rows of all kernels, `[rows, summary::LEN]`.
    sums: Buffer<f32>,
    /// Row of this kernel's first cube.
    first: usize,
    /// Number of cubes with a row. The grid may be larger; excess cubes write nothing.
    cubes: usize,
}

#[cube]
impl Rows {
    /// Reduces the sums of a cube's units and stores them as its row.
    fn store(&mut self, own: &Array<f32>) {
        let unit = UNIT_POS as usize;
        let mut sums = Shared::<[f32]>::new_slice(comptime!(UNITS_PER_CUBE * summary::LEN));
        #[unroll]
        for q in 0..summary::LEN {
            sums[comptime!(q * UNITS_PER_CUBE) + unit] = own[q];
        }
        sync_cube();
        if unit < summary::LEN && CUBE_POS < self.cubes {
            let mut sum = 0.0f32;
            for i in 0..comptime!(UNITS_PER_CUBE) {
                sum += sums[unit * UNITS_PER_CUBE + i];
            }
            self.sums[(self.first + CUBE_POS) * summary::LEN + unit] = sum;
        }
    }
}

/// Returns zeroed sums of a unit.
#[cube]
fn new_sums() -> Array<f32> {
    let mut sums = Array::<f32>::new(summary::LEN);
    #[unroll]
    for q in 0..summary::LEN {
        sums[q] = 0.0f32;
    }
    sums
}

/// Computes the return or reward-to-go of each step; one unit per game.
///
/// Buffers: those of [`RecordedSteps`]; a part of [`RecordingAdvantages::parts`]; those of [`Rows`].
#[cube(launch_unchecked)]
pub(super) fn credit_kernel(
    recorded: &RecordedSteps,
    advantages: &mut [f32],
    rows: &mut Rows,
    sizes: Sizes,
    discount: f32,
    #[comptime] credits: CreditVariant,
) {
    let game = ABSOLUTE_POS;
    let mut sums = new_sums();
    if game < sizes.games {
        let (games, num_steps) = (sizes.games, sizes.num_steps);
        let mut score = recorded.initial_episodes[game];
        let mut game_return = 0.0f32;
        let mut num_counted = num_steps;
        // Number of steps up to the last end of an episode that counts.
        let mut ended_steps = 0usize.runtime();
        // Return so far and first step of the current episode.
        let mut episode_return = 0.0f32;
        let mut first = 0usize.runtime();
        for t in 0..num_steps {
            let at = t * games + game;
            let reward = recorded.reward(at);
            sums[REWARD_SUM] += select(t < num_counted, reward, 0.0f32);
            score += reward;
            game_return += select(t < num_counted, reward, 0.0f32);
            episode_return += select(t < num_counted, reward, 0.0f32);
            if recorded.has_ended(at) {
                if comptime!(credits.has_scores) {
                    score = recorded.score(at);
                }
                sums[SCORE_SUM] += select(t < num_counted, score, 0.0f32);
                sums[EPISODES] += select(t < num_counted, 1.0f32, 0.0f32);
                score = 0.0f32;
                ended_steps = select(t < num_counted, t + 1, ended_steps);
                if comptime!(!credits.auto_reset) {
                    num_counted = select(t < num_counted, t + 1, num_counted);
                } else if comptime!(credits.estimator == CreditEstimator::Return) {
                    let end = select(t + 1 < sizes.learn_steps, t + 1, sizes.learn_steps);
                    for step in first..end {
                        advantages[sizes.advantage_index(step, game)] = episode_return;
                    }
                    first = t + 1;
                    episode_return = 0.0f32;
                }
            }
        }
        if comptime!(credits.estimator == CreditEstimator::RewardToGo) {
            let mut credit = 0.0f32;
            for i in 0..num_steps {
                let t = num_steps - 1 - i;
                let at = t * games + game;
                if t < num_counted {
                    let ended = recorded.has_ended(at);
                    credit = recorded.reward(at) + select(ended, 0.0f32, discount * credit);
                }
                if t < sizes.learn_steps {
                    advantages[sizes.advantage_index(t, game)] = credit;
                }
            }
        } else {
            for step in first..sizes.learn_steps {
                advantages[sizes.advantage_index(step, game)] = episode_return;
            }
        }
        let length = select(num_counted < sizes.learn_steps, num_counted, sizes.learn_steps) as f32;
        sums[LEARNT_STEPS] = length;
        sums[COUNTED_STEPS] = num_counted as f32;
        let before = select(ended_steps > 0, recorded.initial_episodes[games + game], 0.0f32);
        sums[ENDED_STEPS] = before + ended_steps as f32;
        advantages[sizes.length_index(game)] = length;
        advantages[sizes.return_index(game)] = game_return;
    }
    rows.store(&sums);
}

/// Detects groups whose games all have the same credit at every counted step; one unit per group.
///
/// Buffers: the part of [`RecordingAdvantages::parts`] written by the first kernel; those of
/// [`Rows`].
#[cube(launch_unchecked)]
pub(super) fn compare_kernel(advantages: &[f32], rows: &mut Rows, sizes: Sizes) {
    let group = ABSOLUTE_POS;
    let mut sums = new_sums();
    if group < sizes.games / sizes.group_size {
        let first = group * sizes.group_size;
        let mut max_counted = 0.0f32;
        for member in 0..sizes.group_size {
            let length = advantages[sizes.length_index(first + member)];
            max_counted = select(length > max_counted, length, max_counted);
        }
        let mut alike = 1.0f32;
        let max_counted = max_counted as u32;
        for t in 0..max_counted as usize {
            if alike == 1.0f32 {
                let row = sizes.advantage_index(t, first);
                for member in 1..sizes.group_size {
                    alike = select(advantages[row + member] == advantages[row], alike, 0.0f32);
                }
            }
        }
        sums[ZERO_VARIANCE_GROUPS] = alike;
    }
    rows.store(&sums);
}

/// Subtracts the group mean at each step and optionally divides by the group's standard deviation.
/// One unit handles `steps_per_unit` steps of one group.
///
/// Buffers: the part of [`RecordingAdvantages::parts`] written by the first kernel; those of
/// [`Rows`].
#[cube(launch_unchecked)]
pub(super) fn centre_kernel(
    advantages: &mut [f32],
    rows: &mut Rows,
    sizes: Sizes,
    steps_per_unit: usize,
    epsilon: f32,
    #[comptime] scale: AdvantageScale,
) {
    let groups = sizes.games / sizes.group_size;
    let (group_size, learn_steps) = (sizes.group_size, sizes.learn_steps);
    let group = ABSOLUTE_POS % groups;
    let first_step = ABSOLUTE_POS / groups * steps_per_unit;
    let first = group * group_size;
    let mut sums = new_sums();
    if first_step < learn_steps {
        let next = first_step + steps_per_unit;
        let end_step = select(next < learn_steps, next, learn_steps);
        for t in first_step..end_step {
            let row = sizes.advantage_index(t, first);
            // The mean of equal credits may differ from them by rounding, but that of their differences is 0.
            let base = advantages[row];
            let mut sum = 0.0f32;
            for member in 0..group_size {
                sum += advantages[row + member] - base;
            }
            let mean = sum / group_size as f32;
            let mut factor = 1.0f32;
            if comptime!(scale == AdvantageScale::Group) {
                let mut squares = 0.0f32;
                for member in 0..group_size {
                    let centred = advantages[row + member] - base - mean;
                    squares += centred * centred;
                }
                factor = 1.0f32 / ((squares / (group_size - 1) as f32).sqrt() + epsilon);
            }
            for member in 0..group_size {
                let length = advantages[sizes.length_index(first + member)];
                let centred = (advantages[row + member] - base - mean) * factor;
                let masked = select((t as f32) < length, centred, 0.0f32);
                advantages[row + member] = masked;
                sums[SQUARES] += masked * masked;
            }
        }
    }
    rows.store(&sums);
}

/// Reduces all rows to the summary; one cube.
///
/// Buffers: rows of sums `[num_rows, summary::LEN]`; [`RecordingAdvantages::summary`]. Workgroup
/// memory: `PARTIAL_SUMS * summary::LEN` floats.
#[cube(launch_unchecked)]
pub(super) fn summary_kernel(
    rows: &[f32],
    summary: &mut [f32],
    num_rows: usize,
    epsilon: f32,
    #[comptime] scale: AdvantageScale,
) {
    let unit = UNIT_POS as usize;
    let column = unit % summary::LEN;
    let mut sum = 0.0f32;
    for row in range_stepped(unit / summary::LEN, num_rows, PARTIAL_SUMS) {
        sum += rows[row * summary::LEN + column];
    }
    let mut sums = Shared::<[f32]>::new_slice(comptime!(PARTIAL_SUMS * summary::LEN));
    sums[unit] = sum;
    sync_cube();
    if unit < summary::LEN {
        let mut total = 0.0f32;
        for part in 0..comptime!(PARTIAL_SUMS) {
            total += sums[part * summary::LEN + unit];
        }
        if unit == SQUARES {
            // This column of the summary holds the scale of the advantages.
            let mut steps = 0.0f32;
            for part in 0..comptime!(PARTIAL_SUMS) {
                steps += sums[part * summary::LEN + LEARNT_STEPS];
            }
            let factor = 1.0f32 / ((total / steps).sqrt() + epsilon);
            total =
                if comptime!(scale == AdvantageScale::Batch) { factor } else { 1.0f32.runtime() };
        }
        summary[unit] = total;
    }
}
