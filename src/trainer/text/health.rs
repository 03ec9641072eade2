//! Detection of collapses of training, described in words when they begin.

use crate::metrics::{IterationRecord, TextRecord};
use crate::task::RewardPart;
use std::collections::VecDeque;

/// Maximum and minimum number of previous gradient norms that a new one is compared with.
const NORMS: [usize; 2] = [51, 8];
/// Multiples of the median norm above which a norm is reported, and below which the warning is armed again.
const NORM_SPIKE: [f64; 2] = [10.0, 3.0];
/// Entropies per token below which a policy hardly explores, and above which it does again, nats.
const ENTROPY: [f64; 2] = [0.01, 0.02];
/// Fraction of truncated completions, or of groups without variance, up to which a collapse counts as over.
const RECOVERED: f64 = 0.5;
/// Fraction of the highest score from which low entropy is not a problem.
const NEAR_BEST: f64 = 0.95;

/// A monitor of a run's records. It reports each problem when it begins, and again only after it ended in
/// between.
#[derive(Clone, Debug)]
pub struct Health {
    /// The highest score.
    best: f64,
    /// The last gradient norms.
    norms: VecDeque<f64>,
    /// Whether these norms are from SFT.
    fit: bool,
    /// Whether each kind of problem is currently present.
    present: [bool; 5],
}

impl Health {
    /// Creates a monitor for the start of a run whose rewards have these parts.
    pub fn new(parts: &[RewardPart]) -> Self {
        let best = RewardPart::highest_score(parts);
        Self { best, norms: VecDeque::new(), fit: true, present: [false; 5] }
    }

    /// Observes the record of the next iteration, and describes the problems that begin with it.
    pub fn observe(&mut self, record: &IterationRecord) -> Option<String> {
        let text = record.text.as_ref()?;
        if text.fit != self.fit {
            self.norms.clear();
        }
        self.fit = text.fit;
        let median = self.median();
        let times = record.grad_norm / median.unwrap_or(f64::INFINITY);
        if record.grad_norm > 0.0 {
            self.norms.push_back(record.grad_norm);
            self.norms.drain(..self.norms.len().saturating_sub(NORMS[0]));
        }
        // Solutions are neither truncated nor scored.
        let rewarded = !text.fit;
        let poor = rewarded && record.score.is_some_and(|score| score < NEAR_BEST * self.best);
        let even = record.zero_variance_groups;
        let TextRecord { truncated, sampling_entropy, problems, .. } = text;
        let signs = [
            (rewarded && *truncated >= 1.0, *truncated <= RECOVERED),
            (poor && even >= 1.0, even <= RECOVERED),
            (poor && *sampling_entropy < ENTROPY[0], *sampling_entropy > ENTROPY[1]),
            (times > NORM_SPIKE[0], times < NORM_SPIKE[1]),
            (*problems > 0, rewarded && *problems == 0),
        ];
        let mut words = Vec::new();
        for (i, (begins, is_over)) in signs.into_iter().enumerate() {
            if begins && !self.present[i] {
                words.push(describe(i, record.grad_norm, text, times));
            }
            self.present[i] = begins || (self.present[i] && !is_over);
        }
        (!words.is_empty()).then(|| words.join(" "))
    }

    /// Median of the last norms, if there are enough.
    fn median(&self) -> Option<f64> {
        let mut norms: Vec<f64> = self.norms.iter().copied().collect();
        norms.sort_unstable_by(f64::total_cmp);
        norms.get(norms.len() / 2).copied().filter(|_| norms.len() >= NORMS[1])
    }
}

/// Describes a problem in words.
fn describe(trouble: usize, grad_norm: f64, text: &TextRecord, times: f64) -> String {
    match trouble {
        0 => "Every completion is cut off before it ends: SFT first, a larger \
              generation.max_new_tokens or reward.overlong_buffer may help."
            .to_string(),
        1 => "In every group all completions have the same reward, so that nothing is learnt: easier \
              prompts, SFT first or a higher temperature may help."
            .to_string(),
        2 => format!(
            "The policy's entropy is down to {:.4} nats a token, so that it hardly explores: \
             loss.entropy_coef, a lower learning rate or a higher temperature may help.",
            text.sampling_entropy
        ),
        3 => format!(
            "The gradient's norm is {grad_norm:.3}, {times:.0} times its median: a lower learning rate or a \
             smaller update.max_grad_norm may help."
        ),
        _ => format!(
            "{} completions have no reward: {}.",
            text.problems,
            text.problem.as_deref().unwrap_or("the verifier gave no reason")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> TextRecord {
        TextRecord { truncated: 0.1, sampling_entropy: 1.0, ..TextRecord::default() }
    }

    fn record(text: TextRecord) -> IterationRecord {
        IterationRecord {
            score: Some(0.4),
            zero_variance_groups: 0.2,
            grad_norm: 0.5,
            text: Some(text),
            ..IterationRecord::default()
        }
    }

    /// A record by the severity of a trouble.
    type Trouble = fn(f64) -> IterationRecord;

    /// The words about each record.
    fn observed(records: &[IterationRecord]) -> Vec<Option<String>> {
        let mut health =
            Health::new(&[RewardPart::new("exact", 0.8), RewardPart::new("style", -1.0)]);
        records.iter().map(|record| health.observe(record)).collect()
    }

    #[test]
    fn a_trouble_is_named_when_it_begins_and_again_after_it_was_over() {
        let troubles: [(Trouble, &str); 3] = [
            (|x| record(TextRecord { truncated: x, ..healthy() }), "is cut off"),
            (
                |x| IterationRecord { zero_variance_groups: x, ..record(healthy()) },
                "nothing is learnt",
            ),
            (
                |x| record(TextRecord { sampling_entropy: 0.025 - 0.02 * x, ..healthy() }),
                "0.0050 nats",
            ),
        ];
        for (record, words) in troubles {
            let observed = observed(&[0.1, 1.0, 1.0, 0.7, 1.0, 0.2, 1.0].map(record));
            let named: Vec<usize> = (0..7).filter(|i| observed[*i].is_some()).collect();
            assert_eq!(named, [1, 6], "{observed:?}");
            assert!(observed[1].as_ref().unwrap().contains(words), "{observed:?}");
        }
    }

    #[test]
    fn a_policy_near_the_highest_score_may_be_certain() {
        let certain = TextRecord { sampling_entropy: 0.001, ..healthy() };
        let certain =
            IterationRecord { zero_variance_groups: 1.0, score: Some(0.79), ..record(certain) };
        assert_eq!(observed(std::slice::from_ref(&certain)), [None]);
        let wrong = IterationRecord { score: Some(0.2), ..certain };
        let words = observed(&[wrong])[0].clone().unwrap();
        assert!(words.contains("nothing is learnt") && words.contains("nats"), "{words}");
    }

    #[test]
    fn a_norm_far_above_the_usual_is_named_but_not_after_a_change_of_loss() {
        let of = |grad_norm: f64| IterationRecord { grad_norm, ..record(healthy()) };
        let fit = |grad_norm: f64| IterationRecord {
            grad_norm,
            ..record(TextRecord { fit: true, ..healthy() })
        };
        let mut records: Vec<_> = (0..10).map(|i| of(0.4 + 0.02 * f64::from(i))).collect();
        records.extend([of(0.0), of(4.0), of(7.0), of(8.0), of(0.5), of(6.0)]);
        let named = observed(&records);
        let at: Vec<usize> = (0..records.len()).filter(|i| named[*i].is_some()).collect();
        assert_eq!(at, [12, 15], "{named:?}");
        assert!(named[12].as_ref().unwrap().contains("is 7.000, 14 times"), "{named:?}");
        // Too few norms to know the usual one; and GRPO has others than SFT.
        assert_eq!(observed(&[of(0.1), of(9.0)]), [None, None]);
        let mut records = vec![fit(0.1); 20];
        records.push(of(9.0));
        assert_eq!(observed(&records).last(), Some(&None));
        records[20] = fit(9.0);
        assert!(observed(&records)[20].is_some());
    }

    #[test]
    fn an_error_of_the_verifier_is_quoted() {
        let text = TextRecord {
            problems: 3,
            problem: Some("the verifier reported: \"no\"".to_string()),
            ..healthy()
        };
        let words = observed(&[record(text)])[0].clone();
        let expected = "3 completions have no reward: the verifier reported: \"no\".";
        assert_eq!(words.as_deref(), Some(expected));
    }
}
