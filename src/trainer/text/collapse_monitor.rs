//! Detection of collapses of training, described in words when they begin.

use crate::metrics::{IterationRecord, LanguageRecord, pluralize};
use crate::task::RewardPart;
use std::collections::{BTreeSet, VecDeque};

/// Largest number of previous gradient norms that a new one is compared with.
const MAX_NORMS: usize = 51;
/// Number of previous norms below which a new one is not compared.
const MIN_NORMS: usize = 8;
/// Multiple of the median norm above which a norm is a spike.
const SPIKE_START_RATIO: f64 = 10.0;
/// Multiple of the median norm below which a spike is over.
const SPIKE_END_RATIO: f64 = 3.0;
/// Entropy per token below which a policy hardly explores, nats.
const LOW_ENTROPY: f64 = 0.01;
/// Entropy per token above which a policy explores again, nats.
const RECOVERED_ENTROPY: f64 = 0.02;
/// Fraction of truncated completions, or of groups without variance, up to which a collapse counts as over.
const RECOVERED_FRACTION: f64 = 0.5;
/// Fraction of the highest score from which low entropy is not a problem.
const NEAR_BEST_FRACTION: f64 = 0.95;

/// Ways in which the training of a language model stops making progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Collapse {
    /// No completion ends within the limit of tokens.
    AllTruncated,
    /// All completions of each group have the same reward.
    NoVariance,
    /// The policy samples the same completion almost always.
    LowEntropy,
    /// A gradient norm far above the usual ones.
    NormSpike,
    /// Completions that the verifier could not judge.
    Unjudged,
}

/// A monitor of a run's records for collapses. It reports each when it begins, and again only after it ended in
/// between.
#[derive(Clone, Debug)]
pub struct CollapseMonitor {
    parts: Vec<RewardPart>,
    /// The last gradient norms.
    norms: VecDeque<f64>,
    /// Whether these norms are from SFT.
    is_sft: bool,
    /// Collapses that are currently present.
    present_collapses: BTreeSet<Collapse>,
}

impl CollapseMonitor {
    /// Creates a monitor for the start of a run whose rewards have these parts.
    pub fn new(parts: &[RewardPart]) -> Self {
        let parts = parts.to_vec();
        Self { parts, norms: VecDeque::new(), is_sft: true, present_collapses: BTreeSet::new() }
    }

    /// Observes the record of the next iteration, and describes the collapses that begin with it.
    pub fn observe(&mut self, record: &IterationRecord) -> Option<String> {
        let text = record.text.as_ref()?;
        if text.is_sft != self.is_sft {
            self.norms.clear();
        }
        self.is_sft = text.is_sft;
        let median = self.median();
        let norm_ratio = record.grad_norm / median.unwrap_or(f64::INFINITY);
        if record.grad_norm > 0.0 {
            self.norms.push_back(record.grad_norm);
            self.norms.drain(..self.norms.len().saturating_sub(MAX_NORMS));
        }
        // Solutions are neither truncated nor scored.
        let is_rewarded = !text.is_sft;
        let best = text.highest_score.unwrap_or_else(|| RewardPart::highest_score(&self.parts));
        // Where rewards have another scale, the best is not known.
        let is_within_scale = |part: &RewardPart| {
            text.rewards.get(&*part.name).is_none_or(|mean| part.is_within_scale(*mean))
        };
        let is_best_known = self.parts.iter().all(is_within_scale);
        let is_poor = |score: f64| score < NEAR_BEST_FRACTION * best || !is_best_known;
        let has_poor_score = is_rewarded && record.score.is_some_and(is_poor);
        let zero_variance_fraction = record.zero_variance_fraction;
        let LanguageRecord { truncated_fraction, sampling_entropy, num_unjudged, .. } = text;
        let has_low_entropy = has_poor_score && *sampling_entropy < LOW_ENTROPY;
        let signs = [
            (
                Collapse::AllTruncated,
                is_rewarded && *truncated_fraction >= 1.0,
                *truncated_fraction <= RECOVERED_FRACTION,
            ),
            (
                Collapse::NoVariance,
                has_poor_score && zero_variance_fraction >= 1.0,
                zero_variance_fraction <= RECOVERED_FRACTION,
            ),
            (Collapse::LowEntropy, has_low_entropy, *sampling_entropy > RECOVERED_ENTROPY),
            (Collapse::NormSpike, norm_ratio > SPIKE_START_RATIO, norm_ratio < SPIKE_END_RATIO),
            (Collapse::Unjudged, *num_unjudged > 0, is_rewarded && *num_unjudged == 0),
        ];
        let mut descriptions = Vec::new();
        for (collapse, is_present, is_over) in signs {
            if is_present {
                if self.present_collapses.insert(collapse) {
                    descriptions.push(describe(collapse, record.grad_norm, text, norm_ratio));
                }
            } else if is_over {
                self.present_collapses.remove(&collapse);
            }
        }
        (!descriptions.is_empty()).then(|| descriptions.join(" "))
    }

    /// Median of the last norms, if there are enough.
    fn median(&self) -> Option<f64> {
        let mut norms: Vec<f64> = self.norms.iter().copied().collect();
        norms.sort_unstable_by(f64::total_cmp);
        norms.get(norms.len() / 2).copied().filter(|_| norms.len() >= MIN_NORMS)
    }
}

/// Describes a collapse, and what may help.
fn describe(collapse: Collapse, grad_norm: f64, text: &LanguageRecord, norm_ratio: f64) -> String {
    match collapse {
        Collapse::AllTruncated => "Every completion is cut off before it ends: SFT first, a larger \
              generation.max_new_tokens or reward.overlong_buffer may help."
            .to_string(),
        Collapse::NoVariance => "In every group all completions have the same reward, so that nothing is learnt: easier \
              prompts, SFT first or a higher temperature may help."
            .to_string(),
        Collapse::LowEntropy => format!(
            "The policy's entropy is down to {:.4} nats a token, so that it hardly explores: \
             loss.entropy_coef, a lower learning rate or a higher temperature may help.",
            text.sampling_entropy
        ),
        Collapse::NormSpike => format!(
            "The gradient's norm is {grad_norm:.3}, {norm_ratio:.0} times its median: a lower learning rate or a \
             smaller update.max_grad_norm may help."
        ),
        Collapse::Unjudged => format!(
            "{} {} no reward: {}.",
            pluralize(text.num_unjudged, "completion"),
            if text.num_unjudged == 1 { "has" } else { "have" },
            text.first_problem.as_deref().unwrap_or("the verifier gave no reason")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn healthy() -> LanguageRecord {
        LanguageRecord {
            truncated_fraction: 0.1,
            sampling_entropy: 1.0,
            ..LanguageRecord::default()
        }
    }

    fn record(text: LanguageRecord) -> IterationRecord {
        IterationRecord {
            score: Some(0.4),
            zero_variance_fraction: 0.2,
            grad_norm: 0.5,
            text: Some(text),
            ..IterationRecord::default()
        }
    }

    /// A record by how severe a collapse is, from 0 to 1.
    type BySeverity = fn(f64) -> IterationRecord;

    /// Observes some records and returns the words about each.
    fn observe_all(records: &[IterationRecord]) -> Vec<Option<String>> {
        let mut monitor =
            CollapseMonitor::new(&[RewardPart::new("exact", 0.8), RewardPart::new("style", -1.0)]);
        records.iter().map(|record| monitor.observe(record)).collect()
    }

    #[test]
    fn a_collapse_is_named_when_it_begins_and_again_after_it_was_over() {
        let collapses: [(BySeverity, &str); 3] = [
            (|x| record(LanguageRecord { truncated_fraction: x, ..healthy() }), "is cut off"),
            (
                |x| IterationRecord { zero_variance_fraction: x, ..record(healthy()) },
                "nothing is learnt",
            ),
            (
                |x| record(LanguageRecord { sampling_entropy: 0.025 - 0.02 * x, ..healthy() }),
                "0.0050 nats",
            ),
        ];
        for (record, words) in collapses {
            let observed = observe_all(&[0.1, 1.0, 1.0, 0.7, 1.0, 0.2, 1.0].map(record));
            let named: Vec<usize> = (0..7).filter(|i| observed[*i].is_some()).collect();
            assert_eq!(named, [1, 6], "{observed:?}");
            assert!(observed[1].as_ref().unwrap().contains(words), "{observed:?}");
        }
    }

    #[test]
    fn a_policy_near_the_highest_score_may_be_certain() {
        let certain = LanguageRecord { sampling_entropy: 0.001, ..healthy() };
        let certain =
            IterationRecord { zero_variance_fraction: 1.0, score: Some(0.79), ..record(certain) };
        assert_eq!(observe_all(std::slice::from_ref(&certain)), [None]);
        let wrong = IterationRecord { score: Some(0.2), ..certain };
        let words = observe_all(&[wrong])[0].clone().unwrap();
        assert!(words.contains("nothing is learnt") && words.contains("nats"), "{words}");
    }

    #[test]
    fn rewards_above_1_have_no_known_highest_score() {
        // A total that is the highest by chance, and one beyond.
        for rewards in [vec![("exact", 1.6), ("format", 0.0)], vec![("exact", 5.0)]] {
            let rewards: BTreeMap<String, f64> =
                rewards.into_iter().map(|(name, mean)| (name.to_string(), mean)).collect();
            let text = LanguageRecord { rewards, ..healthy() };
            let equal =
                IterationRecord { zero_variance_fraction: 1.0, score: Some(0.8), ..record(text) };
            let words = observe_all(&[equal])[0].clone().unwrap();
            assert!(words.contains("nothing is learnt"), "{words}");
        }
    }

    #[test]
    fn a_norm_far_above_the_usual_is_named_but_not_after_a_change_of_loss() {
        let with_norm = |grad_norm: f64| IterationRecord { grad_norm, ..record(healthy()) };
        let sft = |grad_norm: f64| IterationRecord {
            grad_norm,
            ..record(LanguageRecord { is_sft: true, ..healthy() })
        };
        let mut records: Vec<_> = (0..10).map(|i| with_norm(0.4 + 0.02 * f64::from(i))).collect();
        records.extend([
            with_norm(0.0),
            with_norm(4.0),
            with_norm(7.0),
            with_norm(8.0),
            with_norm(0.5),
            with_norm(6.0),
        ]);
        let named = observe_all(&records);
        let at: Vec<usize> = (0..records.len()).filter(|i| named[*i].is_some()).collect();
        assert_eq!(at, [12, 15], "{named:?}");
        assert!(named[12].as_ref().unwrap().contains("is 7.000, 14 times"), "{named:?}");
        // Too few norms to know the usual one; and GRPO has others than SFT.
        assert_eq!(observe_all(&[with_norm(0.1), with_norm(9.0)]), [None, None]);
        let mut records = vec![sft(0.1); 20];
        records.push(with_norm(9.0));
        assert_eq!(observe_all(&records).last(), Some(&None));
        records[20] = sft(9.0);
        assert!(observe_all(&records)[20].is_some());
    }

    #[test]
    fn an_error_of_the_verifier_is_quoted() {
        for (num_unjudged, begin) in [(1, "1 completion has"), (3, "3 completions have")] {
            let first_problem = Some("the verifier reported: \"no\"".to_string());
            let text = LanguageRecord { num_unjudged, first_problem, ..healthy() };
            let expected = format!("{begin} no reward: the verifier reported: \"no\".");
            assert_eq!(observe_all(&[record(text)]), [Some(expected)]);
        }
    }
}
