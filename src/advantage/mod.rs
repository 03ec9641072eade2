//! Group-relative advantages: the return of a game or step relative to its group's mean.

#[cfg(feature = "kernels")]
pub mod kernels;
mod native;

pub use native::NativeAdvantages;

use crate::data::Trajectory;
use crate::device;
use crate::parallel::{Shards, Team, TeamError};
use crate::settings::{AdvantageConfig, AdvantageScale, CreditEstimator, RolloutConfig};
use burn::tensor::Tensor;

/// Added to standard deviations before division, as in TRL.
const STD_EPSILON: f32 = 1e-4;

/// Advantages of a trajectory.
#[derive(Clone, Debug)]
pub struct Advantages {
    /// Advantage of each step, 0 for steps that do not count: `[learn_steps, num_envs]`.
    pub values: Tensor<2>,
    /// 1 for steps that count, else 0: `[learn_steps, num_envs]`.
    pub mask: Tensor<2>,
    /// Fraction of groups whose games all have the same credit at every counted step and which
    /// therefore have no gradient: `[1]`.
    pub zero_variance_fraction: Tensor<1>,
}

/// Computes the advantages of the first `learn_steps` steps of `trajectory`. Groups are
/// `group_size` neighbouring games; `mask`, `[num_steps, num_envs]`, is 1 for steps that count.
///
/// The baseline of a step is the mean over the games of its group, at the same step for
/// reward-to-go. A game whose steps no longer count contributes 0, because it earns nothing more.
///
/// # Panics
/// If the number of games is not a multiple of `group_size`.
pub fn compute_advantages(
    trajectory: &Trajectory,
    mask: &Tensor<2>,
    group_size: usize,
    learn_steps: usize,
    config: &AdvantageConfig,
) -> Advantages {
    let credits = Credits::new(trajectory, mask, group_size, learn_steps, config);
    let variance = credits.squares().sum() / credits.mask.clone().sum();
    let zero_variance_fraction = credits.zero_variance_groups().mean().reshape([1]);
    credits.into_advantages(config.scale_rewards, variance.sqrt(), zero_variance_fraction)
}

/// Computes the [advantages](compute_advantages) of this rank's groups. `rollout` describes those groups only;
/// quantities over all groups are summed by shards across the team.
///
/// # Errors
/// If another rank has failed or does not respond.
///
/// # Panics
/// If the trajectory does not match `rollout`.
pub fn compute_shared_advantages(
    trajectory: &Trajectory,
    mask: &Tensor<2>,
    rollout: &RolloutConfig,
    config: &AdvantageConfig,
    shards: &Shards,
    team: &Team,
) -> Result<Advantages, TeamError> {
    let RolloutConfig { group_size, learn_steps, .. } = *rollout;
    let credits = Credits::new(trajectory, mask, group_size, learn_steps, config);
    let groups = shards.own_items().len();
    let [squares, steps, zero_variance_groups] =
        [credits.squares(), credits.mask.clone(), credits.zero_variance_groups()]
            .map(|values| sum_by_group(values, groups));
    let [squares, steps, zero_variance_groups] = team.all_reduce_item_numbers(shards, |group| {
        [&squares, &steps, &zero_variance_groups].map(|values| values[group])
    })?;
    let scalar = |x: f64| Tensor::from_floats([x as f32], &trajectory.obs.device());
    let deviation = scalar((squares / steps).sqrt());
    let zero_variance_fraction = scalar(zero_variance_groups / shards.num_items() as f64);
    Ok(credits.into_advantages(config.scale_rewards, deviation, zero_variance_fraction))
}

/// Sums `[steps, groups, group_size]` over everything but the groups.
fn sum_by_group(values: Tensor<3>, groups: usize) -> Vec<f64> {
    let [steps, _, group_size] = values.dims();
    let values = device::read(values.reshape([steps * groups * group_size]));
    let mut sums = vec![0.0; groups];
    for (row, values) in values.chunks_exact(group_size).enumerate() {
        sums[row % groups] += values.iter().copied().map(f64::from).sum::<f64>();
    }
    sums
}

/// Credits of steps by group: `[learn_steps, num_groups, group_size]`.
struct Credits {
    values: Tensor<3>,
    /// Credits minus the group mean.
    centred: Tensor<3>,
    /// 1 for steps that count, else 0.
    mask: Tensor<3>,
}

impl Credits {
    fn new(
        trajectory: &Trajectory,
        mask: &Tensor<2>,
        group_size: usize,
        learn_steps: usize,
        config: &AdvantageConfig,
    ) -> Self {
        let [_, num_envs, _] = trajectory.dims();
        assert_eq!(num_envs % group_size, 0, "groups must be whole");
        let num_groups = num_envs / group_size;
        let rewards = trajectory.rewards.clone() * mask.clone();
        let credits = match config.estimator {
            CreditEstimator::Return => compute_returns(rewards, &trajectory.ends(), mask),
            CreditEstimator::RewardToGo => {
                compute_rewards_to_go(rewards, &trajectory.ends(), config.discount)
            }
        };
        let group_learnt_steps = |values: Tensor<2>| {
            let values = values.slice([0..learn_steps, 0..num_envs]);
            values.reshape([learn_steps, num_groups, group_size])
        };
        let (values, mask) = (group_learnt_steps(credits), group_learnt_steps(mask.clone()));
        // The mean of equal credits may differ from them by rounding, but that of their differences is 0.
        let first = values.clone().slice([0..learn_steps, 0..num_groups, 0..1]);
        let differences = values.clone() - first;
        let centred = differences.clone() - differences.mean_dim(2);
        Self { values, centred, mask }
    }

    /// Squares of the centred credits, masked to the steps that count.
    fn squares(&self) -> Tensor<3> {
        self.centred.clone().square() * self.mask.clone()
    }

    /// 1 for each group whose games all have the same credit at every counted step: `[1,
    /// num_groups, 1]`.
    fn zero_variance_groups(&self) -> Tensor<3> {
        let spread = self.values.clone().max_dim(2) - self.values.clone().min_dim(2);
        let varies = (spread * self.mask.clone().max_dim(2)).max_dim(0);
        varies.lower_equal_elem(0.0).float()
    }

    /// Scales the centred credits to advantages; `deviation`, `[1]`, is the standard deviation over the batch.
    fn into_advantages(
        self,
        scale: AdvantageScale,
        deviation: Tensor<1>,
        zero_variance_fraction: Tensor<1>,
    ) -> Advantages {
        let [learn_steps, num_groups, group_size] = self.values.dims();
        let scaled = match scale {
            AdvantageScale::None => self.centred.clone(),
            AdvantageScale::Group => {
                let squares = self.centred.clone().square().sum_dim(2);
                let variance = squares / (group_size as f32 - 1.0);
                self.centred.clone() / (variance.sqrt() + STD_EPSILON)
            }
            AdvantageScale::Batch => {
                self.centred.clone() / (deviation.reshape([1, 1, 1]) + STD_EPSILON)
            }
        };
        let flatten_games =
            |values: Tensor<3>| values.reshape([learn_steps, num_groups * group_size]);
        let mask = flatten_games(self.mask);
        Advantages { values: flatten_games(scaled) * mask.clone(), mask, zero_variance_fraction }
    }
}

/// Computes the return of the episode that each step belongs to, within the trajectory: `[num_steps, num_envs]`.
/// Past the last counted step, the sum of the last episode continues.
fn compute_returns(rewards: Tensor<2>, ends: &Tensor<2>, mask: &Tensor<2>) -> Tensor<2> {
    let [num_steps, num_envs] = rewards.dims();
    let row = |tensor: &Tensor<2>, t: usize| tensor.clone().slice([t..t + 1, 0..num_envs]);
    // 1 if a step is the last of its episode and the next step counts.
    let is_last = |t: usize| row(ends, t) * row(mask, t + 1);
    let mut sums = Vec::with_capacity(num_steps);
    let mut sum = row(&rewards, 0);
    for t in 1..num_steps {
        sums.push(sum.clone());
        sum = (is_last(t - 1).neg() + 1.0) * sum + row(&rewards, t);
    }
    let mut rows = vec![sum.clone()];
    for (t, step_sum) in sums.into_iter().enumerate().rev() {
        let is_last_step = is_last(t);
        sum = is_last_step.clone() * step_sum + (is_last_step.neg() + 1.0) * sum;
        rows.push(sum.clone());
    }
    rows.reverse();
    Tensor::cat(rows, 0)
}

/// Computes `g[t] = rewards[t] + discount * (1 - ends[t]) * g[t + 1]`: `[num_steps, num_envs]`.
fn compute_rewards_to_go(rewards: Tensor<2>, ends: &Tensor<2>, discount: f64) -> Tensor<2> {
    let [num_steps, num_envs] = rewards.dims();
    let continues = (ends.clone().neg() + 1.0) * discount;
    let row = |tensor: &Tensor<2>, t: usize| tensor.clone().slice([t..t + 1, 0..num_envs]);
    let mut rows = Vec::with_capacity(num_steps);
    let mut credit = Tensor::zeros([1, num_envs], &rewards.device());
    for t in (0..num_steps).rev() {
        credit = row(&rewards, t) + row(&continues, t) * credit;
        rows.push(credit.clone());
    }
    rows.reverse();
    Tensor::cat(rows, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tolerance};

    /// Two groups of two games, three steps; the first game ends at step 1.
    fn trajectory(device: &Device) -> Trajectory {
        let zeros = || Tensor::<2>::zeros([3, 4], device);
        Trajectory {
            obs: Tensor::zeros([3, 4, 1], device),
            actions: Tensor::zeros([3, 4], device),
            logprobs: zeros(),
            rewards: Tensor::from_floats(
                [[1.0, 0.0, 2.0, 2.0], [2.0, 0.0, 0.0, 0.0], [4.0, 8.0, 1.0, 1.0]],
                device,
            ),
            terminated: Tensor::from_floats(
                [[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
                device,
            ),
            truncated: zeros(),
            scores: zeros(),
            memory: None,
            elapsed: None,
            legal: None,
        }
    }

    /// Checks the advantages of all steps.
    fn check(config: &AdvantageConfig, auto_reset: bool, expected: [[f32; 4]; 3]) {
        let device = Device::flex();
        let trajectory = trajectory(&device);
        let mask = trajectory.mask(auto_reset);
        let advantages = compute_advantages(&trajectory, &mask, 2, 3, config);
        let expected = Tensor::<2>::from_floats(expected, &device).into_data();
        let tolerance = Tolerance::<f32>::absolute(1e-3);
        advantages.values.into_data().assert_approx_eq(&expected, tolerance);
        assert_eq!(device::read(advantages.zero_variance_fraction), [0.5]);
    }

    #[test]
    fn reward_to_go_stops_at_the_end_of_an_episode() {
        let config = AdvantageConfig {
            estimator: CreditEstimator::RewardToGo,
            discount: 0.5,
            scale_rewards: AdvantageScale::None,
        };
        // Rewards-to-go: game 0: 2, 2, 4; game 1: 2, 4, 8; games 2 and 3 are equal.
        check(&config, true, [[0.0; 4], [-1.0, 1.0, 0.0, 0.0], [-2.0, 2.0, 0.0, 0.0]]);
        // Without auto-reset game 0's last step does not count and earns nothing: 8 / 2 = 4.
        check(&config, false, [[0.0; 4], [-1.0, 1.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]]);
    }

    #[test]
    fn returns_are_scaled_by_the_group_or_the_batch() {
        // Without auto-reset game 0 has return 3 and game 1 has 8: sample standard deviation
        // sqrt(12.5).
        let config = AdvantageConfig {
            estimator: CreditEstimator::Return,
            discount: 1.0,
            scale_rewards: AdvantageScale::Group,
        };
        let a = 0.5f32.sqrt();
        check(&config, false, [[-a, a, 0.0, 0.0], [-a, a, 0.0, 0.0], [0.0, a, 0.0, 0.0]]);
        // With auto-reset game 0 continues with an episode of return 4. Root mean square over all
        // steps: sqrt((4 * 2.5^2 + 2 * 2^2) / 12).
        let config = AdvantageConfig {
            estimator: CreditEstimator::Return,
            discount: 1.0,
            scale_rewards: AdvantageScale::Batch,
        };
        let scale = (33.0f32 / 12.0).sqrt();
        let (b, c) = (2.5 / scale, 2.0 / scale);
        check(&config, true, [[-b, b, 0.0, 0.0], [-b, b, 0.0, 0.0], [-c, c, 0.0, 0.0]]);
    }

    #[test]
    fn a_return_is_of_one_episode_alone() {
        let config = AdvantageConfig {
            estimator: CreditEstimator::Return,
            discount: 1.0,
            scale_rewards: AdvantageScale::None,
        };
        // Game 0: an episode of 1 + 2, then one of 4. Game 1: one of 0 + 0 + 8.
        check(&config, true, [[-2.5, 2.5, 0.0, 0.0], [-2.5, 2.5, 0.0, 0.0], [-2.0, 2.0, 0.0, 0.0]]);
    }

    #[test]
    fn members_with_the_same_total_need_not_be_alike() {
        // As in CartPole: a reward of 1 per step, whenever episodes end.
        let device = Device::flex();
        let trajectory = trajectory(&device);
        let trajectory = Trajectory { rewards: trajectory.rewards.ones_like(), ..trajectory };
        let mask = trajectory.mask(true);
        for estimator in [CreditEstimator::Return, CreditEstimator::RewardToGo] {
            let config =
                AdvantageConfig { estimator, discount: 1.0, scale_rewards: AdvantageScale::None };
            let zero_variance_fraction = |learn_steps| {
                let advantages = compute_advantages(&trajectory, &mask, 2, learn_steps, &config);
                let values = advantages.values.into_data();
                let learnt = values.iter::<f32>().any(|x| x != 0.0);
                assert!(learnt, "{estimator:?}: something is learnt");
                advantages.zero_variance_fraction.into_data().iter::<f32>().next()
            };
            assert_eq!(zero_variance_fraction(3), Some(0.5), "{estimator:?}");
            assert_eq!(zero_variance_fraction(1), Some(0.5), "{estimator:?}");
        }
    }
}
