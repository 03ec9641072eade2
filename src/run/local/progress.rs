//! Estimation of a run's remaining time.

use super::Phase;
use std::collections::VecDeque;

/// Maximum number of iterations over which the pace is measured.
const PACE_ITERATIONS: usize = 30;

/// Pace of a run, from which the remaining time is estimated.
#[derive(Debug)]
pub(super) struct Pace {
    phases: Vec<Phase>,
    /// Iteration and seconds of the last iterations of the current phase.
    recent: VecDeque<(u32, f64)>,
}

impl Pace {
    /// Creates the pace of a run with these phases that continues after iteration `done`.
    pub fn new(done: u32, phases: Vec<Phase>) -> Self {
        Self { phases, recent: VecDeque::from([(done, 0.0)]) }
    }

    /// Seconds left after `iteration`, which ended at `seconds`. Later phases are assumed to be as fast as the
    /// current one.
    pub fn seconds_left(&mut self, iteration: u32, seconds: f64) -> Option<f64> {
        let begins = self.phases.iter().any(|phase| phase.first == iteration && phase.first > 1);
        if begins {
            self.recent.drain(..self.recent.len() - 1);
        }
        self.recent.push_back((iteration, seconds));
        self.recent.drain(..self.recent.len().saturating_sub(PACE_ITERATIONS));
        let (first, then) = self.recent[0];
        let all = self.phases.last()?.last;
        let each = (seconds - then) / f64::from(iteration.checked_sub(first).filter(|n| *n > 0)?);
        Some(each * f64::from(all.saturating_sub(iteration)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_pace_of_the_current_phase() {
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
}
