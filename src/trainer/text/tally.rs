//! Running statistics of a language model's evaluation, which processes a few prompts at a time.

use super::scored::ScoredCompletions;
use crate::metrics::{EvaluationRecord, LanguageEvaluation};
use crate::rollout::std_error;
use crate::task::{RewardPart, SCORE_TOLERANCE};
use std::ops::RangeInclusive;

#[derive(Clone, Copy, Default)]
struct RunningMean {
    sum: f64,
    count: f64,
}

impl RunningMean {
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
#[derive(Default)]
pub(super) struct EvaluationTally<'a> {
    /// Parts of a reward, with their weights.
    parts: &'a [RewardPart],
    /// Number of completions of each prompt.
    completions_per_prompt: usize,
    /// Number of prompts.
    episodes: usize,
    /// Number of completions that the verifier could not judge.
    num_unjudged: usize,
    length: RunningMean,
    truncated_fraction: RunningMean,
    /// Mean of each reward part, unweighted.
    rewards: Vec<RunningMean>,
    score: RunningMean,
    /// Lowest and highest score.
    score_range: Option<RangeInclusive<f64>>,
    /// Whether a part of a reward is beyond its usual scale of 0 to 1, so that the highest score is not known.
    exceeds_scale: bool,
    pass_at_1: RunningMean,
    pass_at_k: RunningMean,
    /// Mean score of each prompt that has a judged completion.
    prompt_scores: Vec<f64>,
}

impl<'a> EvaluationTally<'a> {
    /// Creates empty statistics for these parts of a reward.
    pub fn new(parts: &'a [RewardPart]) -> Self {
        Self { parts, rewards: vec![RunningMean::default(); parts.len()], ..Self::default() }
    }

    /// Adds the completions of further prompts.
    pub fn add(&mut self, scored: &ScoredCompletions) {
        self.num_unjudged += scored.problems().count();
        for completion in scored.completions() {
            self.length.add(completion.tokens.len() as f64);
            self.truncated_fraction.add_flag(!completion.is_terminated);
        }
        for group in &scored.groups {
            if self.episodes == 0 {
                self.completions_per_prompt = group.rewards.len();
            }
            self.episodes += 1;
            let (mut prompt_score, mut has_passed) = (RunningMean::default(), false);
            for rewards in group.judged_rewards() {
                let score = rewards.score(self.parts);
                let highest = rewards.highest_score(self.parts);
                let passes = score >= highest - SCORE_TOLERANCE;
                self.exceeds_scale |= !rewards.is_within_scale(self.parts);
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

    /// Creates the record, from the scores of the judged completions.
    pub fn into_record(self) -> EvaluationRecord {
        let mean_score = self.score.value();
        // Completions of one prompt are not independent, so the variance is that of the prompts' means.
        let prompt_scores = self.prompt_scores.iter().copied();
        let std_error = mean_score.and_then(|mean_score| std_error(prompt_scores, mean_score));
        let (min_score, max_score) = self.score_range.map(RangeInclusive::into_inner).unzip();
        let parts = self.parts.iter().zip(&self.rewards);
        let means = parts.filter_map(|(part, mean)| Some((part.name.clone(), mean.value()?)));
        EvaluationRecord {
            episodes: self.episodes,
            mean_score,
            std_error,
            min_score,
            max_score,
            mean_length: self.length.value().unwrap_or(0.0),
            held_out: None,
            text: Some(LanguageEvaluation {
                completions_per_prompt: self.completions_per_prompt,
                pass_at_1: self.pass_at_1.value().filter(|_| !self.exceeds_scale),
                pass_at_k: self.pass_at_k.value().filter(|_| !self.exceeds_scale),
                num_unjudged: self.num_unjudged,
                rewards: means.collect(),
                truncated_fraction: self.truncated_fraction.value().unwrap_or(0.0),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Rewards;
    use crate::trainer::text::scored::ScoredGroup;

    /// The record of some groups, which are added block by block.
    fn evaluation(parts: &[RewardPart], blocks: &[&[ScoredGroup]]) -> EvaluationRecord {
        let mut tally = EvaluationTally::new(parts);
        for groups in blocks {
            let groups = groups.to_vec();
            tally.add(&ScoredCompletions { groups, ..ScoredCompletions::default() });
        }
        tally.into_record()
    }

    #[test]
    fn parts_that_do_not_apply_to_a_completion_are_in_no_mean() {
        let parts = [RewardPart::new("math", 1.0), RewardPart::new("code", 1.0)];
        let rewards = [[Some(1.0), None], [None, Some(1.0)]].map(|it| Rewards::from_options(&it));
        let group = ScoredGroup::with_lengths(&[1, 1], rewards.to_vec(), &[1.0; 2]);
        let text = evaluation(&parts, &[std::slice::from_ref(&group)]).text.unwrap();
        let means = (text.pass_at_1, text.rewards["math"], text.rewards["code"]);
        assert_eq!(means, (Some(1.0), 1.0, 1.0));
        let small = [RewardPart::new("math", 0.5), RewardPart::new("code", 0.25)];
        // The second has the highest total by a part that is beyond its own maximum.
        for rewards in [[1.0, 1.5], [0.0, 3.0]] {
            let mut above = group.clone();
            above.rewards[1].parts = rewards.to_vec();
            let unknown = evaluation(&small, &[&[above]]).text.unwrap();
            assert_eq!((unknown.pass_at_1, unknown.pass_at_k), (None, None));
        }
    }

    #[test]
    fn completions_that_were_not_judged_have_no_score() {
        let parts = [RewardPart::new("exact", 0.5), RewardPart::new("form", 0.5)];
        let unjudged = || Rewards::unjudged(2, "late".to_string());
        let rewards = |exact: f64| Rewards::new(vec![exact, 1.0]);
        let mut groups = [
            ScoredGroup::with_lengths(&[2, 7], vec![rewards(1.0), unjudged()], &[0.75, f64::NAN]),
            ScoredGroup::with_lengths(&[4, 4], vec![rewards(0.0), rewards(1.0)], &[0.25, 0.75]),
        ];
        let one = evaluation(&parts, &[&groups[..1]]);
        assert!(one.mean_score.is_some() && one.std_error.is_none(), "{one:?}");
        let found = evaluation(&parts, &[&groups]);
        assert!(found.std_error.is_some());
        assert_eq!(evaluation(&parts, &[&groups[..1], &groups[1..]]), found, "block by block");
        assert!((found.score().unwrap() - 2.5 / 3.0).abs() < 1e-12, "{found:?}");
        assert_eq!((found.min_score, found.warning()), (Some(0.5), None));
        let text = found.text.unwrap();
        assert!((text.pass_at_1.unwrap() - 2.0 / 3.0).abs() < 1e-12, "{text:?}");
        assert_eq!((text.num_unjudged, text.pass_at_k), (1, Some(1.0)));
        groups.iter_mut().for_each(|group| group.rewards = vec![unjudged(), unjudged()]);
        let found = evaluation(&parts, &[&groups]);
        let scores = [found.mean_score, found.std_error, found.min_score, found.max_score];
        assert_eq!((scores, found.score(), found.value()), ([None; 4], None, None));
        let warning = "no score: none of the 4 completions of held-out prompts could be scored";
        assert_eq!(found.warning().as_deref(), Some(warning));
        let json = serde_json::to_value(&found).unwrap();
        assert!(json.get("mean_score").is_none() && json.get("pass_at_1").is_none(), "{json}");
        assert_eq!(serde_json::from_value::<EvaluationRecord>(json).unwrap(), found);
        // Older records have a score of 0 instead.
        let older = EvaluationRecord { mean_score: Some(0.0), ..found.clone() };
        assert_eq!((older.score(), older.value()), (None, None));
        assert_eq!(found.text.unwrap().rewards.len(), 0);
    }
}
