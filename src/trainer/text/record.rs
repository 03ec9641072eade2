//! Records of an iteration and a completion of a language model.

use super::advantages::{self, mean};
use super::answers::{Answers, ScoredGroup};
use crate::learner::text::{Group, LanguageMeans};
use crate::metrics::{IterationRecord, TextRecord};
use crate::task::Part;
use crate::text::LanguageModel;
use crate::trainer::engine::record_means;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// A completion, as `completions.jsonl` keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionRecord {
    /// Number of the iteration, from 1.
    pub iteration: u32,
    /// The number of its group in the iteration.
    pub group: usize,
    /// The text of the prompt.
    pub prompt: String,
    /// The text of the completion.
    pub completion: String,
    /// The text of each of its tokens; left out where they are single characters. The one that ended it has
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<String>,
    /// The log-probability of each of its tokens.
    pub logprobs: Vec<f32>,
    /// The sum of its weighted reward parts; `None` if the verifier could not judge it.
    #[serde(default)]
    pub score: Option<f64>,
    /// The reward that is learnt from: its score less the penalty for its length; `None` if the verifier could not
    /// judge it.
    pub reward: Option<f64>,
    /// Each part, without its weight.
    pub rewards: BTreeMap<String, f64>,
    /// The group-relative advantage.
    pub advantage: f32,
    /// Whether it was cut off.
    pub truncated: bool,
    /// The reason why the verifier could not score it, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

fn share(values: impl Iterator<Item = bool>) -> f64 {
    mean(values.map(|value| f64::from(u8::from(value))))
}

/// The mean of each part of the rewards that were judged, without its weight; empty if none was.
fn by_part(answers: &Answers, parts: &[Part]) -> BTreeMap<String, f64> {
    if answers.judged().next().is_none() {
        return BTreeMap::new();
    }
    let of = |i: usize| mean(answers.judged().map(|rewards| rewards.parts[i]));
    parts.iter().enumerate().map(|(i, part)| (part.name.clone(), of(i))).collect()
}

/// The record of an iteration of SFT, before the update.
pub(super) fn sft() -> IterationRecord {
    let text = TextRecord { fit: true, ..TextRecord::default() };
    IterationRecord { text: Some(text), ..IterationRecord::default() }
}

/// The record of an iteration of GRPO with these completions, before the update.
pub(super) fn grpo(answers: &Answers, parts: &[Part]) -> IterationRecord {
    let all = || answers.completions();
    let kept: usize = all().map(|one| one.tokens.len()).sum();
    let tokens = kept + answers.dropped.1;
    let distinct = |group: &ScoredGroup| {
        group.texts.iter().collect::<HashSet<_>>().len() as f64 / group.texts.len() as f64
    };
    // Of completions that were judged: their tokens and their rewards.
    let totals = answers.groups.iter().flat_map(|group| &group.totals);
    let learnt = all().zip(totals).filter(|(_, reward)| !reward.is_nan());
    let (judged_tokens, reward) = learnt
        .fold((0, 0.0), |(tokens, sum), (one, reward)| (tokens + one.tokens.len(), sum + reward));
    let text = TextRecord {
        fit: false,
        rewards: by_part(answers, parts),
        problems: answers.problems().count(),
        problem: answers.problems().next().cloned(),
        resampled: answers.dropped.0,
        completion_length: mean(all().map(|one| one.tokens.len() as f64)),
        truncated: share(all().map(|one| !one.ended)),
        distinct: mean(answers.groups.iter().map(distinct)),
        tokens: tokens as u64,
        sampling_entropy: mean(all().flat_map(|one| &one.entropies).map(|x| f64::from(*x))),
        ..TextRecord::default()
    };
    let even = answers.groups.iter().map(|group| advantages::is_even(&group.totals));
    IterationRecord {
        score: answers
            .judged()
            .next()
            .map(|_| mean(answers.judged().map(|rewards| rewards.total(parts)))),
        episodes: all().count() as u64,
        mean_reward: reward / judged_tokens.max(1) as f64,
        zero_variance_groups: share(even),
        text: Some(text),
        ..IterationRecord::default()
    }
}

/// Tokens of the completions that are learnt from.
pub(super) fn tokens(groups: &[Group]) -> u64 {
    let samples = groups.iter().flat_map(|group| &group.samples);
    samples.map(|sample| sample.tokens.len() as u64).sum()
}

/// Adds the means of an update to the record of its iteration.
pub(super) fn add_means(record: &mut IterationRecord, means: &LanguageMeans) {
    let mut update = means.update.off_policy();
    if let Some(text) = record.text.as_mut().filter(|text| !text.fit) {
        text.first_ratio_distance = means.first_ratio;
        update = means.update;
        if means.tokens == 0.0 {
            // No group was evaluated again: the policy is still the one that generated.
            update.entropy = text.sampling_entropy;
        }
    }
    record_means(record, update);
}

impl CompletionRecord {
    /// The records of all completions of an iteration, group by group.
    pub(super) fn all(
        answers: &Answers,
        advantages: &[Vec<f32>],
        (parts, model): (&[Part], &LanguageModel),
        iteration: u32,
    ) -> Vec<Self> {
        let named = |values: &[f64]| {
            parts.iter().zip(values).map(|(part, value)| (part.name.clone(), *value)).collect()
        };
        let mut all = Vec::new();
        for (number, (group, advantages)) in answers.groups.iter().zip(advantages).enumerate() {
            for (i, one) in group.completions.iter().enumerate() {
                let rewards = &group.rewards[i];
                let reward = Some(group.totals[i]).filter(|reward| !reward.is_nan());
                all.push(Self {
                    iteration,
                    group: number,
                    prompt: group.prompt.text.clone(),
                    completion: group.texts[i].clone(),
                    tokens: model.pieces(&one.tokens),
                    logprobs: one.logprobs.clone(),
                    score: reward.map(|_| rewards.total(parts)),
                    reward,
                    rewards: named(&rewards.parts),
                    advantage: advantages[i],
                    truncated: !one.ended,
                    problem: rewards.problem.clone(),
                });
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::*;
    use crate::metrics::EvaluationRecord;
    use crate::task::{Prompt, Rewards};
    use crate::text::generate::Completion;

    #[test]
    fn completions_that_were_not_judged_have_no_part_in_means() {
        let parts = [Part::new("exact", 0.5), Part::new("form", 0.5)];
        let unknown = || Rewards::unknown(2, "late".to_string());
        let rewards = |exact: f64| Rewards::new(vec![exact, 1.0]);
        let completion = |count: usize| Completion {
            tokens: vec![1; count],
            logprobs: vec![-1.0; count],
            entropies: vec![0.5; count],
            ended: true,
            ..Completion::default()
        };
        let group =
            |completions: Vec<Completion>, rewards: Vec<Rewards>, totals: [f64; 2]| ScoredGroup {
                prompt: Prompt::new(String::new(), String::new(), Default::default()),
                tokens: vec![1],
                completions,
                texts: vec!["a".to_string(); 2],
                rewards,
                totals: totals.to_vec(),
            };
        let first = vec![completion(2), completion(7)];
        let mut answers = Answers {
            groups: vec![
                group(first, vec![rewards(1.0), unknown()], [0.75, f64::NAN]),
                group(vec![completion(4); 2], vec![rewards(0.0), rewards(1.0)], [0.25, 0.75]),
            ],
            dropped: (0, 0),
        };
        let record = grpo(&answers, &parts);
        assert!((record.score.unwrap() - 2.5 / 3.0).abs() < 1e-12, "{record:?}");
        assert!((record.mean_reward - 1.75 / 10.0).abs() < 1e-12, "{record:?}");
        let text = record.text.unwrap();
        assert_eq!((text.problems, text.rewards["form"], record.episodes), (1, 1.0, 4));
        let evaluation = |blocks: &[&[ScoredGroup]]| -> EvaluationRecord {
            let mut tally = Tally::new(&parts);
            for groups in blocks {
                tally.add(&Answers { groups: groups.to_vec(), ..Answers::default() });
            }
            tally.record()
        };
        let found = evaluation(&[&answers.groups[..]]);
        let (first, second) = answers.groups.split_at(1);
        assert_eq!(evaluation(&[first, second]), found, "block by block");
        assert!((found.mean_score - 2.5 / 3.0).abs() < 1e-12 && found.min_score == 0.5);
        let text = found.text.unwrap();
        assert!((text.pass_at_1 - 2.0 / 3.0).abs() < 1e-12, "{text:?}");
        assert_eq!((text.problems, text.pass_at_k), (1, 1.0));
        for group in &mut answers.groups {
            group.rewards = vec![unknown(), unknown()];
        }
        let record = grpo(&answers, &parts);
        assert_eq!((record.score, record.text.unwrap().rewards.len()), (None, 0));
        let found = evaluation(&[&answers.groups[..]]);
        assert_eq!((found.value(), found.text.unwrap().rewards.len()), (None, 0));
    }
}
