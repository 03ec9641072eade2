//! Whoever waits longer than a second is told what for.

use super::say::say;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long nobody wonders.
const SHORT: Duration = Duration::from_secs(1);

/// Does something, and says `what` it is on stderr where it takes longer than a second.
pub fn patiently<T>(what: &str, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        scope.spawn(move || {
            // The other end goes away with the work.
            if waiting.recv_timeout(SHORT) == Err(RecvTimeoutError::Timeout) {
                say!("{what}");
            }
        });
        let result = work();
        drop(done);
        result
    })
}
