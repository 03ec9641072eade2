//! Group-relative advantages on CPU threads.
//!
//! Each group is computed by one thread and quantities over all groups are summed by shards, so the
//! result has the same bits for any number of threads and ranks.

use super::STD_EPSILON;
use crate::data::{EpisodeStatus, NativeTrajectory};
use crate::parallel::{Shards, Team, TeamError};
use crate::settings::{AdvantageConfig, AdvantageScale, CreditEstimator, RolloutConfig};
use rayon::prelude::*;

/// Advantages of a trajectory. One value is reused over all iterations of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NativeAdvantages {
    /// Advantage of each step, 0 for steps that do not count: `[num_envs, num_steps]`.
    pub values: Vec<f32>,
    /// Number of leading steps of each game that count and are learnt from, at most `learn_steps`:
    /// `[num_envs]`.
    pub counts: Vec<usize>,
    /// Fraction of groups whose games all have the same credit at every counted step and which
    /// therefore have no gradient.
    pub zero_variance_fraction: f64,
}

/// Contribution of a group to the quantities over all groups.
struct GroupSummary {
    /// Whether all games have the same credits.
    has_zero_variance: bool,
    /// Sum of squares of the unscaled advantages over the steps that count.
    squares: f64,
}

impl NativeAdvantages {
    /// Replaces the contents with the [advantages](super::compute_advantages) of `trajectory` under the
    /// mask of `rollout.auto_reset`. The trajectory and `rollout` cover this rank's groups only.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    ///
    /// # Panics
    /// If the trajectory does not match `rollout`.
    pub fn compute(
        &mut self,
        trajectory: &NativeTrajectory,
        rollout: &RolloutConfig,
        config: &AdvantageConfig,
        shards: &Shards,
        team: &Team,
    ) -> Result<(), TeamError> {
        let NativeTrajectory { num_envs, num_steps, .. } = *trajectory;
        let RolloutConfig { group_size, learn_steps, .. } = *rollout;
        assert_eq!(num_envs, rollout.num_envs(), "games of the rollout");
        assert!(learn_steps <= num_steps, "steps of the rollout");
        self.values.resize(num_envs * num_steps, 0.0);
        self.counts.resize(num_envs, 0);
        let groups: Vec<GroupSummary> = self
            .values
            .par_chunks_mut(group_size * num_steps)
            .zip(self.counts.par_chunks_mut(group_size))
            .enumerate()
            .map_init(GroupMoments::default, |moments, (group, (values, counts))| {
                for (member, count) in counts.iter_mut().enumerate() {
                    *count =
                        trajectory.counted_steps(group * group_size + member, rollout.auto_reset);
                }
                let first = group * group_size * num_steps;
                let rewards = &trajectory.rewards[first..first + values.len()];
                let statuses = &trajectory.statuses[first..first + values.len()];
                compute_credits(rewards, statuses, counts, config, values);
                counts.iter_mut().for_each(|count| *count = (*count).min(learn_steps));
                let has_zero_variance = have_equal_credits(values, counts, num_steps);
                moments.centre(values, num_steps);
                if config.scale_rewards == AdvantageScale::Group {
                    moments.divide_by_deviation(values, num_steps);
                }
                let squares = zero_uncounted_steps(values, counts, num_steps);
                GroupSummary { has_zero_variance, squares }
            })
            .collect();
        let [squares, steps, alike] = team.all_reduce_item_numbers(shards, |group| {
            let steps: usize = self.counts[group * group_size..][..group_size].iter().sum();
            let GroupSummary { has_zero_variance, squares } = groups[group];
            [squares, steps as f64, f64::from(has_zero_variance)]
        })?;
        if config.scale_rewards == AdvantageScale::Batch {
            let scale = 1.0 / ((squares / steps).sqrt() as f32 + STD_EPSILON);
            let values = self.values.par_chunks_mut(group_size * num_steps);
            values.for_each(|values| values.iter_mut().for_each(|x| *x *= scale));
        }
        self.zero_variance_fraction = alike / shards.num_items() as f64;
        Ok(())
    }
}

/// Mean and reciprocal standard deviation of a group's credits, in buffers that a thread reuses: `[num_steps]` each.
#[derive(Default)]
struct GroupMoments {
    /// Mean credit of the group at each step.
    mean: Vec<f32>,
    /// Reciprocal standard deviation of the group at each step.
    scale: Vec<f32>,
    /// Credit of the group's first game at each step.
    first: Vec<f32>,
}

impl GroupMoments {
    /// Subtracts the group mean at each step.
    ///
    /// The credit of the first game is subtracted before, since the mean of equal credits may differ from them by
    /// rounding, which must not be scaled up.
    fn centre(&mut self, credits: &mut [f32], steps: usize) {
        let group_size = (credits.len() / steps) as f32;
        self.first.clear();
        self.first.extend_from_slice(&credits[..steps]);
        self.mean.clear();
        self.mean.resize(steps, 0.0);
        for game in credits.chunks_exact_mut(steps) {
            game.iter_mut().zip(&self.first).for_each(|(x, first)| *x -= first);
            self.mean.iter_mut().zip(&*game).for_each(|(sum, x)| *sum += x);
        }
        self.mean.iter_mut().for_each(|x| *x /= group_size);
        for game in credits.chunks_exact_mut(steps) {
            game.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x -= mean);
        }
    }

    /// Divides centred credits by the group's standard deviation at each step.
    fn divide_by_deviation(&mut self, credits: &mut [f32], steps: usize) {
        let group_size = (credits.len() / steps) as f32;
        self.scale.clear();
        self.scale.resize(steps, 0.0);
        for game in credits.chunks_exact(steps) {
            self.scale.iter_mut().zip(game).for_each(|(sum, x)| *sum += x * x);
        }
        for x in &mut self.scale {
            *x = 1.0 / ((*x / (group_size - 1.0)).sqrt() + STD_EPSILON);
        }
        for game in credits.chunks_exact_mut(steps) {
            game.iter_mut().zip(&self.scale).for_each(|(x, scale)| *x *= scale);
        }
    }
}

/// Computes the return or reward-to-go of each step of a group, `[group_size, num_steps]`.
fn compute_credits(
    rewards: &[f32],
    statuses: &[EpisodeStatus],
    counts: &[usize],
    config: &AdvantageConfig,
    credits: &mut [f32],
) {
    let steps = rewards.len() / counts.len();
    let games = rewards.chunks_exact(steps).zip(statuses.chunks_exact(steps));
    let discount = config.discount as f32;
    for (((rewards, statuses), credits), count) in
        games.zip(credits.chunks_exact_mut(steps)).zip(counts)
    {
        match config.estimator {
            CreditEstimator::Return => {
                let mut first = 0;
                while first < *count {
                    let end = statuses[first..*count].iter().position(|status| status.has_ended());
                    let next = end.map_or(*count, |end| first + end + 1);
                    // Past the last counted step, the sum of the last episode continues.
                    let filled = if next == *count { steps } else { next };
                    credits[first..filled].fill(rewards[first..next].iter().sum());
                    first = next;
                }
            }
            CreditEstimator::RewardToGo => {
                credits[*count..].fill(0.0);
                let mut credit = 0.0;
                let counted_steps = rewards[..*count].iter().zip(statuses).zip(credits);
                for ((reward, status), to) in counted_steps.rev() {
                    credit = reward + if status.has_ended() { 0.0 } else { discount } * credit;
                    *to = credit;
                }
            }
        }
    }
}

/// Whether all games have the same credit at every step that counts for any of them.
fn have_equal_credits(credits: &[f32], counts: &[usize], steps: usize) -> bool {
    let max_counted = counts.iter().copied().max().unwrap_or(0);
    let first = &credits[..max_counted];
    credits.chunks_exact(steps).all(|game| game[..max_counted] == *first)
}

/// Zeroes the steps that do not count and returns the sum of squares of the rest.
fn zero_uncounted_steps(values: &mut [f32], counts: &[usize], steps: usize) -> f64 {
    let games = values.chunks_exact_mut(steps).zip(counts);
    let squares = games.map(|(game, count)| {
        game[*count..].fill(0.0);
        // Independent partial sums, so that additions do not wait for each other.
        let (rows, rest) = game.as_chunks::<16>();
        let mut sums = [0.0f32; 16];
        rows.iter().for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * x));
        f64::from(sums.iter().copied().chain(rest.iter().map(|x| x * x)).sum::<f32>())
    });
    squares.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advantage::compute_advantages;
    use crate::data::EpisodeStatus;
    use crate::rng::{draw, uniform};
    use burn::tensor::{Device, Tensor, TensorData, Tolerance};

    const STEPS: usize = 23;

    /// Random rewards with an end about every 11th step; all games of the first group are equal.
    fn trajectory(rollout: &RolloutConfig) -> NativeTrajectory {
        let envs = rollout.num_envs();
        let mut games = NativeTrajectory::default();
        games.resize(envs, STEPS, 1);
        for slot in 0..STEPS * envs {
            let env = if slot / STEPS < rollout.group_size { 0 } else { slot / STEPS };
            let i = (slot % STEPS * envs + env) as u32;
            games.rewards[slot] = (uniform(draw(1, i)) * 5.0).floor() - 2.0;
            let end = uniform(draw(2, i));
            games.statuses[slot] = EpisodeStatus::new(end < 0.05, end >= 0.96);
        }
        games
    }

    fn check(config: &AdvantageConfig, auto_reset: bool) {
        let mut rollout = crate::settings::TrainConfig::for_game("any").rollout;
        (rollout.num_groups, rollout.group_size) = (7, 5);
        (rollout.num_steps, rollout.learn_steps) = (STEPS, 17);
        rollout.auto_reset = auto_reset;
        let host = trajectory(&rollout);
        let tensors = host.to_tensors(&Device::flex());
        let want = compute_advantages(&tensors, &tensors.mask(auto_reset), 5, 17, config);
        let shards = Shards::new(7, 3);
        let results = [1, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let mut got = NativeAdvantages::default();
            // The second pass overwrites the result of the first.
            for _ in 0..2 {
                pool.as_ref()
                    .expect("threads can be had")
                    .install(|| got.compute(&host, &rollout, config, &shards, &Team::alone()))
                    .expect("alone nobody is waited for");
            }
            got
        });
        assert_eq!(results[0], results[1]);
        let [got, _] = results;
        let values = TensorData::new(got.values, [35, STEPS]);
        let values = Tensor::<2>::from_data(values, &Device::flex()).transpose();
        let learnt = values.clone().slice([0..17, 0..35]).into_data();
        learnt.assert_approx_eq(&want.values.into_data(), Tolerance::<f32>::absolute(1e-5));
        assert!(values.slice([17..STEPS, 0..35]).into_data().iter::<f32>().all(|x| x == 0.0));
        let counts = want.mask.sum_dim(0).into_data();
        assert!(counts.iter::<f32>().eq(got.counts.iter().map(|count| *count as f32)));
        let expected = want.zero_variance_fraction.into_data().iter::<f64>().next();
        assert!((expected.expect("one number") - got.zero_variance_fraction).abs() < 1e-6);
        assert!(got.zero_variance_fraction > 0.0 && got.zero_variance_fraction < 1.0);
    }

    #[test]
    fn equal_credits_have_no_advantage_whatever_the_rounding_of_their_mean() {
        for (credit, group_size) in [(-123.4567f32, 64), (-1234.567, 24), (54321.7, 8), (0.1, 7)] {
            let (mut moments, mut credits) = (GroupMoments::default(), vec![credit; group_size]);
            moments.centre(&mut credits, 1);
            assert!(credits.iter().all(|x| *x == 0.0), "{credit}: {credits:?}");
            moments.divide_by_deviation(&mut credits, 1);
            assert!(credits.iter().all(|x| *x == 0.0), "{credit}: {credits:?}");
        }
        let mut credits = [1.0, 1.0, 3.0, 1.0];
        let mut moments = GroupMoments::default();
        moments.centre(&mut credits, 2);
        moments.divide_by_deviation(&mut credits, 2);
        let scaled = 0.5f32.sqrt();
        assert!((credits[0] + scaled).abs() < 1e-3 && (credits[2] - scaled).abs() < 1e-3);
        assert_eq!([credits[1], credits[3]], [0.0; 2]);
    }

    #[test]
    fn every_case_agrees_with_tensors() {
        for estimator in [CreditEstimator::Return, CreditEstimator::RewardToGo] {
            for scale_rewards in
                [AdvantageScale::None, AdvantageScale::Group, AdvantageScale::Batch]
            {
                for auto_reset in [true, false] {
                    let config = AdvantageConfig { estimator, discount: 0.9, scale_rewards };
                    check(&config, auto_reset);
                }
            }
        }
    }
}
