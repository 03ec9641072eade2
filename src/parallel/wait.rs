//! The time that a rank waits for others.

use web_time::{Duration, Instant};

/// Longest time after which a waiting rank reads the clock again; after a gap of twice that, the process was suspended.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A wait for other ranks. Time during which this process is suspended does not count, because other ranks may be threads
/// of it, or suspended with it.
pub(super) struct Wait {
    started: Instant,
    /// Time of the last look at the clock.
    last: Instant,
}

impl Wait {
    /// Starts to wait.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { started: now, last: now }
    }

    /// Returns the time waited so far. A waiting rank calls this at least once per [`POLL_INTERVAL`].
    pub fn elapsed(&mut self) -> Duration {
        self.elapsed_at(Instant::now())
    }

    fn elapsed_at(&mut self, now: Instant) -> Duration {
        let gap = now.duration_since(self.last);
        if gap > 2 * POLL_INTERVAL {
            self.started += gap;
        }
        self.last = now;
        now.duration_since(self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_suspended_process_is_no_waiting() {
        let mut wait = Wait::start();
        let start = wait.started;
        let mut elapsed =
            |seconds: f64| wait.elapsed_at(start + Duration::from_secs_f64(seconds)).as_secs_f64();
        assert_eq!([0.5, 1.0, 2.0].map(&mut elapsed), [0.5, 1.0, 2.0]);
        // A minute passes while the process is suspended, and half a second after.
        assert_eq!([62.0, 62.5].map(&mut elapsed), [2.0, 2.5]);
    }
}
