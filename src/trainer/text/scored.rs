//! Scored completions of an iteration's prompts.

use crate::task::{Prompt, Rewards};
use crate::text::generate::Completion;

/// Scored completions, by prompt.
#[derive(Default)]
pub(in crate::trainer) struct ScoredCompletions {
    pub groups: Vec<ScoredGroup>,
    /// Number of discarded groups.
    pub num_dropped_groups: usize,
    /// Number of tokens in the completions of discarded groups.
    pub num_dropped_tokens: usize,
    /// Seconds that this rank spent on them.
    pub seconds: RolloutSeconds,
}

/// Seconds spent in a rollout.
#[derive(Clone, Copy, Default)]
pub(in crate::trainer) struct RolloutSeconds {
    /// Generation of completions.
    pub generation: f64,
    /// Verification by the task after generation has ended.
    pub verification: f64,
}

/// A prompt with its scored completions; all lists are in the same order.
#[derive(Clone)]
pub(in crate::trainer) struct ScoredGroup {
    pub prompt: Prompt,
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    pub completions: Vec<Completion>,
    /// Text of each completion.
    pub texts: Vec<String>,
    pub rewards: Vec<Rewards>,
    /// Reward of each completion that is learnt from: the score minus the length penalty; NaN if the verifier could not
    /// judge it.
    pub learnt_rewards: Vec<f64>,
}

impl ScoredGroup {
    /// Rewards that the verifier could judge.
    pub fn judged_rewards(&self) -> impl Iterator<Item = &Rewards> {
        self.rewards.iter().filter(|rewards| rewards.problem.is_none())
    }
}

impl ScoredCompletions {
    /// All completions.
    pub fn completions(&self) -> impl Iterator<Item = &Completion> {
        self.groups.iter().flat_map(|group| &group.completions)
    }

    /// Number of tokens of all completions.
    pub fn num_tokens(&self) -> usize {
        self.completions().map(|completion| completion.tokens.len()).sum()
    }

    /// Rewards that the verifier could judge.
    pub fn judged_rewards(&self) -> impl Iterator<Item = &Rewards> {
        self.groups.iter().flat_map(ScoredGroup::judged_rewards)
    }

    /// Reasons why the verifier could not judge a completion.
    pub fn problems(&self) -> impl Iterator<Item = &String> {
        self.groups.iter().flat_map(|group| &group.rewards).filter_map(|it| it.problem.as_ref())
    }

    /// The rewards that are learnt from, by group.
    pub fn learnt_rewards(&self) -> Vec<Vec<f64>> {
        self.groups.iter().map(|group| group.learnt_rewards.clone()).collect()
    }

    /// Discards the groups whose learnt rewards do not satisfy `is_wanted`, and counts them.
    pub fn retain_groups(&mut self, is_wanted: impl Fn(&[f64]) -> bool) {
        for group in self.groups.extract_if(.., |group| !is_wanted(&group.learnt_rewards)) {
            self.num_dropped_groups += 1;
            let lengths = group.completions.iter().map(|completion| completion.tokens.len());
            self.num_dropped_tokens += lengths.sum::<usize>();
        }
    }

    /// Appends further groups.
    pub fn append(&mut self, mut more: Self) {
        self.groups.append(&mut more.groups);
        self.num_dropped_groups += more.num_dropped_groups;
        self.num_dropped_tokens += more.num_dropped_tokens;
        self.seconds.generation += more.seconds.generation;
        self.seconds.verification += more.seconds.verification;
    }
}

#[cfg(test)]
impl ScoredGroup {
    /// Completions of these lengths in tokens, which have ended.
    pub fn with_lengths(lengths: &[usize], rewards: Vec<Rewards>, learnt_rewards: &[f64]) -> Self {
        let completion = |length: &usize| Completion {
            tokens: vec![1; *length],
            logprobs: vec![-1.0; *length],
            entropies: vec![0.5; *length],
            is_terminated: true,
            ..Completion::default()
        };
        Self {
            prompt: Prompt::default(),
            tokens: vec![1],
            completions: lengths.iter().map(completion).collect(),
            texts: vec!["a".to_string(); lengths.len()],
            rewards,
            learnt_rewards: learnt_rewards.to_vec(),
        }
    }
}
