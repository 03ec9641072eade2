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
    telling(time, || say!("{what}"), work)
}

/// Does some work, and calls `tell` meanwhile if it takes longer than this time.
fn telling<T>(time: Duration, tell: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        scope.spawn(move || {
            // The other end goes away with the work.
            if waiting.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                tell();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_while_work_takes_longer_and_at_no_other_time() {
        let (tell, told) = channel();
        // This work takes until the message has come.
        telling(Duration::ZERO, || tell.send(()).unwrap(), || told.recv().unwrap());
        telling(Duration::MAX, || panic!("the work took no time"), || ());
    }
}
