//! A collapse, in words when it begins.

use super::LanguageRecord;
use crate::task::Part;
use std::collections::VecDeque;

/// Norms of gradients that a new one is compared with, at most and at least.
const NORMS: [usize; 2] = [51, 8];
/// How many times the median a norm is that is named, and from which on it is usual again.
const SPIKE: [f64; 2] = [10.0, 3.0];
/// The entropy below which a policy hardly tries anything, and above which it does again; nats a token.
const ENTROPY: [f64; 2] = [0.01, 0.02];
/// The share of completions cut off, or of groups without variance, from which on a collapse is over.
const OVER: f64 = 0.5;
/// The share of the greatest reward from which on a policy may be sure of what it does.
const GOOD: f64 = 0.95;

/// What goes wrong in a run. Each trouble is named once, and again only after it was over.
#[derive(Clone, Debug)]
pub struct Health {
    /// The greatest reward.
    best: f64,
    /// Norms of the last gradients.
    norms: VecDeque<f64>,
    /// Whether these are of imitation.
    fit: bool,
    /// Which troubles are under way.
    under_way: [bool; 5],
}

impl Health {
    /// Of a run at its start, whose rewards have these parts.
    pub fn new(parts: &[Part]) -> Self {
        let best = parts.iter().map(|part| part.weight.max(0.0)).sum();
        Self { best, norms: VecDeque::new(), fit: true, under_way: [false; 5] }
    }

    /// Looks at the next iteration, and names what begins with it.
    pub fn see(&mut self, record: &LanguageRecord) -> Option<String> {
        if record.fit != self.fit {
            self.norms.clear();
        }
        self.fit = record.fit;
        let median = self.median();
        let times = record.grad_norm / median.unwrap_or(f64::INFINITY);
        if record.grad_norm > 0.0 {
            self.norms.push_back(record.grad_norm);
            self.norms.drain(..self.norms.len().saturating_sub(NORMS[0]));
        }
        // Solutions that are imitated are neither cut off nor worth anything.
        let rewarded = !record.fit;
        let poor = rewarded && record.reward < GOOD * self.best;
        let LanguageRecord { truncated, zero_variance_groups, sampling_entropy, .. } = record;
        let signs = [
            (rewarded && *truncated >= 1.0, *truncated <= OVER),
            (poor && *zero_variance_groups >= 1.0, *zero_variance_groups <= OVER),
            (poor && *sampling_entropy < ENTROPY[0], *sampling_entropy > ENTROPY[1]),
            (times > SPIKE[0], times < SPIKE[1]),
            (record.problems > 0, rewarded && record.problems == 0),
        ];
        let mut words = Vec::new();
        for (i, (begins, is_over)) in signs.into_iter().enumerate() {
            if begins && !self.under_way[i] {
                words.push(say(i, record, times));
            }
            self.under_way[i] = begins || (self.under_way[i] && !is_over);
        }
        (!words.is_empty()).then(|| words.join(" "))
    }

    /// The median of the last norms, if there are enough.
    fn median(&self) -> Option<f64> {
        let mut norms: Vec<f64> = self.norms.iter().copied().collect();
        norms.sort_unstable_by(f64::total_cmp);
        norms.get(norms.len() / 2).copied().filter(|_| norms.len() >= NORMS[1])
    }
}

/// A trouble in words.
fn say(trouble: usize, record: &LanguageRecord, times: f64) -> String {
    match trouble {
        0 => "Every completion is cut off before it ends: imitation first, a larger \
              generation.max_new_tokens or reward.overlong_buffer may help."
            .to_string(),
        1 => "In no group is one completion worth more than another, so that nothing is learnt: easier \
              prompts, imitation first or a higher temperature may help."
            .to_string(),
        2 => format!(
            "The policy has {:.4} nats of entropy a token left and hardly tries anything: \
             loss.entropy_coef, a lower learning rate or a higher temperature may help.",
            record.sampling_entropy
        ),
        3 => format!(
            "The gradient's norm is {:.3}, {times:.0} times its median: a lower learning rate or a \
             smaller update.max_grad_norm may help.",
            record.grad_norm
        ),
        _ => format!(
            "{} completions have no reward: {}.",
            record.problems,
            record.problem.as_deref().unwrap_or("the verifier does not say why")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> LanguageRecord {
        LanguageRecord {
            reward: 0.4,
            truncated: 0.1,
            zero_variance_groups: 0.2,
            sampling_entropy: 1.0,
            grad_norm: 0.5,
            ..LanguageRecord::default()
        }
    }

    /// A record by how bad something is.
    type Trouble = fn(f64) -> LanguageRecord;

    /// What is said of each record.
    fn said(records: &[LanguageRecord]) -> Vec<Option<String>> {
        let mut health = Health::new(&[Part::new("exact", 0.8), Part::new("style", -1.0)]);
        records.iter().map(|record| health.see(record)).collect()
    }

    #[test]
    fn a_trouble_is_named_when_it_begins_and_again_after_it_was_over() {
        let troubles: [(Trouble, &str); 3] = [
            (|x| LanguageRecord { truncated: x, ..healthy() }, "is cut off"),
            (|x| LanguageRecord { zero_variance_groups: x, ..healthy() }, "nothing is learnt"),
            (|x| LanguageRecord { sampling_entropy: 0.025 - 0.02 * x, ..healthy() }, "0.0050 nats"),
        ];
        for (record, words) in troubles {
            let said = said(&[0.1, 1.0, 1.0, 0.7, 1.0, 0.2, 1.0].map(record));
            let named: Vec<usize> = (0..7).filter(|i| said[*i].is_some()).collect();
            assert_eq!(named, [1, 6], "{said:?}");
            assert!(said[1].as_ref().unwrap().contains(words), "{said:?}");
        }
    }

    #[test]
    fn whoever_is_right_may_be_sure() {
        let sure = LanguageRecord {
            zero_variance_groups: 1.0,
            sampling_entropy: 0.001,
            reward: 0.79,
            ..healthy()
        };
        assert_eq!(said(std::slice::from_ref(&sure)), [None]);
        let wrong = LanguageRecord { reward: 0.2, ..sure };
        let words = said(&[wrong])[0].clone().unwrap();
        assert!(words.contains("nothing is learnt") && words.contains("nats"), "{words}");
    }

    #[test]
    fn a_norm_far_above_the_usual_is_named_but_not_where_the_loss_is_another() {
        let of = |grad_norm: f64| LanguageRecord { grad_norm, ..healthy() };
        let fit = |grad_norm: f64| LanguageRecord { fit: true, grad_norm, ..healthy() };
        let mut records: Vec<_> = (0..10).map(|i| of(0.4 + 0.02 * f64::from(i))).collect();
        records.extend([of(0.0), of(4.0), of(7.0), of(8.0), of(0.5), of(6.0)]);
        let named = said(&records);
        let at: Vec<usize> = (0..records.len()).filter(|i| named[*i].is_some()).collect();
        assert_eq!(at, [12, 15], "{named:?}");
        assert!(named[12].as_ref().unwrap().contains("is 7.000, 14 times"), "{named:?}");
        // Too few norms to know what is usual; and rewards have others than imitation.
        assert_eq!(said(&[of(0.1), of(9.0)]), [None, None]);
        let mut records = vec![fit(0.1); 20];
        records.push(of(9.0));
        assert_eq!(said(&records).last(), Some(&None));
        records[20] = fit(9.0);
        assert!(said(&records)[20].is_some());
    }

    #[test]
    fn a_verifier_that_knows_nothing_is_quoted() {
        let record = LanguageRecord {
            problems: 3,
            problem: Some("the verifier reported: \"no\"".to_string()),
            ..healthy()
        };
        let words = said(&[record])[0].clone();
        let expected = "3 completions have no reward: the verifier reported: \"no\".";
        assert_eq!(words.as_deref(), Some(expected));
    }
}
