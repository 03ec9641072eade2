//! A trained iteration, and its metrics in words.

use super::format_with_prefix;
use crate::metrics::{EvaluationRecord, HeldOutMeans, IterationRecord};
use crate::trainer::text::CompletionRecord;

/// A trained iteration of a run.
#[derive(Clone, Debug, Default)]
pub struct IterationReport {
    /// Record, as in `metrics.jsonl`.
    pub record: IterationRecord,
    /// Last evaluation, of this or an earlier iteration.
    pub evaluation: Option<EvaluationRecord>,
    /// Whether the policy was evaluated and is the best so far.
    pub is_best: bool,
    /// Number of iterations of the whole run.
    pub iterations: u32,
    /// Completions of the iteration; empty for games.
    pub completions: Vec<CompletionRecord>,
    /// Seconds left at the pace of the last iterations, if known.
    pub seconds_left: Option<f64>,
}

impl IterationReport {
    /// Formats the metrics, most important first.
    pub fn format_metrics(&self) -> Vec<String> {
        let Self { record, evaluation, .. } = self;
        let evaluation = evaluation.as_ref();
        let number = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.2}"));
        let played = evaluation.filter(|evaluation| evaluation.episodes > 0);
        let greedy = format!("greedy {}", number(played.and_then(EvaluationRecord::score)));
        let unit = if record.text.is_some() { "tokens" } else { "steps" };
        let speed = format!("{} {unit}/s", format_with_prefix(record.steps_per_second));
        let entropy = format!("entropy {:.3}", record.entropy);
        let held_out = evaluation.and_then(|evaluation| evaluation.held_out);
        let is_sft = record.text.as_ref().is_some_and(|text| text.is_sft);
        if held_out.is_none() && !is_sft {
            let score = format!("score {}", number(record.score));
            return vec![score, greedy, speed, entropy, format!("kl {:.1e}", record.approx_kl)];
        }
        let mut words = vec![format!("loss {:.4}", record.loss)];
        words.extend(held_out.map(|HeldOutMeans { loss, accuracy }| match accuracy {
            Some(accuracy) => format!("held out {loss:.4}, accuracy {:.1} %", 100.0 * accuracy),
            None => format!("held out {loss:.4}"),
        }));
        words.extend(played.map(|_| greedy));
        words.extend([speed, entropy]);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LanguageRecord;

    #[test]
    fn progress_lines_depend_on_the_kind_of_run() {
        let words = |record: &IterationRecord, evaluation: Option<&EvaluationRecord>| {
            let (record, evaluation) = (record.clone(), evaluation.cloned());
            IterationReport { record, evaluation, ..IterationReport::default() }
                .format_metrics()
                .join("  ")
        };
        let game = IterationRecord {
            score: Some(7.612),
            steps_per_second: 2.34e6,
            entropy: 0.5,
            approx_kl: 0.01,
            ..IterationRecord::default()
        };
        let played = EvaluationRecord { episodes: 5, mean_score: Some(7.7), ..Default::default() };
        let expected = "score 7.61  greedy 7.70  2.3M steps/s  entropy 0.500  kl 1.0e-2";
        assert_eq!(words(&game, Some(&played)), expected);
        let held_out = Some(HeldOutMeans { loss: 0.25, accuracy: Some(0.9966) });
        let imitation = EvaluationRecord { held_out, ..Default::default() };
        let expected = "loss 0.0000  held out 0.2500, accuracy 99.7 %  2.3M steps/s  entropy 0.500";
        assert_eq!(words(&game, Some(&imitation)), expected);
        let text = |is_sft| Some(LanguageRecord { is_sft, ..LanguageRecord::default() });
        let sft = IterationRecord { text: text(true), ..game.clone() };
        let expected = "loss 0.0000  greedy 7.70  2.3M tokens/s  entropy 0.500";
        assert_eq!(words(&sft, Some(&played)), expected);
        let grpo = IterationRecord { text: text(false), ..game };
        assert!(words(&grpo, None).starts_with("score 7.61  greedy -  2.3M tokens/s"));
    }
}
