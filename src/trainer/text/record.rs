//! Records of an iteration, an evaluation and a completion of a language model.

use super::advantages;
use super::answers::Answers;
use crate::learner::text::{Group, LanguageMeans};
use crate::metrics::{EvaluationRecord, IterationRecord, TextEvaluation, TextRecord};
use crate::task::{Part, Rewards};
use crate::text::LanguageModel;
use crate::trainer::engine::record_means;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// A completion, as `completions.jsonl` keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The sum of its weighted reward parts.
    pub reward: f64,
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

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), x| (count + 1.0, sum + x));
    if count == 0.0 { 0.0 } else { sum / count }
}

fn share(values: impl Iterator<Item = bool>) -> f64 {
    mean(values.map(|value| f64::from(u8::from(value))))
}

/// The mean of each part of some rewards, without its weight.
fn by_part(rewards: &[Vec<Rewards>], parts: &[Part]) -> BTreeMap<String, f64> {
    let of = |i: usize| mean(rewards.iter().flatten().map(|rewards| rewards.parts[i]));
    parts.iter().enumerate().map(|(i, part)| (part.name.clone(), of(i))).collect()
}

/// The record of an iteration of SFT, before the update.
pub(super) fn sft() -> IterationRecord {
    let text = TextRecord { fit: true, ..TextRecord::default() };
    IterationRecord { text: Some(text), ..IterationRecord::default() }
}

/// The record of an iteration of GRPO with these completions, before the update.
pub(super) fn grpo(answers: &Answers, parts: &[Part]) -> IterationRecord {
    let all = || answers.completions.iter().flatten();
    let kept: usize = all().map(|one| one.tokens.len()).sum();
    let tokens = kept + answers.dropped.1;
    let distinct = |texts: &Vec<String>| {
        texts.iter().collect::<HashSet<_>>().len() as f64 / texts.len() as f64
    };
    let rewards = || answers.rewards.iter().flatten();
    let text = TextRecord {
        fit: false,
        rewards: by_part(&answers.rewards, parts),
        problems: rewards().filter(|rewards| rewards.problem.is_some()).count(),
        problem: rewards().find_map(|rewards| rewards.problem.clone()),
        resampled: answers.dropped.0,
        completion_length: mean(all().map(|one| one.tokens.len() as f64)),
        truncated: share(all().map(|one| !one.ended)),
        distinct: mean(answers.texts.iter().map(distinct)),
        tokens: tokens as u64,
        sampling_entropy: mean(all().flat_map(|one| &one.entropies).map(|x| f64::from(*x))),
        ..TextRecord::default()
    };
    IterationRecord {
        score: Some(mean(rewards().map(|rewards| rewards.total(parts)))),
        episodes: all().count() as u64,
        mean_reward: answers.totals.iter().flatten().sum::<f64>() / kept.max(1) as f64,
        zero_variance_groups: share(answers.judged().iter().map(|one| advantages::is_even(one))),
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

/// The record of an evaluation with these completions.
pub(super) fn evaluation(answers: &Answers, parts: &[Part]) -> EvaluationRecord {
    let best: f64 = parts.iter().map(|part| part.weight.max(0.0)).sum();
    let rewards = || answers.rewards.iter().flatten();
    let scores = || rewards().map(|rewards| rewards.total(parts));
    let passes = |rewards: &Rewards| rewards.total(parts) >= best - 1e-9;
    let prompts = answers.rewards.len() as f64;
    let mean_score = mean(scores());
    // Completions of one prompt are not independent, so that the prompts' means are what varies.
    let of_prompt =
        |group: &Vec<Rewards>| mean(group.iter().map(|rewards| rewards.total(parts))) - mean_score;
    let squares: f64 = answers.rewards.iter().map(|group| of_prompt(group).powi(2)).sum();
    EvaluationRecord {
        episodes: answers.prompts.len(),
        mean_score,
        std_error: if prompts > 1.0 { (squares / (prompts - 1.0) / prompts).sqrt() } else { 0.0 },
        min_score: scores().reduce(f64::min).unwrap_or(0.0),
        max_score: scores().reduce(f64::max).unwrap_or(0.0),
        mean_length: mean(answers.completions.iter().flatten().map(|one| one.tokens.len() as f64)),
        held_out: None,
        text: Some(TextEvaluation {
            k: answers.rewards.first().map_or(0, Vec::len),
            pass_at_1: share(rewards().map(passes)),
            pass_at_k: share(answers.rewards.iter().map(|group| group.iter().any(passes))),
            rewards: by_part(&answers.rewards, parts),
            truncated: share(answers.completions.iter().flatten().map(|one| !one.ended)),
        }),
    }
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
        for (group, prompt) in answers.prompts.iter().enumerate() {
            for (i, one) in answers.completions[group].iter().enumerate() {
                let rewards = &answers.rewards[group][i];
                all.push(Self {
                    iteration,
                    group,
                    prompt: prompt.text.clone(),
                    completion: answers.texts[group][i].clone(),
                    tokens: model.pieces(&one.tokens),
                    logprobs: one.logprobs.clone(),
                    reward: answers.totals[group][i],
                    rewards: named(&rewards.parts),
                    advantage: advantages[group][i],
                    truncated: !one.ended,
                    problem: rewards.problem.clone(),
                });
            }
        }
        all
    }
}
