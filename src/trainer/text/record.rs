//! Records of an iteration and of a completion of a language model.

use super::advantages::{has_zero_variance, mean, mean_if_any};
use super::scored::{ScoredCompletions, ScoredGroup};
use crate::learner::text::LanguageMeans;
use crate::metrics::{IterationRecord, LanguageRecord};
use crate::task::{RewardPart, Rewards};
use crate::text::LanguageModel;
use crate::trainer::engine::write_means;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// A completion, as recorded in `completions.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionRecord {
    /// Iteration, counted from 1.
    pub iteration: u32,
    /// Index of its group within the iteration.
    pub group: usize,
    /// Text of the prompt.
    pub prompt: String,
    /// Text of the completion.
    pub completion: String,
    /// Text of each token, without the token that ended the completion; left out if all tokens are single characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<String>,
    /// Log-probability of each token.
    pub logprobs: Vec<f32>,
    /// Weighted sum of its reward parts; `None` if the verifier could not judge it.
    pub score: Option<f64>,
    /// Reward that is learnt from: the score minus the length penalty; `None` if the verifier could not judge it.
    pub reward: Option<f64>,
    /// Each reward part, unweighted, without those that do not apply; empty if the verifier could not judge it.
    pub rewards: BTreeMap<String, f64>,
    /// Highest possible score; left out if all parts apply, since it is the same for all completions then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highest_score: Option<f64>,
    /// Advantage of its reward within the group; with `reward.baseline=prefix` its tokens have others.
    pub advantage: f32,
    /// Whether it was cut off by the limit on its tokens.
    pub is_truncated: bool,
    /// Reason why the verifier could not judge it; `None` if it could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Fraction of the values that are true; 0 if there are none.
fn fraction_true(values: impl Iterator<Item = bool>) -> f64 {
    mean(values.map(|value| f64::from(u8::from(value))))
}

/// Mean of each reward part over the judged completions that it applies to, unweighted; without parts that apply to
/// none.
fn mean_rewards_by_part(scored: &ScoredCompletions, parts: &[RewardPart]) -> BTreeMap<String, f64> {
    let mean_reward = |(i, part): (usize, &RewardPart)| {
        let rewards = scored.judged_rewards().filter_map(|rewards| rewards.part(i));
        Some((part.name.clone(), mean_if_any(rewards)?))
    };
    parts.iter().enumerate().filter_map(mean_reward).collect()
}

/// The rewards of a completion by part, without those that do not apply; none if it was not judged.
fn rewards_by_part(rewards: &Rewards, parts: &[RewardPart]) -> BTreeMap<String, f64> {
    let judged = parts.iter().enumerate().filter(|_| rewards.problem.is_none());
    judged.filter_map(|(i, part)| Some((part.name.clone(), rewards.part(i)?))).collect()
}

/// Creates the record of an SFT iteration, before the update.
pub(super) fn new_sft_record() -> IterationRecord {
    let text = LanguageRecord { is_sft: true, ..LanguageRecord::default() };
    IterationRecord { text: Some(text), ..IterationRecord::default() }
}

/// Creates the record of a GRPO iteration with these completions, before the update.
pub(super) fn new_grpo_record(scored: &ScoredCompletions, parts: &[RewardPart]) -> IterationRecord {
    let completions = || scored.completions();
    let num_tokens = scored.num_tokens() + scored.num_dropped_tokens;
    let distinct_fraction = |group: &ScoredGroup| {
        group.texts.iter().collect::<HashSet<_>>().len() as f64 / group.texts.len() as f64
    };
    let rewards = scored.groups.iter().flat_map(|group| &group.learnt_rewards);
    let judged = completions().zip(rewards).filter(|(_, reward)| !reward.is_nan());
    let (judged_tokens, reward_sum) = judged
        .fold((0, 0.0), |(tokens, sum), (completion, reward)| {
            (tokens + completion.tokens.len(), sum + reward)
        });
    let highest_scores = scored.judged_rewards().map(|rewards| rewards.highest_score(parts));
    let text = LanguageRecord {
        is_sft: false,
        highest_score: mean_if_any(highest_scores),
        rewards: mean_rewards_by_part(scored, parts),
        num_unjudged: scored.problems().count(),
        first_problem: scored.problems().next().cloned(),
        num_resampled_groups: scored.num_dropped_groups,
        completion_length: mean(completions().map(|completion| completion.tokens.len() as f64)),
        truncated_fraction: fraction_true(
            completions().map(|completion| !completion.is_terminated),
        ),
        distinct_fraction: mean(scored.groups.iter().map(distinct_fraction)),
        num_tokens: num_tokens as u64,
        sampling_entropy: mean(completions().flat_map(|it| &it.entropies).map(|x| f64::from(*x))),
        ..LanguageRecord::default()
    };
    let have_zero_variance =
        scored.groups.iter().map(|group| has_zero_variance(&group.learnt_rewards));
    IterationRecord {
        score: mean_if_any(scored.judged_rewards().map(|rewards| rewards.score(parts))),
        episodes: completions().count() as u64,
        mean_reward: reward_sum / judged_tokens.max(1) as f64,
        zero_variance_fraction: fraction_true(have_zero_variance),
        text: Some(text),
        ..IterationRecord::default()
    }
}

/// Writes the means of a language model's update to the record of its iteration.
pub(super) fn write_language_means(record: &mut IterationRecord, means: &LanguageMeans) {
    let mut update = means.update.without_approx_kl();
    if let Some(text) = record.text.as_mut().filter(|text| !text.is_sft) {
        text.first_ratio_distance = means.first_ratio_distance;
        update = means.update;
        if means.counted_tokens == 0.0 {
            // No token counts in the update, so the entropy is that of all which were drawn.
            update.entropy = text.sampling_entropy;
        }
    }
    write_means(record, update);
}

impl CompletionRecord {
    /// Creates the records of all completions of an iteration, group by group.
    pub(super) fn from_iteration(
        iteration: u32,
        scored: &ScoredCompletions,
        advantages: &[Vec<f32>],
        parts: &[RewardPart],
        model: &LanguageModel,
    ) -> Vec<Self> {
        let mut records = Vec::new();
        for (index, (group, advantages)) in scored.groups.iter().zip(advantages).enumerate() {
            for (i, completion) in group.completions.iter().enumerate() {
                let rewards = &group.rewards[i];
                let reward = Some(group.learnt_rewards[i]).filter(|reward| !reward.is_nan());
                records.push(Self {
                    iteration,
                    group: index,
                    prompt: group.prompt.text.clone(),
                    completion: group.texts[i].clone(),
                    tokens: model.decode_pieces(&completion.tokens),
                    logprobs: completion.logprobs.clone(),
                    score: reward.map(|_| rewards.score(parts)),
                    reward,
                    rewards: rewards_by_part(rewards, parts),
                    highest_score: (!rewards.not_applicable.is_empty())
                        .then(|| rewards.highest_score(parts)),
                    advantage: advantages[i],
                    is_truncated: !completion.is_terminated,
                    problem: rewards.problem.clone(),
                });
            }
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_apply_to_a_completion_are_in_no_mean() {
        let parts = [RewardPart::new("math", 1.0), RewardPart::new("code", 1.0)];
        let rewards = [[Some(1.0), None], [None, Some(1.0)]].map(|it| Rewards::from_options(&it));
        let group = ScoredGroup::with_lengths(&[1, 1], rewards.to_vec(), &[1.0; 2]);
        let scored = ScoredCompletions { groups: vec![group], ..ScoredCompletions::default() };
        let text = new_grpo_record(&scored, &parts).text.unwrap();
        assert_eq!((text.rewards["math"], text.rewards["code"]), (1.0, 1.0));
        assert_eq!(text.highest_score, Some(1.0));
    }

    #[test]
    fn completions_that_were_not_judged_have_no_part_in_means() {
        let parts = [RewardPart::new("exact", 0.5), RewardPart::new("form", 0.5)];
        let unjudged = || Rewards::unjudged(2, "late".to_string());
        let rewards = |exact: f64| Rewards::new(vec![exact, 1.0]);
        let groups = vec![
            ScoredGroup::with_lengths(&[2, 7], vec![rewards(1.0), unjudged()], &[0.75, f64::NAN]),
            ScoredGroup::with_lengths(&[4, 4], vec![rewards(0.0), rewards(1.0)], &[0.25, 0.75]),
        ];
        let mut scored = ScoredCompletions { groups, ..ScoredCompletions::default() };
        let record = new_grpo_record(&scored, &parts);
        assert!((record.score.unwrap() - 2.5 / 3.0).abs() < 1e-12, "{record:?}");
        assert!((record.mean_reward - 1.75 / 10.0).abs() < 1e-12, "{record:?}");
        let text = record.text.unwrap();
        assert_eq!((text.num_unjudged, text.rewards["form"], record.episodes), (1, 1.0, 4));
        scored.groups.iter_mut().for_each(|group| group.rewards = vec![unjudged(), unjudged()]);
        let record = new_grpo_record(&scored, &parts);
        assert_eq!((record.score, record.text.unwrap().rewards.len()), (None, 0));
        assert_eq!(rewards_by_part(&unjudged(), &parts).len(), 0);
        assert_eq!(rewards_by_part(&rewards(0.0), &parts)["exact"], 0.0);
    }
}
