//! The progress bar, and plain lines where there is no terminal.

use super::say::say;
use crate::metrics::IterationRecord;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Shows how a run goes, on stderr.
pub struct Progress {
    bar: ProgressBar,
    total: u32,
    terminal: bool,
    greedy: Option<f64>,
}

impl Progress {
    /// Of a run of `total` iterations of which `done` are done.
    pub fn new(done: u32, total: u32) -> Self {
        let bar = ProgressBar::new(u64::from(total));
        let style =
            ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}  {elapsed} gone, {eta} left")
                .expect("the template is valid");
        bar.set_style(style);
        bar.set_position(u64::from(done));
        bar.reset_eta();
        let terminal = std::io::stderr().is_terminal();
        Self { bar, total, terminal, greedy: None }
    }

    /// After an iteration.
    pub fn show(&mut self, record: &IterationRecord) {
        if let Some(evaluation) = record.evaluation {
            self.greedy = Some(evaluation.mean_score);
        }
        let number = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.2}"));
        let message = format!(
            "score {} greedy {}  {} steps/s  entropy {:.3}  kl {:.4}",
            number(record.score),
            number(self.greedy),
            short(record.steps_per_second),
            record.entropy,
            record.approx_kl
        );
        self.bar.set_position(u64::from(record.iteration));
        self.bar.set_message(message.clone());
        if !self.terminal && record.evaluation.is_some() {
            say!("{}/{}  {message}", record.iteration, self.total);
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
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
