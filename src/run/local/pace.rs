//! Estimation of a run's remaining time.

use super::Stage;
use std::collections::VecDeque;

/// Maximum number of iterations over which the pace is measured.
const PACE_ITERATIONS: usize = 30;

/// Pace of a run, from which the remaining time is estimated.
#[derive(Debug)]
pub(super) struct Pace {
    stages: Vec<Stage>,
    /// Iteration and seconds of the last iterations of the current stage.
    recent: VecDeque<(u32, f64)>,
}

impl Pace {
    /// Creates the pace of a run with these stages that continues after iteration `done`.
    pub fn new(done: u32, stages: Vec<Stage>) -> Self {
        Self { stages, recent: VecDeque::from([(done, 0.0)]) }
    }

    /// Records that `iteration` ended at `seconds`, and returns the seconds left. Later stages are assumed to be as
    /// fast as the current one.
    pub fn record_iteration(&mut self, iteration: u32, seconds: f64) -> Option<f64> {
        let begins_stage =
            self.stages.iter().any(|stage| stage.first == iteration && stage.first > 1);
        if begins_stage {
            self.recent.drain(..self.recent.len() - 1);
        }
        self.recent.push_back((iteration, seconds));
        self.recent.drain(..self.recent.len().saturating_sub(PACE_ITERATIONS));
        let (first_iteration, first_seconds) = self.recent[0];
        let count = iteration.checked_sub(first_iteration).filter(|count| *count > 0)?;
        let seconds_per_iteration = (seconds - first_seconds) / f64::from(count);
        let last_iteration = self.stages.last()?.last;
        Some(seconds_per_iteration * f64::from(last_iteration.saturating_sub(iteration)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Algorithm;

    #[test]
    fn the_time_left_follows_the_pace_of_the_current_stage() {
        let stage = |algorithm, first, last| Stage { algorithm, first, last };
        let stages = vec![stage(Algorithm::Sft, 1, 10), stage(Algorithm::Grpo, 11, 100)];
        let mut pace = Pace::new(0, stages);
        for i in 1..=10 {
            let left = pace.record_iteration(i, f64::from(i)).unwrap();
            assert_eq!(left, f64::from(100 - i));
        }
        // GRPO is slower, and only its own iterations count.
        assert_eq!(pace.record_iteration(11, 13.0), Some(3.0 * 89.0));
        for i in 12..=100 {
            let left = pace.record_iteration(i, 10.0 + 3.0 * f64::from(i - 10)).unwrap();
            assert!((left - 3.0 * f64::from(100 - i)).abs() < 1e-9);
        }
    }
}
