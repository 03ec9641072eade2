//! A message on stderr for work that takes longer than a second.

use super::say::say;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The time without a message.
const SHORT: Duration = Duration::from_secs(1);

/// Does some work, and prints `what` it is on stderr if it takes longer than a second.
pub fn patiently<T>(what: &str, work: impl FnOnce() -> T) -> T {
    after(SHORT, what, work)
}

/// Does some work, and prints a line on stderr if it takes longer than this time.
pub fn after<T>(time: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        scope.spawn(move || {
            // The other end goes away with the work.
            if waiting.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                say!("{what}");
            }
        });
        let result = work();
        drop(done);
        result
    })
}
