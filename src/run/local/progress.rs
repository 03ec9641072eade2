//! The progress of a run in words, and the time that is left.

use super::Phase;
use crate::metrics::{EvaluationRecord, HeldOut, IterationRecord};
use crate::trainer::text::CompletionRecord;
use std::collections::VecDeque;

/// Iterations over which the pace is measured at most.
const RECENT: usize = 30;

/// The state of a run after an iteration.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The record of the iteration.
    pub record: &'a IterationRecord,
    /// The last evaluation.
    pub evaluation: Option<&'a EvaluationRecord>,
    /// Iterations of the whole run.
    pub iterations: u32,
    /// Completions of the iteration, of a language model.
    pub completions: &'a [CompletionRecord],
    /// Seconds left at the pace of the last iterations; `None` after the first one.
    pub seconds_left: Option<f64>,
}

impl Progress<'_> {
    /// The figures in words, the most important ones first.
    pub fn words(&self) -> Vec<String> {
        let Self { record, evaluation, .. } = self;
        let number = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.2}"));
        let played = evaluation.filter(|evaluation| evaluation.episodes > 0);
        let greedy = format!("greedy {}", number(played.map(|evaluation| evaluation.mean_score)));
        let unit = if record.text.is_some() { "tokens" } else { "steps" };
        let speed = format!("{} {unit}/s", short(record.steps_per_second));
        let entropy = format!("entropy {:.3}", record.entropy);
        let held_out = evaluation.and_then(|evaluation| evaluation.held_out);
        let is_sft = record.text.as_ref().is_some_and(|text| text.fit);
        if held_out.is_none() && !is_sft {
            let score = format!("score {}", number(record.score));
            return vec![score, greedy, speed, entropy, format!("kl {:.4}", record.approx_kl)];
        }
        let mut words = vec![format!("loss {:.4}", record.loss)];
        words.extend(held_out.map(|HeldOut { loss, accuracy }| match accuracy {
            Some(accuracy) => format!("held out {loss:.4}, accuracy {:.1}%", 100.0 * accuracy),
            None => format!("held out {loss:.4}"),
        }));
        words.extend(played.map(|_| greedy));
        words.extend([speed, entropy]);
        words
    }
}

/// A number with a unit prefix, for instance `1.2M`.
pub fn short(x: f64) -> String {
    match x {
        x if x >= 1e9 => format!("{:.1}G", x / 1e9),
        x if x >= 1e6 => format!("{:.1}M", x / 1e6),
        x if x >= 1e3 => format!("{:.0}k", x / 1e3),
        x => format!("{x:.0}"),
    }
}

/// The pace of a run, from which the time left is estimated.
#[derive(Debug)]
pub(super) struct Pace {
    phases: Vec<Phase>,
    /// Iteration and seconds of the last iterations of the phase under way.
    recent: VecDeque<(u32, f64)>,
}

impl Pace {
    /// The pace of a run in these phases that begins after iteration `done`, at 0 seconds.
    pub fn new(done: u32, phases: Vec<Phase>) -> Self {
        Self { phases, recent: VecDeque::from([(done, 0.0)]) }
    }

    /// The seconds left after `iteration`, which ended after so many `seconds`. Phases to come are taken to be
    /// as fast as the one under way.
    pub fn seconds_left(&mut self, iteration: u32, seconds: f64) -> Option<f64> {
        let begins = self.phases.iter().any(|phase| phase.first == iteration && phase.first > 1);
        if begins {
            self.recent.drain(..self.recent.len() - 1);
        }
        self.recent.push_back((iteration, seconds));
        self.recent.drain(..self.recent.len().saturating_sub(RECENT));
        let (first, then) = self.recent[0];
        let all = self.phases.last()?.last;
        let each = (seconds - then) / f64::from(iteration.checked_sub(first).filter(|n| *n > 0)?);
        Some(each * f64::from(all.saturating_sub(iteration)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::TextRecord;

    #[test]
    fn the_time_left_follows_the_pace_of_the_phase_under_way() {
        let phase = |name, first, last| Phase { name, first, last };
        let mut pace = Pace::new(0, vec![phase("SFT", 1, 10), phase("GRPO", 11, 100)]);
        for i in 1..=10 {
            let left = pace.seconds_left(i, f64::from(i)).unwrap();
            assert_eq!(left, f64::from(100 - i));
        }
        // GRPO is slower, and only its own iterations count.
        assert_eq!(pace.seconds_left(11, 13.0), Some(3.0 * 89.0));
        for i in 12..=100 {
            let left = pace.seconds_left(i, 10.0 + 3.0 * f64::from(i - 10)).unwrap();
            assert!((left - 3.0 * f64::from(100 - i)).abs() < 1e-9);
        }
    }

    #[test]
    fn every_kind_of_run_has_its_words() {
        let words = |record: &IterationRecord, evaluation: Option<&EvaluationRecord>| {
            Progress { record, evaluation, iterations: 9, completions: &[], seconds_left: None }
                .words()
                .join("  ")
        };
        let game = IterationRecord {
            score: Some(7.612),
            steps_per_second: 2.34e6,
            entropy: 0.5,
            approx_kl: 0.01,
            ..IterationRecord::default()
        };
        let played = EvaluationRecord { episodes: 5, mean_score: 7.7, ..Default::default() };
        let expected = "score 7.61  greedy 7.70  2.3M steps/s  entropy 0.500  kl 0.0100";
        assert_eq!(words(&game, Some(&played)), expected);
        let held_out = Some(HeldOut { loss: 0.25, accuracy: Some(0.9966) });
        let told = EvaluationRecord { held_out, ..Default::default() };
        let expected = "loss 0.0000  held out 0.2500, accuracy 99.7%  2.3M steps/s  entropy 0.500";
        assert_eq!(words(&game, Some(&told)), expected);
        let text = |fit| Some(TextRecord { fit, ..TextRecord::default() });
        let sft = IterationRecord { text: text(true), ..game.clone() };
        let expected = "loss 0.0000  greedy 7.70  2.3M tokens/s  entropy 0.500";
        assert_eq!(words(&sft, Some(&played)), expected);
        let grpo = IterationRecord { text: text(false), ..game };
        assert!(words(&grpo, None).starts_with("score 7.61  greedy -  2.3M tokens/s"));
    }
}
