//! Accumulated statistics of a language model's evaluation, which processes a few prompts at a time.

use super::scored::ScoredCompletions;
use crate::metrics::{EvaluationRecord, TextEvaluation};
use crate::task::RewardPart;

/// A running mean; 0 without values.
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

    fn value(self) -> f64 {
        if self.count == 0.0 { 0.0 } else { self.sum / self.count }
    }
}

/// Statistics of an evaluation so far.
pub(super) struct Tally<'a> {
    /// Parts of a reward, with their weights.
    parts: &'a [RewardPart],
    /// Number of completions of each prompt.
    k: usize,
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
    ends: Option<[f64; 2]>,
    pass_at_1: Mean,
    pass_at_k: Mean,
    /// Mean score of each prompt that has a judged completion.
    prompts: Vec<f64>,
}

impl<'a> Tally<'a> {
    /// Creates empty statistics for these parts of a reward.
    pub fn new(parts: &'a [RewardPart]) -> Self {
        Self {
            parts,
            k: 0,
            episodes: 0,
            problems: 0,
            length: Mean::default(),
            truncated: Mean::default(),
            rewards: vec![Mean::default(); parts.len()],
            score: Mean::default(),
            ends: None,
            pass_at_1: Mean::default(),
            pass_at_k: Mean::default(),
            prompts: Vec::new(),
        }
    }

    /// Adds the completions of further prompts.
    pub fn add(&mut self, answers: &ScoredCompletions) {
        let best = RewardPart::highest_score(self.parts);
        self.problems += answers.problems().count();
        for one in answers.completions() {
            self.length.add(one.tokens.len() as f64);
            self.truncated.add_flag(!one.ended);
        }
        for group in &answers.groups {
            if self.episodes == 0 {
                self.k = group.rewards.len();
            }
            self.episodes += 1;
            let (mut own, mut has_passed) = (Mean::default(), false);
            for rewards in group.judged() {
                let score = rewards.total(self.parts);
                let passes = score >= best - 1e-9;
                has_passed |= passes;
                own.add(score);
                self.score.add(score);
                self.pass_at_1.add_flag(passes);
                let [low, high] = self.ends.unwrap_or([score; 2]);
                self.ends = Some([low.min(score), high.max(score)]);
                for (mean, part) in self.rewards.iter_mut().zip(&rewards.parts) {
                    mean.add(*part);
                }
            }
            if own.count > 0.0 {
                self.prompts.push(own.value());
                self.pass_at_k.add_flag(has_passed);
            }
        }
    }

    /// Creates the record, from the scores of the judged completions.
    pub fn record(self) -> EvaluationRecord {
        let (mean_score, prompts) = (self.score.value(), self.prompts.len() as f64);
        // Completions of one prompt are not independent, so the variance is that of the prompts' means.
        let squares: f64 = self.prompts.iter().map(|mean| (mean - mean_score).powi(2)).sum();
        let [min_score, max_score] = self.ends.unwrap_or_default();
        let judged = self.parts.iter().zip(&self.rewards).filter(|(_, mean)| mean.count > 0.0);
        EvaluationRecord {
            episodes: self.episodes,
            mean_score,
            std_error: if prompts > 1.0 {
                (squares / (prompts - 1.0) / prompts).sqrt()
            } else {
                0.0
            },
            min_score,
            max_score,
            mean_length: self.length.value(),
            held_out: None,
            text: Some(TextEvaluation {
                k: self.k,
                pass_at_1: self.pass_at_1.value(),
                pass_at_k: self.pass_at_k.value(),
                problems: self.problems,
                rewards: judged.map(|(part, mean)| (part.name.clone(), mean.value())).collect(),
                truncated: self.truncated.value(),
            }),
        }
    }
}
