//! A stopwatch for time limits, which stands still while this process does not run.

use std::thread::JoinHandle;
use web_time::{Duration, Instant};

/// The longest time for which a waiting thread sleeps until it reads its stopwatch again.
pub const MAX_WAIT: Duration = Duration::from_millis(100);

/// A longer gap between two readings means that this process stood still meanwhile.
const MAX_GAP: Duration = Duration::from_secs(1);

/// A stopwatch that stands still while this process does: stopped by Ctrl-Z, frozen, or on a suspended machine.
/// Whatever it times may have stood still as well, or may have answered long ago without being read.
pub struct Stopwatch {
    elapsed: Duration,
    last_reading: Instant,
}

impl Stopwatch {
    /// Starts a stopwatch at zero.
    pub fn start() -> Self {
        Self { elapsed: Duration::ZERO, last_reading: Instant::now() }
    }

    /// Returns the time so far. A waiting thread calls this, or [`Stopwatch::next_wait`], after every [`MAX_WAIT`].
    pub fn elapsed(&mut self) -> Duration {
        self.elapsed_at(Instant::now())
    }

    /// Returns the time to wait until the next reading: the rest of `limit`, at most [`MAX_WAIT`]; `None` at its end.
    pub fn next_wait(&mut self, limit: Duration) -> Option<Duration> {
        let left = limit.saturating_sub(self.elapsed());
        (!left.is_zero()).then(|| left.min(MAX_WAIT))
    }

    fn elapsed_at(&mut self, now: Instant) -> Duration {
        let gap = now.duration_since(self.last_reading);
        // Not zero: on a machine so slow that every reading comes after such a gap, a wait would never end.
        self.elapsed += if gap > MAX_GAP { MAX_WAIT } else { gap };
        self.last_reading = now;
        self.elapsed
    }
}

/// CPU time used by a thread, whatever the load of the machine; `None` where the platform does not report it.
pub fn thread_cpu_time<T>(thread: &JoinHandle<T>) -> Option<Duration> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::thread::JoinHandleExt;
        let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
        let thread = thread.as_pthread_t() as libc::pthread_t;
        // SAFETY: the handle keeps the thread's id valid.
        let is_known = unsafe {
            libc::pthread_getcpuclockid(thread, &raw mut clock) == 0
                && libc::clock_gettime(clock, &raw mut time) == 0
        };
        is_known.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = thread;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use std::sync::mpsc::TryRecvError;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_waits_uses_no_processor_time() {
        let (wake, woken) = std::sync::mpsc::channel::<()>();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || woken.recv());
        let working =
            std::thread::spawn(move || while stopped.try_recv() == Err(TryRecvError::Empty) {});
        while thread_cpu_time(&working).unwrap() < Duration::from_millis(200) {
            std::thread::sleep(MAX_WAIT / 100);
        }
        assert!(thread_cpu_time(&waiting).unwrap() < Duration::from_millis(100));
        wake.send(()).unwrap();
        stop.send(()).unwrap();
        waiting.join().unwrap().unwrap();
        working.join().unwrap();
    }

    #[test]
    fn time_in_which_the_process_stands_still_does_not_count() {
        let mut watch = Stopwatch::start();
        let start = watch.last_reading;
        let mut elapsed =
            |seconds: f64| watch.elapsed_at(start + Duration::from_secs_f64(seconds)).as_millis();
        assert_eq!([0.5, 1.0, 2.0].map(&mut elapsed), [500, 1000, 2000]);
        // A minute passes while the process is stopped, and half a second after it.
        assert_eq!([62.0, 62.5].map(&mut elapsed), [2100, 2600]);
    }

    #[test]
    fn a_limit_is_waited_for_in_short_waits() {
        let mut watch = Stopwatch::start();
        assert_eq!(watch.next_wait(Duration::from_secs(3600)), Some(MAX_WAIT));
        assert_eq!(watch.next_wait(Duration::ZERO), None);
    }
}
