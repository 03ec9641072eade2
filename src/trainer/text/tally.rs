//! Running statistics of a language model's evaluation, which processes a few prompts at a time.

use super::advantages::ROUNDING;
use super::scored::ScoredCompletions;
use crate::metrics::{EvaluationRecord, TextEvaluation};
use crate::task::RewardPart;
use std::ops::RangeInclusive;

/// A running mean.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    fn add_flag(&mut self, flag: bool) {
        self.add(f64::from(u8::from(flag)));
    }

    /// The mean; `None` without values.
    fn value(self) -> Option<f64> {
        (self.count > 0.0).then_some(self.sum / self.count)
    }
}

/// Statistics of an evaluation so far.
pub(super) struct EvaluationTally<'a> {
    /// Parts of a reward, with their weights.
    parts: &'a [RewardPart],
    /// Number of completions of each prompt.
    completions_per_prompt: usize,
    /// Number of prompts.
    episodes: usize,
    /// Number of completions that the verifier could not judge.
    problems: usize,
    length: Mean,
    truncated: Mean,
    /// Mean of each reward part, unweighted.
    rewards: Vec<Mean>,
    score: Mean,
    /// Lowest and highest score.
    score_range: Option<RangeInclusive<f64>>,
    /// Whether no part of a reward is beyond its usual scale of 0 to 1.
    is_highest_known: bool,
    pass_at_1: Mean,
    pass_at_k: Mean,
    /// Mean score of each prompt that has a judged completion.
    prompt_scores: Vec<f64>,
}

impl<'a> EvaluationTally<'a> {
    /// Creates empty statistics for these parts of a reward.
    pub fn new(parts: &'a [RewardPart]) -> Self {
        Self {
            parts,
            completions_per_prompt: 0,
            episodes: 0,
            problems: 0,
            length: Mean::default(),
            truncated: Mean::default(),
            rewards: vec![Mean::default(); parts.len()],
            score: Mean::default(),
            score_range: None,
            is_highest_known: true,
            pass_at_1: Mean::default(),
            pass_at_k: Mean::default(),
            prompt_scores: Vec::new(),
        }
    }

    /// Adds the completions of further prompts.
    pub fn add(&mut self, scored: &ScoredCompletions) {
        self.problems += scored.problems().count();
        for one in scored.completions() {
            self.length.add(one.tokens.len() as f64);
            self.truncated.add_flag(!one.ended);
        }
        for group in &scored.groups {
            if self.episodes == 0 {
                self.completions_per_prompt = group.rewards.len();
            }
            self.episodes += 1;
            let (mut prompt_score, mut has_passed) = (Mean::default(), false);
            for rewards in group.judged() {
                let score = rewards.total(self.parts);
                let highest = rewards.highest_score(self.parts);
                let passes = score >= highest - ROUNDING;
                self.is_highest_known &= rewards.is_within_scale(self.parts);
                has_passed |= passes;
                prompt_score.add(score);
                self.score.add(score);
                self.pass_at_1.add_flag(passes);
                let range = self.score_range.get_or_insert(score..=score);
                *range = range.start().min(score)..=range.end().max(score);
                for (i, mean) in self.rewards.iter_mut().enumerate() {
                    if let Some(reward) = rewards.part(i) {
                        mean.add(reward);
                    }
                }
            }
            if let Some(score) = prompt_score.value() {
                self.prompt_scores.push(score);
                self.pass_at_k.add_flag(has_passed);
            }
        }
    }

    /// Standard error of the mean score. Completions of one prompt are not independent, so the variance is that of the
    /// prompts' means.
    fn std_error(&self, mean_score: f64) -> f64 {
        let prompts = self.prompt_scores.len() as f64;
        let squares: f64 = self.prompt_scores.iter().map(|mean| (mean - mean_score).powi(2)).sum();
        if prompts > 1.0 { (squares / (prompts - 1.0) / prompts).sqrt() } else { 0.0 }
    }

    /// Creates the record, from the scores of the judged completions.
    pub fn record(self) -> EvaluationRecord {
        let mean_score = self.score.value();
        let std_error = mean_score.map(|mean_score| self.std_error(mean_score));
        let (min_score, max_score) = self.score_range.map(RangeInclusive::into_inner).unzip();
        let means = self.parts.iter().zip(&self.rewards);
        let judged = means.filter_map(|(part, mean)| Some((part.name.clone(), mean.value()?)));
        EvaluationRecord {
            episodes: self.episodes,
            mean_score,
            std_error,
            min_score,
            max_score,
            mean_length: self.length.value().unwrap_or(0.0),
            held_out: None,
            text: Some(TextEvaluation {
                k: self.completions_per_prompt,
                pass_at_1: self.pass_at_1.value().filter(|_| self.is_highest_known),
                pass_at_k: self.pass_at_k.value().filter(|_| self.is_highest_known),
                problems: self.problems,
                rewards: judged.collect(),
                truncated: self.truncated.value().unwrap_or(0.0),
            }),
        }
    }
}
