//! Scored completions of an iteration's prompts.

use crate::task::{Prompt, Rewards};
use crate::text::generate::Completion;

/// Scored completions, prompt by prompt.
#[derive(Default)]
pub(super) struct Answers {
    pub groups: Vec<ScoredGroup>,
    /// Groups that were not kept, and the tokens of their completions.
    pub dropped: (usize, usize),
}

/// A prompt with its scored completions; all lists are in the same order.
#[derive(Clone)]
pub(super) struct ScoredGroup {
    pub prompt: Prompt,
    /// The tokens of the prompt.
    pub tokens: Vec<u32>,
    pub completions: Vec<Completion>,
    /// The text of each completion.
    pub texts: Vec<String>,
    pub rewards: Vec<Rewards>,
    /// The reward of each completion, its length penalty included; NaN if the verifier could not judge it.
    pub totals: Vec<f64>,
}

impl ScoredGroup {
    /// The rewards that the verifier could judge.
    pub fn judged(&self) -> impl Iterator<Item = &Rewards> {
        self.rewards.iter().filter(|rewards| rewards.problem.is_none())
    }
}

impl Answers {
    /// All completions.
    pub fn completions(&self) -> impl Iterator<Item = &Completion> {
        self.groups.iter().flat_map(|group| &group.completions)
    }

    /// All rewards that the verifier could judge.
    pub fn judged(&self) -> impl Iterator<Item = &Rewards> {
        self.groups.iter().flat_map(ScoredGroup::judged)
    }

    /// The reasons for which the verifier could not judge a completion.
    pub fn problems(&self) -> impl Iterator<Item = &String> {
        self.groups.iter().flat_map(|group| &group.rewards).filter_map(|one| one.problem.as_ref())
    }

    /// The totals of each group.
    pub fn totals(&self) -> Vec<Vec<f64>> {
        self.groups.iter().map(|group| group.totals.clone()).collect()
    }

    /// Keeps the groups whose totals are wanted.
    pub fn keep(&mut self, wanted: impl Fn(&[f64]) -> bool) {
        for group in self.groups.extract_if(.., |group| !wanted(&group.totals)) {
            self.dropped.0 += 1;
            self.dropped.1 += group.completions.iter().map(|one| one.tokens.len()).sum::<usize>();
        }
    }

    /// Adds others.
    pub fn append(&mut self, mut more: Self) {
        self.groups.append(&mut more.groups);
        self.dropped.0 += more.dropped.0;
        self.dropped.1 += more.dropped.1;
    }
}
