//! How a run goes: a line that fits the terminal, and a history above it, or alone where there is none.

use super::say::say;
use crate::metrics::{EvaluationRecord, HeldOut, IterationRecord};
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Lines of history that a run leaves, about.
const LINES: u32 = 20;
/// Columns of the bar, and of the longest time left with the words beside it.
const BAR: usize = 10;
const LEFT: usize = 10;
/// Columns of a terminal that does not say.
const COLUMNS: usize = 80;

/// Shows how a run goes, on stderr.
pub struct Progress {
    bar: ProgressBar,
    total: u32,
    columns: usize,
    /// The last one.
    evaluation: Option<EvaluationRecord>,
    /// The iteration of the last line of the history.
    told: u32,
}

impl Progress {
    /// The progress of a run of `total` iterations of which `done` are done.
    pub fn new(done: u32, total: u32) -> Self {
        let target = ProgressDrawTarget::stderr();
        let columns = Term::stderr().size_checked().map_or(COLUMNS, |(_, columns)| columns.into());
        let bar = ProgressBar::with_draw_target(Some(u64::from(total)), target);
        let template = format!("{{bar:{BAR}}} {{pos}}/{{len}} {{eta}} left  {{msg}}");
        bar.set_style(ProgressStyle::with_template(&template).expect("the template is valid"));
        bar.set_position(u64::from(done));
        bar.reset_eta();
        Self { bar, total, columns, evaluation: None, told: done }
    }

    /// After an iteration.
    pub fn show(&mut self, record: &IterationRecord) {
        self.evaluation = record.evaluation.or(self.evaluation);
        let Self { bar, total, columns, evaluation, told } = self;
        let (iteration, total) = (record.iteration, *total);
        let parts = parts(record, *evaluation);
        let digits = total.to_string().len();
        bar.set_position(u64::from(iteration));
        bar.set_message(fit(&parts, columns.saturating_sub(BAR + 2 * digits + 3 + LEFT)));
        let due = iteration - *told >= total / LINES || iteration == total;
        if record.evaluation.is_some() && due {
            *told = iteration;
            let room = columns.saturating_sub(2 * digits + 3);
            // Where no bar is shown, nobody looks at a terminal: the line may be as long as it is.
            match bar.is_hidden() {
                true => say!("{iteration:>digits$}/{total}  {}", fit(&parts, usize::MAX)),
                false => {
                    bar.suspend(|| say!("{iteration:>digits$}/{total}  {}", fit(&parts, room)))
                }
            }
        }
    }

    /// Takes the bar away; the history stays.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// What there is to say, most important first.
fn parts(record: &IterationRecord, evaluation: Option<EvaluationRecord>) -> Vec<String> {
    let number = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.2}"));
    let greedy = format!("greedy {}", number(evaluation.map(|evaluation| evaluation.mean_score)));
    let speed = format!("{} steps/s", short(record.steps_per_second));
    let entropy = format!("entropy {:.3}", record.entropy);
    match evaluation.and_then(|evaluation| evaluation.held_out) {
        Some(HeldOut { loss, accuracy }) => {
            let mut parts = vec![
                format!("loss {:.4}", record.loss),
                format!("held out {loss:.4}, {:.1} % right", 100.0 * accuracy),
            ];
            let played = evaluation.is_some_and(|evaluation| evaluation.episodes > 0);
            parts.extend(played.then_some(greedy));
            parts.extend([speed, entropy]);
            parts
        }
        None => {
            let score = format!("score {}", number(record.score));
            vec![score, greedy, speed, entropy, format!("kl {:.4}", record.approx_kl)]
        }
    }
}

/// A line of as many whole parts as there are columns for.
fn fit(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { "  " };
        if line.len() + gap.len() + part.len() > columns {
            break;
        }
        line = line + gap + part;
    }
    line
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_as_many_whole_parts_as_fit() {
        let parts = ["score 7.61", "greedy 7.70", "2.3M steps/s"].map(String::from);
        for (columns, line) in [
            (0, ""),
            (9, ""),
            (10, "score 7.61"),
            (22, "score 7.61"),
            (23, "score 7.61  greedy 7.70"),
            (1000, "score 7.61  greedy 7.70  2.3M steps/s"),
        ] {
            assert_eq!(fit(&parts, columns), line);
        }
    }
}
