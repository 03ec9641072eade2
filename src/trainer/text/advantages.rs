//! Group-relative advantages of completions, and the selection of tokens to learn from.

use super::scored::{ScoredCompletions, ScoredGroup};
use crate::learner::text::{Group, Sample};
use crate::settings::{AdvantageScale, Baseline, RewardConfig};
use crate::task::SCORE_TOLERANCE;
use crate::text::generate::Completion;
use std::collections::BTreeMap;

/// Added to the standard deviation, as in TRL.
const STD_EPSILON: f64 = 1e-4;

/// Computes the advantage of each completion over its group, by group. NaN marks a completion that could not be judged;
/// it is left out of its group's mean and deviation, and has advantage 0.
pub fn compute_advantages(rewards: &[Vec<f64>], scale: AdvantageScale) -> Vec<Vec<f32>> {
    let divisors = compute_divisors(rewards, scale);
    let group_advantages = |(rewards, divisor): (&Vec<f64>, f64)| {
        let all: Vec<usize> = (0..rewards.len()).collect();
        compute_group_advantages(rewards, &all, divisor).collect()
    };
    rewards.iter().zip(divisors).map(group_advantages).collect()
}

/// Computes the divisor of each group's advantages: a standard deviation, or 1.
fn compute_divisors(rewards: &[Vec<f64>], scale: AdvantageScale) -> Vec<f64> {
    // The sample standard deviation, as in TRL.
    let deviation = |values: &[f64]| {
        let values = drop_unjudged(values);
        let average = mean(values.iter().copied());
        let squares: f64 = values.iter().map(|x| (x - average) * (x - average)).sum();
        (squares / (values.len().max(2) - 1) as f64).sqrt() + STD_EPSILON
    };
    match scale {
        AdvantageScale::Group => rewards.iter().map(|group| deviation(group)).collect(),
        AdvantageScale::Batch => vec![deviation(&rewards.concat()); rewards.len()],
        AdvantageScale::None => vec![1.0; rewards.len()],
    }
}

/// Drops the rewards that are NaN.
fn drop_unjudged(rewards: &[f64]) -> Vec<f64> {
    rewards.iter().copied().filter(|reward| !reward.is_nan()).collect()
}

/// Mean of some values; `None` if there are none.
pub fn mean_if_any(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), x| (count + 1.0, sum + x));
    (count > 0.0).then(|| sum / count)
}

/// Mean of some values; 0 if there are none.
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    mean_if_any(values).unwrap_or(0.0)
}

/// Computes the advantages of the completions `members` of a group over their mean, divided by `divisor`.
fn compute_group_advantages(
    rewards: &[f64],
    members: &[usize],
    divisor: f64,
) -> impl Iterator<Item = f32> {
    let rewards: Vec<f64> = members.iter().map(|member| rewards[*member]).collect();
    let average = mean(drop_unjudged(&rewards).into_iter());
    // Equal rewards differ by rounding at most.
    let are_equal = has_zero_variance(&rewards);
    let advantage = move |reward: f64| {
        if are_equal || reward.is_nan() { 0.0 } else { ((reward - average) / divisor) as f32 }
    };
    rewards.into_iter().map(advantage)
}

/// Computes the advantage of each token over the mean of the completions that share the tokens before it: GRPO at every
/// fork of the group's tree of completions. Tokens after a prefix of only one completion get 0.
fn compute_prefix_advantages(
    completions: &[Completion],
    rewards: &[f64],
    divisor: f64,
) -> Vec<Vec<f32>> {
    let mut values: Vec<Vec<f32>> =
        completions.iter().map(|completion| vec![0.0; completion.tokens.len()]).collect();
    // Lengths of prefixes, and the completions that share each.
    let mut prefixes = vec![(0, (0..completions.len()).collect::<Vec<_>>())];
    while let Some((length, members)) = prefixes.pop() {
        let mut branches = BTreeMap::<u32, Vec<usize>>::new();
        let advantages = compute_group_advantages(rewards, &members, divisor);
        for (member, value) in members.iter().zip(advantages) {
            if let Some(token) = completions[*member].tokens.get(length) {
                values[*member][length] = value;
                branches.entry(*token).or_default().push(*member);
            }
        }
        // All chose this token, so it gets no credit.
        if branches.len() == 1 && branches.values().all(|branch| branch.len() == members.len()) {
            members.iter().for_each(|member| values[*member][length] = 0.0);
        }
        let shared = branches.into_values().filter(|branch| branch.len() > 1);
        prefixes.extend(shared.map(|branch| (length + 1, branch)));
    }
    values
}

/// Whether all judged completions of a group have the same reward.
pub fn has_zero_variance(rewards: &[f64]) -> bool {
    let rewards = drop_unjudged(rewards);
    rewards.iter().all(|reward| (reward - rewards[0]).abs() < SCORE_TOLERANCE)
}

/// Length penalty of a completion of `tokens` tokens: 0 up to `limit - buffer` tokens, or up to none if the buffer is
/// larger, rising to 1 at `limit` (overlong reward shaping, Yu et al. 2025, DAPO).
pub fn overlong_penalty(tokens: usize, limit: usize, buffer: usize) -> f64 {
    let buffer = buffer.min(limit);
    let free = limit - buffer;
    if buffer == 0 || tokens <= free { 0.0 } else { (tokens - free) as f64 / buffer as f64 }
}

/// Quantile `q` of some values, interpolated like `torch.quantile`; 0 if there are none.
fn quantile(mut values: Vec<f32>, q: f64) -> f64 {
    values.sort_unstable_by(f32::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let position = q * last as f64;
    let [low, high] = [position.floor(), position.ceil()].map(|at| f64::from(values[at as usize]));
    low + (position - position.floor()) * (high - low)
}

/// Converts completions and their advantages to the learner's groups.
pub fn to_learner_groups(
    scored: &ScoredCompletions,
    advantages: &[Vec<f32>],
    config: &RewardConfig,
) -> Vec<Group> {
    let min_entropy = min_learnt_entropy(scored, config);
    let sample = |(completion, advantages): (&Completion, Vec<f32>)| Sample {
        tokens: completion.tokens.clone(),
        logprobs: completion.logprobs.clone(),
        entropies: completion.entropies.clone(),
        candidates: completion.candidates.clone(),
        advantages,
        mask: vec![is_counted(completion, config); completion.tokens.len()],
        selected: min_entropy.map_or(Vec::new(), |min_entropy| {
            completion.entropies.iter().map(|entropy| f64::from(*entropy) >= min_entropy).collect()
        }),
    };
    let learner_group = |(group, advantages): (&ScoredGroup, Vec<Vec<f32>>)| Group {
        prompt: group.tokens.clone(),
        samples: group.completions.iter().zip(advantages).map(sample).collect(),
    };
    let token_advantages = compute_token_advantages(scored, advantages, config);
    scored.groups.iter().zip(token_advantages).map(learner_group).collect()
}

/// Whether the tokens of a completion count in the loss.
fn is_counted(completion: &Completion, config: &RewardConfig) -> bool {
    completion.has_stopped || !config.mask_truncated_completions
}

/// The entropy below which a token is not learnt from; `None` if all are.
fn min_learnt_entropy(scored: &ScoredCompletions, config: &RewardConfig) -> Option<f64> {
    (config.top_entropy_quantile < 1.0).then(|| {
        let counted = scored.completions().filter(|completion| is_counted(completion, config));
        quantile(
            counted.flat_map(|completion| &completion.entropies).copied().collect(),
            1.0 - config.top_entropy_quantile,
        )
    })
}

/// Computes the advantages of the tokens of each completion, by group, from those of the completions or, with
/// [`Baseline::Prefix`], from the rewards.
fn compute_token_advantages(
    scored: &ScoredCompletions,
    advantages: &[Vec<f32>],
    config: &RewardConfig,
) -> Vec<Vec<Vec<f32>>> {
    match config.baseline {
        Baseline::Group => {
            let repeat = |(completion, advantage): (&Completion, &f32)| {
                vec![*advantage; completion.tokens.len()]
            };
            let groups = scored.groups.iter().zip(advantages);
            groups
                .map(|(group, advantages)| {
                    group.completions.iter().zip(advantages).map(repeat).collect()
                })
                .collect()
        }
        Baseline::Prefix => {
            let divisors = compute_divisors(&scored.learnt_rewards(), config.scale_rewards);
            let compute_group = |(group, divisor): (&ScoredGroup, f64)| {
                compute_prefix_advantages(&group.completions, &group.learnt_rewards, divisor)
            };
            scored.groups.iter().zip(divisors).map(compute_group).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantages_are_relative_to_the_group() {
        let rewards = [vec![1.0, 0.0, 0.0, 1.0], vec![0.3; 4]];
        let own = compute_advantages(&rewards, AdvantageScale::Group);
        let deviation = (1.0f64 / 3.0).sqrt() + 1e-4;
        assert!((f64::from(own[0][0]) - 0.5 / deviation).abs() < 1e-6, "{own:?}");
        assert_eq!(own[1], [0.0; 4]);
        assert_eq!(compute_advantages(&rewards, AdvantageScale::None)[0], [0.5, -0.5, -0.5, 0.5]);
    }

    #[test]
    fn rewards_that_were_not_judged_leave_the_others_as_they_are() {
        let alone = compute_advantages(&[vec![1.0, 0.0, 0.5], vec![0.3; 2]], AdvantageScale::Group);
        let nan = f64::NAN;
        let with = compute_advantages(
            &[vec![1.0, nan, 0.0, 0.5, nan], vec![nan, 0.3, 0.3]],
            AdvantageScale::Group,
        );
        assert_eq!(with[0], [alone[0][0], 0.0, alone[0][1], alone[0][2], 0.0]);
        assert_eq!(with[1], [0.0; 3]);
        let none = compute_advantages(&[vec![nan; 4]], AdvantageScale::Batch);
        assert!(
            none[0] == [0.0; 4]
                && has_zero_variance(&[nan, 1.0])
                && !has_zero_variance(&[nan, 1.0, 0.0])
        );
    }

    #[test]
    fn length_costs_nothing_until_the_buffer_begins() {
        assert_eq!([10, 15, 20].map(|tokens| overlong_penalty(tokens, 20, 10)), [0.0, 0.5, 1.0]);
        assert_eq!(overlong_penalty(20, 20, 0), 0.0);
        assert_eq!([0, 5, 20].map(|tokens| overlong_penalty(tokens, 20, 80)), [0.0, 0.25, 1.0]);
    }

    #[test]
    fn quantiles_are_those_of_torch() {
        // torch.quantile(torch.tensor([4., 1., 2., 7., 3.]), q).
        let values = vec![4.0, 1.0, 2.0, 7.0, 3.0];
        for (q, want) in [(0.0, 1.0), (0.3, 2.2), (0.5, 3.0), (0.9, 5.8), (1.0, 7.0)] {
            assert!((quantile(values.clone(), q) - want).abs() < 1e-12, "{q}");
        }
        assert_eq!(quantile(Vec::new(), 0.5), 0.0);
    }

    #[test]
    fn tokens_of_low_entropy_and_texts_that_were_cut_off_can_be_left_out() {
        let completion = |has_stopped| Completion {
            tokens: vec![1, 2, 3, 4],
            logprobs: vec![-1.0; 4],
            // Entropies of a completion that is left out do not move the threshold.
            entropies: if has_stopped { vec![0.1, 0.9, 0.2, 0.8] } else { vec![2.0; 4] },
            has_stopped,
            ..Completion::default()
        };
        let config = RewardConfig {
            mask_truncated_completions: true,
            top_entropy_quantile: 0.5,
            ..RewardConfig::default()
        };
        let group = ScoredGroup {
            completions: vec![completion(true), completion(false)],
            ..ScoredGroup::with_lengths(&[4, 4], Vec::new(), &[1.0, 0.0])
        };
        let scored = ScoredCompletions { groups: vec![group], ..ScoredCompletions::default() };
        let groups = to_learner_groups(&scored, &[vec![1.0, -1.0]], &config);
        assert_eq!(groups[0].samples[0].mask, [true; 4]);
        assert_eq!(groups[0].samples[0].selected, [false, true, false, true]);
        assert_eq!(groups[0].samples[1].mask, [false; 4]);
    }

    #[test]
    fn at_a_fork_a_token_is_compared_with_those_that_came_as_far() {
        let completion =
            |tokens: &[u32]| Completion { tokens: tokens.to_vec(), ..Completion::default() };
        let all = [&[1, 2, 3][..], &[1, 2, 4], &[1, 5, 3], &[1, 2], &[6, 2]].map(completion);
        let rewards = [1.0, 0.0, 0.25, 0.5, 0.75];
        let values = compute_prefix_advantages(&all, &rewards, 0.5);
        // All five: 0.5 in the mean. Four that begin with 1: 0.4375. Three that continue with 2: 0.5, of which one
        // ends.
        assert_eq!(values[0], [1.0, 1.125, 1.0]);
        assert_eq!(values[1], [-1.0, -0.875, -1.0]);
        assert_eq!(values[2], [-0.5, -0.375, 0.0], "alone from its third token on");
        assert_eq!(values[3], [0.0, 0.125]);
        assert_eq!(values[4], [0.5, 0.0]);
        let alike = compute_prefix_advantages(
            &[completion(&[1, 2]), completion(&[1, 2])],
            &[1.0, 0.0],
            0.5,
        );
        assert_eq!(alike, [[0.0; 2]; 2], "who goes the same way makes no choice");
    }
}
