//! What a completion's rewards say about its tokens: group-relative advantages, and which tokens count.

use super::rollout::Answers;
use super::settings::RewardConfig;
use crate::config::Scale;
use crate::learner::language::{Group, Sample};
use crate::rollout::generate::Completion;

/// Added to the standard deviation, as TRL does.
const STD_EPSILON: f64 = 1e-4;

/// How much better than its group each completion was, group by group.
pub fn advantages(rewards: &[Vec<f64>], scale: Scale) -> Vec<Vec<f32>> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let centred: Vec<Vec<f64>> = rewards
        .iter()
        .map(|group| {
            let mean = mean(group);
            group.iter().map(|reward| reward - mean).collect()
        })
        .collect();
    // TRL's, which counts one degree of freedom less.
    let deviation = |values: &[f64]| {
        let squares: f64 = values.iter().map(|x| x * x).sum();
        (squares / (values.len().max(2) - 1) as f64).sqrt() + STD_EPSILON
    };
    let all = rewards.concat();
    let mean_of_all = mean(&all);
    let batch = deviation(&all.iter().map(|reward| reward - mean_of_all).collect::<Vec<_>>());
    let scaled = centred.iter().map(|group| {
        let by = match scale {
            Scale::Group => deviation(group),
            Scale::Batch => batch,
            Scale::None => 1.0,
        };
        // Members that are alike differ by rounding at most.
        let alike = is_even(group);
        group.iter().map(|x| if alike { 0.0 } else { (x / by) as f32 }).collect()
    });
    scaled.collect()
}

/// Whether all members of a group are worth the same.
pub fn is_even(rewards: &[f64]) -> bool {
    rewards.iter().all(|reward| (reward - rewards[0]).abs() < 1e-9)
}

/// What a completion of so many tokens loses for its length: nothing up to `limit - buffer`, all at `limit`
/// (Yu et al. 2025).
pub fn overlong(tokens: usize, limit: usize, buffer: usize) -> f64 {
    let free = limit.saturating_sub(buffer);
    if buffer == 0 || tokens <= free { 0.0 } else { (tokens - free) as f64 / buffer as f64 }
}

/// The groups that are learnt from.
pub fn groups(answers: &Answers, advantages: &[Vec<f32>], config: &RewardConfig) -> Vec<Group> {
    let Answers { tokens: prompts, completions, .. } = answers;
    let mut entropies: Vec<f32> =
        completions.iter().flatten().flat_map(|one| &one.entropies).copied().collect();
    entropies.sort_unstable_by(f32::total_cmp);
    let least = match config.top_entropy_quantile < 1.0 {
        true => {
            let below = (1.0 - config.top_entropy_quantile) * entropies.len() as f64;
            entropies.get(below as usize).copied().unwrap_or(0.0)
        }
        false => f32::NEG_INFINITY,
    };
    let sample = |(one, advantage): (&Completion, &f32)| {
        let counts = one.ended || !config.mask_truncated_completions;
        Sample {
            tokens: one.tokens.clone(),
            logprobs: one.logprobs.clone(),
            advantage: *advantage,
            mask: one.entropies.iter().map(|entropy| counts && *entropy >= least).collect(),
        }
    };
    prompts
        .iter()
        .zip(completions.iter().zip(advantages))
        .map(|(prompt, (completions, advantages))| Group {
            prompt: prompt.clone(),
            samples: completions.iter().zip(advantages).map(sample).collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantages_are_relative_to_the_group() {
        let rewards = [vec![1.0, 0.0, 0.0, 1.0], vec![0.3; 4]];
        let own = advantages(&rewards, Scale::Group);
        let deviation = (1.0f64 / 3.0).sqrt() + 1e-4;
        assert!((f64::from(own[0][0]) - 0.5 / deviation).abs() < 1e-6, "{own:?}");
        assert_eq!(own[1], [0.0; 4]);
        assert_eq!(advantages(&rewards, Scale::None)[0], [0.5, -0.5, -0.5, 0.5]);
    }

    #[test]
    fn length_costs_nothing_until_the_buffer_begins() {
        assert_eq!([10, 15, 20].map(|tokens| overlong(tokens, 20, 10)), [0.0, 0.5, 1.0]);
        assert_eq!(overlong(20, 20, 0), 0.0);
    }

    #[test]
    fn tokens_of_low_entropy_and_texts_that_were_cut_off_can_be_left_out() {
        let completion = |ended| Completion {
            tokens: vec![1, 2, 3, 4],
            logprobs: vec![-1.0; 4],
            entropies: vec![0.1, 0.9, 0.2, 0.8],
            ended,
        };
        let config = RewardConfig {
            scale_rewards: Scale::Group,
            mask_truncated_completions: true,
            top_entropy_quantile: 0.5,
            overlong_buffer: 0,
            weights: String::new(),
        };
        let completions = vec![vec![completion(true), completion(false)]];
        let answers = Answers { tokens: vec![vec![7]], completions, ..Answers::default() };
        let groups = groups(&answers, &[vec![1.0, -1.0]], &config);
        assert_eq!(groups[0].samples[0].mask, [false, true, false, true]);
        assert_eq!(groups[0].samples[1].mask, [false; 4]);
    }
}
