//! What an iteration of a language model did, as typed records.

use super::advantages;
use super::rollout::Answers;
use crate::learner::language::{Group, LanguageMeans};
use crate::metrics::Reduction;
use crate::model::language::LanguageModel;
use crate::task::{Part, Rewards};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// What one iteration did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LanguageRecord {
    /// Number of the iteration, from 1.
    pub iteration: u32,
    /// Whether it imitated solutions; there are no rewards then.
    pub fit: bool,
    /// Mean reward of a completion, all parts by their weights.
    pub reward: f64,
    /// Mean of each part of the reward, without its weight.
    pub rewards: BTreeMap<String, f64>,
    /// Completions of which the verifier knows nothing.
    pub problems: usize,
    /// Why it knows nothing of the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Groups whose members were all worth the same, and that others have replaced.
    #[serde(default)]
    pub resampled: usize,
    /// Share of the groups whose members are all worth the same: from these nothing is learnt.
    pub zero_variance_groups: f64,
    /// Mean tokens of a completion.
    pub completion_length: f64,
    /// Share of the completions that were cut off.
    pub truncated: f64,
    /// Share of a group's completions that are different texts, mean over the groups.
    pub distinct: f64,
    /// Tokens generated, those of replaced groups too.
    pub tokens: u64,
    /// Mean entropy of the policy that acted, nats.
    pub sampling_entropy: f64,
    /// Mean entropy of the policy that learns, nats, over the tokens learnt from.
    pub entropy: f64,
    /// The loss.
    pub loss: f64,
    /// Estimate of KL(policy that acted || policy in training).
    pub approx_kl: f64,
    /// Share of the tokens at which clipping took the gradient away.
    pub clip_fraction: f64,
    /// Estimate of KL(policy || reference).
    pub reference_kl: f64,
    /// Largest distance of a token's ratio from 1 in the first optimiser step: on the CPU 0, since acting and
    /// learning compute the same there.
    pub first_ratio_distance: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate of the last optimiser step.
    pub learning_rate: f64,
    /// Tokens generated a second.
    pub generated_per_second: f64,
    /// Completions' tokens learnt from a second.
    pub learnt_per_second: f64,
    /// Where the time went.
    pub seconds: LanguageSeconds,
    /// What the members told each other, where several share the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reduction>,
    /// A collapse that begins with this iteration, in words ([`Health`](super::Health)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// An evaluation with the greedy policy, where one was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<LanguageEvaluation>,
}

/// Seconds of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LanguageSeconds {
    /// All of it, evaluation and saving apart.
    pub total: f64,
    /// Making completions.
    pub generate: f64,
    /// Waiting for the verifier.
    pub verify: f64,
    /// Updating the policy.
    pub learn: f64,
}

/// How prompts that are not trained on are answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LanguageEvaluation {
    /// Prompts.
    pub prompts: usize,
    /// Mean reward of a completion.
    pub reward: f64,
    /// Share of the completions that could not be better.
    pub pass_at_1: f64,
    /// Completions of a prompt.
    pub k: usize,
    /// Share of the prompts one of whose completions could not be better.
    pub pass_at_k: f64,
    /// Mean of each part of the reward.
    pub rewards: BTreeMap<String, f64>,
    /// Share of the completions that were cut off.
    pub truncated: f64,
    /// The mean negative log-likelihood of a token of the solutions that are held out, nats, where the run
    /// imitates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll: Option<f64>,
}

/// A completion, as `completions.jsonl` keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionRecord {
    /// Number of the iteration, from 1.
    pub iteration: u32,
    /// The number of its group in the iteration.
    pub group: usize,
    /// What was asked.
    pub prompt: String,
    /// What was answered.
    pub completion: String,
    /// The text of each of its tokens; left out where they are single characters. The one that ended it has
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<String>,
    /// The log-probability of each of its tokens.
    pub logprobs: Vec<f32>,
    /// All parts of its reward by their weights.
    pub reward: f64,
    /// Each part, without its weight.
    pub rewards: BTreeMap<String, f64>,
    /// How much better than its group it was.
    pub advantage: f32,
    /// Whether it was cut off.
    pub truncated: bool,
    /// Why nothing is known of it, if so.
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

impl LanguageRecord {
    /// What there is to say before anything is learnt.
    pub(super) fn of(answers: &Answers, parts: &[Part], seconds: LanguageSeconds) -> Self {
        let all = || answers.completions.iter().flatten();
        let tokens: usize = all().map(|one| one.tokens.len()).sum();
        let tokens = tokens + answers.dropped.1;
        let distinct = |texts: &Vec<String>| {
            texts.iter().collect::<HashSet<_>>().len() as f64 / texts.len() as f64
        };
        let rewards = || answers.rewards.iter().flatten();
        Self {
            reward: mean(rewards().map(|rewards| rewards.total(parts))),
            rewards: by_part(&answers.rewards, parts),
            problems: rewards().filter(|rewards| rewards.problem.is_some()).count(),
            problem: rewards().find_map(|rewards| rewards.problem.clone()),
            resampled: answers.dropped.0,
            zero_variance_groups: share(answers.totals.iter().map(|one| advantages::is_even(one))),
            completion_length: mean(all().map(|one| one.tokens.len() as f64)),
            truncated: share(all().map(|one| !one.ended)),
            distinct: mean(answers.texts.iter().map(distinct)),
            tokens: tokens as u64,
            sampling_entropy: mean(all().flat_map(|one| &one.entropies).map(|x| f64::from(*x))),
            generated_per_second: tokens as f64 / seconds.generate.max(1e-9),
            seconds,
            ..Self::default()
        }
    }

    /// Adds what was learnt.
    pub(super) fn learnt(&mut self, groups: &[Group], iteration: u32, means: &LanguageMeans) {
        let samples = groups.iter().flat_map(|group| &group.samples);
        let tokens: usize = samples.map(|sample| sample.tokens.len()).sum();
        self.iteration = iteration;
        self.loss = means.loss;
        self.entropy = means.entropy;
        // Of solutions that are shown no policy of ours is the author.
        self.approx_kl = if self.fit { 0.0 } else { means.approx_kl };
        self.first_ratio_distance = if self.fit { 0.0 } else { means.first_ratio };
        self.clip_fraction = means.clip_fraction;
        self.reference_kl = means.reference_kl;
        self.grad_norm = means.grad_norm;
        self.learnt_per_second = tokens as f64 / self.seconds.learn.max(1e-9);
    }
}

impl LanguageEvaluation {
    pub(super) fn of(answers: &Answers, parts: &[Part]) -> Self {
        let best: f64 = parts.iter().map(|part| part.weight.max(0.0)).sum();
        let rewards = || answers.rewards.iter().flatten();
        let passes = |rewards: &Rewards| rewards.total(parts) >= best - 1e-9;
        Self {
            prompts: answers.prompts.len(),
            reward: mean(rewards().map(|rewards| rewards.total(parts))),
            pass_at_1: share(rewards().map(passes)),
            k: answers.rewards.first().map_or(0, Vec::len),
            pass_at_k: share(answers.rewards.iter().map(|group| group.iter().any(passes))),
            rewards: by_part(&answers.rewards, parts),
            truncated: share(answers.completions.iter().flatten().map(|one| !one.ended)),
            nll: None,
        }
    }
}

impl CompletionRecord {
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
