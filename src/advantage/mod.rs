//! Group-relative advantages: how much better an action's outcome was than the group's mean.

#[cfg(feature = "kernels")]
mod kernels;
mod native;

#[cfg(feature = "kernels")]
pub use kernels::judge;
pub use native::HostAdvantages;

use crate::config::{AdvantageConfig, Estimator, Scale};
use crate::data::Trajectory;
use burn::tensor::Tensor;

/// Added to a standard deviation before it divides, as in TRL.
const STD_EPSILON: f32 = 1e-4;

/// Advantages of a trajectory.
#[derive(Clone, Debug)]
pub struct Advantages {
    /// Of each step, 0 where the step does not count: `[learn_steps, num_envs]`.
    pub values: Tensor<2>,
    /// 1 where a step counts: `[learn_steps, num_envs]`.
    pub mask: Tensor<2>,
    /// Share of the groups whose members all got the same: from these nothing is learnt. `[1]`.
    pub zero_variance: Tensor<1>,
}

/// The advantages of the first `learn_steps` steps of `trajectory`, whose groups are `group_size`
/// neighbouring games; `mask`, `[num_steps, num_envs]`, is 1 where a step counts.
///
/// The baseline of a step is the mean over the group's members, for reward-to-go at the same step; a
/// member whose steps no longer count adds 0 to it, since it earns nothing more.
///
/// # Panics
/// If the number of games is not a multiple of `group_size`.
pub fn advantages(
    trajectory: &Trajectory,
    mask: &Tensor<2>,
    group_size: usize,
    learn_steps: usize,
    config: &AdvantageConfig,
) -> Advantages {
    let [_, num_envs, _] = trajectory.dims();
    assert_eq!(num_envs % group_size, 0, "groups must be whole");
    let num_groups = num_envs / group_size;
    let rewards = trajectory.rewards.clone() * mask.clone();
    let totals = rewards.clone().sum_dim(0);
    let credits = match config.estimator {
        Estimator::Return => totals.clone().repeat_dim(0, learn_steps),
        Estimator::RewardToGo => rewards_to_go(rewards, &trajectory.ends, config.discount)
            .slice([0..learn_steps, 0..num_envs]),
    };
    let mask = mask.clone().slice([0..learn_steps, 0..num_envs]);
    let credits = credits.reshape([learn_steps, num_groups, group_size]);
    let centred = credits.clone() - credits.mean_dim(2);
    let scaled = match config.scale_rewards {
        Scale::None => centred,
        Scale::Group => {
            let variance = centred.clone().square().sum_dim(2) / (group_size as f32 - 1.0);
            centred / (variance.sqrt() + STD_EPSILON)
        }
        Scale::Batch => {
            let counted = mask.clone().reshape([learn_steps, num_groups, group_size]);
            let steps = counted.clone().sum().reshape([1, 1, 1]);
            let squares = (centred.clone().square() * counted).sum().reshape([1, 1, 1]);
            centred / ((squares / steps).sqrt() + STD_EPSILON)
        }
    };
    let totals = totals.reshape([num_groups, group_size]);
    let spread = totals.clone().max_dim(1) - totals.min_dim(1);
    Advantages {
        values: scaled.reshape([learn_steps, num_envs]) * mask.clone(),
        mask,
        zero_variance: spread.lower_equal_elem(0.0).float().mean().reshape([1]),
    }
}

/// `g[t] = rewards[t] + discount * (1 - ends[t]) * g[t + 1]`: `[num_steps, num_envs]`.
fn rewards_to_go(rewards: Tensor<2>, ends: &Tensor<2>, discount: f64) -> Tensor<2> {
    let [num_steps, num_envs] = rewards.dims();
    let going_on = (ends.clone().neg() + 1.0) * discount;
    let row = |tensor: &Tensor<2>, t: usize| tensor.clone().slice([t..t + 1, 0..num_envs]);
    let mut rows = Vec::with_capacity(num_steps);
    let mut credit = Tensor::zeros([1, num_envs], &rewards.device());
    for t in (0..num_steps).rev() {
        credit = row(&rewards, t) + row(&going_on, t) * credit;
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
            ends: Tensor::from_floats(
                [[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
                device,
            ),
            scores: zeros(),
            memory: None,
        }
    }

    fn check(config: AdvantageConfig, auto_reset: bool, expected: [[f32; 4]; 3]) {
        let device = Device::flex();
        let trajectory = trajectory(&device);
        let mask = trajectory.mask(auto_reset);
        let advantages = advantages(&trajectory, &mask, 2, 3, &config);
        let expected = Tensor::<2>::from_floats(expected, &device).into_data();
        let tolerance = Tolerance::<f32>::absolute(1e-3);
        advantages.values.into_data().assert_approx_eq(&expected, tolerance);
        assert_eq!(advantages.zero_variance.into_data().try_into_vec::<f32>().unwrap(), [0.5]);
    }

    #[test]
    fn reward_to_go_stops_at_the_end_of_an_episode() {
        let config = AdvantageConfig {
            estimator: Estimator::RewardToGo,
            discount: 0.5,
            scale_rewards: Scale::None,
        };
        // Rewards to go: game 0: 2, 2, 4; game 1: 2, 4, 8; games 2 and 3 alike.
        check(
            config.clone(),
            true,
            [[0.0, 0.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0], [-2.0, 2.0, 0.0, 0.0]],
        );
        // Without auto-reset game 0's last step does not count, and earns nothing: 8 / 2 = 4.
        check(config, false, [[0.0, 0.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]]);
    }

    #[test]
    fn returns_are_scaled_by_the_group_or_the_batch() {
        let mut config = AdvantageConfig {
            estimator: Estimator::Return,
            discount: 1.0,
            scale_rewards: Scale::Group,
        };
        // Totals 7 and 8: centred -0.5 and 0.5; sample standard deviation sqrt(0.5).
        let a = 0.5f32.sqrt();
        check(config.clone(), true, [[-a, a, 0.0, 0.0]; 3]);
        // Root mean square over all steps: 0.5 / sqrt(2).
        let b = 2.0f32.sqrt();
        config.scale_rewards = Scale::Batch;
        check(config, true, [[-b, b, 0.0, 0.0]; 3]);
    }
}
