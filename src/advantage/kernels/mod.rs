//! Advantages of a recording, in four kernels: credit, compare, centre, summarize.
//!
//! Computes the same as [`super::compute_advantages`]. The order of summation depends on sizes alone.

mod stages;

use super::STD_EPSILON;
use crate::data::summary::{self, LEARNT_STEPS};
use crate::data::{Recording, RecordingAdvantages, RecordingPart};
use crate::device;
use crate::device::buffers::{argument, cube_ints, cube_tensor, grid, uninit};
use crate::parallel::{Team, TeamError};
use crate::settings::{AdvantageConfig, AdvantageScale, RolloutConfig};
use burn::backend::{Cube, DType};
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use stages::{
    CreditVariant, MAX_CENTRE_UNITS, PARTIAL_SUMS, RecordedStepsLaunch, RowsLaunch, SQUARES,
    SizesLaunch, UNITS_PER_CUBE, centre_kernel, compare_kernel, credit_kernel, summary_kernel,
};

/// Computes the advantages of a recording on its device; equivalent to
/// [`compute_advantages`](super::compute_advantages) for the same trajectory and mask.
///
/// # Panics
/// If the parts do not consist of whole groups, or the recording has fewer than `learn_steps`
/// steps.
pub fn compute_recording_advantages(
    recording: &Recording,
    rollout: &RolloutConfig,
    config: &AdvantageConfig,
) -> RecordingAdvantages {
    let (num_steps, learn_steps) = (recording.num_steps, rollout.learn_steps);
    assert!((1..=num_steps).contains(&learn_steps), "learn_steps: 1..=num_steps");
    let launches: Vec<LaunchSizes> =
        recording.parts.iter().map(|part| LaunchSizes::new(part.num_envs(), rollout)).collect();
    let num_rows = launches.iter().map(LaunchSizes::num_cubes).sum();
    let like = cube_tensor(recording.parts[0].values.clone());
    let rows = uninit(&like, &[num_rows, summary::LEN], DType::F32);
    let (mut parts, mut first_row) = (Vec::new(), 0);
    for (part, sizes) in recording.parts.iter().zip(launches) {
        let part_launch = PartLaunch { part, num_steps, sizes, first_row };
        parts.push(part_launch.launch(&rows, rollout, config));
        first_row += part_launch.sizes.num_cubes();
    }
    let summary = uninit(&rows, &[summary::LEN], DType::F32);
    // SAFETY: accesses stay below `num_rows` and the length of the summary.
    unsafe {
        summary_kernel::launch_unchecked(
            &rows.client,
            CubeCount::new_single(),
            CubeDim::new_1d((PARTIAL_SUMS * summary::LEN) as u32),
            argument(&rows),
            argument(&summary),
            num_rows,
            STD_EPSILON,
            config.scale_rewards,
        );
    }
    let summary = Tensor::from_primitive::<Cube>(summary);
    RecordingAdvantages { learn_steps, parts, summary }
}

/// A part of a recording, with the launch sizes of the kernels that run on each part: credit, compare and centre.
struct PartLaunch<'a> {
    part: &'a RecordingPart,
    num_steps: usize,
    sizes: LaunchSizes,
    /// First of the part's rows of sums.
    first_row: usize,
}

impl PartLaunch<'_> {
    /// Launches these kernels, which write their sums to `rows`, `[rows, summary::LEN]`. Returns the part's
    /// [`RecordingAdvantages::parts`].
    fn launch(
        &self,
        rows: &CubeTensor,
        rollout: &RolloutConfig,
        config: &AdvantageConfig,
    ) -> Tensor<2> {
        let &Self { part, num_steps, ref sizes, first_row } = self;
        let RolloutConfig { group_size, learn_steps, auto_reset, .. } = *rollout;
        let (client, dim) = (&rows.client, CubeDim::new_1d(UNITS_PER_CUBE as u32));
        let games = part.num_envs();
        let advantages = uninit(rows, &[learn_steps + 2, games], DType::F32);
        let game_sizes = || SizesLaunch::new(num_steps, learn_steps, games, group_size);
        let mut next_row = first_row;
        let mut take_rows = |cubes| {
            next_row += cubes;
            RowsLaunch::new(argument(rows), next_row - cubes, cubes)
        };
        let row = num_steps * games;
        let recorded = RecordedStepsLaunch::new(
            argument(&cube_ints(part.words.clone())),
            argument(&cube_tensor(part.values.clone())),
            argument(&cube_tensor(part.initial_episodes.clone())),
            (part.num_words() - 1) * row,
            row,
            2 * row,
        );
        let credits = CreditVariant {
            estimator: config.estimator,
            auto_reset,
            has_scores: part.has_scores(),
        };
        // SAFETY: accesses stay below the numbers of games and steps, each cube writes one row, and
        // all units of a cube reach its barrier.
        unsafe {
            credit_kernel::launch_unchecked(
                client,
                grid(rows, sizes.credit_cubes),
                dim,
                recorded,
                argument(&advantages),
                take_rows(sizes.credit_cubes),
                game_sizes(),
                config.discount as f32,
                credits,
            );
            compare_kernel::launch_unchecked(
                client,
                grid(rows, sizes.compare_cubes),
                dim,
                argument(&advantages),
                take_rows(sizes.compare_cubes),
                game_sizes(),
            );
            centre_kernel::launch_unchecked(
                client,
                grid(rows, sizes.centre_cubes),
                dim,
                argument(&advantages),
                take_rows(sizes.centre_cubes),
                game_sizes(),
                sizes.steps_per_unit,
                STD_EPSILON,
                config.scale_rewards,
            );
        }
        Tensor::from_primitive::<Cube>(advantages)
    }
}

/// Computes the advantages of this rank's part of a recording; the [`summary`] covers all ranks of
/// `team`.
///
/// # Errors
/// If another rank has failed or does not respond.
pub fn compute_shared_recording_advantages(
    recording: &Recording,
    rollout: &RolloutConfig,
    config: &AdvantageConfig,
    team: &Team,
) -> Result<RecordingAdvantages, TeamError> {
    let advantages = compute_recording_advantages(recording, rollout, config);
    if team.size() == 1 {
        return Ok(advantages);
    }
    let epsilon = f64::from(STD_EPSILON);
    let device = advantages.summary.device();
    let mut local_sums: Vec<f64> =
        device::read(advantages.summary.clone()).into_iter().map(f64::from).collect();
    // Recovers the sum of squares from the scale.
    let deviation = 1.0 / local_sums[SQUARES] - epsilon;
    local_sums[SQUARES] = deviation * deviation * local_sums[LEARNT_STEPS];
    let mut totals = team.all_reduce_counts(&local_sums)?;
    totals[SQUARES] = match config.scale_rewards {
        AdvantageScale::Batch => 1.0 / ((totals[SQUARES] / totals[LEARNT_STEPS]).sqrt() + epsilon),
        AdvantageScale::Group | AdvantageScale::None => 1.0,
    };
    let summary = device::upload(totals.into_iter().map(|x| x as f32).collect(), &device);
    Ok(RecordingAdvantages { summary, ..advantages })
}

/// Launch sizes for a part.
struct LaunchSizes {
    credit_cubes: usize,
    compare_cubes: usize,
    centre_cubes: usize,
    steps_per_unit: usize,
}

impl LaunchSizes {
    fn new(games: usize, rollout: &RolloutConfig) -> Self {
        assert_eq!(games % rollout.group_size, 0, "groups must be whole");
        let groups = games / rollout.group_size;
        let steps_per_unit = (rollout.learn_steps * groups).div_ceil(MAX_CENTRE_UNITS);
        let centre_units = groups * rollout.learn_steps.div_ceil(steps_per_unit);
        Self {
            credit_cubes: games.div_ceil(UNITS_PER_CUBE),
            compare_cubes: groups.div_ceil(UNITS_PER_CUBE),
            centre_cubes: centre_units.div_ceil(UNITS_PER_CUBE),
            steps_per_unit,
        }
    }

    /// Number of cubes of all kernels, each of which writes one row of sums.
    fn num_cubes(&self) -> usize {
        self.credit_cubes + self.compare_cubes + self.centre_cubes
    }
}
