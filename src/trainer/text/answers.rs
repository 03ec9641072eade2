//! Scored completions of an iteration's prompts.

use crate::task::{Prompt, Rewards};
use crate::text::generate::Completion;

/// Prompts with the completions of each; all lists are in the same order.
#[derive(Default)]
pub(super) struct Answers {
    pub prompts: Vec<Prompt>,
    /// The tokens of each prompt.
    pub tokens: Vec<Vec<u32>>,
    pub completions: Vec<Vec<Completion>>,
    /// The text of each completion.
    pub texts: Vec<Vec<String>>,
    pub rewards: Vec<Vec<Rewards>>,
    /// The reward of each completion, its length penalty included.
    pub totals: Vec<Vec<f64>>,
    /// Groups that were not kept, and the tokens of their completions.
    pub dropped: (usize, usize),
}

fn retain<T>(all: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    all.retain(|_| *kept.next().unwrap_or(&false));
}

impl Answers {
    /// The reward of each completion, or NaN if the verifier could not judge it.
    pub fn judged(&self) -> Vec<Vec<f64>> {
        let one = |(total, rewards): (&f64, &Rewards)| match rewards.problem {
            None => *total,
            Some(_) => f64::NAN,
        };
        let group = |(totals, rewards): (&Vec<f64>, &Vec<Rewards>)| {
            totals.iter().zip(rewards).map(one).collect()
        };
        self.totals.iter().zip(&self.rewards).map(group).collect()
    }

    /// Keeps the groups whose [judged](Self::judged) rewards are wanted.
    pub fn keep(&mut self, wanted: impl Fn(&[f64]) -> bool) {
        let kept: Vec<bool> = self.judged().iter().map(|rewards| wanted(rewards)).collect();
        for (group, _) in self.completions.iter().zip(&kept).filter(|(_, kept)| !**kept) {
            self.dropped.0 += 1;
            self.dropped.1 += group.iter().map(|one| one.tokens.len()).sum::<usize>();
        }
        retain(&mut self.prompts, &kept);
        retain(&mut self.tokens, &kept);
        retain(&mut self.completions, &kept);
        retain(&mut self.texts, &kept);
        retain(&mut self.rewards, &kept);
        retain(&mut self.totals, &kept);
    }

    /// Adds others.
    pub fn append(&mut self, mut more: Self) {
        self.prompts.append(&mut more.prompts);
        self.tokens.append(&mut more.tokens);
        self.completions.append(&mut more.completions);
        self.texts.append(&mut more.texts);
        self.rewards.append(&mut more.rewards);
        self.totals.append(&mut more.totals);
        self.dropped.0 += more.dropped.0;
        self.dropped.1 += more.dropped.1;
    }
}
