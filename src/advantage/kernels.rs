//! Advantages of a recording, in four kernels: credits, comparison, centring, totals.
//!
//! They compute what [`super::advantages`] does. Sums are taken in an order that depends on sizes alone.

use crate::config::{AdvantageConfig, Estimator, RolloutConfig, Scale};
use crate::data::summary::{self, EPISODES, EVEN_GROUPS, REWARD_SUM, SCALE, SCORE_SUM, STEPS};
use crate::data::{Recording, RecordingAdvantages, TRUNCATED};
use crate::device::buffers::{argument, cube_ints, cube_tensor, grid, room};
use burn::backend::{Cube, DType};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

/// Units of a cube of the first two kernels.
const UNITS: usize = 64;
/// Units of the second kernel, about: with more to do, each sees to more steps.
const MAX_UNITS: usize = 1 << 18;
/// Runs of rows that the last kernel adds up side by side.
const RUNS: usize = 32;

// A row of sums has the columns of the summary, but that of the scale, which is made of a sum of squares.
const SQUARES: usize = SCALE;

/// The sizes of a part, and the rows of sums that a kernel writes, one a cube.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    num_steps: usize,
    learn_steps: usize,
    games: usize,
    group_size: usize,
    first_row: usize,
    cubes: usize,
}

#[cube]
impl Sizes {
    /// Where the advantage of step `t` of a game lies in a part of the advantages.
    fn advantage(&self, t: usize, game: usize) -> usize {
        t * self.games + game
    }

    /// Where the number of a game's steps that count lies there.
    fn length(&self, game: usize) -> usize {
        self.learn_steps * self.games + game
    }

    /// Where the return of a game lies there.
    fn total(&self, game: usize) -> usize {
        (self.learn_steps + 1) * self.games + game
    }
}

/// Adds up the sums of a cube's units, and writes them as its row. A grid may have more cubes than were
/// asked for, which have no row.
#[cube]
fn store_row(own: &Array<f32>, rows: &mut [f32], sizes: &Sizes) {
    let unit = UNIT_POS as usize;
    let mut sums = Shared::<[f32]>::new_slice(comptime!(UNITS * summary::LEN));
    #[unroll]
    for q in 0..summary::LEN {
        sums[comptime!(q * UNITS) + unit] = own[q];
    }
    sync_cube();
    if unit < summary::LEN && CUBE_POS < sizes.cubes {
        let mut sum = 0.0f32;
        for i in 0..comptime!(UNITS) {
            sum += sums[unit * UNITS + i];
        }
        rows[(sizes.first_row + CUBE_POS) * summary::LEN + unit] = sum;
    }
}

/// The sums of a unit, all zero.
#[cube]
fn no_sums() -> Array<f32> {
    let mut sums = Array::<f32>::new(summary::LEN);
    #[unroll]
    for q in 0..summary::LEN {
        sums[q] = 0.0f32;
    }
    sums
}

/// One unit credits the steps of one game with what followed them.
///
/// Buffers: words, values and first scores of [`crate::data::Part`]; a part of
/// [`RecordingAdvantages::parts`]; rows of sums `[rows, summary::LEN]`. The actions' words are row `last_word` of the words.
/// Scores are the third row of the values where they are `scored`, else sums of rewards.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
fn credit_kernel(
    words: &[u32],
    values: &[f32],
    first_scores: &[f32],
    advantages: &mut [f32],
    rows: &mut [f32],
    sizes: Sizes,
    last_word: usize,
    discount: f32,
    #[comptime] estimator: Estimator,
    #[comptime] auto_reset: bool,
    #[comptime] scored: bool,
) {
    let game = ABSOLUTE_POS;
    let mut sums = no_sums();
    if game < sizes.games {
        let (games, num_steps) = (sizes.games, sizes.num_steps);
        let (actions, rewards) = (last_word * num_steps * games, num_steps * games);
        let mut score = first_scores[game];
        let mut total = 0.0f32;
        let mut counted = num_steps;
        // What the episode under way has got, and its first step.
        let mut sum = 0.0f32;
        let mut first = 0usize.runtime();
        for t in 0..num_steps {
            let at = t * games + game;
            let reward = values[rewards + at];
            sums[REWARD_SUM] += reward;
            score += reward;
            total += select(t < counted, reward, 0.0f32);
            sum += select(t < counted, reward, 0.0f32);
            if words[actions + at] >= TRUNCATED {
                if comptime!(scored) {
                    score = values[2 * rewards + at];
                }
                sums[SCORE_SUM] += score;
                sums[EPISODES] += 1.0f32;
                score = 0.0f32;
                if comptime!(!auto_reset) {
                    counted = select(t < counted, t + 1, counted);
                } else if comptime!(estimator == Estimator::Return) {
                    let behind = select(t + 1 < sizes.learn_steps, t + 1, sizes.learn_steps);
                    for step in first..behind {
                        advantages[sizes.advantage(step, game)] = sum;
                    }
                    first = t + 1;
                    sum = 0.0f32;
                }
            }
        }
        if comptime!(estimator == Estimator::RewardToGo) {
            let mut credit = 0.0f32;
            for i in 0..num_steps {
                let t = num_steps - 1 - i;
                let at = t * games + game;
                if t < counted {
                    let ended = words[actions + at] >= TRUNCATED;
                    credit = values[rewards + at] + select(ended, 0.0f32, discount * credit);
                }
                if t < sizes.learn_steps {
                    advantages[sizes.advantage(t, game)] = credit;
                }
            }
        } else {
            for step in first..sizes.learn_steps {
                advantages[sizes.advantage(step, game)] = sum;
            }
        }
        let length = select(counted < sizes.learn_steps, counted, sizes.learn_steps) as f32;
        sums[STEPS] = length;
        advantages[sizes.length(game)] = length;
        advantages[sizes.total(game)] = total;
    }
    store_row(&sums, rows, &sizes);
}

/// One unit looks whether the members of one group are credited alike at all steps at which one counts.
///
/// Buffers: the part of [`RecordingAdvantages::parts`] that the first kernel wrote to; rows of sums.
#[cube(launch_unchecked)]
fn compare_kernel(advantages: &[f32], rows: &mut [f32], sizes: Sizes) {
    let group = ABSOLUTE_POS;
    let mut sums = no_sums();
    if group < sizes.games / sizes.group_size {
        let first = group * sizes.group_size;
        let mut counted = 0.0f32;
        for member in 0..sizes.group_size {
            let length = advantages[sizes.length(first + member)];
            counted = select(length > counted, length, counted);
        }
        let mut alike = 1.0f32;
        let counted = counted as u32;
        for t in 0..counted as usize {
            if alike == 1.0f32 {
                let row = sizes.advantage(t, first);
                for member in 1..sizes.group_size {
                    alike = select(advantages[row + member] == advantages[row], alike, 0.0f32);
                }
            }
        }
        sums[EVEN_GROUPS] = alike;
    }
    store_row(&sums, rows, &sizes);
}

/// One unit centres the credits of one group at some steps, and scales them by the group's spread
/// where that is asked for.
///
/// Buffers: the part of [`RecordingAdvantages::parts`] that the first kernel wrote to; rows of sums.
#[cube(launch_unchecked)]
fn centre_kernel(
    advantages: &mut [f32],
    rows: &mut [f32],
    sizes: Sizes,
    steps_per_unit: usize,
    epsilon: f32,
    #[comptime] scale: Scale,
) {
    let groups = sizes.games / sizes.group_size;
    let (members, learn_steps) = (sizes.group_size, sizes.learn_steps);
    let group = ABSOLUTE_POS % groups;
    let first_step = ABSOLUTE_POS / groups * steps_per_unit;
    let first = group * members;
    let mut sums = no_sums();
    if first_step < learn_steps {
        let behind = first_step + steps_per_unit;
        let end_step = select(behind < learn_steps, behind, learn_steps);
        for t in first_step..end_step {
            let row = sizes.advantage(t, first);
            let mut sum = 0.0f32;
            for member in 0..members {
                sum += advantages[row + member];
            }
            let mean = sum / members as f32;
            let mut factor = 1.0f32;
            if comptime!(scale == Scale::Group) {
                let mut squares = 0.0f32;
                for member in 0..members {
                    let centred = advantages[row + member] - mean;
                    squares += centred * centred;
                }
                factor = 1.0f32 / ((squares / (members - 1) as f32).sqrt() + epsilon);
            }
            for member in 0..members {
                let length = advantages[sizes.length(first + member)];
                let centred = (advantages[row + member] - mean) * factor;
                let counted = select((t as f32) < length, centred, 0.0f32);
                advantages[row + member] = counted;
                sums[SQUARES] += counted * counted;
            }
        }
    }
    store_row(&sums, rows, &sizes);
}

/// One cube adds up all rows and makes the summary of all games of them.
///
/// Buffers: rows of sums `[count, summary::LEN]`; [`RecordingAdvantages::summary`]. Workgroup memory: `RUNS * summary::LEN` floats.
#[cube(launch_unchecked)]
fn summary_kernel(
    rows: &[f32],
    summary: &mut [f32],
    count: usize,
    epsilon: f32,
    #[comptime] scale: Scale,
) {
    let unit = UNIT_POS as usize;
    let column = unit % summary::LEN;
    let mut sum = 0.0f32;
    for row in range_stepped(unit / summary::LEN, count, RUNS) {
        sum += rows[row * summary::LEN + column];
    }
    let mut sums = Shared::<[f32]>::new_slice(comptime!(RUNS * summary::LEN));
    sums[unit] = sum;
    sync_cube();
    if unit < summary::LEN {
        let mut total = 0.0f32;
        for run in 0..comptime!(RUNS) {
            total += sums[run * summary::LEN + unit];
        }
        if unit == SQUARES {
            // In this column stands what the advantages are to be multiplied by.
            let mut steps = 0.0f32;
            for run in 0..comptime!(RUNS) {
                steps += sums[run * summary::LEN + STEPS];
            }
            let factor = 1.0f32 / ((total / steps).sqrt() + epsilon);
            total = if comptime!(scale == Scale::Batch) { factor } else { 1.0f32.runtime() };
        }
        summary[unit] = total;
    }
}

/// The advantages of a recording, where it lies; the same as [`super::advantages`] gives for its
/// trajectory and its mask.
///
/// # Panics
/// If the recording's parts do not consist of whole groups, or it has fewer than `learn_steps` steps.
pub fn recording_advantages(
    recording: &Recording,
    rollout: &RolloutConfig,
    config: &AdvantageConfig,
) -> RecordingAdvantages {
    let RolloutConfig { group_size, learn_steps, auto_reset, .. } = *rollout;
    let num_steps = recording.num_steps;
    assert!((1..=num_steps).contains(&learn_steps), "learn_steps: 1..=num_steps");
    let dim = CubeDim::new_1d(UNITS as u32);
    let plans: Vec<Plan> =
        recording.parts.iter().map(|part| Plan::new(part.num_envs(), rollout)).collect();
    let count = plans.iter().map(Plan::cubes).sum();
    let like = cube_tensor(recording.parts[0].values.clone());
    let rows = room(&like, &[count, summary::LEN], DType::F32);
    let summary = room(&like, &[summary::LEN], DType::F32);
    let client = &like.client;
    let mut first_row = 0;
    let mut parts = Vec::new();
    for (part, plan) in recording.parts.iter().zip(&plans) {
        let games = part.num_envs();
        let advantages = room(&like, &[learn_steps + 2, games], DType::F32);
        let sizes =
            |row, cubes| SizesLaunch::new(num_steps, learn_steps, games, group_size, row, cubes);
        // SAFETY: the kernels stay below the number of games and steps, and their cubes write a row
        // each; all units of a cube reach its barrier.
        unsafe {
            credit_kernel::launch_unchecked(
                client,
                grid(&like, plan.credit_cubes),
                dim,
                argument(&cube_ints(part.words.clone())),
                argument(&cube_tensor(part.values.clone())),
                argument(&cube_tensor(part.first_scores.clone())),
                argument(&advantages),
                argument(&rows),
                sizes(first_row, plan.credit_cubes),
                part.num_words() - 1,
                config.discount as f32,
                config.estimator,
                auto_reset,
                part.has_scores(),
            );
            compare_kernel::launch_unchecked(
                client,
                grid(&like, plan.compare_cubes),
                dim,
                argument(&advantages),
                argument(&rows),
                sizes(first_row + plan.credit_cubes, plan.compare_cubes),
            );
            centre_kernel::launch_unchecked(
                client,
                grid(&like, plan.centre_cubes),
                dim,
                argument(&advantages),
                argument(&rows),
                sizes(first_row + plan.credit_cubes + plan.compare_cubes, plan.centre_cubes),
                plan.steps_per_unit,
                super::STD_EPSILON,
                config.scale_rewards,
            );
        }
        first_row += plan.cubes();
        parts.push(Tensor::from_primitive::<Cube>(advantages));
    }
    // SAFETY: the kernel stays below `count` and the length of the summary.
    unsafe {
        summary_kernel::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d((RUNS * summary::LEN) as u32),
            argument(&rows),
            argument(&summary),
            count,
            super::STD_EPSILON,
            config.scale_rewards,
        );
    }
    RecordingAdvantages { learn_steps, parts, summary: Tensor::from_primitive::<Cube>(summary) }
}

/// How the work on a part is spread.
struct Plan {
    credit_cubes: usize,
    compare_cubes: usize,
    centre_cubes: usize,
    steps_per_unit: usize,
}

impl Plan {
    fn new(games: usize, rollout: &RolloutConfig) -> Self {
        assert_eq!(games % rollout.group_size, 0, "groups must be whole");
        let groups = games / rollout.group_size;
        let steps_per_unit = (rollout.learn_steps * groups).div_ceil(MAX_UNITS);
        let centre_units = groups * rollout.learn_steps.div_ceil(steps_per_unit);
        Self {
            credit_cubes: games.div_ceil(UNITS),
            compare_cubes: groups.div_ceil(UNITS),
            centre_cubes: centre_units.div_ceil(UNITS),
            steps_per_unit,
        }
    }

    /// Cubes of all kernels, each of which writes a row of sums.
    fn cubes(&self) -> usize {
        self.credit_cubes + self.compare_cubes + self.centre_cubes
    }
}
