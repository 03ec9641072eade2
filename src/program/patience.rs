//! A message on stderr for work that takes longer than a second; in a terminal with the time that it has taken.

use super::say::{self, say};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Delay before the message.
const SHORT: Duration = Duration::from_secs(1);
/// Interval at which the message is redrawn.
const TICK: Duration = Duration::from_millis(125);

/// Does some work, and prints `what` it is on stderr if it takes longer than a second.
pub fn patiently<T>(what: &str, work: impl FnOnce() -> T) -> T {
    after(SHORT, what, work)
}

/// Does the work of a rank as [`patiently`] does; only the first rank prints.
pub fn patiently_at<T>(is_first: bool, what: &str, work: impl FnOnce() -> T) -> T {
    if is_first { patiently(what, work) } else { work() }
}

/// Does some work, and prints a line on stderr if it takes longer than this time.
pub fn after<T>(time: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    telling(time, |done| show(what, time, done), work)
}

/// Prints a line or, in a terminal, shows it until the work is done, with a clock that starts at `begun`.
fn show(what: &str, begun: Duration, done: &Receiver<()>) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if bar.is_hidden() || say::is_silent() {
        return say!("{what}");
    }
    let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
    bar.set_style(style.expect("the template is valid"));
    bar.set_elapsed(begun);
    bar.set_message(what.to_string());
    bar.enable_steady_tick(TICK);
    let _ = done.recv();
    bar.finish_and_clear();
}

/// Does some work, and calls `tell` meanwhile if it takes longer than this time. The channel that `tell` gets closes when
/// the work is done.
fn telling<T>(
    time: Duration,
    tell: impl FnOnce(&Receiver<()>) + Send,
    work: impl FnOnce() -> T,
) -> T {
    std::thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        scope.spawn(move || {
            if waiting.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                tell(&waiting);
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
        telling(Duration::ZERO, |_| tell.send(()).unwrap(), || told.recv().unwrap());
        telling(Duration::MAX, |_| panic!("the work took no time"), || ());
    }
}
